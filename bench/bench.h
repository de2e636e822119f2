// SPDX-License-Identifier: MIT
/*
 * bench.h - what the drivers share: clocks, medians, arguments, rows, memory of the harness, which malloc is really loaded.
 */
#ifndef QUIRE_BENCH_BENCH_H
#define QUIRE_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CPU time of this thread and of the process, wall time; nanoseconds. */
uint64_t bench_thread_ns(void);
uint64_t bench_process_ns(void);
uint64_t bench_wall_ns(void);
/* Sorts `values`. */
double bench_median(double *values, size_t count);
/* Resident memory of the process in bytes, from /proc/self/smaps_rollup. */
size_t bench_rss_bytes(void);
/* The same without pages of files: code that runs for the first time brings them, 64 KiB at a time. */
size_t bench_anonymous_bytes(void);
/* Lines of /proc/self/maps. */
size_t bench_vma_count(void);
/* "libc", "mimalloc" or another known one, or the file name of the library in which malloc lies. */
const char *bench_malloc_name(void);
/* Whoever serves malloc gives free memory back to the system, by the call it has for that. */
void bench_give_back(void);
/* The value of `--name VALUE` or of `--name` alone; else `fallback`.  Numbers must be whole and positive, or the program ends with status 2. */
uint64_t bench_number(int argc, char **argv, const char *name, uint64_t fallback);
const char *bench_text(int argc, char **argv, const char *name, const char *fallback);
bool bench_flag(int argc, char **argv, const char *name);
/* One line on stderr; status 2 for arguments that make no sense, with what does, 1 for what went wrong while measuring. */
_Noreturn void bench_usage(const char *text, const char *fix);
_Noreturn void bench_die(const char *text);
/* The whole number from 1 that `text` says, or bench_usage(). */
size_t bench_whole(const char *text);
/* Memory of the harness, every page of it touched: it is no part of a difference taken later. */
void *bench_scratch(size_t count, size_t bytes);
void bench_scratch_free(void *memory, size_t count, size_t bytes);
void bench_sleep_ms(uint64_t ms);

/* A row: who did what, any figures, its end.  A JSON object, or a line of words. */
void bench_row_open(bool json, const char *workload, const char *allocator);
void bench_row_text(const char *key, const char *value);
void bench_row_count(const char *key, uint64_t value);
void bench_row_number(const char *key, double value);
void bench_row_close(void);

/* Deterministic: the same choices in every process. */
static inline uint64_t bench_random(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* A number below `count`, which has at most 32 bits, from the upper half of a random one: no division, which would cost as much as what is measured. */
static inline size_t bench_below(uint64_t random, size_t count)
{
    return (size_t)((random >> 32) * count >> 32);
}

/* The compiler must believe that `p` is used. */
static inline void bench_use(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

#endif
