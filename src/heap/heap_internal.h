// SPDX-License-Identifier: MIT
/*
 * heap_internal.h - the structs of a heap, and who may touch what.
 *
 *     struct quire_heap
 *       locals ---> heap_local (thread 1) ---> heap_local (idle) ---> ...        each with a bin for each size:
 *                     bin[class]: word ----------> the word of the current page that slots are taken from
 *                                 page ----------> heap_page (header)            partial ---> heap_page <-> heap_page
 *                                                    | start
 *                                                    v
 *                                                  | slot | slot | slot | ...    a span; the page map leads back to the header
 *
 * A page is its owner's, a local: only who is inside the local (heap_door.h) touches its bits.  A free bit is a slot that may be handed out.  Slots that were
 * freed wait in magazines (heap_cache.c) of whoever freed them and go first; the bits are asked only when a size has none of these.  A free slot bears a mark
 * in its first 16 bytes, of its magazine or, in its page, of the process; but one that lies behind what the page has carved, an OS page after the other.
 *
 *     state      of its bin       `until`, counted down by frees, at 0 the page is looked at
 *     CURRENT    the one in use   as good as never
 *     FULL       on no list       frees until it is worth going back to
 *     PARTIAL    on the list      live blocks: at 0 it is empty, and goes back to the source
 *     LARGE      one block, of no local; on the heap's list; CACHED: the same, freed, in a local's `larges`
 *
 * A secure local's pages have a second row of bits: slots that are freed, but kept back (heap_secure.c).  Their `owner` has a bit set, so that no short
 * way of the others meets them, and their bins show a word of zeros.
 *
 * Invariants, checked by heap_look.c:
 *   P1  a free bit is one of the page's slots, and none that is in a magazine; a free slot that was handed out once carries its mark
 *   P2  until of a PARTIAL page is slots - free bits; 1 for an empty one (in the child of a fork)
 *   P3  a bin's current page and those of its list are its local's, of its size, and in that state
 *   P4  the page map leads from the page's first address to the header
 *   P5  mapped_bytes is the sum of all pages, large blocks and bookkeeping, and not above limit_bytes
 *
 * Locks, in the order of their ranks: heaps < a local's bias < an idle local's < a heap's.  No lock is waited for inside a local by the short way
 * but those of the page source and a heap's.
 */
#ifndef QUIRE_HEAP_HEAP_INTERNAL_H
#define QUIRE_HEAP_HEAP_INTERNAL_H

#include <quire/heap.h>

#include "base/account.h"
#include "base/list.h"
#include "heap/heap_door.h"
#include "owner/headers.h"
#include "owner/registry.h"
#include "pages/page_look.h"
#include "pages/pagemap.h"
#include "slots/slots.h"

C_DECLARATIONS_BEGIN

enum {
    HEAP_NAME_BYTES = 32,
    HEAP_OUT = 3,        /* owners that frees are gathered for */
    HEAP_OUT_BLOCKS = 32, /* at most, for each of them */
    HEAP_SMALL_SLOTS = 8, /* of a thread's first magazine of a size */
    HEAP_MAGAZINE_WORDS = 128, /* of a header that holds a magazine */
    HEAP_SEEN = 8, HEAP_LARGES = 4,
    HEAP_GONE = 64 /* addresses of large blocks freed last */
};

#define HEAP_E1 "E1 the block is free already"
#define HEAP_E2 "E2 not an address of a heap"
#define HEAP_E3 "E3 inside a block"
#define HEAP_E4 "E4 a block of another heap"
#define HEAP_E5 "E5 not a live heap"
#define HEAP_E6 "E6 a freed block was written to"
#define HEAP_E7 "E7 written past the end of the block"

enum { HEAP_PINS_MAX = 254, HEAP_RESIZED = 255 };
enum heap_state { HEAP_UNUSED, HEAP_CURRENT, HEAP_FULL, HEAP_PARTIAL, HEAP_LARGE, HEAP_MAGAZINE, HEAP_CACHED };

struct heap_late;

