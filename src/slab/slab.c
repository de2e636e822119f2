// SPDX-License-Identifier: MIT
/*
 * slab.c - elements of one size: making a slab, ending it, and the short way of an allocation.
 *
 *     thread --- table[slab's id] ---> its own pages, no lock, no atomic instruction
 *        |                                  |
 *        |  avail: slots of one word        |  free: a bit of the page's word        another thread's free: one atomic or,
 *        |  alloc: clear its lowest bit     |                                        collected by the owner at its next refill
 *        v                                  v
 *     quire_slab_alloc()                quire_slab_free() (slab_free.c)
 *
 * The life of an element: (1) the thread's word has a slot left: clear its bit, done; (2) else the page's next word, what others have freed, the
 * next page, an empty one, a new one (slab_refill.c); (3) no memory: every thread is asked for what it does not need (slab_trim.c), then NULL.
 *
 * Refusals, all before anything is changed:
 *   E1  an element that is free already      E2  not an address of any slab          E3  not where an element begins
 *   E4  an element of another slab           E5  what is called a slab is none       E6  released more often than acquired
 *
 * Locks: none here; see slab_thread.c.  Not here: pages (slab_page.c), looking (slab_look.c).
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"
#include "slab/slab_mark.h"

STATIC_ASSERT(offsetof(struct slab_local, lane) == 0, "the short way finds the ordinary lane at once");
STATIC_ASSERT(SLAB_SLOTS_MAX <= WORD_BITS * WORD_BITS, "one word says which words of a page have room");

enum { FLAGS_KNOWN = QUIRE_SLAB_DEFRAG | QUIRE_SLAB_SINGLE_THREAD | QUIRE_SLAB_DONT_DUMP | QUIRE_SLAB_KEEP_NOTHING, HOME_SLOTS_LEAST = 4 };

/* ---- the short way ---- */

static void *slab_alloc_slow(struct quire_slab *slab);

/* Where the code begins in its cache line is worth a tenth of a pair: it must not depend on what stands before it. */
CACHE_ALIGNED void *quire_slab_alloc(struct quire_slab *slab)
{
    struct slab_thread *thread = slab_thread_self;
    slab_enter(thread);
    uint32_t id = slab->id;
    if (likely(id < u32_load_acquire(&thread->limit))) { /* acquire [slab-limit] */
        struct slab_lane *lane = &thread->table[id]->lane[LANE_ORDINARY];
        uint64_t avail = u64_load_relaxed(&lane->avail);
        if (likely(avail != 0)) {
            u64_store_relaxed(&lane->avail, avail & (avail - 1));
            void *element = lane->base + bits_lowest(avail) * slab->slot_bytes;
            slab_leave(thread);
            return element;
        }
    }
    return slab_alloc_slow(slab);
}

void *slab_watched_alloc(const struct quire_slab *slab, void *element)
{
    if (unlikely(slab->watched)) {
        sanitize_begin_of_use(element);
        sanitize_undefined(element, slab->element_bytes);
    }
    return element;
}

/* What others give up may be taken by yet others first: how often to ask. */
enum { ATTEMPTS_MAX = 64 };

/* With the thread's record locked; when nothing is left, after all have been asked. */
static size_t alloc_held(struct quire_slab *slab, void **elements, size_t count)
{
    size_t got = 0;
    for (int attempt = 0; got < count && attempt < ATTEMPTS_MAX; attempt++) {
        struct slab_hold hold;
        if (attempt > 0 && !slab_reclaim(slab, LANE_ORDINARY))
            break;
        struct slab_local *local = slab_hold(slab, &hold, true);
        if (local)
            got += slab_local_alloc_batch(local, elements + got, count - got);
        slab_drop(&hold);
    }
    if (unlikely(got < count))
        got += slab_alloc_elsewhere(slab, elements + got, count - got);
    for (size_t i = 0; unlikely(slab->watched) && i < got; i++)
        slab_watched_alloc(slab, elements[i]);
    if (got < count)
        errno = ENOMEM;
    return got;
}

static NOINLINE void *slab_alloc_slow(struct quire_slab *slab)
{
    struct slab_thread *thread = slab_thread_self;
    struct slab_local *local = slab_local_of(slab, thread);
    void *element = local && local != &slab_local_none ? slab_local_alloc(local, LANE_ORDINARY) : NULL;
    slab_leave(thread);
    if (!element && alloc_held(slab, &element, 1) == 0)
        return NULL;
    return element;
}

void *quire_slab_alloc_zero(struct quire_slab *slab)
{
    void *element = quire_slab_alloc(slab);
    return likely(element) ? memset(element, 0, slab->element_bytes) : NULL;
}

