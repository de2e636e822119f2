// SPDX-License-Identifier: MIT
/*
 * slab.c - elements of one size: making a slab, ending it, and the short way of an allocation.
 *
 *     thread --- caches[slab's id] ---> its magazine: free slots, no lock, no atomic instruction
 *                                          |        ^
 *     quire_slab_alloc(): the top one <----'        '---- quire_slab_free() (slab_free.c): the new top one
 *
 * The life of an element: (1) the magazine's top slot carries its mark: take the mark off, done; (2) else another magazine, of the thread or of the
 * slab, or slots of a page (slab_cache.c, slab_page.c); (3) no memory: every thread is asked for what it does not need (slab_trim.c), then NULL.
 *
 * Refusals, all before anything is changed:
 *   E1  an element that is free already      E2  not an address of any slab          E3  not where an element begins
 *   E4  an element of another slab           E5  what is called a slab is none       E6  released more often than acquired
 *   E7  a free slot that is about to be handed out was written to, or freed twice
 *
 * Locks: none here; see slab_thread.c.  Not here: pages (slab_page.c), looking (slab_look.c).
 */
#define QUIRE_SLAB_INLINE 0 /* here is the function itself */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/align.h"
#include "base/fail.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "pages/source_internal.h"
#include "slab/slab_gate.h"
#include "slab/slab_internal.h"
#include "slab/slab_mark.h"

enum { FLAGS_KNOWN = QUIRE_SLAB_DEFRAG | QUIRE_SLAB_SINGLE_THREAD | QUIRE_SLAB_DONT_DUMP | QUIRE_SLAB_KEEP_NOTHING | QUIRE_SLAB_EXACT, HOME_SLOTS_LEAST = 4, FILL_BYTES = 16 << 10, STRAIGHT_BYTES = 32 << 10 };

/* ---- the short way ---- */

/* The top slot, if it is as it was left; the thread is inside. */
static ALWAYS_INLINE bool alloc_short(struct slab_cache *cache, void **element)
{
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top) - 1;
    atomic_u64 *slot = (atomic_u64 *)addr_load_relaxed(top);
    if (unlikely(u64_load_relaxed(slot) != slots_mark(slot, cache->slots.key)))
        return false;
    addr_store_relaxed(&cache->slots.top, (uintptr_t)top);
    u64_store_relaxed(slot, 0);
    *element = slot;
    return true;
}

/* Another magazine of the thread's own; or the slab has no gate. */
static NOINLINE void *alloc_far(struct quire_slab *slab)
{
    uintptr_t gate = slab_enter(slab);
    struct slab_cache *near = slab_gate_cache(gate);
    void *slot;
    bool done = near != &slab_cache_none && slots_turn(&near->slots) && alloc_short(near, &slot);
    slab_leave(gate);
    if (likely(done))
        return slot;
    struct slab_thread *thread = slab_thread_self;
    struct slab_cache *cache = slab_enter_far(slab, thread);
    if (likely(cache != NULL)) {
        done = alloc_short(cache, &slot) || (slots_turn(&cache->slots) && alloc_short(cache, &slot));
        slab_leave_far(thread);
        if (likely(done))
            return slot;
    }
    return slab_alloc_lane(slab, LANE_ORDINARY);
}

/* Where the code begins in its cache line is worth a tenth of a pair: it must not depend on what stands before it. */
CACHE_ALIGNED void *quire_slab_alloc(struct quire_slab *slab)
{
    uintptr_t gate = slab_enter(slab);
    void *slot;
    if (likely(alloc_short(slab_gate_cache(gate), &slot))) {
        slab_leave(gate);
        return slot;
    }
    slab_leave(gate);
    return alloc_far(slab);
}

/* What sanitizers are told of an element that is handed out. */
static void *watched_alloc(const struct quire_slab *slab, void *element)
{
    if (unlikely(slab->watched)) {
        sanitize_begin_of_use(element);
        sanitize_undefined(element, slab->element_bytes);
    }
    return element;
}

/* What others give up may be taken by yet others first: how often to ask. */
enum { ATTEMPTS_MAX = 64 };