struct CACHE_ALIGNED heap_page {
    /* fixed while the page is in use: what a free by any thread reads */
    struct quire_span span; /* span.start: the first slot, or the large block, but for a secure heap's guard */
    atomic_addr owner;      /* struct heap_local *, secure: with SECURE_OWNER; changes while the old one is idle; large: struct quire_heap *, with LARGE_OWNER */
    union {
        uint64_t reciprocal; /* 2^64 / slot_bytes, rounded up */
        uint64_t sample;     /* large: what heap_watch is told when it goes; 0: nothing */
    };
    uint32_t slot_bytes;
    uint32_t exact;         /* what is below this behind the point is no rest, of a slot that the page has (heap_slot_of()) */
    union {
        size_t asked_bytes; /* large: what was asked for; of a sealed one the OS pages that this takes can be touched, and no other */
        struct {
            atomic_u32 carved; /* bytes of slots that bear a mark or are live: these have a short way of freeing; 0 where there is none */
            uint16_t bin_at;   /* where in a local the bin of its size is */
        };
    };
    uint16_t words;
    uint8_t class;
    uint8_t state;       /* by the owner; a magazine lies where the bits would: HEAP_MAGAZINE */
    union {
        uint8_t is_mapped; /* large: by itself, not by the source */
        uint8_t is_noted;  /* small: heap_note.h */
    };
    uint8_t guard_shift; /* large, secure: log2 of the guards; 0: none */
    uint8_t pins;        /* walks that stand on it; HEAP_PINS_MAX: for good.  Large: under the heap's lock, or HEAP_RESIZED */
    /* the owner's */
    CACHE_ALIGNED uint16_t until;
    uint16_t slots;              /* fixed while the page is in use; as are: */
    uint32_t chunk_at;           /* how far in front its chunk of headers begins */
    struct quire_heap *quick_of; /* small: the heap, where a free has a short way; NULL: it has none */
    struct heap_page *next, *prev;
    uint64_t free[]; /* a bit for each slot; of a secure heap as many again: freed, but not to be handed out yet */
};

LIST_OF(heap_pages, struct heap_page, next, prev);

/* The slots of one size. */
struct CACHE_ALIGNED heap_bin {
    uint64_t *word; /* never NULL in a bin that is ready: where there is no page, or it is a secure one, a word of zeros */
    struct heap_page *page;
    union {
        uint64_t reciprocal; /* 2^64 / slot_bytes, rounded up; 0 where the bin is not ready */
        uint16_t word_at;    /* secure: the word of the page that slots are taken from */
    };
    uint16_t slot_bytes;
    uint16_t sizes;      /* so many: what its slots serve, slot_bytes and those below */
    uint16_t rounding16; /* what requests leave of a slot, a mean of the last ones looked at, in 1/16 bytes */
    uint16_t sampled;    /* how often the short way has ended, up to a turn (heap_sample.c) */
    struct slot_cache slots; /* of whatever local's pages: handed out first */
    struct heap_page *partial;
};

/* A thread's first magazine of a size; and the bin's word when it was full last. */
struct heap_small {
    struct magazine mag;
    uintptr_t slot[HEAP_SMALL_SLOTS];
    uint32_t in_a_row; /* how often it was full without that an alloc had come between */
    const uint64_t *word;
    uint64_t bits;
};

/* Blocks that this thread has freed and another local owns, linked through their first words. */
struct heap_out {
    struct heap_local *to;
    void *first, *second, *last; /* second: what first is linked to */
    size_t count;
};

struct heap_local {
    struct heap_door door;
    size_t bytes_max; /* of requests whose bins are ready */
    struct quire_heap *heap;
    struct heap_small *small; /* for each bin, behind this; NULL: it caches nothing (home) */
    CACHE_ALIGNED atomic_addr inbox; /* blocks that others have freed, linked */
    atomic_addr thread;       /* whose it is; 0: idle.  Changes under the bias */
    struct heap_local *next;  /* of the heap's locals: only grows */
    struct heap_local *idle_next;
    uint32_t span_bytes, span_cookie; /* of the span that begins here; 0: home */
    bool is_secure, is_sample, has_larges; /* has_larges: or had, since it was flushed */
    bool is_torn; /* in the child of a fork, while repairs are due: another thread was inside */
    uint32_t pages_had;    /* from the source, since full magazines went to their pages, */
    uint64_t way_again_ns; /* and when they may go again */
    struct heap_late *late; /* secure */
    struct heap_out out[HEAP_OUT];
    struct heap_bin bin[HEAP_BINS]; /* the near ones on the first OS page, with all above: what lies behind goes back from time to time (heap_local_shrink()) */
    struct heap_page *larges[HEAP_LARGES]; /* freed last; heap_large.c */
};

