// SPDX-License-Identifier: MIT
/*
 * slab_registry.c - all slabs of the process.
 *
 * Who has the registry's lock knows that no slab ends, no thread gives its caches up, and no header stops being one.
 *
 * Locks: the registry's, the lowest of the slab's.  Not here: ids (owner/registry.c), threads (slab_thread.c).
 */
#include <errno.h>

#include "base/layout.h"
#include "slab/slab_internal.h"

static uint64_t ids[SLAB_IDS_MAX / WORD_BITS];
struct registry slab_registry = {.lock = LOCK_INIT(LOCK_REGISTRY), .ids = ids, .ids_max = SLAB_IDS_MAX, .ids_from = 1};
struct quire_slab *slab_first;
atomic_u32 slab_pending, slab_any;

void slab_list_lock(void)
{
    registry_lock(&slab_registry);
    if (unlikely(u32_load_relaxed(&slab_fork_is_due) != 0))
        slab_fork_rest();
}

void slab_each(bool (*fn)(const struct quire_slab *slab, void *arg), void *arg)
{
    slab_list_lock();
    for (const struct quire_slab *slab = slab_first; slab && fn(slab, arg); slab = slab->next) {
    }
    registry_unlock(&slab_registry);
}

int slab_register(struct quire_slab *slab)
{
    slab_list_lock();
    uint32_t id = registry_id_new(&slab_registry);
    if (id != REGISTRY_FULL) {
        slab->id = id;
        if (!slab->straight)
            slab->offset = id * (uint32_t)sizeof(struct slab_cache);
        slab_gate_set(slab);
        slab->birth = ++slab_registry.births;
        slabs_push(&slab_first, slab);
        u32_store_relaxed(&slab_any, 1);
    }
    registry_unlock(&slab_registry);
    return id != REGISTRY_FULL ? 0 : -ENOMEM;
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
    slab_list_lock();
    uint32_t id = slab->id;
    if (unlikely(id == REGISTRY_FULL))
        slab_refuse(NULL, SLAB_E5, slab); /* ended by another thread at this moment */
    __atomic_store_n(&slab->offset, SLAB_OFFSET_NONE, __ATOMIC_RELAXED);
    slab_gate_set(slab);
    if (!slab->straight)
        slab_visit_all(forget, slab, true);
    slab->id = REGISTRY_FULL; /* none */
    registry_id_delete(&slab_registry, id);
    slabs_remove(&slab_first, slab);
    registry_unlock(&slab_registry);
}

static const LAYOUT struct layout_row layout[] = {
    LAYOUT_STRUCT(quire_slab), LAYOUT_FIELD(quire_slab, name), LAYOUT_FIELD(quire_slab, birth), LAYOUT_FIELD(quire_slab, next),
    LAYOUT_FIELD(quire_slab, id), LAYOUT_FIELD(quire_slab, depot.full), LAYOUT_FIELD(quire_slab, slot_bytes), LAYOUT_FIELD(quire_slab, home),
    LAYOUT_FIELD(quire_slab, headers.chunks),
    LAYOUT_STRUCT(slab_page), LAYOUT_FIELD(slab_page, slots), LAYOUT_FIELD(slab_page, slot_count), LAYOUT_FIELD(slab_page, span_steps), LAYOUT_BEHIND(slab_page, free),
    LAYOUT_STRUCT(slab_thread), LAYOUT_FIELD(slab_thread, record.next), LAYOUT_FIELD(slab_thread, count), LAYOUT_FIELD(slab_thread, caches),
    LAYOUT_STRUCT(slab_cache), LAYOUT_FIELD(slab_cache, slab), LAYOUT_FIELD(slab_cache, slots.cur), LAYOUT_FIELD(slab_cache, slots.top),
    LAYOUT_FIELD(slab_cache, slots.prev), LAYOUT_FIELD(slab_cache, slots.own),
};
static const ANCHORS struct layout_anchor anchors[] = {{"slab_first", &slab_first}};
