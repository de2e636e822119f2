// SPDX-License-Identifier: MIT
/*
 * micro.c - small programs that only allocate, for whatever malloc is preloaded: `micro --workload NAME`.
 *
 *   LD_PRELOAD=libX.so micro --workload jq --json
 *       main --> micro_jq --> micro_begin ... malloc, free ... micro_row --> {"workload":"jq","allocator":"X","cpu_ns":...}
 *
 * Invariants: M1  between micro_begin() and micro_row() the harness itself allocates nothing by malloc.
 *             M2  the choices are the same in every process: they come from bench_random() with a fixed seed.
 * Not here: the workloads (micro_*.c), running them under each allocator (tools/quire/bench/micro.py).
 */
#include "micro_driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct workload {
    const char *name;
    void (*run)(const struct micro_config *config);
    size_t threads; /* the default */
    const char *about;
};

static const struct workload workloads[] = {
    {"one", micro_one, 1, "blocks of 64 bytes, a random one of 50,000 replaced"},
    {"jq", micro_mixed, 1, "sizes and lives as recorded of jq"},
    {"python3", micro_mixed, 1, "as recorded of python3"},
    {"cc1", micro_mixed, 1, "as recorded of gcc's compiler"},
    {"replace", micro_replace, 1, "--live blocks of 64 bytes a thread, a random one replaced: cost over what lives"},
    {"producer", micro_producer, 2, "half of the threads allocate, the other half frees"},
    {"server", micro_server, 4, "threads come and go, live blocks are handed to the next"},
    {"scratch", micro_scratch, 4, "small blocks handed to threads, freed there, then written often"},
    {"thrash", micro_thrash, 4, "small blocks of each thread, written often"},
    {"realloc", micro_realloc, 1, "vectors that grow, small and large, in turn"},
    {"larger", micro_larger, 1, "buffers of 2 MiB that grow once"},
    {"work", micro_work, 1, "one of four buffers of 40,000 to 250,000 bytes replaced"},
    {"level", micro_level, 1, "one of 50 buffers of 300,000 to 1,000,000 bytes replaced, every page written"},
    {"together", micro_together, 1, "8 vectors that grow in turn, by half, to 1,000,000 bytes"},
    {"large", micro_large, 1, "64 KiB to 32 MiB, every page written"},
    {"threads", micro_threads, 8, "10,000 threads, each leaves blocks behind for others to free"},
    {"interpreter", micro_interpreter, 1, "1 to 512 bytes, 90 % die young"},
    {"sweeps", micro_sweeps, 1, "the same, garbage freed in sweeps"},
    {"session", micro_session, 1, "an interpreter loads, answers requests, gives its memory back"},
    {"flood", micro_flood, 2, "2,000,000 blocks freed by another thread, twice"},
    {"simple", micro_simple, 1, "runs of small blocks, in main, a thread and main again"},
    {"skewed", micro_skewed, 1, "1,024 live blocks, half under 8 bytes, a few of 32 KiB"},
    {"pareto", micro_pareto, 1, "262,144 places, mostly few of them emptied and filled"},
    {"again", micro_again, 1, "one block of 2 MiB again and again"},
    {"window", micro_window, 1, "a window of 10,000 blocks, all but a fifth freed when it is full"},
    {"bursts", micro_bursts, 4, "the same with 200,000 blocks, in bursts of one size"},
    {"relay", micro_relay, 2, "threads end and leave 5,000 blocks to the next"},
    {"backlog", micro_backlog, 4, "half of the threads allocate up to 400,000 blocks ahead of those that free"},
    {"cross", micro_cross, 2, "up to 16,000 bytes, a third of the blocks freed by the next thread"},
    {"swap", micro_swap, 2, "8 bytes to 512, some of MBs, exchanged with other threads"},
    {"spawn", micro_spawn, 10, "threads that live for one block"},
    {"fraction", micro_fraction, 1, "numbers of some words: a continued fraction"},
    {"cover", micro_cover, 1, "families of small sets: does a cover hold everything?"},
    {"bodies", micro_bodies, 1, "a tree of bodies, built once and walked often"},
    {"lists", micro_lists, 1, "time to walk lists that were made after churn"},
    {"trees", micro_trees, 1, "time to walk a tree that was made after churn"},
    {"objects", micro_objects, 1, "time to sweep over an interpreter's objects"},
    {"once", micro_once, 1000, "memory of threads that allocate once"},
    {"freed", micro_freed, 1, "memory two decays after everything was freed"},
    {"idle", micro_idle, 1, "memory 3 s after 1,000,000 blocks of 400 bytes were freed"},
    {"drift", micro_drift, 1, "memory by quarters while sizes drift"},
};

