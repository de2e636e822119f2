// SPDX-License-Identifier: MIT
/*
 * slab_registry.c - all slabs of the process, and their ids.
 *
 *     slabs: newest <-> ... <-> oldest           ids: one bit each, the lowest free one is taken: threads' tables stay short
 *
 * Who has the registry's lock knows that no slab ends, no thread gives its caches up, and no header stops being one.
 *
 * Locks: the registry's, the lowest of the slab's.  Not here: threads (slab_thread.c).
 */
#include <errno.h>

#include "base/layout.h"
#include "slab/slab_internal.h"

enum { IDS_MAX = SLAB_IDS_MAX };
#define ID_NONE UINT32_MAX

static struct {
    struct lock lock;
    atomic_addr holder; /* the thread that has the lock */
    struct quire_slab *slabs;
    uint32_t ids_from; /* the first word of `ids` that may have room */
    uint64_t births;
} registry = {.lock = LOCK_INIT(LOCK_REGISTRY)};
static uint64_t ids[IDS_MAX / WORD_BITS]; /* taken */
atomic_u32 slab_pending;

void slab_registry_lock(void)
{
    lock_take(&registry.lock);
    addr_store_relaxed(&registry.holder, (uintptr_t)&slab_thread_self);
}

void slab_registry_unlock(void)
{
    addr_store_relaxed(&registry.holder, 0);
    lock_drop(&registry.lock);
}

void slab_registry_let_go(void)
{
    if (addr_load_relaxed(&registry.holder) == (uintptr_t)&slab_thread_self)
        slab_registry_unlock();
}

struct quire_slab *slab_registry_first(void)
{
    return registry.slabs;
}

void slab_each(bool (*fn)(const struct quire_slab *slab, void *arg), void *arg)
{
    slab_registry_lock();
    for (const struct quire_slab *slab = registry.slabs; slab && fn(slab, arg); slab = slab->next) {
    }
    slab_registry_unlock();
}

bool slab_registry_after_fork(void)
{
    struct quire_slab *prev = NULL;
    for (struct quire_slab *slab = registry.slabs; slab; prev = slab, slab = slab->next)
        slab->prev = prev;
    addr_store_relaxed(&registry.holder, 0);
    return lock_reset(&registry.lock);
}

static uint32_t id_new_locked(void)
{
    for (uint32_t w = registry.ids_from; w < IDS_MAX / WORD_BITS; w++) {
        uint64_t free = ~ids[w] & (w == 0 ? ~UINT64_C(1) : ~UINT64_C(0)); /* 0 is what zeroed memory says */
        if (free) {
            registry.ids_from = w;
            ids[w] |= free & -free;
            return w * WORD_BITS + bits_lowest(free);
        }
    }
    return ID_NONE;
}

static void id_delete_locked(uint32_t id)
{
    ids[id / WORD_BITS] &= ~(UINT64_C(1) << (id % WORD_BITS));
    if (id / WORD_BITS < registry.ids_from)
        registry.ids_from = id / WORD_BITS;
}

int slab_register(struct quire_slab *slab)
{
    slab_registry_lock();
    uint32_t id = id_new_locked();
    if (id != ID_NONE) {
        slab->id = id;
        if (!slab->straight)
            slab->offset = id * (uint32_t)sizeof(struct slab_cache);
        slab_gate_set(slab);
        slab->birth = ++registry.births;
        slab->prev = NULL;
        slab->next = registry.slabs;
        if (registry.slabs)
            registry.slabs->prev = slab;
        registry.slabs = slab;
    }
    slab_registry_unlock();
    return id != ID_NONE ? 0 : -ENOMEM;
}

/* The thread forgets a slab; by contract it is not inside it. */
static void forget(struct slab_thread *thread, void *slab)
{
    struct slab_cache *cache = slab_visited_cache(thread, slab);
    if (cache) {
        slab_cache_forget(cache);
        slab_cache_init(cache, NULL);
    }
}

void slab_unregister(struct quire_slab *slab)
{
    slab_registry_lock();
    uint32_t id = slab->id;
    if (unlikely(id == ID_NONE))
        slab_refuse(NULL, SLAB_E5, slab); /* ended by another thread at this moment */
    __atomic_store_n(&slab->offset, SLAB_OFFSET_NONE, __ATOMIC_RELAXED);
    slab_gate_set(slab);
    if (!slab->straight)
        slab_visit_all(forget, slab, true);
    slab->id = ID_NONE;
    id_delete_locked(id);
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        registry.slabs = slab->next;
    if (slab->next)
        slab->next->prev = slab->prev;
    slab_registry_unlock();
}

static const LAYOUT struct layout_row layout[] = {
    LAYOUT_STRUCT(quire_slab), LAYOUT_FIELD(quire_slab, name), LAYOUT_FIELD(quire_slab, birth), LAYOUT_FIELD(quire_slab, next),
    LAYOUT_FIELD(quire_slab, id), LAYOUT_FIELD(quire_slab, depot), LAYOUT_FIELD(quire_slab, slot_bytes), LAYOUT_FIELD(quire_slab, all),
    LAYOUT_STRUCT(slab_page), LAYOUT_FIELD(slab_page, slots), LAYOUT_FIELD(slab_page, slot_count), LAYOUT_FIELD(slab_page, words),
    LAYOUT_FIELD(slab_page, home), LAYOUT_FIELD(slab_page, span.bytes), LAYOUT_FIELD(slab_page, all_next), LAYOUT_BEHIND(slab_page, free),
    LAYOUT_STRUCT(slab_thread), LAYOUT_FIELD(slab_thread, next), LAYOUT_FIELD(slab_thread, count), LAYOUT_FIELD(slab_thread, caches),
    LAYOUT_STRUCT(slab_cache), LAYOUT_FIELD(slab_cache, slab), LAYOUT_FIELD(slab_cache, slots.cur), LAYOUT_FIELD(slab_cache, slots.top),
    LAYOUT_FIELD(slab_cache, slots.prev), LAYOUT_FIELD(slab_cache, slots.own),
};
static const ANCHORS struct layout_anchor anchors[] = {{"registry.slabs", &registry.slabs}};
