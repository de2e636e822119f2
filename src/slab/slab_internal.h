// SPDX-License-Identifier: MIT
/*
 * slab_internal.h - what the files of the slab know together; nobody else includes it.
 *
 *     struct quire_slab --- locals ---> struct slab_local   one thread's pages of one slab (or nobody's, for the next thread)
 *                                         lane[0], lane[1]   where it allocates: ordinary elements, marked ones
 *                                         pages ----------> struct slab_page --- slots ---> the elements' memory
 *     struct slab_thread --- table[slab id] --> struct slab_local
 */
#ifndef QUIRE_SLAB_INTERNAL_H
#define QUIRE_SLAB_INTERNAL_H

#include <quire/slab.h>

#include "base/atomic.h"
#include "base/bits.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "pages/page_look.h"
#include "slab/slab_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SLAB_NAME_BYTES = 32, SLAB_CACHE = 128, SLAB_RECORD_BYTES = 128 << 10, SLAB_CACHE_SHIFT = 15, SLAB_LANES = 2, LANE_ORDINARY = 0, LANE_MARKED = 1 };
/* The id of a slab that is no more, or not yet. */
#define SLAB_ID_NONE UINT32_MAX
#define SLAB_WORD_NONE UINT32_MAX
#define SLAB_NEVER (UINT32_C(1) << 30)

/*
 * Sixty-four slots.  `free` is the owner's: one bit for each slot that is neither live nor claimed.  `remote` is everybody else's: one bit for
 * each live slot that another thread has freed, until the owner collects it.
 */
struct slab_pair {
    atomic_u64 free, remote;
};

enum slab_state { PAGE_UNUSED, PAGE_FULL, PAGE_PARTIAL, PAGE_CURRENT, PAGE_EMPTY };

/* The header of a page, out of the slots' way.  Its memory stays a header until every thread has been seen outside the slab (slab_meta.c). */
struct CACHE_ALIGNED slab_page {
    /* the owner: whoever has its local */
    uint32_t due;    /* counted down by the owner's frees: at 0 it is looked at whether the state changes */
    uint32_t beside; /* slab_used() is the sum of both, modulo 2^32 */
    uint32_t from;   /* the word after the last one claimed: where the search for room begins */
    uint32_t claimed_at; /* where in `pair` the claimed word is, for the owner's eyes */
    uint8_t state, bucket, lane, home; /* home: it lies in the slab's own span and never goes back */
    struct slab_page *next, *prev;         /* of a lane's list, of the empty ones, of unused headers */
    struct slab_page *all_next, *all_prev; /* of the local's pages: changed under local->chain */
    uint32_t pins;                         /* walks that stand on it; under local->chain */
    /* fixed while in use */
    char *slots CACHE_ALIGNED;
    struct quire_slab *slab;
    size_t slot_count; /* 0: an unused header */
    uint32_t words;
    /* any thread */
    atomic_addr owner;      /* struct slab_local * */
    atomic_addr queue_next; /* struct slab_page *: on the owner's stack of pages freed into by others */
    atomic_addr avail;          /* atomic_u64 *: what was not handed out yet of */
    atomic_u32 claimed;         /* the word that the owner allocates from, for the others' */
    atomic_u32 claims;          /* odd while the two above change */
    atomic_u32 queued;
    /* seldom */
    struct quire_span span CACHE_ALIGNED;
    struct slab_chunk *chunk;
    uint32_t words_max; /* room for pairs; fixed at the header's birth */
    atomic_u64 *marks;  /* NULL, or a word for each pair */
    struct slab_pair pair[];
};

struct slab_list {
    struct slab_page *first, *last;
};

/* Where a local allocates. */
struct slab_lane {
    atomic_u64 avail; /* slots of the claimed word that were not handed out yet: other threads look whether a slot is free */
    char *base;       /* the claimed word's first slot */
    struct slab_pair *pair;
    struct slab_page *page; /* the current page */
    uint32_t filled;        /* buckets that are not empty */
    struct slab_list bucket[SLAB_BUCKETS]; /* pages with room; without the defragmenter all in the first */
};