static inline struct quire_span heap_local_span(struct heap_local *local)
{
    return (struct quire_span){local, local->span_bytes, 0, local->span_cookie};
}

struct quire_heap {
    /* fixed at birth */
    uint64_t serial; /* rises with each heap that is made, and is never used twice */
    uint32_t flags;
    bool own_memory; /* anonymous memory that nobody else uses: large blocks may be mapped alone */
    bool is_watched; /* by a sanitizer */
    bool samples;    /* some blocks are made as a secure heap's */
    uint32_t tail_bytes; /* of every small block, not the user's: the canary, or a sanitizer's; 0: there is a short way */
    struct quire_source *source;
    struct quire_span span; /* of this struct; the default heap has none */
    char name[HEAP_NAME_BYTES];
    struct quire_heap *next, *prev; /* all heaps */
    /* any thread */
    CACHE_ALIGNED struct account account;
    atomic_size alone_bytes; /* the largest block that was mapped alone and freed, up to a bound, and a quarter: so large ones come and go */
    atomic_size copies, ends; /* since then, of blocks that could be: grown by a copy; freed, by that or by the caller */
    atomic_addr locals, sample; /* sample: the local of sampled blocks */
    atomic_u32 idle_count;
    atomic_u32 changes;  /* finished: by threads without a local, of large blocks, and by visitors */
    atomic_u32 changing; /* begun and not finished */
    CACHE_ALIGNED struct lock lock;
    struct headers headers;
    struct heap_page *large;
    struct magazine *vacant; /* empty ones, of those who took full ones from any depot */
    size_t left_bytes; /* of freed large blocks that walks stand on, or whose memory waits for another */
    struct heap_local *idle;
    uintptr_t gone[HEAP_GONE];
    uint32_t gone_next;
    struct heap_sealed *sealed; /* secure: addresses of large blocks that nobody may use yet */
    struct heap_local home; /* of threads that have none: no memory for one, or in their last destructors */
    /* any thread.  Behind all that every program touches, as the far bins of home are: the process's heap is in pages that are nothing until then */
    CACHE_ALIGNED struct heap_of_class {
        atomic_size pages, peak;
        atomic_size spilled; /* slots that went from magazines to their pages, since memory was given back */
        atomic_u32 turning;  /* 1: what is freed is allocated again, so large magazines and depots are worth it */
        atomic_u32 missed;   /* words of slots that came from pages again, of those */
        struct slot_depot depot; /* under lock */
    } of_class[HEAP_BINS];
};

STATIC_ASSERT(offsetof(struct heap_local, door.nothing) == offsetof(struct heap_bin, reciprocal), "a note of zeros leads to no bin");
STATIC_ASSERT(offsetof(struct heap_local, bin) + HEAP_NEAR * sizeof(struct heap_bin) <= 4096, "a thread that only allocates small blocks costs one small page");
STATIC_ASSERT(sizeof(struct heap_page) % 8 == 0 && offsetof(struct heap_page, free) == 96, "three kinds of headers are sized for it");

enum { LARGE_OWNER = 1, SECURE_OWNER = 2, OWNER_BITS = 3 }; /* low bits of `owner` */

