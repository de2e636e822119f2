// SPDX-License-Identifier: MIT
/*
 * rule.c - rules of frames, kept: each is found once for a return address, and then looked up.
 *
 *     kept[hash(ip)]   { ip ^ rule | rule }        a rule is a word
 *
 * Two words a place, the first mixed with the second, so that a reader sees either a whole rule or none.  Another file loaded where one was unloaded would
 * be stepped by wrong rules: wrong names at worst, for a walk reads only what it may.
 *
 * Locks: none.  Not here: where rules come from (cfi.c), walks (walk.c).
 */
#include "prof/prof_internal.h"

enum { RULES_LOG2 = 11, RULES = 1 << RULES_LOG2 };

static struct {
    atomic_u64 mixed, rule; /* mixed: ip ^ rule */
} kept[RULES];

/* kind 3 bits, by_fp 1, cfa 24, two times 18 of words */
static uint64_t packed(struct prof_rule rule)
{
    return (uint64_t)rule.kind | (uint64_t)rule.by_fp << 3 | (uint64_t)rule.cfa_bytes << 4 | (uint64_t)rule.fp_words << 28 | (uint64_t)rule.ip_words << 46;
}

static struct prof_rule unpacked(uint64_t word)
{
    return (struct prof_rule){word & 7, word >> 3 & 1, word >> 4 & 0xffffff, word >> 28 & 0x3ffff, (uint32_t)(word >> 46)};
}

static unsigned place_of(uintptr_t ip)
{
    return (unsigned)(ip * UINT64_C(0x9e3779b97f4a7c15) >> (64 - RULES_LOG2));
}

bool prof_rule_find(uintptr_t ip, struct prof_rule *rule)
{
    unsigned place = place_of(ip);
    uint64_t word = u64_load_relaxed(&kept[place].rule);
    *rule = unpacked(word);
    return (u64_load_relaxed(&kept[place].mixed) ^ word) == ip;
}

struct prof_rule prof_rule_learn(uintptr_t ip)
{
    unsigned place = place_of(ip);
    struct prof_rule rule = prof_rule_of(ip);
    uint64_t word = packed(rule);
    u64_store_relaxed(&kept[place].rule, word);
    u64_store_relaxed(&kept[place].mixed, ip ^ word);
    return rule;
}

void prof_rules_forget(void)
{
    for (unsigned place = 0; place < RULES; place++) {
        u64_store_relaxed(&kept[place].mixed, 0);
        u64_store_relaxed(&kept[place].rule, 0);
    }
}
