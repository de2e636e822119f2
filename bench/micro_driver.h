// SPDX-License-Identifier: MIT
/*
 * micro_driver.h - what the workloads of the driver `micro` share.
 *
 * A workload calls malloc and free and nothing of Quire's: LD_PRELOAD says whose they are.  It measures itself between micro_begin() and micro_row(),
 * which opens the row with CPU time, operations and peak memory; what else it found it adds; main() closes the row.
 */
#ifndef QUIRE_BENCH_MICRO_DRIVER_H
#define QUIRE_BENCH_MICRO_DRIVER_H

#include <pthread.h>
#include <stdlib.h>

#include "bench.h"

struct micro_config {
    const char *workload;
    size_t threads;
    size_t percent; /* of the usual number of operations */
    size_t seconds; /* `drift` alone */
    size_t live;    /* `replace` alone: blocks a thread */
    bool json;
};

void micro_begin(void);
void micro_row(const struct micro_config *config, uint64_t ops);
/* The workload's number of operations. */
size_t micro_count(const struct micro_config *config, size_t usual);
/* A block whose first byte and every OS page is written; ends the program when there is no memory. */
void *micro_block(size_t bytes);
void micro_thread(pthread_t *thread, void *(*run)(void *arg), void *arg);
/* A thread's share of a workload. */
struct micro_part {
    size_t idx, parts; /* of the threads */
    size_t count;      /* of its operations */
};

/* Runs `run` on config->threads threads, on main alone where that is one; each gets a struct micro_part.  Returns the operations of all. */
size_t micro_parts(const struct micro_config *config, size_t usual, void *(*run)(void *part));
/* Of small blocks, 1 to 512 bytes, 63 % of 48: an interpreter's objects. */
size_t micro_object_bytes(uint64_t random);

/* micro_mixed.c */
void micro_one(const struct micro_config *config);
void micro_mixed(const struct micro_config *config);
/* micro_replace.c */
void micro_replace(const struct micro_config *config);
/* micro_hand_over.c */
void micro_producer(const struct micro_config *config);
void micro_flood(const struct micro_config *config);
void micro_scratch(const struct micro_config *config);
void micro_thrash(const struct micro_config *config);
/* micro_server.c */
void micro_server(const struct micro_config *config);
void micro_threads(const struct micro_config *config);
/* micro_large.c */
void micro_realloc(const struct micro_config *config);
void micro_larger(const struct micro_config *config);
void micro_level(const struct micro_config *config);
void micro_together(const struct micro_config *config);
void micro_work(const struct micro_config *config);
void micro_large(const struct micro_config *config);
/* micro_interpreter.c */
void micro_interpreter(const struct micro_config *config);
void micro_sweeps(const struct micro_config *config);
/* micro_session.c */
void micro_session(const struct micro_config *config);
/* micro_walk.c */
void micro_lists(const struct micro_config *config);
void micro_trees(const struct micro_config *config);
void micro_objects(const struct micro_config *config);
/* micro_memory.c */
void micro_once(const struct micro_config *config);
void micro_freed(const struct micro_config *config);
void micro_idle(const struct micro_config *config);
void micro_drift(const struct micro_config *config);
/* micro_pairs.c */
void micro_simple(const struct micro_config *config);
void micro_skewed(const struct micro_config *config);
void micro_pareto(const struct micro_config *config);
void micro_again(const struct micro_config *config);
/* micro_window.c */
void micro_window(const struct micro_config *config);
void micro_bursts(const struct micro_config *config);
/* micro_cross.c */
void micro_relay(const struct micro_config *config);
void micro_backlog(const struct micro_config *config);
void micro_cross(const struct micro_config *config);
void micro_swap(const struct micro_config *config);
void micro_spawn(const struct micro_config *config);
/* micro_program.c */
void micro_fraction(const struct micro_config *config);
void micro_cover(const struct micro_config *config);
void micro_bodies(const struct micro_config *config);

#endif