void *slab_take_one(struct quire_slab *slab, unsigned lane)
{
    atomic_addr slot = {0};
    slab_lock(slab);
    struct slab_page *page = slab->lane[lane].current;
    if (!page)
        page = slab_page_next(slab, lane);
    if (page) {
        slab_page_take(page, &slot, 1, 0);
        if (slot.word && !slab->straight)
            u64_store_relaxed((atomic_u64 *)slot.word, 0); /* what was its mark must not say that it is free */
        if (unlikely(lane == LANE_MARKED))
            bits_set_one(slab_marks(page), slab_slot_of(slab, page, (void *)slot.word));
        slab->lane[lane].current = page;
        if (page->free_count == 0 || u32_load_relaxed(&slab->defrag))
            slab_currents_release(slab);
    }
    slab_unlock(slab);
    return (void *)slot.word;
}

void *slab_alloc_lane(struct quire_slab *slab, unsigned lane)
{
    for (int attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        void *element = NULL, *bad = NULL;
        struct slab_cache *cache = slab_hold(slab);
        if (!cache || lane != LANE_ORDINARY)
            element = slab_take_one(slab, lane);
        else if (slab_cache_refill(cache) && unlikely(!alloc_short(cache, &element)))
            bad = (void *)addr_load_relaxed((atomic_addr *)addr_load_relaxed(&cache->slots.top) - 1); /* it is not as it was left */
        slab_drop();
        if (unlikely(bad != NULL))
            slab_refuse_slot(slab, bad);
        if (likely(element != NULL))
            return watched_alloc(slab, element);
        if (!slab_reclaim(slab, lane))
            break;
    }
    return fail_null(ENOMEM);
}

void *quire_slab_alloc_zero(struct quire_slab *slab)
{
    void *element = quire_slab_alloc(slab);
    return likely(element) ? memset(element, 0, slab->element_bytes) : NULL;
}

/* As many as the thread's current magazine has. */
static size_t alloc_some(struct quire_slab *slab, void **elements, size_t count)
{
    uintptr_t gate = slab_enter(slab);
    struct slab_cache *cache = slab_gate_cache(gate);
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top);
    uint64_t key = cache->slots.key;
    size_t got = 0;
    for (; got < count; got++, top--) {
        atomic_u64 *slot = (atomic_u64 *)addr_load_relaxed(top - 1);
        if (unlikely(u64_load_relaxed(slot) != slots_mark(slot, key)))
            break;
        u64_store_relaxed(slot, 0);
        elements[got] = slot;
    }
    if (likely(got != 0))
        addr_store_relaxed(&cache->slots.top, (uintptr_t)top);
    slab_leave(gate);
    return got;
}

size_t quire_slab_alloc_batch(struct quire_slab *slab, void **elements, size_t count)
{
    size_t got = 0;
    while ((got += alloc_some(slab, elements + got, count - got)) < count && (elements[got] = alloc_far(slab)) != NULL)
        got++;
    return got;
}

/* ---- making one ---- */

bool slab_is_live(const struct quire_slab *slab)
{
    owner_t owner = pagemap_find(slab);
    return likely(owner_kind(owner) == OWNER_SLAB && ((struct slab_page *)owner_object(owner))->slab == slab);
}

void slab_verify(const struct quire_slab *slab)
{
    if (unlikely(!slab_is_live(slab)))
        slab_refuse(NULL, SLAB_E5, slab);
    if (unlikely(u32_load_acquire(&slab_fork_is_due) != 0) && !lock_is_mine(&slab_registry.lock)) /* acquire [slab-fork] */
        slab_fork_settle();
}

void slab_set_page_bytes_max(struct quire_slab *slab, size_t page_bytes_max)
{
    struct slab_sizes sizes = {slab->slot_bytes, os_page_bytes(), page_bytes_max};
    size_t most = slab_page_bytes_most(sizes);
    size_store_relaxed(&slab->page_bytes_most, most);
    size_t slots = most / slab->slot_bytes < SLAB_SLOTS_MAX ? most / slab->slot_bytes : SLAB_SLOTS_MAX;
    if (slab->words_most == 0)
        slab->words_most = (uint32_t)(slots + WORD_BITS - 1) / WORD_BITS;
    size_store_relaxed(&slab->page_bytes_least, slab_page_bytes_least(sizes, most));
}

