// SPDX-License-Identifier: MIT
/*
 * bench.c - what the drivers share.
 */
#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t bench_thread_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t bench_process_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t bench_wall_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

size_t bench_rss_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    size_t kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "Rss:", 4) == 0)
            kib = strtoull(line + 4, NULL, 10);
    if (file)
        fclose(file);
    return kib * 1024;
}

size_t bench_vma_count(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    size_t lines = 0;
    for (int c; file && (c = getc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

const char *bench_malloc_name(void)
{
    static const char *const known[] = {"mimalloc", "jemalloc", "tcmalloc", "libquire-malloc"};
    Dl_info info;
    void *(*function)(size_t) = malloc;
    void *address;
    memcpy(&address, &function, sizeof address);
    if (!dladdr(address, &info) || !info.dli_fname)
        return "unknown";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strstr(info.dli_fname, known[i]))
            return known[i];
    const char *slash = strrchr(info.dli_fname, '/'), *file = slash ? slash + 1 : info.dli_fname;
    return strncmp(file, "libc.so", 7) == 0 ? "libc" : file;
}

const char *bench_text(int argc, char **argv, const char *name, const char *fallback)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return fallback;
}

bool bench_flag(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return false;
}

uint64_t bench_number(int argc, char **argv, const char *name, uint64_t fallback)
{
    const char *text = bench_text(argc, argv, name, NULL);
    if (!text)
        return fallback;
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || end == text || value == 0) {
        fprintf(stderr, "%s: %s needs a positive whole number, not \"%s\"\n", argv[0], name, text);
        exit(2);
    }
    return value;
}
