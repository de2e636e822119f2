// SPDX-License-Identifier: MIT
/*
 * plan_main.c - quire-plan: what serves each site of a recorded program best.
 *
 *   quire-plan [--plan FILE] [--waste-percent N] [--no-arenas] PROGRAM.qrp
 *       ->  JSON on stdout, and a plan file
 *
 * Exit: 0 done (also when no site fits), 1 cannot be read or written, 2 usage.
 * Not here: names of sites (the analyser has them), which parts of the plan gain (the quire tool).
 */
#include "replay/evidence.h"
#include "replay/group.h"
#include "replay/rest.h"
#include "replay/slabs.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long u64_print;

struct request {
    const char *program_path;
    const char *plan_path;
    struct group_rules rules;
    struct slab_rules slab_rules;
    struct rest_rules rest_rules;
    bool no_arenas; // as if none fitted: to see what slabs alone would do
};

static const struct request defaults = {
    .rules = {.waste_percent = 25, .waste_slack_bytes = 1 << 20, .generation_objects_min = 8},
    .slab_rules = {.waste_percent = 25,
                   .waste_slack_bytes = 64 << 10,
                   .allocs_min = 64,
                   .live_min = 16,
                   .slot_variety_max = 4,
                   .element_bytes_max = 64 << 10,
                   .idle_slack_bytes = 256 << 10},
    .rest_rules = {.allocs_min = 64, .mean_bytes_max = 32 << 10}};

static const char *const class_names[] = {[PLAN_LEFT] = "leave alone",
                                          [PLAN_ARENA] = "arena",
                                          [PLAN_SLAB] = "slab",
                                          [PLAN_SLOT] = "recycling slot",
                                          [PLAN_HEAP] = "heap"};

static const char *const refusal_words[] = {
    [REFUSED_RARE] = "it is not among the busiest sites",
    [REFUSED_RESIZED] = "another thread resizes its objects",
    [REFUSED_FEW] = "its generations have few objects",
    [REFUSED_WASTE] = "its generations would hold much that is dead",
    [REFUSED_OPENER] = "it would open arenas for few objects",
    [REFUSED_BUDGET] = "with it all arenas together would hold too much that is dead",
    [REFUSED_CROWD] = "there are as many arenas as can be",
};

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s %s\n", what, why);
    return 1;
}

static int parse(struct request *request, int argc, char **argv) {
    static const struct option options[] = {{"plan", required_argument, NULL, 'p'},
                                            {"waste-percent", required_argument, NULL, 'w'},
                                            {"no-arenas", no_argument, NULL, 'n'},
                                            {NULL, 0, NULL, 0}};
    int option;
    bool usable = true;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        char *end = NULL;
        if (option == 'p')
            request->plan_path = optarg;
        else if (option == 'w')
            request->rules.waste_percent = (uint32_t)strtoul(optarg, &end, 10);
        else if (option == 'n')
            request->no_arenas = true;
        else
            usable = false;
        usable = usable && (end == NULL || (end != optarg && *end == '\0'));
    }
    if (!usable || optind + 1 != argc) {
        fputs("usage: quire-plan [--plan FILE] [--waste-percent N] [--no-arenas] PROGRAM.qrp\n",
              stderr);
        return 2;
    }
    request->program_path = argv[optind];
    return 0;
}

static void print_place(const char *name, int32_t place) {
    if (place == PLAN_STAYS)
        printf("\"%s\":null,", name);
    else
        printf("\"%s\":%d,", name, place);
}

static void print_sites(const struct facts *facts, const struct plan *plan) {
    const char *comma = "";
    printf("\"sites\":[");
    for (uint32_t s = 0; s < facts->sites_count; s++) {
        const struct site_facts *site = &facts->sites[s];
        if (site->allocs == 0)
            continue;
        printf("%s\n{\"site\":%u,\"allocs\":%llu,\"frees\":%llu,\"frees_elsewhere\":%llu,"
               "\"resizes\":%llu,\"bytes\":%llu,\"largest_bytes\":%llu,",
               comma, s, (u64_print)site->allocs, (u64_print)site->frees,
               (u64_print)site->frees_elsewhere, (u64_print)site->resizes, (u64_print)site->bytes,
               (u64_print)site->largest_bytes);
        printf("\"peak_live\":%llu,\"peak_live_bytes\":%llu,\"generations\":%llu,\"threads\":%u,",
               (u64_print)site->peak_live, (u64_print)site->peak_live_bytes,
               (u64_print)site->generations, site->threads);
        print_place("arena", plan->arena_of_site[s]);
        print_place("slab", plan->slab_of_site[s]);
        const char *refused = refusal_words[plan->refusal_of_site[s]];
        printf("\"no_arena\":%s%s%s,", refused ? "\"" : "", refused ? refused : "null",
               refused ? "\"" : "");
        printf("\"class\":\"%s\"}", class_names[plan->class_of_site[s]]);
        comma = ",";
    }
    printf("]");
}

static void print_arenas(const struct forecast *forecast, const struct plan *plan,
                         const struct evidence_all *evidence) {
    const char *comma = "";
    printf("\"arenas\":[");
    for (uint32_t a = 0; a < plan->arenas; a++) {
        const struct forecast_arena *arena = &forecast->arenas[a];
        if (arena->objects == 0)
            continue;
        printf("%s\n{\"arena\":%u,\"kept\":%s,\"peak_bytes\":%llu,\"instances\":%u,", comma, a,
               plan->kept_of_arena[a] ? "true" : "false", (u64_print)arena->peak_bytes,
               arena->instances);
        evidence_print(&evidence->subjects[a]);
        printf("}");
        comma = ",";
    }
    printf("],");
}

