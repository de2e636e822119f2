// SPDX-License-Identifier: MIT
/*
 * table.c - call stacks as a tree, and counters for those that were sampled.
 *
 *     node  { ip, node of the caller, its site }           1: the root, which has no ip
 *           root <- main <- parse <- value      site 1     a stack is a node: the way from there to the root
 *                              ^---- list       site 2
 *
 *     places  | 0 | 7 | 0 | 3 | ...     nodes by the hash of (caller's node, ip); twice as many when three quarters are used
 *     nodes, sites                      in chunks that never move, so that who has a number may read what is fixed without the lock
 *
 *     seen  { hash of a stack, site }   stacks that come again: one line of memory where the way through the tree is two for each frame
 *
 * Stacks share their outer frames: a new one costs two or three nodes of 16 bytes, not sixty words.
 *
 * Invariants: PR2 (prof.h).
 * Locks: what adds is called with prof.c's.  Fork: a child that was forked in the middle has a node more or less; places are published last.
 */
#include <string.h>

#include "base/align.h"
#include "base/bits.h"
#include "os/os.h"
#include "prof/prof_internal.h"

struct node {
    uintptr_t ip;
    uint32_t caller;
    uint32_t site; /* 0: nobody has counted there */
};

enum { CHUNK_BYTES = 64 << 10, CHUNKS = 256, PLACES_FIRST = 1024, SEEN_LOG2 = 8 };

/* Things of one size, numbered from 1. */
struct list {
    atomic_u32 count;
    atomic_addr chunk[CHUNKS];
};
static struct list nodes, sites;
static struct {
    uint32_t *at; /* NULL: none yet */
    uint32_t count; /* a power of two */
} places;
static struct {
    uint64_t hash; /* 0: none; two stacks of one hash of 64 bits are one here */
    uint32_t site;
} seen[1 << SEEN_LOG2];
static bool is_used; /* a process that samples nothing touches no page of all this */

static void *list_at(const struct list *list, size_t each_bytes, uint32_t number)
{
    uint32_t each = (uint32_t)(CHUNK_BYTES / each_bytes);
    return (char *)addr_load_acquire(&list->chunk[(number - 1) / each]) + (number - 1) % each * each_bytes; /* acquire [prof-chunk] */
}

/* A new one, zeroed; 0: no memory, or too many. */
static uint32_t list_add(struct list *list, size_t each_bytes)
{
    uint32_t each = (uint32_t)(CHUNK_BYTES / each_bytes), number = u32_load_relaxed(&list->count) + 1, chunk = (number - 1) / each;
    void *start;
    if (chunk >= CHUNKS)
        return 0;
    is_used = true;
    if (addr_load_relaxed(&list->chunk[chunk]) == 0) {
        if (os_map(CHUNK_BYTES, os_page_bytes(), &start) != 0)
            return 0;
        os_name(start, CHUNK_BYTES, "quire:profile");
        addr_store_release(&list->chunk[chunk], (uintptr_t)start); /* release [prof-chunk] */
    }
    memset(list_at(list, each_bytes, number), 0, each_bytes);
    u32_store_relaxed(&list->count, number);
    return number;
}

static struct node *node_at(uint32_t number)
{
    return list_at(&nodes, sizeof(struct node), number);
}

static uint32_t hash_of(uint32_t caller, uintptr_t ip)
{
    uint64_t mixed = (ip ^ (uint64_t)caller << 32 ^ caller) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32 ^ mixed >> 11);
}

static uint32_t *place_of(uint32_t caller, uintptr_t ip)
{
    uint32_t at = hash_of(caller, ip) & (places.count - 1);
    for (;; at = (at + 1) & (places.count - 1)) {
        uint32_t number = places.at[at];
        if (number == 0 || (node_at(number)->caller == caller && node_at(number)->ip == ip))
            return &places.at[at];
    }
}

static size_t places_bytes(uint32_t count)
{
    return align_up(count * sizeof *places.at, os_page_bytes());
}

/* Room for one more. */
static bool places_grow(void)
{
    uint32_t count = places.at ? 2 * places.count : PLACES_FIRST, *was = places.at, was_count = places.count;
    void *start;
    if (places.at && (u32_load_relaxed(&nodes.count) + 1) * UINT64_C(4) < places.count * UINT64_C(3))
        return true;
    if (os_map(places_bytes(count), os_page_bytes(), &start) != 0)
        return false;
    os_name(start, places_bytes(count), "quire:profile");
    places.at = start;
    atomic_fence_signal(); /* the child of a fork may find it half done: never a count for the smaller table */
    places.count = count;
    for (uint32_t number = 2; number <= u32_load_relaxed(&nodes.count); number++)
        *place_of(node_at(number)->caller, node_at(number)->ip) = number;
    if (was)
        (void)os_unmap(was, places_bytes(was_count));
    return true;
}

