// SPDX-License-Identifier: MIT
/*
 * bench.h - what the drivers share: clocks, medians, arguments, which malloc is really loaded.
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
/* Lines of /proc/self/maps. */
size_t bench_vma_count(void);
/* "libc", "mimalloc", "jemalloc", "tcmalloc" or the file name of the library in which malloc lies. */
const char *bench_malloc_name(void);
/* The value of `--name VALUE` or of `--name` alone; else `fallback`.  Numbers must be whole and positive, or the program ends with status 2. */
uint64_t bench_number(int argc, char **argv, const char *name, uint64_t fallback);
const char *bench_text(int argc, char **argv, const char *name, const char *fallback);
bool bench_flag(int argc, char **argv, const char *name);
/* The compiler must believe that `p` is used. */
static inline void bench_use(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

#endif