struct slab_local {
    /* whoever has the local: its thread, a visitor, a holder of `lock` when no thread has it */
    struct slab_lane lane[SLAB_LANES];
    struct slab_page **cache; /* the thread's; NULL: nobody's */
    struct slab_page *all;
    struct slab_list empty; /* newest first */
    uint32_t empties, empties_low; /* low: the least since the last tick */
    uint32_t keep;     /* how many to keep: so many were given back and then missed */
    uint32_t returned; /* given back at once since the last tick, and not missed yet */
    uint32_t pages, defrag;
    size_t held_bytes, given_bytes; /* given: in all, back to the source */
    uint64_t tick_avail[SLAB_LANES]; /* the lanes at the last tick: nothing has moved since if equal */
    struct slab_page *tick_page[SLAB_LANES];
    /* fixed at birth */
    struct quire_slab *slab;
    struct slab_local *next;
    /* any thread */
    struct lock lock, chain;
    atomic_addr thread;                /* struct slab_thread *, 0: nobody's */
    struct slab_local *unbound_next;   /* under slab->lock */
    atomic_addr remote CACHE_ALIGNED;  /* struct slab_page *: pages that others have freed into */
};

/* One thread's record.  Its memory stays a record for ever: an ended thread's serves the next. */
struct CACHE_ALIGNED slab_thread {
    atomic_u32 active; /* the thread is inside an operation */
    atomic_u32 limit;  /* slab ids below it take the short way; 0 while somebody else is, or wants to be, inside the thread's locals */
    atomic_addr remote; /* struct slab_page *: of another thread, the last that this one freed into; slab_grace() takes it away */
    /* seldom; under lock */
    struct lock lock;
    uint32_t fills; /* of the cache */
    uint32_t count; /* entries of table that are set */
    uint32_t bound;
    struct slab_thread *next, *free_next; /* under the registry's lock */
    struct slab_page *cache[SLAB_CACHE];  /* ordinary pages of the thread's locals, by address; never NULL */
    struct slab_local *table[];           /* by slab id; &slab_local_none: none */
};

struct CACHE_ALIGNED quire_slab {
    /* fixed at birth */
    uint32_t id;
    uint32_t flags;
    size_t slot_bytes;
    uint64_t inverse; /* of slot_bytes' odd part, and the power of two beside it: see slab_slot_of() */
    uint32_t twos;
    bool watched, markable;
    uint32_t words_most; /* of the headers, so that one serves every page */
    size_t element_bytes, align_bytes, limit_bytes;
    struct quire_source *source;
    struct quire_span span; /* where this struct lies */
    char name[SLAB_NAME_BYTES];
    struct slab_page *home;
    /* any thread */
    atomic_u32 defrag CACHE_ALIGNED;
    atomic_u32 walkers;
    atomic_size page_bytes_most, page_bytes_least, first_bytes;
    atomic_size mapped_bytes, meta_bytes, peak_bytes;
    atomic_u32 pending; /* something for the next tick: also of slabs on which no thread works */
    /* under lock */
    struct lock moves CACHE_ALIGNED; /* walks begin, and pages move between locals, one at a time */
    struct lock lock;
    atomic_addr locals; /* struct slab_local *: only grows */
    struct slab_local *unbound;
    struct slab_local *spare; /* for slab_reclaim(), which needs one when there is no memory */
    atomic_u32 unbound_count;
    struct slab_chunk *chunks;
    struct slab_page *headers; /* unused */
    char *bump, *bump_end;     /* room for locals */
    /* under the registry's lock */
    struct quire_slab *next, *prev;
    uint64_t birth; /* which slab of the process it is, from 1; never used twice */
    /* under the lock of slab_by_size.c */
    uint32_t shared_size, shared_count;
};