enum { WORKLOADS = sizeof workloads / sizeof workloads[0] };

static uint64_t begin_ns;

void micro_begin(void)
{
    begin_ns = bench_process_ns();
}

/* The most memory the process has held, without a call that allocates. */
static size_t peak_bytes(void)
{
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = 0;
    const char *line = strstr(text, "VmHWM:");
    return line ? strtoull(line + 6, NULL, 10) * 1024 : 0;
}

void micro_row(const struct micro_config *config, uint64_t ops)
{
    uint64_t cpu_ns = bench_process_ns() - begin_ns;
    size_t peak = peak_bytes();
    bench_row_open(config->json, config->workload, bench_malloc_name());
    bench_row_count("threads", config->threads);
    bench_row_count("ops", ops);
    bench_row_count("cpu_ns", cpu_ns);
    bench_row_number("ns_per_op", ops ? (double)cpu_ns / (double)ops : 0);
    bench_row_count("peak_rss_bytes", peak);
}

size_t micro_count(const struct micro_config *config, size_t usual)
{
    size_t count = usual / 100 * config->percent;
    return count ? count : 1;
}

void *micro_block(size_t bytes)
{
    char *block = malloc(bytes);
    if (!block)
        bench_die("out of memory");
    for (size_t at = 0; at == 0 || at < bytes; at += 4096)
        block[at] = 1;
    return block;
}

size_t micro_parts(const struct micro_config *config, size_t usual, void *(*run)(void *part))
{
    size_t count = micro_count(config, usual) / config->threads;
    struct micro_part *parts = bench_scratch(config->threads, sizeof *parts);
    pthread_t *threads = bench_scratch(config->threads, sizeof *threads);
    for (size_t i = 0; i < config->threads; i++) {
        parts[i] = (struct micro_part){.idx = i, .parts = config->threads, .count = count ? count : 1};
        if (config->threads > 1)
            micro_thread(&threads[i], run, &parts[i]);
    }
    if (config->threads == 1)
        run(&parts[0]);
    for (size_t i = 0; i < config->threads && config->threads > 1; i++)
        pthread_join(threads[i], NULL);
    return parts[0].count * config->threads;
}

void micro_thread(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    if (pthread_create(thread, NULL, run, arg) != 0)
        bench_die("no thread: out of memory, or over the limit of `ulimit -u`");
}

static void help(void)
{
    printf("usage: micro --workload NAME [--threads N] [--percent N] [--seconds N] [--live N] [--json]\n\n");
    for (size_t i = 0; i < WORKLOADS; i++)
        printf("  %-12s %s\n", workloads[i].name, workloads[i].about);
    printf("\nmalloc here is that of: %s\n", bench_malloc_name());
}

static const struct workload *find(const char *name)
{
    for (size_t i = 0; i < WORKLOADS; i++)
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    char text[128];
    snprintf(text, sizeof text, "there is no workload \"%.60s\"", name);
    bench_usage(text, "micro --help");
}

int main(int argc, char **argv)
{
    if (argc < 2 || bench_flag(argc, argv, "--help")) {
        help();
        return argc < 2 ? 2 : 0;
    }
    const struct workload *workload = find(bench_text(argc, argv, "--workload", ""));
    struct micro_config config = {
        .workload = workload->name,
        .threads = bench_number(argc, argv, "--threads", workload->threads),
        .percent = bench_number(argc, argv, "--percent", 100),
        .seconds = bench_number(argc, argv, "--seconds", 8),
        .live = bench_number(argc, argv, "--live", 10000),
        .json = bench_flag(argc, argv, "--json"),
    };
    workload->run(&config);
    bench_row_close();
    return 0;
}
