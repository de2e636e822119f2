// SPDX-License-Identifier: MIT
/*
 * prof_internal.h - what the files of prof/ know of each other.
 */
#ifndef QUIRE_PROF_PROF_INTERNAL_H
#define QUIRE_PROF_PROF_INTERNAL_H

#include "base/compiler.h"
#include "base/lock.h"
#include "os/os_frame.h"
#include "prof/prof.h"

C_DECLARATIONS_BEGIN

/* ---- points.c ---- */
void prof_points_begin(struct prof_points *points, uint64_t every_bytes, uint64_t seed);
/* How many points lie in a block of so many bytes, which comes next. */
uint64_t prof_points_in(struct prof_points *points, uint64_t every_bytes, uint64_t bytes);
uint64_t prof_random(uint64_t *state); /* never 0 */

/* ---- cfi.c ---- */
/*
 * How to go from a frame to its caller's:  CFA = sp or fp, plus so much;  the caller's ip and fp lie so many words below the CFA.
 */
enum prof_rule_kind {
    RULE_END,     /* there is no caller, or nobody knows how to get there */
    RULE_PLAIN,
    RULE_SIGNAL,  /* what was interrupted: its registers lie in the frame */
    RULE_ALIGNED, /* the CFA lies at fp - cfa_bytes, the caller's fp at fp, its ip below the CFA */
    RULE_CHAINED  /* no tables: fp leads to the caller's fp and ip.  What is said of the CFA is true on x86-64; on arm64 it lies there or above */
};
struct prof_rule {
    uint32_t kind;
    uint32_t by_fp;      /* the CFA is reckoned from fp */
    uint32_t cfa_bytes;
    uint32_t fp_words, ip_words; /* 0: fp, or the ip (in lr), is where it is */
};
/* Of code at `ip`.  Code without unwind tables: the rule of frame pointers. */
struct prof_rule prof_rule_of(uintptr_t ip);

#define PROF_ADDRESS_MASK ((UINT64_C(1) << 48) - 1) /* arm64 signs return addresses above */
static inline uintptr_t prof_address(uintptr_t word)
{
    return CPU_AARCH64 ? word & PROF_ADDRESS_MASK : word;
}

/*
 * Where a frame's CFA is, by a rule that is PLAIN or CHAINED; 0: nobody knows.  `sp_is_low`: the frame's sp is known to be no higher only, because its
 * callee was CHAINED on arm64.  fp leads to where the frame keeps its caller's then, if ip is kept beside it.
 */
static inline uintptr_t prof_cfa(struct prof_rule rule, uintptr_t sp, uintptr_t fp, bool sp_is_low)
{
    enum { WORD_BYTES = sizeof(uintptr_t) };
    if (!sp_is_low || rule.by_fp)
        return (rule.by_fp ? fp : sp) + rule.cfa_bytes;
    bool is_pair = rule.fp_words > 1 && rule.ip_words + 1 == rule.fp_words;
    return is_pair && fp >= sp ? fp + rule.fp_words * WORD_BYTES : 0;
}

/* ---- rule.c ---- */
/* Rules once found are kept for a while.  False: this one is not. */
bool prof_rule_find(uintptr_t ip, struct prof_rule *rule);
struct prof_rule prof_rule_learn(uintptr_t ip);
void prof_rules_forget(void); /* other code may come to the same addresses */

/* ---- walk.c ---- */
/* Up to `most` return addresses from `call` outwards, innermost first: at least one. */
unsigned prof_walk(struct os_frame from, struct prof_call call, unsigned most, uintptr_t *ips);

/* ---- table.c ---- */
struct prof_site {
    uint32_t node;
    uint64_t live_points, all_points;
    uint64_t live_blocks16, all_blocks16; /* in 1/65536 */
};
void prof_table_reset(void);
/* The number of a stack's counters, from 1; 0: no memory.  With the lock. */
uint32_t prof_site_locked(const uintptr_t *ips, unsigned count);
struct prof_site *prof_site_at(uint32_t number);
uint32_t prof_sites(void);
unsigned prof_site_ips(const struct prof_site *site, uintptr_t ips[PROF_FRAMES_MAX]);
size_t prof_table_bytes(void);
uint32_t prof_nodes(void);
const char *prof_table_check(void);

/* ---- prof.c ---- */
extern struct prof_opts prof_opts;
extern struct lock prof_lock; /* of the counters */
/* Blocks of a sample, in 1/65536: `points` of them stand for so many. */
uint64_t prof_blocks16(uint64_t points, uint64_t every_bytes, uint64_t bytes);

C_DECLARATIONS_END
#endif