/* ---- the words of a refusal ---- */
#define SLAB_E1 "E1 the element is free already"
#define SLAB_E2 "E2 not an address of a slab"
#define SLAB_E3 "E3 not where an element begins"
#define SLAB_E4 "E4 an element of another slab"
#define SLAB_E5 "E5 not a live slab"
#define SLAB_E6 "E6 released more often than acquired"
__attribute__((noreturn, cold)) void slab_refuse(const struct quire_slab *slab, const char *what, const void *address);

/* ---- slab_thread.c ---- */

extern THREAD_LOCAL struct slab_thread *slab_thread_self __attribute__((tls_model("initial-exec")));
extern struct slab_local slab_local_none;
extern struct slab_page slab_page_none;

/* Begin and end an operation of this thread: no instruction of it moves out, and no other thread is inside meanwhile. */
static ALWAYS_INLINE void slab_enter(struct slab_thread *thread)
{
    u32_store_relaxed(&thread->active, 1);
    atomic_fence_signal(); /* visitors: os_barrier() */
}

static ALWAYS_INLINE void slab_leave(struct slab_thread *thread)
{
    u32_store_release(&thread->active, 0); /* release [slab-active] */
}

/* What the thread may use without a lock; &slab_local_none: nothing yet; NULL: it has to go the long way. */
static ALWAYS_INLINE struct slab_local *slab_local_of(const struct quire_slab *slab, const struct slab_thread *thread)
{
    uint32_t id = slab->id;
    return likely(id < u32_load_acquire(&thread->limit)) ? thread->table[id] : NULL; /* acquire [slab-limit] */
}

/* Where a page of the slab at this address is cached: small pages of several slabs that lie together do not meet. */
static ALWAYS_INLINE size_t slab_cache_idx(const struct quire_slab *slab, const void *address)
{
    return ((uint32_t)((uintptr_t)address >> SLAB_CACHE_SHIFT) + slab->id) & (SLAB_CACHE - 1);
}

/* An operation the long way, with this thread's record locked.  bound: with a local of the slab; NULL then means no memory. */
struct slab_hold {
    struct slab_thread *thread;
};
struct slab_local *slab_hold(struct quire_slab *slab, struct slab_hold *hold, bool bound);
void slab_drop(struct slab_hold *hold);

/* Be alone in a local, whoever has it.  Not while this thread is inside an operation. */
struct slab_visit {
    struct slab_local *local;
    struct slab_thread *thread; /* NULL: nobody's */
    struct slab_visit *outer;
};
/* False: the thread is inside an operation and does not come out soon (it waits for a CPU). */
bool slab_visit_try(struct slab_visit *visit, struct slab_local *local, bool patient);
void slab_visit_begin(struct slab_visit *visit, struct slab_local *local);
void slab_visit_end(struct slab_visit *visit);

void slab_threads_setup(void);
/* Every operation that was going on has ended when this returns true; patient: wait for it, also long.  Under the registry's lock. */
bool slab_grace(bool patient);
/* At this moment no other thread is inside an operation of any slab, as far as one can see without waiting. */
bool slab_all_seem_outside(void);

bool slab_threads_after_fork(void);
bool slab_thread_is_left(const struct slab_thread *thread);
bool slab_is_live(const struct quire_slab *slab);
/* E5 when this is no live slab. */
void slab_verify(const struct quire_slab *slab);

/* ---- slab_registry.c ---- */

int slab_register(struct quire_slab *slab);   /* gives it an id; -ENOMEM */
void slab_unregister(struct quire_slab *slab); /* no thread's table knows it any more */
void slab_registry_lock(void);
bool slab_registry_try(void);
void slab_registry_unlock(void);
void slab_registry_let_go(void); /* if this thread has it */
struct quire_slab *slab_registry_first(void);
/* fn for each slab, the youngest first, until it returns false.  Under the registry's lock: fn may look at the slab and do nothing else. */
void slab_each(bool (*fn)(const struct quire_slab *slab, void *arg), void *arg);
/* fn for each page, under its local's chain lock; with the registry's lock, so that the slab stays. */
void slab_pages_look(const struct quire_slab *slab, page_look_fn *fn, void *arg);
bool slab_registry_after_fork(void);
extern atomic_u32 slab_pending; /* some slab has something for the next tick */