static bool slot_bytes_of(size_t element_bytes, size_t align_bytes, size_t *out)
{
    size_t bytes = element_bytes ? element_bytes : 1;
    if (sanitize_watched() && !add_checked(bytes, REDZONE_BYTES, &bytes))
        return false;
    return align_up_checked(bytes, align_bytes, out) && *out <= PTRDIFF_MAX / 2;
}

/* The header of the home page, and on the default source the first elements, lie behind the struct. */
static void home_layout(struct quire_slab *slab, bool with_slots)
{
    char *at = (char *)(slab + 1), *end = (char *)slab->span.start + slab->span.bytes, *first = end;
    uint32_t slots = 0;
    size_t align = slab->align_bytes > CACHE_LINE_BYTES ? slab->align_bytes : CACHE_LINE_BYTES;
    if (with_slots && slab->slot_bytes < slab->span.bytes && slab->align_bytes <= os_page_bytes()) {
        uint32_t words = (uint32_t)((size_t)(end - at) / slab->slot_bytes / WORD_BITS + 1);
        first = (char *)align_up((uintptr_t)at + slab_header_bytes(slab, words), align);
        slots = first < end ? (uint32_t)((size_t)(end - first) / slab->slot_bytes) : 0;
    }
    slots = slots < HOME_SLOTS_LEAST ? 0 : slots < SLAB_SLOTS_MAX ? slots : SLAB_SLOTS_MAX;
    struct slab_page *home = slab->home;
    home->slab = slab;
    home->state = PAGE_FULL;
    if (slots) {
        slab_page_setup(home, first, slots);
        slab_page_enter(home);
        slab_table_enter(home);
        slab_page_link(home);
        sanitize_no_access(first, slab_slots_bytes(home));
        size_store_relaxed(&slab->account.meta_bytes, slab->span.bytes - slab_slots_bytes(home));
    }
}

/* A free slot can carry a mark, and one that is cached for a while is no great loss. */
static bool has_marks(const struct quire_slab *slab)
{
    return !slab->watched && slab->slot_bytes % sizeof(uint64_t) == 0 && slab->align_bytes >= sizeof(uint64_t) && slab->slot_bytes <= STRAIGHT_BYTES &&
           !(slab->flags & (QUIRE_SLAB_KEEP_NOTHING | QUIRE_SLAB_EXACT));
}

/* The options in the struct; 0 or the errno. */
static int options_read(struct quire_slab *slab, size_t element_bytes, const struct quire_slab_opts *opts)
{
    slab->align_bytes = opts->align_bytes ? opts->align_bytes : 16;
    if ((opts->flags & ~(uint64_t)FLAGS_KNOWN) != 0 || !is_pow2(slab->align_bytes))
        return EINVAL;
    int error = source_verify(opts->source);
    if (error)
        return -error;
    if (element_bytes > PTRDIFF_MAX || slab->align_bytes > (size_t)1 << 40 || !slot_bytes_of(element_bytes, slab->align_bytes, &slab->slot_bytes))
        return ENOMEM;
    if (opts->limit_bytes != 0 && opts->limit_bytes < os_page_bytes())
        return ENOMEM;
    slab->flags = (uint32_t)opts->flags;
    slab->element_bytes = element_bytes ? element_bytes : 1;
    slab->account.limit_bytes = opts->limit_bytes;
    slab->watched = sanitize_watched() || sanitize_race_watched();
    slab->source = opts->source ? opts->source : quire_source_default();
    if ((opts->flags & QUIRE_SLAB_DONT_DUMP) && slab->source == quire_source_default())
        slab->source = quire_source_anon(); /* neighbours of one kind make one mapping there; recycled spans would not */
    slab->lock.rank = LOCK_SLAB;
    slab_gate_set(slab);
    slab->divide = UINT64_MAX / slab->slot_bytes + 1;
    slab->fill = slab->slot_bytes * MAGAZINE_SLOTS < FILL_BYTES ? MAGAZINE_SLOTS : slab->slot_bytes < FILL_BYTES / 4 ? FILL_BYTES / (uint32_t)slab->slot_bytes : 4;
    if (opts->name)
        strncpy(slab->name, opts->name, SLAB_NAME_BYTES - 1);
    u32_store_relaxed(&slab->defrag, (opts->flags & QUIRE_SLAB_DEFRAG) != 0);
    slab_set_page_bytes_max(slab, opts->page_bytes_max);
    size_t most = size_load_relaxed(&slab->page_bytes_most), first;
    if (!mul_checked(opts->initial_elements, slab->slot_bytes, &first) || first > most)
        first = most;
    size_store_relaxed(&slab->first_bytes, opts->initial_elements ? (size_t)1 << log2_ceil(first) : 0);
    return 0;
}