/* ---- a thread's way to its locals ---- */
struct heap_tls {
    int64_t quick_bytes; /* so many malloc hands out by the short way before it asks anybody; below 0: none */
    struct heap_local *quick_free, *self; /* of the default heap; the first where free may go a short way, else none, or: */
    struct heap_door closed;  /* all that is asked of a local that has no short way, and no other thread's memory */
    struct {
        uint64_t serial;
        struct heap_local *local;
    } seen[HEAP_SEEN]; /* the heaps but the default one that were used last; and whose they are, not asked on the short way */
    struct quire_heap *heaps_seen[HEAP_SEEN];
    struct heap_local *held, *idle; /* by its lock; the same, beside it */
    uint64_t random;          /* secure: the last one */
    uint32_t inside, others;  /* of what takes other locks than a local's; heaps but the default one where it has a local, or had before another destroyed it */
    bool is_counted;          /* works in home */
    bool registered, is_ended, has_work; /* has_work: the reaper is to be woken, outside */
};
extern THREAD_LOCAL struct heap_tls heap_tls __attribute__((tls_model("initial-exec")));
extern struct heap_local heap_local_none;
extern struct heap_door heap_door_closed; /* of threads that have said nothing yet */
#define HEAP_LOCAL_CLOSED ((struct heap_local *)(void *)&heap_door_closed)
#define HEAP_TLS_NONE .quick_bytes = -1, .quick_free = HEAP_LOCAL_CLOSED, .self = &heap_local_none, .closed = HEAP_DOOR_INIT(LOCK_HEAP_LOCAL)
extern struct quire_heap heap_of_process, *heap_first; /* first: the newest */
extern atomic_u32 heap_is_ready; /* the default heap */

static ALWAYS_INLINE struct heap_local *heap_mine(const struct quire_heap *heap)
{
    if (likely(heap == &heap_of_process))
        return heap_tls.self;
    return heap_tls.seen[heap->serial % HEAP_SEEN].serial == heap->serial ? heap_tls.seen[heap->serial % HEAP_SEEN].local : &heap_local_none;
}

static inline uintptr_t heap_thread_id(void)
{
    return (uintptr_t)&heap_tls;
}

static inline struct quire_heap *heap_mutable(const struct quire_heap *heap)
{
    return (struct quire_heap *)(uintptr_t)heap;
}

/* ---- heap_fork.c: the child of a fork ---- */
extern atomic_u32 heap_fork_is_due; /* what vanished threads left is repaired when the thread that forked has done what it was in the middle of */
void heap_fork_in_child(bool was_locked); /* the list of heaps, by another thread */
bool heap_fork_settle(void); /* what is due is done; false: that thread is in the middle of it still, and whoever calls may not go in */
void heap_fork_let_go(void); /* of the local that this thread was inside of by the short way when it forked */
bool heap_is_in_local(void); /* this thread: what is asked now, a signal's handler asks, or the source that we are getting memory from */

/* ---- heap_thread.c ---- */
/*
 * The calling thread's local with its bias taken, made if need be; or home.  NULL: the thread is inside already, which is a signal handler's forbidden
 * call; it gets no memory, and frees nothing, but it does not wait for itself.
 */
struct heap_local *heap_hold(struct quire_heap *heap);
struct heap_local *heap_hold_with_list(struct quire_heap *heap); /* the same for who has the heaps' lock */
static inline bool heap_is_inside(void)
{
    if (unlikely(u32_load_acquire(&heap_fork_is_due) != 0) && !heap_fork_settle()) /* acquire [heap-fork] */
        return true;
    return heap_tls.held != NULL || heap_tls.inside != 0;
}
void heap_release(struct heap_local *local);
bool heap_visit_try(struct heap_local *local); /* of one that favours no thread; false: somebody is inside */
void heap_few_addresses(void); /* region_let_go(), which the doors then know */
void heap_visit(struct heap_local *local); /* anybody's, the caller's own too; heap_release() ends it.  One that is_torn: nothing of it may be used */
/* The local after this one, which is let go of (NULL: the first), visited, if it is not torn; NULL: there is none, and none is held. */
struct heap_local *heap_visit_next(const struct quire_heap *heap, struct heap_local *local);
#define HEAP_EACH_VISITED(heap, local) for (struct heap_local *local = heap_visit_next(heap, NULL); local; local = heap_visit_next(heap, local))
bool heap_idle_try(struct heap_local *local); /* an idle one, if nobody is at it, while another is held; heap_idle_drop() */
void heap_idle_drop(struct heap_local *local);
void heap_let_go(const struct quire_heap *heap);
void heap_thread_outside(void); /* what had to wait until nothing is held; errno stays */
void heap_thread_allocated(const struct quire_heap *heap); /* the same, after memory was had */
void heap_thread_watch_end(void); /* a fork's child, in the middle of something: what is due is done when this thread ends at the latest */
/* In a copy of the process (os_in_copy()), before its repairs: this thread, wherever it was, is one of those that are gone; one without a local goes on. */
void heap_thread_leave_for_good(void);
static inline struct heap_local *heap_locals(const struct quire_heap *heap)
{
    return (struct heap_local *)addr_load_acquire(&heap->locals); /* acquire [heap-locals] */
}
static ALWAYS_INLINE bool heap_is_idle(const struct heap_local *local)
{
    return addr_load_relaxed(&local->thread) == 0;
}