/* ---- slab_meta.c ---- */

bool slab_charge(struct quire_slab *slab, size_t bytes); /* false: over the limit */
void slab_charged(struct quire_slab *slab);
void slab_discharge(struct quire_slab *slab, size_t bytes);
struct slab_page *slab_header_new(struct quire_slab *slab, uint32_t words);
void slab_header_delete(struct slab_page *page);
/* Chunks without a header in use: taken off the lists; then, after slab_grace(), given back, or without it, linked again. */
bool slab_headers_idle(struct quire_slab *slab);
struct slab_chunk *slab_headers_unlink(struct quire_slab *slab);
size_t slab_headers_give(struct quire_slab *slab, struct slab_chunk *idle);
void slab_headers_relink(struct quire_slab *slab, struct slab_chunk *idle);
struct slab_local *slab_spare_take(struct quire_slab *slab);
void slab_chunks_destroy(struct quire_slab *slab);
void slab_headers_each(struct quire_slab *slab, void (*fn)(struct slab_page *page));
void slab_headers_after_fork(struct quire_slab *slab);
struct slab_local *slab_local_new(struct quire_slab *slab);
void slab_cache_clear(struct slab_local *local);
void slab_local_init(struct slab_local *local, struct quire_slab *slab);
size_t slab_header_bytes(const struct quire_slab *slab, uint32_t words);

/* ---- slab_page.c: the life of a page; the caller has its local ---- */

struct slab_page *slab_page_new(struct slab_local *local, unsigned lane);
void slab_page_setup(struct slab_page *page, char *slots, uint32_t slot_count);
void slab_page_give(struct slab_local *local, struct slab_page *page, bool cold);
void slab_cache_forget(struct slab_local *local, const struct slab_page *page);
/* Slots were freed: it may have room again, or nothing live. */
void slab_page_freed(struct slab_local *local, struct slab_page *page);
void slab_page_link(struct slab_local *local, struct slab_page *page);
void slab_page_unlink(struct slab_local *local, struct slab_page *page);
bool slab_page_leave_all(struct slab_local *local, struct slab_page *page); /* false: a walk stands on it */
void slab_page_enter_all(struct slab_local *local, struct slab_page *page);
void slab_lane_detach(struct slab_local *local, unsigned lane);
/* cold: they have been idle for long enough already. */
size_t slab_empties_give(struct slab_local *local, uint32_t count, bool cold);
struct slab_page *slab_empty_pop(struct slab_local *local);
void slab_local_follow(struct slab_local *local); /* the defragmenter was switched */
struct slab_page *slab_page_pick(struct slab_local *local, unsigned lane);
void slab_list_push(struct slab_list *list, struct slab_page *page);
void slab_list_remove(struct slab_list *list, struct slab_page *page);

/* ---- slab_remote.c ---- */

void slab_queue(struct slab_page *page);
void slab_refuse_remote(struct slab_page *page, unsigned word);
/* Slots, counted from `first`, whose free by another thread needs a second look: freed says whether their bits are set already. */
struct slab_doubt {
    struct slab_page *page; /* where the bits were set, if freed */
    unsigned word;
    char *first;
    uint64_t bits;
    bool freed;
};
bool slab_remote_free(struct slab_page *page, unsigned word, uint64_t bits, struct slab_doubt *doubt);
/* Somebody is settling a doubt; to be asked after slab_grace(). */
bool slab_is_settling(void);
void slab_settlers_after_fork(void);
/* Not inside an operation. */
void slab_settle(struct quire_slab *slab, struct slab_doubt doubt);
void slab_drain(struct slab_local *local);                              /* collect what others freed */
void slab_collect(struct slab_local *local, struct slab_page *page);
void slab_refuse_bits(struct slab_page *page, unsigned word, uint64_t bits); /* E1 for the lowest */

