// SPDX-License-Identifier: MIT
/*
 * replay_main.c - quire-replay: one measurement of one recorded program with one allocator.
 *
 *   quire-replay [--null] [--plan FILE] [--expect-malloc LIBRARY] [--verify] [--timeline N]
 *                [--window OPS] PROGRAM.qrp -> JSON
 *
 * The allocator is the process's own: libc's, or whatever LD_PRELOAD put in its place.  Which one
 * it really is is read from the process itself, and --expect-malloc turns a wrong one into an
 * error: never a silent libc figure.
 *
 * Exit: 0 measured, 1 cannot be measured or the allocator broke objects, 2 usage.
 * Not here: rounds, medians, several allocators (the quire tool starts one process for each).
 */
#include "replay/compile.h"
#include "replay/play.h"

#include <dlfcn.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    const char *program_path;
    const char *plan_path;
    const char *expect_path;
    uint64_t samples;
    struct timeline timeline;
    struct compile_opts compile;
    struct play_opts play;
};

static int usage(void) {
    fputs("usage: quire-replay [--null] [--plan FILE] [--expect-malloc LIBRARY] [--verify] "
          "[--timeline N] [--window OPS] PROGRAM.qrp\n",
          stderr);
    return 2;
}

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s %s\n", what, why);
    return 1;
}

static bool parse_count(const char *text, uint64_t most, uint64_t *count) {
    char *end;
    *count = strtoull(text, &end, 10);
    return end != text && *end == '\0' && *text != '-' && *count > 0 && *count <= most;
}

static int parse(struct request *request, int argc, char **argv) {
    static const struct option options[] = {{"null", no_argument, NULL, 'n'},
                                            {"plan", required_argument, NULL, 'p'},
                                            {"expect-malloc", required_argument, NULL, 'e'},
                                            {"verify", no_argument, NULL, 'v'},
                                            {"timeline", required_argument, NULL, 't'},
                                            {"window", required_argument, NULL, 'w'},
                                            {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'n')
            request->play.backend = PLAY_NULL;
        else if (option == 'p')
            request->plan_path = optarg;
        else if (option == 'e')
            request->expect_path = optarg;
        else if (option == 'v')
            request->play.verify = true;
        else if (option == 'w' && parse_count(optarg, UINT64_MAX, &request->compile.window_ops))
            continue;
        else if (option != 't' || !parse_count(optarg, TIMELINE_SAMPLES_MAX, &request->samples))
            return usage();
    }
    if (optind + 1 != argc)
        return usage();
    request->program_path = argv[optind];
    return 0;
}

/* The file that malloc comes from; empty when it cannot be told. */
static void malloc_library(char path[PATH_MAX]) {
    Dl_info info;
    path[0] = '\0';
    void *address = dlsym(RTLD_DEFAULT, "malloc");
    if (address == NULL || dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return;
    if (realpath(info.dli_fname, path) == NULL)
        path[0] = '\0';
}

/* Whether the file is mapped into this process: the kernel's word, besides the loader's. */
static bool is_mapped(const char *path) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return false;
    char line[PATH_MAX + 128];
    bool found = false;
    while (!found && fgets(line, sizeof line, maps)) {
        line[strcspn(line, "\n")] = '\0';
        const char *name = strchr(line, '/');
        found = name && strcmp(name, path) == 0;
    }
    fclose(maps);
    return found;
}

/* The measurement is over: what is printed from here on may use any allocator. */
static int report(const struct play_result *result, const struct compiled *compiled,
                  const struct timeline *timeline, const char *library) {
    printf("{\"schema\":\"quire.replay-run/1\",\"malloc_library\":\"");
    for (const char *c = library; *c; c++)
        printf(*c == '"' || *c == '\\' || (unsigned char)*c < 32 ? "?" : "%c", *c);
    putchar('"');
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {
        {"cpu_ns", result->cpu_ns},
        {"wall_ns", result->wall_ns},
        {"ops", compiled->ops},
        {"ops_dropped", compiled->ops_dropped},
        {"frees_elsewhere", compiled->frees_elsewhere},
        {"windows", compiled->windows},
        {"threads", compiled->ahead.turns},
        {"lanes", compiled->ahead.lanes},
        {"arenas", compiled->ahead.instances},
        {"arena_generations", compiled->arena_generations},
        {"ops_on_slabs", compiled->ops_on_slabs},
        {"ops_on_heap", compiled->ops_on_heap},
        {"base_rss_bytes", result->base_rss_bytes},
        {"peak_rss_bytes", result->peak_rss_bytes},
        {"failures", result->failures},
        {"corrupt", result->corrupt},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        printf(",\"%s\":%llu", figures[i].name, (unsigned long long)figures[i].value);
    printf(",\"order_known\":%s", compiled->all_start ? "false" : "true");
    timeline_print(timeline, stdout);
    puts("}");
    if (fflush(stdout) != 0)
        return fail("quire-replay", "cannot write its result");
    bool mixed = compiled->ahead.instances || compiled->ops_on_slabs || compiled->ops_on_heap;
    if (result->corrupt)
        return fail(mixed ? "the advice" : library,
                    "let live objects overlap, or lost their contents");
    return 0;
}

int main(int argc, char **argv) {
    struct request request = {.play.backend = PLAY_MALLOC};
    char library[PATH_MAX];
    int wrong_usage = parse(&request, argc, argv);
    if (wrong_usage)
        return wrong_usage;
    malloc_library(library);
    if (request.expect_path) {
        char expected[PATH_MAX];
        if (realpath(request.expect_path, expected) == NULL)
            return fail(request.expect_path, "does not exist");
        if (strcmp(expected, library) != 0 || !is_mapped(expected))
            return fail(request.expect_path, "was preloaded but does not serve malloc here");
    }
    struct stream stream;
    struct plan plan;
    struct compiled compiled;
    struct play_result result;
    const char *wrong = stream_open(&stream, request.program_path);
    if (wrong)
        return fail(request.program_path, wrong);
    plan_begin(&plan, stream.header->sites);
    if (request.plan_path && (wrong = plan_read(&plan, request.plan_path)) != NULL)
        return fail(request.plan_path, wrong);
    timeline_begin(&request.timeline, (uint32_t)request.samples, library,
                   request.plan_path != NULL);
    request.play.timeline = request.compile.timeline = &request.timeline;
    wrong = compile_begin(&compiled, &stream, &plan, &request.compile);
    if (!wrong)
        wrong = play(&result, &compiled, &request.play);
    if (wrong)
        return fail(request.program_path, wrong);
    return report(&result, &compiled, &request.timeline, library);
}