/* ---- heap.c ---- */
enum { HEAP_SAMPLES = 1 << 16 }; /* a flag that is not for users: the default heap samples, where it serves malloc */
void heap_default_configure(const struct quire_heap_opts *opts); /* before its first use */
bool heap_has_others(void); /* than the process's; the child of a fork stays as it is for that */
void heap_list_lock(void); /* no heap, and no chunk of headers, goes */
bool heap_is_live(const struct quire_heap *heap); /* with that lock; any address */
void heap_list_unlock(void);
void heap_each(void (*fn)(struct quire_heap *heap, void *arg), void *arg); /* with the heaps' lock; newest first, the default heap last */
const char *heap_name(const struct quire_heap *heap); /* NULL: none */
void heap_bins_clear(struct heap_local *local); /* no page, no magazine */
unsigned heap_bins_ready(const struct heap_local *local); /* the first so many are */
void heap_bins_reach(struct heap_local *local, unsigned class); /* the class's bin is ready */
void heap_local_init(struct heap_local *local, struct quire_heap *heap);
struct heap_local *heap_local_make(struct quire_heap *heap); /* on no list; NULL: there is no memory */
void heap_change_begin(struct quire_heap *heap);
void heap_change_end(struct quire_heap *heap);
/* Stops the process; lets go of what this thread holds first. */
__attribute__((noreturn, cold)) void heap_refuse(const struct quire_heap *heap, const char *what, const void *address);
/* What links of freed blocks are hidden by, and canaries are made with: random, written once before the first block. */
extern uintptr_t heap_key_word __attribute__((visibility("hidden")));
static ALWAYS_INLINE uintptr_t heap_key(void)
{
    return heap_key_word;
}

/* ---- heap_meta.c: headers ---- */
struct heap_page *heap_header_new(struct quire_heap *heap, uint32_t words);
void heap_header_delete(struct quire_heap *heap, struct heap_page *page);
void heap_chunks_trim(struct quire_heap *heap);
void heap_chunks_give(struct quire_heap *heap, struct header_chunk *chunk); /* a list */
bool heap_meta_take(struct quire_heap *heap, size_t bytes, struct quire_span *span);
void heap_meta_give(struct quire_heap *heap, const struct quire_span *span);
/* The same without an account, for the heap itself.  0 or -errno. */
int heap_meta_map(bool is_secure, size_t bytes, struct quire_span *span);
void heap_meta_unmap(bool is_secure, const struct quire_span *span);

/* ---- heap_page.c: inside a local ---- */
uint32_t heap_page_live(const struct heap_page *page); /* slots without a free bit: live, warm, on their way, kept back */
const char *heap_page_written(const struct heap_page *page); /* NULL, or a free slot that is not as it was left */
bool heap_next_word(struct heap_bin *bin);
bool heap_next_page(struct heap_local *local, unsigned class); /* one with a free slot becomes the bin's current one; false: there is no memory */
void heap_page_carve(struct heap_page *page, const char *slot); /* up to the end of the OS page where it begins */
void heap_rejoin_all(struct heap_local *local, unsigned class); /* with the heaps' lock */
/* until came to 0: the last look at the page, it may be gone. */
void heap_page_due(struct heap_local *local, struct heap_page *page);
void heap_page_to_partial(struct heap_local *local, struct heap_page *page); /* or away, if it is empty */
void heap_local_settle(struct heap_local *local, uint32_t live_max); /* no page with so many blocks at most is current any more: one without a block goes */
void heap_pages_destroy(struct quire_heap *heap);