/* ---- slab_mark.c ---- */

/* The marks of these slots come off; false: there were none. */
bool slab_unmark_bits(struct slab_page *page, unsigned word, uint64_t bits);
/* A page of the marked lane without a mark left joins the ordinary ones. */
void slab_page_rejoin(struct slab_local *local, struct slab_page *page);

/* ---- slab_refill.c ---- */

/* An element from the local: `avail`, or from wherever.  NULL: no memory without asking others. */
void *slab_local_alloc(struct slab_local *local, unsigned lane);
/* After a free into the page, when the ordinary lane has nothing left.  False: not this page. */
bool slab_lane_turn(struct slab_local *local, struct slab_page *page, unsigned word);
size_t slab_local_alloc_batch(struct slab_local *local, void **elements, size_t count);
/* Only from pages that the local has. */
size_t slab_local_alloc_own(struct slab_local *local, void **elements, size_t count);

/* ---- slab.c ---- */

/* What sanitizers are told of an element that is handed out. */
void *slab_watched_alloc(const struct quire_slab *slab, void *element);
/* Page sizes for a largest page; 0: default. */
void slab_set_sizes(struct quire_slab *slab, size_t page_bytes_max);

/* ---- slab_look.c ---- */

void slab_walks_after_fork(void);

/* ---- slab_free.c ---- */

struct slab_place {
    struct slab_page *page;
    size_t slot;
};
/* Where `p` is in the slab, or the words of the refusal.  Inside an operation. */
const char *slab_locate(const struct quire_slab *slab, const void *p, struct slab_place *place);
/* The slots of a word that are free, claimed or freed by others at one moment of the call; of any thread's page. */
uint64_t slab_not_live(const struct slab_page *page, unsigned word);
bool slab_slot_is_free(const struct slab_page *page, size_t slot);
void slab_free_owned(struct slab_local *local, struct slab_page *page, size_t slot);

/* ---- slab_by_size.c ---- */

void slab_by_size_after_fork(void);

/* ---- slab_trim.c ---- */

void slab_wake(struct quire_slab *slab); /* a tick is wanted */
/* Locals that no thread has: one of them, and a list of them (through unbound_next). */
struct slab_local *slab_unbound_pop(struct quire_slab *slab);
void slab_unbound_push(struct quire_slab *slab, struct slab_local *locals);

size_t slab_local_trim(struct slab_local *local);
/* Ask all for what they do not need, and if that is nothing, for a page with room.  True: there is something to try again for. */
bool slab_reclaim(struct quire_slab *slab, unsigned lane);
/* The last resort, for a thread that cannot even have a local: from the others', with them outside. */
size_t slab_alloc_elsewhere(struct quire_slab *slab, void **elements, size_t count);
void slab_steal(struct slab_local *local, unsigned lane);

/* ---- slab_fork.c ---- */

void slab_after_fork(void);

/* ---- small things ---- */

/*
 * The slot that begins at `p`: below slot_count exactly when one does, whatever p is.  slot_bytes = odd * 2^twos; multiplying by the odd part's
 * inverse and rotating maps the 2^64 offsets one to one, and q * slot_bytes to q: so nothing else can come out below slot_count.
 * (Exact division: Granlund and Montgomery 1994, section 9; Warren, Hacker's Delight, 10-17.)
 */
static ALWAYS_INLINE size_t slab_slot_from(const struct quire_slab *slab, const char *slots, const void *p)
{
    uint64_t product = ((uintptr_t)p - (uintptr_t)slots) * slab->inverse;
    return product >> (slab->twos & 63) | product << (-slab->twos & 63);
}

static ALWAYS_INLINE size_t slab_slot_of(const struct quire_slab *slab, const struct slab_page *page, const void *p)
{
    return slab_slot_from(slab, __atomic_load_n(&page->slots, __ATOMIC_RELAXED), p); /* it may be going, when a doubt is settled */
}

