// SPDX-License-Identifier: MIT
/*
 * steer_site.c - which site a call of malloc belongs to.
 *
 *     steer_slots[hash(return address)] = key | target       found: a load or two
 *                                       = 0                  learn: whose code is it? is it in the plan? once for each call site
 *
 * What is not in the plan is learnt too, so that it is found the next time; and a library that dlopen() brings is met at its first call.  A
 * library that goes leaves its entries: code that comes to the same addresses may be taken for it, which makes its blocks lie elsewhere, no more.
 *
 * Invariants: an entry never changes; at most FILL entries are made, what comes later goes to the heap.
 *
 * Locks: steer, to make an entry; none to find one.  Not here: the plan's sites (steer_plan.c), modules (steer_module.c).
 */
#include "os/os.h"
#include "steer/steer_internal.h"

enum { FILL = STEER_TABLE / 4 * 3, SEEN_PAGES = 4, SMALLEST_PAGE_SHIFT = 12 };

atomic_u64 steer_slots[STEER_TABLE];
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

static void enter(uint64_t key, unsigned target)
{
    size_t at = steer_place(key);
    lock_take(&steer_lock);
    for (uint64_t word; (word = u64_load_relaxed(&steer_slots[at])) != 0 && word >> 16 != key;)
        at = (at + 1) & (STEER_TABLE - 1);
    if (u64_load_relaxed(&steer_slots[at]) == 0 && u32_load_relaxed(&entries) < FILL) {
        u32_add_relaxed(&entries, 1);
        u64_store_relaxed(&steer_slots[at], key << 16 | target);
    }
    lock_drop(&steer_lock);
}

NOINLINE unsigned steer_learn(unsigned node, uintptr_t ret)
{
    if (u32_load_relaxed(&entries) >= FILL)
        return TARGET_HEAP;
    unsigned target = target_of(node, ret);
    enter(steer_key(node, ret), target);
    return target;
}

/* The pages of stacks that the kernel was asked about last. */
static THREAD_LOCAL uintptr_t readable[SEEN_PAGES] __attribute__((tls_model("initial-exec")));

static COLD bool is_readable_page(uintptr_t address)
{
    uintptr_t page = address >> os_page_shift(), *seen = &readable[page % SEEN_PAGES];
    if (*seen != page && os_is_readable((const void *)address))
        *seen = page;
    return *seen == page;
}

/*
 * Up the stack, where the way was always as long when it was recorded.  It may be another today: so what lies there is believed only if it is one of
 * the plan's return addresses for this wrapper, and a word on another page is read only if there is such a page.
 */
NOINLINE unsigned steer_site_deep(unsigned target, const uintptr_t *frame)
{
    while (target & TARGET_NODE) {
        unsigned node = target & (TARGET_NODE - 1);
        const uintptr_t *up = frame + steer_node_words[node];
        if (unlikely((((uintptr_t)frame ^ (uintptr_t)up) >> SMALLEST_PAGE_SHIFT) != 0) && !is_readable_page((uintptr_t)up))
            return TARGET_HEAP;
        target = steer_find(node, *up);
        frame = up;
    }
    return target;
}

uint32_t steer_learnt(void)
{
    return u32_load_relaxed(&entries);
}

void steer_sites_after_fork(void)
{
    lock_reset(&steer_lock);
}