/* So many at once that a visitor does not wait for long. */
enum { BATCH_AT_ONCE = 4096 };

size_t quire_slab_alloc_batch(struct quire_slab *slab, void **elements, size_t count)
{
    size_t got = 0;
    while (got < count) {
        size_t some = count - got < BATCH_AT_ONCE ? count - got : BATCH_AT_ONCE, had = 0;
        struct slab_thread *thread = slab_thread_self;
        slab_enter(thread);
        if (likely(slab->id < u32_load_acquire(&thread->limit)) && thread->table[slab->id] != &slab_local_none) /* acquire [slab-limit] */
            had = slab_local_alloc_batch(thread->table[slab->id], elements + got, some);
        slab_leave(thread);
        if (had < some)
            had += alloc_held(slab, elements + got + had, some - had);
        got += had;
        if (had < some)
            break;
    }
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
}

void slab_set_sizes(struct quire_slab *slab, size_t page_bytes_max)
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
    if (!align_up_checked(bytes, align_bytes, out) || *out > PTRDIFF_MAX / 2)
        return false;
    return true;
}

/* Of an odd number, modulo 2^64: right in 3 bits, then in twice as many with each step.  (Newton; Hacker's Delight, 10-16.) */
static uint64_t inverse_of(uint64_t odd)
{
    uint64_t inverse = odd;
    for (int bits = 3; bits < WORD_BITS; bits *= 2)
        inverse *= 2 - odd * inverse;
    return inverse;
}

/* Local 0, the header of the home page, and on the default source the first elements lie behind the struct. */
static void home_layout(struct quire_slab *slab, bool with_slots)
{
    char *at = (char *)(slab + 1), *end = (char *)slab->span.start + slab->span.bytes;
    struct slab_local *local = (struct slab_local *)(void *)at;
    slab_local_init(local, slab);
    addr_store_release(&slab->locals, (uintptr_t)local); /* release [slab-locals] */
    local->unbound_next = NULL;
    at += sizeof *local;
    slab->spare = (struct slab_local *)(void *)at;
    at += sizeof *local;
    uint32_t slots = 0;
    size_t align = slab->align_bytes > CACHE_LINE_BYTES ? slab->align_bytes : CACHE_LINE_BYTES, skip = 0;
    if (with_slots && slab->slot_bytes < slab->span.bytes && slab->align_bytes <= os_page_bytes()) {
        uint32_t words = (uint32_t)((size_t)(end - at) / slab->slot_bytes / WORD_BITS + 1);
        char *first = (char *)align_up((uintptr_t)at + slab_header_bytes(slab, words), align);
        slots = first < end ? (uint32_t)((size_t)(end - first) / slab->slot_bytes) : 0;
        skip = (size_t)(first - at);
    }
    struct slab_page *home = slab->home = (struct slab_page *)(void *)at;
    if (slots > SLAB_SLOTS_MAX)
        slots = SLAB_SLOTS_MAX;
    if (slots < HOME_SLOTS_LEAST) {
        slots = 0;
        skip = slab_header_bytes(slab, 0);
        slab->bump = at + skip;
        slab->bump_end = end;
    }
    *home = (struct slab_page){.home = 1, .slab = slab, .words_max = slots / WORD_BITS + 1};
    home->marks = slab->markable && slots ? (atomic_u64 *)(void *)&home->pair[home->words_max] : NULL;
    for (uint32_t w = 0; w < home->words_max && slots; w++)
        u64_store_relaxed(&home->pair[w].remote, 0);
    slab_page_setup(home, at + skip, slots);
    home->slot_count = slots;
    slab_set_state(home, PAGE_FULL);
    if (slots) {
        slab_page_enter_all(local, home);
        slab_page_link(local, home);
        sanitize_no_access(home->slots, slab_slots_bytes(home));
        size_sub_relaxed(&slab->meta_bytes, slab_slots_bytes(home));
    }
    slab->unbound = local;
    u32_store_relaxed(&slab->unbound_count, 1);
}

