// SPDX-License-Identifier: MIT
/*
 * bench.c - what the drivers share.
 */
#include "bench.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static bool row_json;

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

/* A line of the sum over all mappings. */
static size_t rollup_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    size_t kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoull(line + strlen(name), NULL, 10);
    if (file)
        fclose(file);
    return kib * 1024;
}

size_t bench_rss_bytes(void)
{
    return rollup_bytes("Rss:");
}

size_t bench_anonymous_bytes(void)
{
    return rollup_bytes("Anonymous:");
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
    /* As the tool names its peers (tools/quire/peers.py). */
    static const char *const known[] = {"mimalloc", "jemalloc", "tcmalloc", "libquire-malloc", "snmalloc", "rpmalloc", "tbbmalloc", "hardened_malloc"};
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

void bench_give_back(void)
{
    /* Each by its own call, where it is loaded; libc's last, which does nothing where malloc is another's. */
    void (*collect)(bool) = NULL;
    void (*release)(void) = NULL;
    int (*control)(const char *, void *, size_t *, void *, size_t) = NULL;
    int (*trim)(size_t) = NULL;
    *(void **)&collect = dlsym(RTLD_DEFAULT, "mi_collect");
    *(void **)&release = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
    *(void **)&control = dlsym(RTLD_DEFAULT, "mallctl");
    *(void **)&trim = dlsym(RTLD_DEFAULT, "malloc_trim");
    if (collect)
        collect(true);
    if (release)
        release();
    if (control) {
        control("thread.tcache.flush", NULL, NULL, NULL, 0);
        control("arena.4096.purge", NULL, NULL, NULL, 0); /* 4096: all arenas */
    }
    if (trim)
        trim(0);
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

void bench_usage(const char *text, const char *fix)
{
    fprintf(stderr, "%s: %s\n  fix: %s\n", program_invocation_short_name, text, fix);
    exit(2);
}

void bench_die(const char *text)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
    _exit(1);
}

size_t bench_whole(const char *text)
{
    char *end, message[128], fix[64];
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value == 0 || value > 1000000000000ul) {
        snprintf(message, sizeof message, "\"%.40s\" is no whole number from 1", text);
        snprintf(fix, sizeof fix, "%.50s --help", program_invocation_short_name);
        bench_usage(message, fix);
    }
    return value;
}

void *bench_scratch(size_t count, size_t bytes)
{
    size_t total_bytes;
    if (__builtin_mul_overflow(count, bytes, &total_bytes))
        bench_die("the harness needs more memory than there is");
    void *memory = mmap(NULL, total_bytes ? total_bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        bench_die("the harness got no memory");
    for (size_t at = 0; at < total_bytes; at += 4096)
        ((volatile char *)memory)[at] = 0;
    return memory;
}

void bench_scratch_free(void *memory, size_t count, size_t bytes)
{
    size_t total_bytes = count * bytes; /* no overflow: bench_scratch() has looked */
    munmap(memory, total_bytes ? total_bytes : 1);
}

void bench_sleep_ms(uint64_t ms)
{
    struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};
    while (nanosleep(&left, &left) != 0) {
    }
}

void bench_row_open(bool json, const char *workload, const char *allocator)
{
    row_json = json;
    printf(json ? "{\"workload\":\"%s\",\"allocator\":\"%s\"" : "%-9s %-10s", workload, allocator);
}

void bench_row_text(const char *key, const char *value)
{
    printf(row_json ? ",\"%s\":\"%s\"" : "  %s %s", key, value);
}

void bench_row_count(const char *key, uint64_t value)
{
    printf(row_json ? ",\"%s\":%lu" : "  %s %lu", key, (unsigned long)value);
}

void bench_row_number(const char *key, double value)
{
    printf(row_json ? ",\"%s\":%.3f" : "  %s %.3f", key, value);
}

void bench_row_close(void)
{
    puts(row_json ? "}" : "");
    fflush(stdout);
}