/* Words of bits are written inside the local only; others that only guess read them. */
static ALWAYS_INLINE void heap_bits_set(uint64_t *word, uint64_t bits)
{
    __atomic_store_n(word, bits, __ATOMIC_RELAXED);
}

/* Who only looks reads it before it is inside. */
static ALWAYS_INLINE unsigned heap_state(const struct heap_page *page)
{
    return __atomic_load_n(&page->state, __ATOMIC_ACQUIRE); /* acquire [heap-state] */
}

static inline void heap_state_set(struct heap_page *page, unsigned state)
{
    __atomic_store_n(&page->state, (uint8_t)state, __ATOMIC_RELEASE); /* release [heap-state] */
}

/*
 * The slot of an address; SIZE_MAX: none begins there.  An offset times the reciprocal is the slot, and a fraction: less than the reciprocal just
 * where the division has no rest (Lemire, Kaser, Kurz: "Faster remainder by direct computation"), and then the slot times what it was rounded up by.
 */
static ALWAYS_INLINE size_t heap_slot_of(const struct heap_page *page, const void *p)
{
    unsigned __int128 product = (unsigned __int128)page->reciprocal * (uint64_t)(os_untagged(p) - (uintptr_t)page->span.start);
    return likely((uint64_t)product < page->exact) ? (size_t)(product >> 64) : SIZE_MAX;
}

/* Of a block that lives, this bit stands still, whoever writes the others of its word. */
static ALWAYS_INLINE bool heap_bit_is_set(const struct heap_page *page, size_t slot)
{
    return __atomic_load_n(&page->free[slot / WORD_BITS], __ATOMIC_RELAXED) >> slot % WORD_BITS & 1;
}

static ALWAYS_INLINE char *heap_slot_at(const struct heap_page *page, size_t slot)
{
    return (char *)page->span.start + slot * page->slot_bytes;
}

static ALWAYS_INLINE bool heap_is_large(const struct heap_page *page)
{
    return (addr_load_relaxed(&page->owner) & LARGE_OWNER) != 0;
}

static ALWAYS_INLINE struct heap_local *heap_owner(const struct heap_page *page)
{
    return (struct heap_local *)(addr_load_acquire(&page->owner) & ~(uintptr_t)OWNER_BITS); /* acquire [heap-owner] */
}

static ALWAYS_INLINE struct quire_heap *heap_of_page(const struct heap_page *page)
{
    uintptr_t owner = addr_load_acquire(&page->owner); /* acquire [heap-owner] */
    if (owner & LARGE_OWNER)
        return (struct quire_heap *)(owner & ~(uintptr_t)LARGE_OWNER);
    owner &= ~(uintptr_t)SECURE_OWNER;
    return likely(owner != 0) ? ((struct heap_local *)owner)->heap : NULL; /* 0: the page of a wild pointer went this moment */
}

/* ---- heap_free.c ---- */
/* The page of any address, NULL when it is none of a heap's. */
static ALWAYS_INLINE struct heap_page *heap_page_find(const void *p)
{
    owner_t owner = pagemap_find(p);
    return likely(owner_is_heap(owner)) ? (struct heap_page *)owner_object(owner) : NULL;
}
/* As far as another than its owner can see it. */
bool heap_slot_is_free(const struct heap_page *page, size_t slot);
struct heap_page *heap_page_verify(const struct quire_heap *heap, const void *p, size_t *slot); /* of a block that is to be freed or looked at; stops the process for what is none */
/* Blocks of libc's own malloc that come to the process's heap: a library that was bound past us handed them out.  Set once, by the preload library. */
struct heap_strangers {
    bool (*has)(const void *p);
    void (*free)(void *p);
    void *(*realloc)(void *p, size_t bytes);
};
extern const struct heap_strangers *heap_strangers; /* NULL: nobody's block is E2 */
bool heap_is_strangers(const struct quire_heap *heap, const void *p);
/* Who is told of sampled blocks, with no lock held: heap_malloc_sampled() made them, or heap_sample_always() and others.  Set once, by the preload library. */
struct heap_watch {
    void (*gone)(uint64_t sample, const void *p, size_t asked_bytes);
    void (*slot_gone)(const void *p);
};
extern const struct heap_watch *heap_watch;