/* The options in the struct; 0 or the errno. */
static int options_read(struct quire_slab *slab, size_t element_bytes, const struct quire_slab_opts *opts)
{
    slab->align_bytes = opts->align_bytes ? opts->align_bytes : 16;
    if ((opts->flags & ~(uint32_t)FLAGS_KNOWN) != 0 || !is_pow2(slab->align_bytes))
        return EINVAL;
    if (element_bytes > PTRDIFF_MAX || slab->align_bytes > (size_t)1 << 40 || !slot_bytes_of(element_bytes, slab->align_bytes, &slab->slot_bytes))
        return ENOMEM;
    if (opts->limit_bytes != 0 && opts->limit_bytes < os_page_bytes())
        return ENOMEM;
    slab->flags = opts->flags;
    slab->element_bytes = element_bytes ? element_bytes : 1;
    slab->twos = bits_lowest(slab->slot_bytes);
    slab->inverse = inverse_of(slab->slot_bytes >> slab->twos);
    slab->limit_bytes = opts->limit_bytes;
    slab->watched = sanitize_watched() || sanitize_race_watched();
    slab->source = opts->source ? opts->source : quire_source_default();
    if ((opts->flags & QUIRE_SLAB_DONT_DUMP) && slab->source == quire_source_default())
        slab->source = quire_source_anon(); /* neighbours of one kind make one mapping there; recycled spans would not */
    slab->lock.rank = LOCK_SLAB;
    slab->moves.rank = LOCK_MOVES;
    if (opts->name)
        strncpy(slab->name, opts->name, SLAB_NAME_BYTES - 1);
    u32_store_relaxed(&slab->defrag, (opts->flags & QUIRE_SLAB_DEFRAG) != 0);
    slab_set_sizes(slab, opts->page_bytes_max);
    size_t most = size_load_relaxed(&slab->page_bytes_most), first;
    if (!mul_checked(opts->initial_elements, slab->slot_bytes, &first) || first > most)
        first = most;
    size_store_relaxed(&slab->first_bytes, opts->initial_elements ? (size_t)1 << log2_ceil(first) : 0);
    return 0;
}

static struct quire_slab *create(size_t element_bytes, const struct quire_slab_opts *opts, bool markable)
{
    static const struct quire_slab_opts defaults;
    struct quire_slab draft = {.id = SLAB_ID_NONE, .markable = markable};
    opts = opts ? opts : &defaults;
    errno = options_read(&draft, element_bytes, opts);
    if (errno)
        return NULL;
    struct quire_source *source = quire_source_default();
    errno = ENOMEM;
    if (source->verbs->take(source, os_page_bytes(), os_page_bytes(), &draft.span) != 0)
        return NULL;
    struct quire_slab *slab = draft.span.start;
    sanitize_defined(slab, draft.span.bytes);
    *slab = draft;
    size_store_relaxed(&slab->mapped_bytes, slab->span.bytes);
    size_store_relaxed(&slab->peak_bytes, slab->span.bytes);
    size_store_relaxed(&slab->meta_bytes, slab->span.bytes);
    home_layout(slab, slab->source == source);
    if (pagemap_set(slab, slab->span.bytes, owner_make(slab->home, OWNER_SLAB)) != 0 || slab_register(slab) != 0) {
        pagemap_clear(slab, slab->span.bytes);
        sanitize_undefined(slab, slab->span.bytes);
        source->verbs->give(source, &draft.span);
        return NULL;
    }
    sanitize_root(slab, slab->span.bytes, true);
    errno = 0;
    return slab;
}

struct quire_slab *quire_slab_create(size_t element_bytes, const struct quire_slab_opts *opts)
{
    int kept = errno;
    struct quire_slab *slab = create(element_bytes, opts, false);
    errno = slab ? kept : errno;
    return slab;
}

struct quire_slab *slab_create_markable(size_t element_bytes, const struct quire_slab_opts *opts)
{
    int kept = errno;
    struct quire_slab *slab = create(element_bytes, opts, true);
    errno = slab ? kept : errno;
    return slab;
}

void quire_slab_destroy(struct quire_slab *slab)
{
    int kept = errno;
    if (!slab)
        return;
    slab_verify(slab);
    if (slab->shared_count != 0)
        slab_refuse(slab, SLAB_E6, slab); /* it is for quire_slab_by_size_release() to end */
    slab_unregister(slab);
    for (struct slab_local *local = slab_locals(slab); local; local = local->next)
        for (struct slab_page *page = local->all, *next; page; page = next) {
            next = page->all_next;
            if (!page->home)
                slab_page_give(local, page, false);
        }
    slab_registry_lock();
    if (slab->chunks)
        (void)slab_grace(true); /* others may have been looking whose an address is, and found a header of ours */
    slab_registry_unlock();
    slab_chunks_destroy(slab);
    struct quire_source *source = quire_source_default();
    struct quire_span span = slab->span;
    pagemap_clear(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    sanitize_undefined(span.start, span.bytes);
    source->verbs->give(source, &span);
    errno = kept;
}

void quire_slab_set_defrag(struct quire_slab *slab, uint32_t on)
{
    slab_verify(slab);
    u32_store_relaxed(&slab->defrag, on != 0);
}
