// SPDX-License-Identifier: MIT
/*
 * percpu.c - the per-CPU allocator against libc's malloc, the area map that bitmaps replaced, and other ways to count.
 *
 *     percpu --workload objects
 *     percpu --workload add --threads 8 --json
 *
 *   workload   what                                                                  in
 *   objects    a million objects, freed in four orders: the published tables         percpu_objects.c
 *   aligned    a million small objects where most holes lie at the wrong places      percpu_aligned.c
 *   churn      sizes of 4 bytes to 1 KiB freed and allocated at random               percpu_churn.c
 *   threads    the same from several threads
 *   add        adding to a counter that all threads share                            percpu_add.c
 *   list       push and pop
 *   grow       nanoseconds a call over the number of objects and of CPUs             percpu_grow.c
 *   memory     what is resident, what comes back, bookkeeping, mappings              percpu_memory.c
 *
 * Times are CPU time of the threads, warm-ups are not counted, everything random is from a fixed seed.  All allocators take turns in one process,
 * figures are medians over its rounds.
 * Not here: the workloads, what they share (percpu_common.c, percpu_driver.h).
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "percpu_driver.h"

#define ALLOCATORS (KIND_BIT(KIND_PERCPU) | KIND_BIT(KIND_MALLOC))
#define COUNTERS (KIND_BIT(KIND_PERCPU) | KIND_BIT(KIND_LOCAL) | KIND_BIT(KIND_MUTEX))
#define TUNABLE "glibc.pthread.rseq=0"

static const struct workload {
    const char *name;
    void (*run)(const struct percpu_config *config);
    unsigned kinds;
    bool threads; /* may have several */
} workloads[] = {{"objects", percpu_objects, ALLOCATORS | KIND_BIT(KIND_AREA_MAP), false},
                 {"aligned", percpu_aligned, KIND_BIT(KIND_PERCPU) | KIND_BIT(KIND_AREA_MAP), false},
                 {"churn", percpu_churn, ALLOCATORS | KIND_BIT(KIND_AREA_MAP), false},
                 {"threads", percpu_threads, ALLOCATORS, true},
                 {"add", percpu_add, COUNTERS | KIND_BIT(KIND_ATOMIC), true},
                 {"list", percpu_list, COUNTERS, true},
                 {"grow", percpu_grow, ALLOCATORS, false},
                 {"memory", percpu_memory, KIND_BIT(KIND_PERCPU), false}};

static const char *const words_of_kinds[KINDS] = {"percpu", "malloc", "area-map", "local", "atomic", "mutex"};

static const struct option options[] = {{"workload", required_argument, NULL, 'w'}, {"allocator", required_argument, NULL, 'a'},
                                        {"threads", required_argument, NULL, 't'},  {"object", required_argument, NULL, 'o'},
                                        {"count", required_argument, NULL, 'c'},    {"rounds", required_argument, NULL, 'r'},
                                        {"cpus", required_argument, NULL, 'u'},     {"written", required_argument, NULL, 'n'},
                                        {"area-count", required_argument, NULL, 'e'}, {"limit-ms", required_argument, NULL, 'l'},
                                        {"fill-mib", required_argument, NULL, 'f'},
                                        {"without-rseq", no_argument, NULL, 's'},   {"migrate", no_argument, NULL, 'm'},
                                        {"json", no_argument, NULL, 'j'},           {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static const char usage[] = "usage: percpu --workload NAME [options]\n"
                            "  workloads      objects aligned churn threads add list grow memory\n"
                            "  --allocator A  one of percpu malloc area-map local atomic mutex; default: all that the workload knows, in turn\n"
                            "  --rounds N     default 5                              --count N      objects, pairs or adds of one round\n"
                            "  --object BYTES of one size only                       --cpus N       copies; default as many as the system has\n"
                            "  --threads N    of one number of threads only          --written N    objects: written on N CPUs before they are freed\n"
                            "  --area-count N objects of the area map, default 100,000; its figures are scaled to the others' number\n"
                            "  --limit-ms N   aligned: the area map stops after so long, default 2000\n"
                            "  --fill-mib N   churn: of each copy, default 8\n"
                            "  --without-rseq threads without restartable sequences  --migrate      add, list: threads are moved all the time\n"
                            "  --json         one object a row\n";

static void options_read(struct percpu_config *config, int argc, char **argv)
{
    opterr = 0; /* the message is ours */
    size_t *const numbers[] = {['t'] = &config->threads, ['o'] = &config->object_bytes, ['c'] = &config->count,      ['r'] = &config->rounds,
                               ['u'] = &config->cpus,    ['n'] = &config->written,      ['e'] = &config->area_count, ['l'] = &config->limit_ms,
                               ['f'] = &config->fill_mib};
    bool *const flags[] = {['s'] = &config->without_rseq, ['m'] = &config->migrate, ['j'] = &config->json};
    for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (letter == '?') {
            char message[128];
            snprintf(message, sizeof message, "%.60s is no option, or lacks its value", argv[optind - 1]);
            bench_usage(message, "percpu --help");
        }
        if (letter == 'h') {
            fputs(usage, stdout);
            exit(0);
        }
        if (letter == 'w')
            config->workload = optarg;
        else if (letter == 'a') {
            config->kinds = 0;
            for (enum percpu_kind kind = 0; kind < KINDS; kind++)
                config->kinds |= strcmp(optarg, words_of_kinds[kind]) == 0 ? KIND_BIT(kind) : 0;
            config->all = false;
        } else if (optarg)
            *numbers[letter] = bench_whole(optarg);
        else
            *flags[letter] = true;
    }
    if (optind < argc)
        bench_usage("a word that belongs to no option", "percpu --help");
}

static const struct workload *workload_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof workloads / sizeof workloads[0]; i++)
        if (strcmp(name, workloads[i].name) == 0)
            return &workloads[i];
    bench_usage("it needs a workload that there is", "percpu --workload objects   (percpu --help names them all)");
}

/* The tunable is read when a process starts: this one starts again. */
static void without_rseq(char **argv)
{
    const char *tunables = getenv("GLIBC_TUNABLES");
    char text[1024];
    if (!percpu_has_rseq())
        return;
    if (tunables && strstr(tunables, TUNABLE))
        bench_die("this libc knows no " TUNABLE);
    snprintf(text, sizeof text, "%s%s" TUNABLE, tunables ? tunables : "", tunables ? ":" : "");
    setenv("GLIBC_TUNABLES", text, 1);
    execv("/proc/self/exe", argv);
    bench_die("cannot start itself again without restartable sequences");
}

int main(int argc, char **argv)
{
    struct percpu_config config = {.kinds = ~0u, .all = true};
    options_read(&config, argc, argv);
    const struct workload *workload = workload_find(config.workload);
    config.kinds &= workload->kinds;
    if (config.kinds == 0)
        bench_usage("no such allocator for this workload", "--allocator percpu");
    if (config.threads > (workload->threads ? PERCPU_THREADS_MAX : 1))
        bench_usage("more threads than this workload knows", workload->threads ? "--threads 8" : "--threads 1");
    if (config.migrate && !workload->threads)
        bench_usage("this workload has no threads to be moved", "--workload add --migrate");
    if (config.object_bytes % 4 != 0)
        bench_usage("objects are made of words of 4 bytes", "--object 64");
    config.rounds = config.rounds ? config.rounds : 5;
    if (config.rounds > ROUNDS_MAX)
        bench_usage("more than 99 rounds", "--rounds 9");
    if (config.without_rseq)
        without_rseq(argv);
    workload->run(&config);
    return 0;
}