/* ---- heap_remote.c ---- */
void heap_out_add(struct heap_local *local, struct heap_local *to, void *p); /* inside `local` */
void heap_out_flush(struct heap_local *local);
void heap_out_after_fork(struct heap_local *local);
bool heap_is_marked(const void *p); /* it looks like a block in a magazine, or on its way */
void heap_inbox_drain(struct heap_local *local);

/* ---- heap_large.c ---- */
void *heap_large_alloc(struct quire_heap *heap, size_t bytes, size_t align_bytes, bool zero);
void heap_large_free(struct heap_page *page, void *p);
/* A block of the default heap with pages of its own, however small; `sample` is not 0. */
void *heap_malloc_sampled(size_t bytes, size_t align_bytes, bool zero, uint64_t sample);

/* ---- heap_alloc.c: the default heap's fast ways, for the preload library ---- */
void *heap_malloc(size_t bytes);
void *heap_malloc_secure(size_t bytes); /* the same where the default heap is a secure one; what is had is zero */
void *heap_malloc_slow(size_t bytes);
void heap_free_secure(uintptr_t found, void *p); /* the page map has been asked already */
bool heap_free_secure_sized(void *p, size_t bytes); /* if the block has this very size; false: not this way, nothing has changed */
void *heap_malloc_zero(size_t bytes);
void heap_free_any(void *p);
void heap_free_found(uintptr_t found, void *p); /* the page map has been asked already */
void heap_free_long(void *p); /* and there was no short way (preload_frees_open()) */
void *heap_malloc_aligned(size_t bytes, size_t align_bytes);
void *heap_move(struct quire_heap *heap, void *p, size_t had, size_t bytes); /* what a live block holds to another; NULL: it stays as it was */
/*
 * Was the block asked for with this size?  `align_bytes` 0: no alignment was asked for.  False only for one that was not: of a small block of a heap that
 * is not secure its class is known, of all others the very size.  What is no block is free()'s to judge.
 */
bool heap_size_fits(const void *p, size_t bytes, size_t align_bytes);
/* The same for a block that realloc() may have left where it was: then it is not quite full. */
bool heap_size_may_fit(const void *p, size_t bytes);

/* ---- heap_secure.h: what is different in a secure heap ---- */
static ALWAYS_INLINE bool heap_is_secure(const struct quire_heap *heap)
{
    return (heap->flags & QUIRE_HEAP_SECURE) != 0;
}

static ALWAYS_INLINE bool heap_page_is_secure(const struct heap_page *page)
{
    return (addr_load_relaxed(&page->owner) & SECURE_OWNER) != 0;
}

/* What `owner` says of a page of this local's. */
static ALWAYS_INLINE uintptr_t heap_owner_word(const struct heap_local *local)
{
    return (uintptr_t)local | (local->is_secure ? SECURE_OWNER : 0);
}

/* The class that a page's memory counts for. */
static inline unsigned heap_stat_class(unsigned class)
{
    return class == HEAP_ZERO ? 0 : class;
}

/* ---- heap_look.c: with the heaps' lock ---- */
void heap_all_home(struct quire_heap *heap); /* free slots are their pages', but for what is freed meanwhile */
void heap_stats_locked(struct quire_heap *heap, struct quire_heap_stats *out);
void heap_pages_look_locked(struct quire_heap *heap, page_look_fn *fn, void *arg); /* every page, and large blocks */
void heap_page_look(const struct heap_page *page, struct page_look *seen); /* inside its local: what lives in it */
void heap_classes_stats_locked(struct quire_heap *heap, struct quire_heap_class_stats out[HEAP_CLASSES]);

/* ---- heap_trim.c ---- */
size_t heap_make_room(struct quire_heap *heap, size_t bytes); /* for so many more; how many bytes went back */
void heap_work_is_due(void); /* inside: there may be memory to give back later */
void heap_work_after_fork(void);

C_DECLARATIONS_END
#endif