/* Busy sites without an arena, and what speaks against one. */
static void print_refused(const struct evidence_all *evidence) {
    const char *comma = "";
    printf("\"refused\":[");
    for (uint32_t i = evidence->arenas; i < evidence->count; i++) {
        printf("%s\n{\"site\":%u,", comma, evidence->subjects[i].site);
        evidence_print(&evidence->subjects[i]);
        printf("}");
        comma = ",";
    }
    printf("],");
}

static void print_slabs(const struct forecast *forecast, const struct plan *plan) {
    printf("\"slabs\":[");
    const char *comma = "";
    for (uint32_t i = 0; i < plan->slabs; i++) {
        const struct forecast_slab *slab = &forecast->slabs[i];
        if (slab->objects == 0)
            continue;
        printf("%s\n{\"slab\":%u,\"element_bytes\":%u,\"objects\":%llu,\"peak_live\":%llu}",
               comma, i, plan->element_bytes[i], (u64_print)slab->objects,
               (u64_print)slab->peak_live);
        comma = ",";
    }
    printf("],");
}

/* The bounds that the caller applies to the sites of one line together. */
static void print_rules(const struct rest_rules *rules) {
    printf("\"rules\":{\"allocs_min\":%llu,\"mean_bytes_max\":%llu},",
           (u64_print)rules->allocs_min, (u64_print)rules->mean_bytes_max);
}

static void print_all(const struct facts *facts, const struct plan *plan,
                      const struct forecast *forecast, const struct evidence_all *evidence) {
    printf("{\"schema\":\"quire.plan/1\",\"allocs\":%llu,\"frees\":%llu,\"resizes\":%llu,",
           (u64_print)facts->allocs, (u64_print)facts->frees, (u64_print)facts->resizes);
    printf("\"peak_live_bytes\":%llu,\"peak_planned_bytes\":%llu,\"arena_peak_bytes\":%llu,"
           "\"arena_live_peak_bytes\":%llu,\n",
           (u64_print)forecast->peak_live_bytes, (u64_print)forecast->peak_planned_bytes,
           (u64_print)forecast->arena_peak_bytes, (u64_print)forecast->arena_live_peak_bytes);
    print_rules(&defaults.rest_rules);
    print_arenas(forecast, plan, evidence);
    print_refused(evidence);
    print_slabs(forecast, plan);
    print_sites(facts, plan);
    printf("}\n");
}

static bool write_plan(const struct plan *plan, const char *path) {
    FILE *file = fopen(path, "we");
    if (!file)
        return false;
    fprintf(file, "quire-plan 1\n");
    for (uint32_t arena = 0; arena < plan->arenas; arena++)
        if (plan->kept_of_arena[arena])
            fprintf(file, "arena %u kept 1\n", arena);
    for (uint32_t slab = 0; slab < plan->slabs; slab++)
        fprintf(file, "slab %u bytes %u\n", slab, plan->element_bytes[slab]);
    for (uint32_t s = 0; s < plan->sites; s++) {
        if (plan->arena_of_site[s] != PLAN_STAYS)
            fprintf(file, "site %u arena %d\n", s, plan->arena_of_site[s]);
        else if (plan->slab_of_site[s] != PLAN_STAYS)
            fprintf(file, "site %u %s %d\n", s,
                    plan->class_of_site[s] == PLAN_SLAB ? "slab" : "slot", plan->slab_of_site[s]);
        else if (plan->class_of_site[s] == PLAN_HEAP)
            fprintf(file, "site %u heap 0\n", s);
    }
    bool written = !ferror(file);
    return fclose(file) == 0 && written;
}

/* Chooses the whole plan and prints it; `out`: what it will need. */
static void choose_and_print(struct plan *plan, struct forecast *out, const struct stream *stream,
                   const struct request *request) {
    struct facts facts;
    plan_begin(plan, stream->header->sites);
    facts_gather(&facts, stream);
    if (!request->no_arenas)
        group_sites(plan, out, stream, &facts, &request->rules);
    slab_sites(plan, &facts, &request->slab_rules);
    rest_sites(plan, &facts, &request->rest_rules);
    forecast(out, stream, plan);
    group_keep_arenas(plan, out);
    struct evidence_all evidence;
    evidence_gather(&evidence, stream, plan, &facts);
    print_all(&facts, plan, out, &evidence);
}

int main(int argc, char **argv) {
    struct request request = defaults;
    int wrong_usage = parse(&request, argc, argv);
    if (wrong_usage)
        return wrong_usage;
    struct stream stream;
    struct plan plan;
    const char *wrong = stream_open(&stream, request.program_path);
    if (wrong)
        return fail(request.program_path, wrong);
    struct forecast forecast = {
        .arenas = stream_memory(PLAN_ARENAS_MAX, sizeof *forecast.arenas),
        .openers = stream_memory(stream.header->sites, sizeof *forecast.openers),
        .slabs = stream_memory(PLAN_SLABS_MAX, sizeof *forecast.slabs)};
    choose_and_print(&plan, &forecast, &stream, &request);
    if (fflush(stdout) != 0)
        return fail("quire-plan", "cannot write its result");
    if (request.plan_path && !write_plan(&plan, request.plan_path))
        return fail(request.plan_path, "cannot be written");
    return 0;
}
