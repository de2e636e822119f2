// SPDX-License-Identifier: MIT
/*
 * slab.c - the slab against whatever malloc is loaded, one workload, one allocator and one process at a time.
 *
 *     slab --workload stress --threads 4                                            the slab
 *     LD_PRELOAD=libmimalloc.so.2 slab --workload stress --threads 4 --allocator malloc --json
 *
 *   workload   what                                                               in
 *   stress     the Array Allocator's stress test: blocks, strides, refills        slab_speed.c
 *   sizes      the same for elements of 8 to 8200 bytes
 *   replace    `count` elements live, a random one freed and allocated again
 *   single     alloc + free under the promise of one thread at a time
 *   pairs      the same without the promise
 *   remote     every free by another thread                                       slab_remote.c
 *   exchange   the same, each thread for the next in a ring
 *   burst      a million 1 KiB elements at once, cold and warm                    slab_burst.c
 *   full       what a million elements cost, and what stays when they are gone    slab_memory.c
 *   fragment   what is held when a random tenth lives on and churns
 *   many       a thousand slabs of one element each
 *   idle       a thousand threads that used ten slabs once
 *
 * Times are CPU time of the threads, warm-ups are not counted, everything random is from a fixed seed.  The caller interleaves processes and
 * takes medians (quire bench seeds, README.md here).
 * Not here: the workloads, what they share (slab_common.c, slab_driver.h).
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "slab_driver.h"

static const struct workload {
    const char *name;
    void (*run)(const struct slab_config *config);
    bool without; /* also without an allocator: none, touch */
} workloads[] = {{"stress", slab_stress, true},     {"sizes", slab_sizes, true}, {"single", slab_single, false},
                 {"replace", slab_replace, true},
                 {"pairs", slab_single, false},     {"remote", slab_remote, false},    {"exchange", slab_remote, false}, {"burst", slab_burst, true},
                 {"full", slab_full, false},        {"fragment", slab_fragment, false}, {"many", slab_many, false},
                 {"idle", slab_idle, false}};

static const struct option options[] = {{"workload", required_argument, NULL, 'w'},   {"allocator", required_argument, NULL, 'a'},
                                        {"threads", required_argument, NULL, 't'},    {"element", required_argument, NULL, 'e'},
                                        {"batch", required_argument, NULL, 'b'},      {"count", required_argument, NULL, 'c'},
                                        {"round", required_argument, NULL, 'o'},      {"rounds", required_argument, NULL, 'r'},
                                        {"defrag", no_argument, NULL, 'd'},           {"single", no_argument, NULL, 's'},
                                        {"single-calls", no_argument, NULL, 'l'},     {"file", required_argument, NULL, 'f'},
                                        {"decay", no_argument, NULL, 'y'},
                                        {"json", no_argument, NULL, 'j'},             {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static const char usage[] = "usage: slab --workload NAME [--allocator slab|malloc|none|touch] [options]\n"
                            "  workloads     stress sizes replace single pairs remote exchange burst full fragment many idle\n"
                            "  --allocator   slab (default); malloc: whichever is loaded; none: stress, sizes, replace; touch: burst\n"
                            "  --threads N   default 1, remote and exchange 2, idle 1000      --element BYTES   size of an element\n"
                            "  --batch N     default 1; more: by the slab's batch calls   --single-calls   never by those\n"
                            "  --count N     elements (a thread in stress and sizes)      --rounds N       how often\n"
                            "  --round N     fragment: elements freed and allocated in a round, default 1 % of all\n"
                            "  --defrag      a slab with the defragmenter on              --single         one with the promise of one thread\n"
                            "  --decay       memory: look again after two decays          --json           one object a row\n"
                            "  --file DIR    a slab whose pages are files there, shared with children\n";

static void allocator_set(struct slab_config *config, const char *name)
{
    bool burst = config->workload && strcmp(config->workload, "burst") == 0;
    if (strcmp(name, "slab") == 0)
        config->kind = KIND_SLAB;
    else if (strcmp(name, "malloc") == 0)
        config->kind = KIND_MALLOC;
    else if (strcmp(name, burst ? "touch" : "none") == 0)
        config->kind = KIND_NONE;
    else
        bench_usage("no such allocator for this workload", "--allocator slab or --allocator malloc");
}

static const char *options_read(struct slab_config *config, int argc, char **argv)
{
    const char *allocator = "slab";
    opterr = 0; /* the message is ours */
    size_t *const numbers[] = {['t'] = &config->threads, ['e'] = &config->element_bytes, ['b'] = &config->batch,
                               ['c'] = &config->count,   ['o'] = &config->round,         ['r'] = &config->rounds};
    bool *const flags[] = {['d'] = &config->defrag, ['s'] = &config->single, ['l'] = &config->single_calls, ['y'] = &config->decay, ['j'] = &config->json};
    for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (letter == '?') {
            char message[128];
            snprintf(message, sizeof message, "%.60s is no option, or lacks its value", argv[optind - 1]);
            bench_usage(message, "slab --help");
        }
        if (letter == 'h') {
            fputs(usage, stdout);
            exit(0);
        }
        if (letter == 'w')
            config->workload = optarg;
        else if (letter == 'a')
            allocator = optarg;
        else if (letter == 'f')
            config->file = optarg;
        else if (optarg)
            *numbers[letter] = bench_whole(optarg);
        else
            *flags[letter] = true;
    }
    if (optind < argc)
        bench_usage("a word that belongs to no option", "slab --help");
    return allocator;
}

int main(int argc, char **argv)
{
    struct slab_config config = {.batch = 1};
    const char *allocator = options_read(&config, argc, argv);
    const struct workload *workload = NULL;
    for (size_t i = 0; i < sizeof workloads / sizeof workloads[0]; i++)
        if (config.workload && strcmp(config.workload, workloads[i].name) == 0)
            workload = &workloads[i];
    if (!workload)
        bench_usage("it needs a workload that there is", "slab --workload stress   (slab --help names them all)");
    allocator_set(&config, allocator);
    if (config.kind == KIND_NONE && !workload->without)
        bench_usage("this workload says nothing without an allocator", "--allocator slab");
    if (config.threads == 0)
        config.threads = workload->run == slab_remote ? 2 : 1;
    if (config.single && config.threads > 1)
        bench_usage("--single promises one thread, --threads asks for more", "--threads 1");
    workload->run(&config);
    return 0;
}
