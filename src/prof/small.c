// SPDX-License-Identifier: MIT
/*
 * small.c - sampled blocks that lie in slots, found by their addresses.
 *
 *     entries   | 0 | p, token, bytes, room | GONE | p, token, bytes, room | 0 | ...     by the hash of p; made anew when three quarters are used
 *
 * Why not pages of their own: the system gives a page in one to two microseconds, and a block of forty bytes then has four thousand.  Slots of the sample
 * local (heap/heap_sample.c) are near one another, have been used before, and no short way of a free meets them.
 *
 * Fork: what makes an entry one, its address, is written last, and leaves by one store; so the child, wherever the parent was, has each block once.
 *
 * Locks: LOCK_PROF; prof_small_check() is called with it.  Not here: the slots (heap_sample.c), what is counted (count.c).
 */
#include <string.h>

#include "base/align.h"
#include "os/os.h"
#include "prof/prof_internal.h"

enum { FIRST = 128 }; /* a page */
#define GONE ((uintptr_t)1)

struct entry {
    uintptr_t p; /* 0: never used */
    struct prof_small small;
};
static struct {
    struct entry *at; /* NULL: no table yet */
    uint32_t count; /* a power of two */
    uint32_t used, live; /* used: with those that are gone */
} table;

static size_t bytes_of(uint32_t count)
{
    return align_up(count * sizeof(struct entry), os_page_bytes());
}

/* The block's entry, or the one where it would be put. */
static struct entry *entry_of(uintptr_t p)
{
    struct entry *gone = NULL;
    for (uint32_t i = (uint32_t)(p * UINT64_C(0x9e3779b97f4a7c15) >> 32);; i++) {
        struct entry *entry = &table.at[i & (table.count - 1)];
        if (entry->p == p)
            return entry;
        if (entry->p == 0)
            return gone ? gone : entry;
        if (entry->p == GONE && !gone)
            gone = entry;
    }
}

static void put(uintptr_t p, struct prof_small small)
{
    struct entry *entry = entry_of(p);
    table.used += entry->p == 0;
    table.live += entry->p != p;
    entry->small = small;
    atomic_fence_signal(); /* the child of a fork */
    entry->p = p;
}

/* Room for one more.  Those that are gone do not come along. */
static bool grow(void)
{
    struct entry *was = table.at;
    uint32_t was_count = table.count, count = !was ? FIRST : table.live * 2 < was_count ? was_count : was_count * 2;
    void *start;
    if (was && (table.used + 1) * UINT64_C(4) < was_count * UINT64_C(3))
        return true;
    if (os_map(bytes_of(count), os_page_bytes(), &start) != 0)
        return false;
    os_name(start, bytes_of(count), "quire:profile");
    table.at = start;
    atomic_fence_signal(); /* as in table.c: never a count for the smaller table */
    table.count = count;
    table.used = table.live = 0;
    for (uint32_t i = 0; i < was_count; i++)
        if (was[i].p > GONE)
            put(was[i].p, was[i].small);
    if (was)
        (void)os_unmap(was, bytes_of(was_count));
    return true;
}

bool prof_small_put(const void *p, struct prof_small small)
{
    lock_take(&prof_lock);
    bool has_room = grow();
    if (has_room)
        put((uintptr_t)p, small);
    lock_drop(&prof_lock);
    return has_room;
}

static struct entry *find(const void *p)
{
    struct entry *entry = table.at ? entry_of((uintptr_t)p) : NULL;
    return entry && entry->p == (uintptr_t)p ? entry : NULL;
}

static struct prof_small found(const void *p, bool take)
{
    lock_take(&prof_lock);
    struct entry *entry = find(p);
    struct prof_small small = entry ? entry->small : (struct prof_small){0, 0, 0};
    if (entry && take) {
        entry->p = GONE;
        table.live--;
    }
    lock_drop(&prof_lock);
    return small;
}

struct prof_small prof_small_find(const void *p)
{
    return found(p, false);
}

struct prof_small prof_small_take(const void *p)
{
    return found(p, true);
}

size_t prof_small_table_bytes(void)
{
    return bytes_of(table.count);
}

const char *prof_small_check(void)
{
    for (uint32_t i = 0; i < table.count; i++)
        if (table.at[i].p > GONE && (table.at[i].small.token == 0 || find((const void *)table.at[i].p) != &table.at[i]))
            return "profile PR3";
    return NULL;
}

void prof_small_reset(void)
{
    if (table.at)
        (void)os_unmap(table.at, bytes_of(table.count));
    memset(&table, 0, sizeof table);
}
