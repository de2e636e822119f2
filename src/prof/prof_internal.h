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
    RULE_NONE,    /* not known */
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
enum { PROF_SETS_LOG2 = 9, PROF_WAYS = 4 };
extern struct CACHE_ALIGNED prof_set {
    struct {
        atomic_u64 mixed, rule; /* mixed: ip ^ rule */
    } way[PROF_WAYS];
} prof_rules_kept[1 << PROF_SETS_LOG2];

static inline struct prof_set *prof_set_of(uintptr_t ip)
{
    return &prof_rules_kept[ip * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PROF_SETS_LOG2)];
}

/* RULE_NONE: it is to be learnt.  The word is what packed() makes (rule.c). */
static ALWAYS_INLINE struct prof_rule prof_rule_find(uintptr_t ip)
{
    const struct prof_set *set = prof_set_of(ip);
    uint64_t word = 0;
    for (unsigned i = 0; i < PROF_WAYS; i++) {
        word = u64_load_relaxed(&set->way[i].rule);
        if (likely((u64_load_relaxed(&set->way[i].mixed) ^ word) == ip))
            break;
        word = 0;
    }
    uint32_t kind = word & 7, by_fp = word >> 3 & 1, cfa_bytes = word >> 4 & 0xffffff, fp_words = word >> 28 & 0x3ffff, ip_words = (uint32_t)(word >> 46);
    struct prof_rule rule = {kind, by_fp, cfa_bytes, fp_words, ip_words};
    return rule;
}

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

/* ---- small.c ---- */
struct prof_small {
    uint64_t token; /* 0: none */
    uint32_t bytes, room; /* room: of the slot in which a block like it would lie */
};
bool prof_small_put(const void *p, struct prof_small small); /* false: no memory */
struct prof_small prof_small_find(const void *p);
struct prof_small prof_small_take(const void *p);
void prof_small_reset(void);
size_t prof_small_table_bytes(void);
const char *prof_small_check(void); /* with the lock */

/* ---- count.c ---- */
extern struct prof_opts prof_opts;
extern struct lock prof_lock; /* of the counters */
/* Blocks of a sample, in 1/65536: `points` of them stand for so many. */
uint64_t prof_blocks16(uint64_t points, uint64_t every_bytes, uint64_t bytes);
/* Of a block that will be had from this stack and has so many points; 0: there was no memory for the stack, which is counted as lost. */
uint64_t prof_token(const uintptr_t *ips, unsigned count, uint64_t points);
uint64_t prof_weight(uint64_t token); /* how many bytes it stands for */
void prof_count(uint64_t token, size_t bytes, bool is_live); /* the block is there.  is_live: what is live will be taken back */
void prof_take_back(uint64_t token, size_t bytes);
void prof_resized(uint64_t token, size_t had, size_t bytes); /* a live one: it stands for another number of blocks */
bool prof_has_samples(void);
void prof_count_start(const struct prof_opts *opts);

C_DECLARATIONS_END
#endif
