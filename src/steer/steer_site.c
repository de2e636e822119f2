// SPDX-License-Identifier: MIT
/*
 * steer_site.c - which site a call of malloc belongs to.
 *
 *     steer_entries[hash(return address)]   its key: found, a load or two
 *                                           0        learn: whose code is it? is it in the plan? once for each call site
 *
 * What is not in the plan is learnt too, so that it is found the next time; and a library that dlopen() brings is met at its first call.  A
 * library that goes leaves its entries: code that comes to the same addresses may be taken for it, which makes its blocks lie elsewhere, no more.
 *
 * Invariants: an entry's key and target never change; at most FILL entries are made, what comes later goes to the heap.
 *
 * Locks: steer, to make an entry; none to find one.  Not here: the plan's sites (steer_plan.c), modules (steer_module.c).
 */
#include <stddef.h>

#include "os/os.h"
#include "steer/steer_internal.h"

enum { FILL = STEER_TABLE / 4 * 3, SMALLEST_PAGE_SHIFT = 12, LEARN_EVERY = 256 };

struct steer_entry steer_entries[STEER_TABLE];
static const struct steer_entry heap_entry = {.target = TARGET_HEAP};
uint16_t steer_node_words[STEER_NODES_MAX];
uint8_t steer_pool_of[TARGET_SITE + STEER_SITES_MAX];

static struct lock steer_lock = LOCK_INIT(LOCK_STEER);
static atomic_u32 entries;

static unsigned target_of(unsigned node, uintptr_t ret)
{
    unsigned module;
    uint64_t offset;
    return steer_module_of(ret, &module, &offset) ? steer_edge_find(node, module, offset) : TARGET_HEAP;
}

static struct steer_entry *after(struct steer_entry *entry)
{
    return entry + 1 < steer_entries + STEER_TABLE ? entry + 1 : steer_entries;
}

/* A site whose pool was sent back is found as the heap's. */
static void fill(struct steer_entry *entry, uintptr_t key, unsigned target)
{
    unsigned pool_idx = target < TARGET_NODE ? steer_pool_now(target) : 0;
    entry->target = (uint16_t)(target < TARGET_NODE && pool_idx == 0 ? TARGET_HEAP : target);
    u32_store_relaxed(&entry->lane, pool_idx ? (uint32_t)offsetof(struct steer_thread, lane[pool_idx]) : 0);
    addr_store_release(&entry->key, key); /* release [steer-entry] */
    u32_add_relaxed(&entries, 1);
}

static const struct steer_entry *enter(uintptr_t key, unsigned target)
{
    struct steer_entry *entry = steer_place(key);
    lock_take(&steer_lock);
    while (addr_load_relaxed(&entry->key) != 0 && addr_load_relaxed(&entry->key) != key)
        entry = after(entry);
    bool is_full = addr_load_relaxed(&entry->key) == 0 && u32_load_relaxed(&entries) >= FILL;
    if (addr_load_relaxed(&entry->key) == 0 && !is_full)
        fill(entry, key, target);
    lock_drop(&steer_lock);
    return is_full ? &heap_entry : entry;
}

/* Behind a wrapper `ret` may be no return address, and another word each time: what lies in no file takes no place that a site may need. */
static NOINLINE const struct steer_entry *learn(unsigned node, uintptr_t ret)
{
    struct os_object file;
    bool is_code = node == 0 || os_object_of(ret, &file);
    return !is_code || u32_load_relaxed(&entries) >= FILL ? &heap_entry : enter(steer_key(node, ret), target_of(node, ret));
}

static const struct steer_entry *find(unsigned node, uintptr_t ret)
{
    uintptr_t key = steer_key(node, ret);
    for (struct steer_entry *entry = steer_place(key);; entry = after(entry)) {
        if (likely(steer_is_of(entry, key)))
            return entry;
        if (steer_is_of(entry, 0))
            return learn(node, ret);
    }
}

NOINLINE const struct steer_entry *steer_entry_of(struct steer_call call)
{
    const struct steer_entry *entry = find(0, call.ret);
    return likely(entry->target < TARGET_NODE) ? entry : steer_entry_deep(entry, call.frame);
}

void steer_entries_send_back(unsigned pool_idx)
{
    uint32_t lane = (uint32_t)offsetof(struct steer_thread, lane[pool_idx]);
    lock_take(&steer_lock);
    for (size_t i = 0; i < STEER_TABLE; i++)
        if (u32_load_relaxed(&steer_entries[i].lane) == lane)
            u32_store_relaxed(&steer_entries[i].lane, 0);
    lock_drop(&steer_lock);
}

/* This thread's own stack, and how often something else was asked about.  What the kernel said of another stack may not hold the next time: it may be gone. */
static THREAD_LOCAL struct os_stack own_stack __attribute__((tls_model("initial-exec")));
static THREAD_LOCAL uint32_t asked __attribute__((tls_model("initial-exec")));

static COLD bool is_readable(const uintptr_t *frame, const uintptr_t *up)
{
    uintptr_t end = (uintptr_t)(up + 1);
    if (likely((uintptr_t)frame >= own_stack.low) && likely(end <= own_stack.end))
        return true;
    if (asked++ % LEARN_EVERY == 0)
        os_stack_of(frame, &own_stack);
    return os_is_readable(up);
}

/*
 * Up the stack, where the way was always as long when it was recorded.  It may be another today: so what lies there is believed only if it is one of
 * the plan's return addresses for this wrapper, and a word on another page is read only if there is such a page.  One that an earlier call left there
 * may be such an address, too: then the block lies in that site's arena, no more.
 */
NOINLINE const struct steer_entry *steer_entry_deep(const struct steer_entry *entry, const uintptr_t *frame)
{
    while (entry->target & TARGET_NODE) {
        unsigned node = entry->target & (TARGET_NODE - 1);
        const uintptr_t *up = frame + steer_node_words[node];
        if (unlikely((((uintptr_t)frame ^ (uintptr_t)up) >> SMALLEST_PAGE_SHIFT) != 0) && !is_readable(frame, up))
            return &heap_entry;
        entry = find(node, *up);
        frame = up;
    }
    return entry;
}

uint32_t steer_learnt(void)
{
    return u32_load_relaxed(&entries);
}

void steer_sites_after_fork(void)
{
    (void)lock_reset_others(&steer_lock);
}