static inline char *slab_slot_at(const struct slab_page *page, size_t slot)
{
    return page->slots + slot * page->slab->slot_bytes;
}

/* The bits of word number `word` that stand for slots. */
static inline uint64_t slab_word_bits(const struct slab_page *page, unsigned word)
{
    size_t left = page->slot_count - word * WORD_BITS;
    return bits_low(left < WORD_BITS ? (unsigned)left : WORD_BITS);
}

static inline struct slab_local *slab_owner(const struct slab_page *page)
{
    return (struct slab_local *)addr_load_acquire(&page->owner); /* acquire [slab-owner] */
}

/* Around a change of `claimed`, or of which word `avail` is about. */
static inline void slab_claims_begin(struct slab_page *page)
{
    u32_store_relaxed(&page->claims, u32_load_relaxed(&page->claims) + 1);
    atomic_fence_release();
}

static inline void slab_claims_end(struct slab_page *page)
{
    u32_store_release(&page->claims, u32_load_relaxed(&page->claims) + 1); /* release [slab-claims] */
}

/* Slots of a word that are claimed and not handed out; of another thread's page a guess, because the owner may be moving on. */
static ALWAYS_INLINE uint64_t slab_claimed(const struct slab_page *page, unsigned word)
{
    if (likely(u32_load_acquire(&page->claimed) != word)) /* acquire [slab-claim] */
        return 0;
    return u64_load_acquire((const atomic_u64 *)addr_load_relaxed(&page->avail)); /* acquire [slab-claim] */
}

static inline void slab_set_claimed(struct slab_page *page, unsigned word)
{
    page->claimed_at = word * (uint32_t)sizeof(struct slab_pair); /* of SLAB_WORD_NONE: past every word */
    u32_store_release(&page->claimed, word); /* release [slab-claim] */
}

/* Slots that are live, freed by others and not collected, or claimed. */
static inline uint32_t slab_used(const struct slab_page *page)
{
    return page->due + page->beside;
}

/* A full page is looked at when the next slot is freed, one with room when nothing is live, and others never: a page is claimed from again before. */
static inline void slab_set_used(struct slab_page *page, uint32_t used)
{
    page->due = page->state == PAGE_FULL ? 1 : page->state == PAGE_PARTIAL ? used : SLAB_NEVER;
    page->beside = used - page->due;
}

/* So many were claimed; of a current page. */
static inline void slab_used_more(struct slab_page *page, uint32_t count)
{
    page->beside += page->due - SLAB_NEVER + count;
    page->due = SLAB_NEVER;
}

/* So many were freed.  True: the page is to be looked at. */
static ALWAYS_INLINE bool slab_used_less(struct slab_page *page, uint32_t count)
{
    bool is_due = page->due <= count;
    page->due -= count;
    return is_due;
}

/* The owner's, but a drain looks at pages that may have become another's: see drain_taken(). */
static inline void slab_set_state(struct slab_page *page, enum slab_state state)
{
    uint32_t used = slab_used(page);
    __atomic_store_n(&page->state, (uint8_t)state, __ATOMIC_RELAXED);
    slab_set_used(page, used);
}

static inline size_t slab_slots_bytes(const struct slab_page *page)
{
    return page->slot_count * page->slab->slot_bytes;
}

static inline bool slab_page_has_room(const struct slab_page *page)
{
    return slab_used(page) < page->slot_count;
}

/* The newest local. */
static inline struct slab_local *slab_locals(const struct quire_slab *slab)
{
    return (struct slab_local *)addr_load_acquire(&slab->locals); /* acquire [slab-locals] */
}

static inline bool slab_keeps_nothing(const struct quire_slab *slab)
{
    return (slab->flags & QUIRE_SLAB_KEEP_NOTHING) != 0;
}

#ifdef __cplusplus
}
#endif
#endif
