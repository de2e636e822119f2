// SPDX-License-Identifier: MIT
/*
 * rule.c - rules of frames, kept: each is found once for a return address, and then looked up.
 *
 *     kept   | 4 x { ip ^ rule | rule } | ...     sets by the hash of ip, a line of memory each, the youngest first; a rule is a word, 0: none
 *
 * Four places for each hash: a stack has a hundred frames that come again and again, and where more share a hash than have room each walk learns them anew.
 * Two words a place, the first mixed with the second, so that a reader sees either a whole rule or none.  Another file loaded where one was unloaded would
 * be stepped by wrong rules: wrong names at worst, for a walk reads only what it may.
 *
 * Locks: none.  Not here: where rules come from (cfi.c), walks (walk.c).
 */
#include "prof/prof_internal.h"

struct prof_set prof_rules_kept[1 << PROF_SETS_LOG2];

/* kind 3 bits, by_fp 1, cfa 24, two times 18 of words */
static uint64_t packed(struct prof_rule rule)
{
    return (uint64_t)rule.kind | (uint64_t)rule.by_fp << 3 | (uint64_t)rule.cfa_bytes << 4 | (uint64_t)rule.fp_words << 28 | (uint64_t)rule.ip_words << 46;
}

static void keep(struct prof_set *set, unsigned i, uint64_t mixed, uint64_t word)
{
    u64_store_relaxed(&set->way[i].rule, word);
    u64_store_relaxed(&set->way[i].mixed, mixed);
}

/* The oldest makes room. */
struct prof_rule prof_rule_learn(uintptr_t ip)
{
    struct prof_set *set = prof_set_of(ip);
    struct prof_rule rule = prof_rule_of(ip);
    uint64_t word = packed(rule);
    for (unsigned i = PROF_WAYS; --i > 0;)
        keep(set, i, u64_load_relaxed(&set->way[i - 1].mixed), u64_load_relaxed(&set->way[i - 1].rule));
    keep(set, 0, ip ^ word, word);
    return rule;
}

void prof_rules_forget(void)
{
    for (unsigned set = 0; set < 1 << PROF_SETS_LOG2; set++)
        for (unsigned i = 0; i < PROF_WAYS; i++)
            keep(&prof_rules_kept[set], i, 0, 0);
}