/* It has no page but home, no id, and nobody knows it. */
void slab_unmake(struct quire_slab *slab)
{
    struct quire_span span = slab->span;
    pagemap_clear(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    sanitize_undefined(span.start, span.bytes);
    source_own_give(span);
}

struct quire_slab *slab_create(size_t element_bytes, const struct quire_slab_opts *opts, bool markable, bool listed)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_slab_opts, flags);
    struct quire_slab_opts own;
    struct quire_slab draft = {.offset = SLAB_OFFSET_NONE, .markable = markable};
    int kept = errno;
    errno = -abi_read(&layout, &own, opts);
    if (errno == 0)
        errno = options_read(&draft, element_bytes, &own);
    if (errno)
        return NULL;
    draft.straight = !listed || !bias_works() || !has_marks(&draft);
    errno = ENOMEM;
    if (!draft.straight && slab_mags_setup() != 0)
        return NULL;
    struct quire_source *source = quire_source_default();
    if (source->verbs->take(source, os_page_bytes(), os_page_bytes(), &draft.span) != 0)
        return NULL;
    struct quire_slab *slab = draft.span.start;
    sanitize_defined(slab, draft.span.bytes);
    *slab = draft;
    slab->home = (struct slab_page *)(void *)(slab + 1);
    *slab->home = (struct slab_page){.slots = 0};
    slab_table_init(slab);
    account_set(&slab->account, slab->span.bytes);
    home_layout(slab, slab->source == source);
    sanitize_root(slab, slab->span.bytes, true);
    if (pagemap_set(slab, slab->span.bytes, owner_make(slab->home, OWNER_SLAB)) != 0 || (listed && slab_register(slab) != 0)) {
        slab_unmake(slab);
        return NULL;
    }
    errno = kept;
    return slab;
}

struct quire_slab *quire_slab_create(size_t element_bytes, const struct quire_slab_opts *opts)
{
    return slab_create(element_bytes, opts, false, true);
}

struct quire_slab *slab_create_markable(size_t element_bytes, const struct quire_slab_opts *opts)
{
    return slab_create(element_bytes, opts, true, true);
}

void quire_slab_destroy(struct quire_slab *slab)
{
    int kept = errno;
    if (!slab)
        return;
    slab_verify(slab);
    if (slab->shared_count != 0)
        slab_refuse(slab, SLAB_E6, slab); /* it is for quire_slab_shared_release() to end */
    slab_unregister(slab);
    slab_list_lock();
    slab_depot_forget(slab);
    slab_pages_destroy(slab);
    if (slab->headers.chunks)
        (void)slab_grace(true); /* others may have been looking whose an address is, and found a header of ours */
    registry_unlock(&slab_registry);
    slab_headers_destroy(slab);
    slab_unmake(slab);
    errno = kept;
}

void quire_slab_set_defrag(struct quire_slab *slab, uint32_t on)
{
    slab_verify(slab);
    u32_store_relaxed(&slab->defrag, on != 0);
    slab_list_lock();
    slab_collect(slab, true); /* from now on what is freed goes to its page, or to a magazine again */
    registry_unlock(&slab_registry);
}