static uint32_t node_below(uint32_t caller, uintptr_t ip)
{
    if (!places_grow())
        return 0;
    uint32_t *place = place_of(caller, ip);
    if (*place != 0)
        return *place;
    uint32_t number = list_add(&nodes, sizeof(struct node));
    if (number != 0) {
        *node_at(number) = (struct node){ip, caller, 0};
        *place = number;
    }
    return number;
}

static uint32_t site_by_tree(const uintptr_t *ips, unsigned count)
{
    uint32_t at = u32_load_relaxed(&nodes.count) ? 1 : list_add(&nodes, sizeof(struct node));
    while (count-- > 0 && at != 0)
        at = node_below(at, ips[count]);
    if (at == 0)
        return 0;
    if (node_at(at)->site == 0) {
        uint32_t number = list_add(&sites, sizeof(struct prof_site));
        if (number == 0)
            return 0;
        prof_site_at(number)->node = at;
        node_at(at)->site = number;
    }
    return node_at(at)->site;
}

static uint64_t hash_of_stack(const uintptr_t *ips, unsigned count)
{
    uint64_t hash = count;
    for (unsigned i = 0; i < count; i++)
        hash = (hash ^ hash >> 29 ^ ips[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return hash | 1;
}

uint32_t prof_site_locked(const uintptr_t *ips, unsigned count)
{
    uint64_t hash = hash_of_stack(ips, count);
    uint64_t *known = &seen[hash >> (64 - SEEN_LOG2)].hash;
    uint32_t *site = &seen[hash >> (64 - SEEN_LOG2)].site;
    if (*known == hash)
        return *site;
    *known = 0;
    atomic_fence_signal(); /* the child of a fork finds no hash with another's site */
    *site = site_by_tree(ips, count);
    atomic_fence_signal();
    *known = *site ? hash : 0;
    return *site;
}

struct prof_site *prof_site_at(uint32_t number)
{
    return list_at(&sites, sizeof(struct prof_site), number);
}

uint32_t prof_sites(void)
{
    return u32_load_relaxed(&sites.count);
}

uint32_t prof_nodes(void)
{
    return u32_load_relaxed(&nodes.count);
}

unsigned prof_site_ips(const struct prof_site *site, uintptr_t ips[PROF_FRAMES_MAX])
{
    unsigned count = 0;
    for (uint32_t at = site->node; at > 1 && count < PROF_FRAMES_MAX; at = node_at(at)->caller)
        ips[count++] = node_at(at)->ip;
    return count;
}

static size_t list_bytes(const struct list *list)
{
    size_t chunks = 0;
    for (unsigned i = 0; i < CHUNKS; i++)
        chunks += addr_load_relaxed(&list->chunk[i]) != 0;
    return chunks * CHUNK_BYTES;
}

size_t prof_table_bytes(void)
{
    return list_bytes(&nodes) + list_bytes(&sites) + places_bytes(places.count);
}

static void list_reset(struct list *list)
{
    for (unsigned i = 0; i < CHUNKS; i++) {
        if (addr_load_relaxed(&list->chunk[i]) != 0)
            (void)os_unmap((void *)addr_load_relaxed(&list->chunk[i]), CHUNK_BYTES);
        addr_store_relaxed(&list->chunk[i], 0);
    }
    u32_store_relaxed(&list->count, 0);
}

void prof_table_reset(void)
{
    if (!is_used)
        return;
    list_reset(&nodes);
    list_reset(&sites);
    memset(seen, 0, sizeof seen);
    if (places.at)
        (void)os_unmap(places.at, places_bytes(places.count));
    places.at = NULL;
    places.count = 0;
    is_used = false;
}

const char *prof_table_check(void)
{
    for (uint32_t i = 1; i <= prof_sites(); i++) {
        const struct prof_site *site = prof_site_at(i);
        if (site->live_points > site->all_points || site->live_blocks16 > site->all_blocks16)
            return "profile PR1";
        if (site->node == 0 || site->node > prof_nodes() || node_at(site->node)->site != i)
            return "profile PR2";
    }
    for (uint32_t i = 2; i <= prof_nodes(); i++)
        if (node_at(i)->caller == 0 || node_at(i)->caller >= i)
            return "profile PR2";
    return NULL;
}
