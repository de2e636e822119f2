// SPDX-License-Identifier: MIT
/*
 * slab_internal.h - what the files of the slab know together; nobody else includes it.
 *
 *     struct slab_thread --- caches[slab id] ---> struct slab_cache     one thread's free slots of one slab
 *                                                   cur, prev, own ---> struct magazine: an array of pointers to free slots
 *     struct quire_slab --- depot --------------> struct magazine ...   full ones that no thread has
 *                       --- all, lane, empty ---> struct slab_page ---> the elements' memory; one bit for each slot that is free in its page
 *
 * A slot is live, or free in its page (its bit), or in a magazine.  A slot that is free carries a mark in its first word, see slots_mark().
 */
#ifndef QUIRE_SLAB_INTERNAL_H
#define QUIRE_SLAB_INTERNAL_H

#include <quire/slab.h>

#include "base/account.h"
#include "base/bias.h"
#include "base/bits.h"
#include "base/compiler.h"
#include "base/list.h"
#include "base/lock.h"
#include "owner/headers.h"
#include "owner/record.h"
#include "owner/registry.h"
#include "pages/page_look.h"
#include "pages/pagemap.h"
#include "slab/slab_policy.h"
#include "slots/slots.h"

C_DECLARATIONS_BEGIN

enum { SLAB_NAME_BYTES = 32, SLAB_LANES = 2, LANE_ORDINARY = 0, LANE_MARKED = 1, SLAB_IDS_MAX = 16384 };
/* Where the caches of a slab that is no more, or not yet, or that has none, would be. */
#define SLAB_OFFSET_NONE UINT32_MAX

/* ---- magazines ---- */

enum { SLAB_SMALL_SLOTS = 8 };

/* One thread's free slots of one slab. */
struct slab_cache {
    struct slot_cache slots;
    /* the thread's, or a visitor's */
    size_t run, run_most; /* slots missed since it last gave any to the pages; the most there were, since the slab's swing began */
    struct slab_page *held; /* NULL, or the page that only this cache is filled from */
    uint32_t untold; /* full magazines that it kept and slab_cached_bytes does not know of yet */
    uint32_t in_a_row; /* how often it was filled, and nothing overflowed */
    uint32_t fill; /* slots that it gets from a page the next time: twofold, so that a thread that needs few touches few */
    struct quire_slab *slab; /* NULL: not used yet */
    struct magazine small;  /* the first magazine, for threads that hardly use the slab */
    uintptr_t small_slot[SLAB_SMALL_SLOTS];
};

/* ---- pages ---- */

enum slab_state { PAGE_UNUSED, PAGE_FULL, PAGE_PARTIAL, PAGE_HELD, PAGE_EMPTY };

/* The header of a page, out of the slots' way.  Its memory stays a header until every thread has been seen outside the slab, and readable until that ends (slab_meta.c). */
struct CACHE_ALIGNED slab_page {
    /* read by frees without a lock */
    atomic_addr slots;
    struct quire_slab *slab;
    atomic_size carved; /* bytes of slots that may be freed the short way: those that were handed out once; 0 with marks */
    /* under slab->lock */
    struct slab_page *next, *prev; /* of a lane's list, or of the empty ones */
    uint32_t span_steps, span_flags, span_cookie; /* the span that begins with `slots`, see slab_page_span(); 0 steps: home, which never goes back */
    uint16_t slot_count, free_count; /* slot_count 0: an unused header */
    uint16_t reached; /* slots that were ever handed out */
    uint16_t chunk_lines; /* from the beginning of its chunk; home has none */
    uint32_t state : 3, bucket : 3, lane : 1;
    uint32_t from : 6;  /* where the search for a free slot begins */
    uint32_t pins : 19; /* walks that stand on it */
    uint64_t free[]; /* in a markable slab, behind the words in use: a mark for each slot */
};
STATIC_ASSERT(sizeof(struct slab_page) == CACHE_LINE_BYTES, "a million small elements have a thousand of them");
STATIC_ASSERT(SLAB_SLOTS_MAX <= UINT16_MAX && SLAB_SLOTS_MAX / WORD_BITS <= 1 << 6, "counts and `from`");
enum { SPAN_STEP_LOG2 = 12 }; /* of every OS page's size a divisor */

LIST_OF(slab_pages, struct slab_page, next, prev);

/*
 * A slab's own way from an address to its page, shorter than the page map: direct-mapped by stretches of 4 KiB, or of a large page's size.  What it has no
 * room for, or lost to another, the page map finds.
 */
struct slab_table {
    uintptr_t mask; /* of the entries' byte offsets */
    struct slab_page *entry[];
};
enum { SLAB_TABLE_LEAST = 32 };

/* Pages with room. */
struct slab_lane {
    struct slab_page *current;             /* NULL, or on no list: single slots come from it until it is full */
    uint32_t filled;                       /* buckets that are not empty */
    struct slab_page *bucket[SLAB_BUCKETS]; /* without the defragmenter all in the first */
    struct slab_page *picked;              /* with it, last; NULL: none, or it is gone */
};

/* ---- threads and slabs ---- */

struct slab_gate;

/* One thread's record. */
struct CACHE_ALIGNED slab_thread {
    struct record record;
    atomic_u32 active;  /* the thread is inside an operation */
    atomic_u32 limit;   /* caches at offsets below it take the short way; 0 while somebody else is, or wants to be, inside */
    char *caches;       /* struct slab_cache, by slab id */
    struct slab_gate *gates; /* ways to the first of them (slab_gate.h); NULL: the thread is no more.  Under the registry's lock */
    atomic_u32 closed;  /* somebody closed the gates: whoever drops the lock opens them */
    /* under lock */
    struct lock lock;
    uint32_t count;          /* caches there are */
    uint32_t holds, seen;    /* operations the long way; as many as there were at the last tick */
};

struct CACHE_ALIGNED quire_slab {
    /* fixed at birth; offset: until death */
    uintptr_t gate; /* where its gates are, from any thread's pointer */
    uint64_t divide; /* by slot_bytes: see slab_begins() */
    atomic_addr table; /* struct slab_table *: changes under lock */
    atomic_u32 shift;  /* the table's: 2^shift bytes of addresses to a byte of it */
    uint32_t offset; /* of its caches, in a thread's; NONE: they are not used */
    uint32_t id;
    size_t slot_bytes;
    uint32_t flags;
    bool watched, markable;
    bool straight; /* no magazines: every operation is settled on its page */
    uint32_t words_most; /* of the headers, so that one serves every page */
    uint32_t fill; /* slots that a magazine gets at once from a page */
    size_t element_bytes, align_bytes;
    struct quire_source *source;
    struct quire_span span; /* where this struct lies */
    char name[SLAB_NAME_BYTES];
    struct slab_page *home;
    void (*told)(struct quire_source *source); /* NULL, or who hears that bookkeeping came or went */
    /* any thread */
    atomic_u32 defrag CACHE_ALIGNED;
    atomic_size page_bytes_most, page_bytes_least, first_bytes;
    struct account account;
    atomic_u32 pending; /* something for the next tick */
    atomic_u32 turning; /* 1: what is freed is allocated again, so large magazines and depots are worth it */
    /* under lock */
    struct lock lock CACHE_ALIGNED;
    struct slot_depot depot;
    struct magazine *vacant; /* the empty ones of those who took full ones */
    size_t spilled;  /* slots that have gone back to their pages, and not been missed yet */
    size_t swing;    /* how many slots are freed and then allocated, all threads together, as far as the pages see it */
    struct slab_lane lane[SLAB_LANES];
    struct slab_page *empty; /* newest first */
    uint32_t empties, empties_low; /* low: the least since the last tick */
    uint32_t keep;     /* how many to keep: so many were given back and then missed */
    uint32_t returned; /* given back at once since the last tick, and not missed yet */
    uint32_t pages, filed_by_fullness; /* the lanes' buckets are in use */
    size_t table_lost; /* entries of pages that others have had since */
    bool wakes; /* a tick is wanted, when the lock is dropped */
    bool is_torn; /* in the child of a fork: see slab_fork.c */
    size_t uneven_bytes; /* what it held when its pages lay too badly for long steps; 0: they never did */
    uint64_t turns; /* how often it was locked */
    size_t held_bytes;
    size_t slots, free_slots; /* of all pages */
    struct headers headers;
    struct header_chunk *retired; /* chunks that threads without a record may still look at (slab_meta.c) */
    /* under the registry's lock */
    struct quire_slab *next, *prev;
    uint64_t birth; /* which slab of the process it is, from 1; never used twice */
    /* under the lock of slab_shared.c */
    uint32_t shared_size, shared_count;
    uintptr_t small_table[1 + SLAB_TABLE_LEAST]; /* a struct slab_table */
};

/* ---- the words of a refusal ---- */
#define SLAB_E1 "E1 the element is free already"
#define SLAB_E2 "E2 not an address of a slab"
#define SLAB_E3 "E3 not where an element begins"
#define SLAB_E4 "E4 an element of another slab"
#define SLAB_E5 "E5 not a live slab"
#define SLAB_E6 "E6 released more often than acquired"
#define SLAB_E7 "E7 written to after it was freed, or freed twice"
__attribute__((noreturn, cold)) void slab_refuse(const struct quire_slab *slab, const char *what, const void *address);

/* ---- slab_thread.c ---- */

extern THREAD_LOCAL struct slab_thread *slab_thread_self __attribute__((tls_model("initial-exec")));

/* An operation the long way: this thread's record is locked, so no header goes and nobody visits.  NULL: it has no cache, and does without. */
struct slab_cache *slab_hold(struct quire_slab *slab);
void slab_drop(void);
void slab_lock(struct quire_slab *slab);
void slab_unlock(struct quire_slab *slab);

/*
 * fn (NULL: nothing) for every thread's record, with the thread outside; under the registry's lock, not while this thread holds.  False: one was passed over, because
 * it is inside an operation and does not come out soon (it waits for a CPU); never so if patient.
 */
typedef void slab_visit_fn(struct slab_thread *thread, void *arg);
bool slab_visit_all(slab_visit_fn *fn, void *arg, bool patient);
bool slab_visit(struct slab_thread *thread, slab_visit_fn *fn, void *arg, bool patient); /* one of them, after a barrier */
/* How many slots threads have cached, each counted with its record locked and the thread perhaps inside its short way; to *caches are added their caches. */
size_t slab_caches_count(const struct quire_slab *slab, size_t *caches);
struct slab_cache *slab_visited_cache(const struct slab_thread *thread, const struct quire_slab *slab); /* NULL: it has none */
struct slab_thread *slab_thread_of(const char *thread_pointer); /* the record of the thread with this pointer, or the shared one */
void slab_thread_detach(struct slab_thread *thread); /* the visited thread has nothing left in its caches */
size_t slab_thread_bytes(void); /* of all threads' caches */

void slab_gate_set(struct quire_slab *slab); /* after its id: where its gates are */
/* Every operation that was going on has ended when this returns true; patient: wait for it, also long.  Under the registry's lock. */
bool slab_grace(bool patient);
bool slab_thread_is_amid(void); /* the calling thread, in whose signal handler this is: of an operation */
bool slab_threads_after_fork(bool goes_on); /* slab_thread_is_amid() */
void slab_threads_adopt(bool anew); /* in the child: what the vanished threads' caches hold goes to the pages; anew: everybody's is forgotten */
bool slab_is_live(const struct quire_slab *slab);
/* An operation begins, by its long way, and holds nothing: in the child of a fork what is due is done.  E5 when this is no live slab. */
void slab_verify(const struct quire_slab *slab);

/* ---- slab_registry.c ---- */

int slab_register(struct quire_slab *slab);   /* gives it an id; -ENOMEM */
void slab_unregister(struct quire_slab *slab); /* no thread's caches know it any more */
LIST_OF(slabs, struct quire_slab, next, prev);
extern struct registry slab_registry;
void slab_list_lock(void); /* the registry's; holding nothing of slabs */
extern struct quire_slab *slab_first; /* the youngest */
/* fn for each slab, the youngest first, until it returns false.  Under the registry's lock: fn may look at the slab and do nothing else. */
void slab_each(bool (*fn)(const struct quire_slab *slab, void *arg), void *arg);
/* fn for each page, under the slab's lock; with the registry's lock, so that the slab stays. */
void slab_pages_look(const struct quire_slab *slab, page_look_fn *fn, void *arg);
extern atomic_u32 slab_pending; /* some slab has something for the next tick */
extern atomic_u32 slab_any;    /* there was one */

/* ---- slab_meta.c; under slab->lock ---- */

struct slab_page *slab_header_new(struct quire_slab *slab, uint32_t words);
void slab_header_delete(struct slab_page *page);
/* Chunks without a header in use that are off the lists (headers_unlink()), after slab_grace(). */
void slab_headers_retire(struct quire_slab *slab, struct header_chunk *idle);
void slab_headers_destroy(struct quire_slab *slab); /* the slab ends */
/* Each page of the slab once, home first; NULL before the first, and behind the last.  Those that come on the way may be among them, those that go are not in its way. */
struct slab_page *slab_page_after(const struct quire_slab *slab, const struct slab_page *page);
void slab_headers_after_fork(struct quire_slab *slab);
struct slab_table *slab_table_new(struct quire_slab *slab, size_t entries); /* or one that it had; its entries are for the caller to set */
size_t slab_header_bytes(const struct quire_slab *slab, uint32_t words);

/* ---- slab_fork.c ---- */

extern bool slab_is_repairing; /* in the child: nothing is given back, and no clock is started */
extern atomic_u32 slab_fork_is_due; /* what vanished threads left is repaired when the thread that forked has done what it was in the middle of */
void slab_fork_rest(void);   /* it has, or is waited for; under the registry's lock */
void slab_fork_settle(void); /* the same, holding nothing */

/* ---- slab_page.c: the life of a page; under slab->lock ---- */

void slab_page_setup(struct slab_page *page, char *slots, uint32_t slot_count);
void slab_page_enter(struct slab_page *page);
void slab_page_link(struct slab_page *page);
void slab_page_unlink(struct slab_page *page);
/* A page with room of the lane, or an empty one, or a new one: on no list, PAGE_HELD.  NULL: no memory. */
struct slab_page *slab_page_next(struct quire_slab *slab, unsigned lane);
void slab_currents_release(struct quire_slab *slab);
/* Back on the list that its room says. */
void slab_page_settle(struct slab_page *page);
void slab_page_unpin(struct slab_page *page);
/* Up to `count` of its free slots are free no more; the last in the array is the lowest.  key: their marks'; 0: none. */
uint32_t slab_page_take(struct slab_page *page, atomic_addr *slots, uint32_t count, uint64_t key);
/* A slot is free in its page.  E1 if it was. */
void slab_page_put(struct slab_page *page, size_t slot);
/* The lane's or the slab's way of freeing changed: which slots may take the short way. */
void slab_page_publish(struct slab_page *page);
size_t slab_empties_give(struct quire_slab *slab, uint32_t count, bool cold);
void slab_pages_destroy(struct quire_slab *slab);

/* ---- slab_table.c: under slab->lock ---- */

void slab_table_init(struct quire_slab *slab);
void slab_table_enter(struct slab_page *page);
void slab_table_leave(const struct slab_page *page);
void slab_table_fit(struct quire_slab *slab); /* to a slab that is much smaller now */
void slab_table_anew(struct quire_slab *slab);

/* ---- slab_mark.c: under slab->lock ---- */

void slab_page_rejoin(struct slab_page *page); /* a page of the marked lane, without a mark left, on no list */
bool slab_unmark_bit(struct slab_page *page, size_t slot); /* false: there was none */

/* ---- slab_cache.c ---- */

int slab_mags_setup(void);
/* In the child: somebody was at them; and, when no magazine is in use any more, all of their memory is free. */
bool slab_mags_after_fork(void);
void slab_mags_anew(void);
size_t slab_mags_trim(void);
void slab_cache_init(struct slab_cache *cache, struct quire_slab *slab); /* slab NULL: not used yet */
/* The record of the cache's thread is locked: its current magazine has a slot.  False: there is no memory without asking others. */
bool slab_cache_refill(struct slab_cache *cache);
/* With the thread inside, or as above: from one of its own magazines to the next, for a free.  False: that is not all there is to do. */
bool slab_cache_return(struct slab_cache *cache);
void slab_cache_free(struct slab_cache *cache, void *element); /* which was found live */
/* Everything to the pages, but full magazines to the slab's depot if its thread ends; which is outside. */
void slab_cache_flush(struct slab_cache *cache, bool ends);
void slab_cache_forget(struct slab_cache *cache); /* what it holds is free already, or the slab ends: only its magazines go back */
/* Empty magazines that wait for others to be full go; `full`: these too, what they hold to the pages, and the slab learns anew what to keep. */
void slab_depot_flush(struct quire_slab *slab, bool full);
void slab_depot_forget(struct quire_slab *slab); /* it ends */
extern atomic_size slab_cached_bytes; /* that caches may hold, roughly: what was added to them since the last tick */

/* ---- slab.c ---- */

struct quire_slab *slab_create(size_t element_bytes, const struct quire_slab_opts *opts, bool markable, bool listed);
void slab_unmake(struct quire_slab *slab);
/* An element straight from a page, and back; for those without a cache. */
void *slab_take_one(struct quire_slab *slab, unsigned lane);
/* After all have been asked; NULL with errno. */
void *slab_alloc_lane(struct quire_slab *slab, unsigned lane);
void slab_put_one(struct quire_slab *slab, void *element);

/* ---- slab_look.c ---- */

struct slab_walk;
struct slab_walk *const *slab_walks(void); /* the calling thread's */
void slab_walks_after_fork(const struct slab_walk *walks); /* of the one thread that there is */

/* ---- slab_free.c ---- */

struct slab_place {
    struct slab_page *page;
    size_t slot;
};
/* Where `p` is in the slab, or the words of the refusal.  While this thread holds, or the slab is locked. */
const char *slab_locate(const struct quire_slab *slab, const void *p, struct slab_place *place);

/* A slot was not in its magazine as it was left there: E1 or E7.  Holding nothing. */
__attribute__((noreturn, cold)) void slab_refuse_slot(struct quire_slab *slab, void *slot);

/* ---- slab_shared.c ---- */

void slab_shared_after_fork(void);

/* ---- slab_trim.c ---- */

void slab_wake(struct quire_slab *slab); /* a tick is wanted */
/* Ask all for what they do not need.  True: there is something to try again for. */
bool slab_reclaim(struct quire_slab *slab, unsigned lane);
void slab_collect(struct quire_slab *slab, bool patient); /* what all threads have cached, to the pages; under the registry's lock */

/* ---- slab_fork.c ---- */

void slab_after_fork(void);
void slab_repair(struct quire_slab *slab); /* nobody has any magazine of it */
bool slab_reset_others(struct quire_slab *slab); /* true: another had its lock */

/* ---- small things ---- */

/* The slot that begins at `p`: below slot_count exactly when one does, whatever p is. */
static inline size_t slab_slot_of(const struct quire_slab *slab, const struct slab_page *page, const void *p)
{
    size_t offset = (uintptr_t)p - addr_load_relaxed(&page->slots);
    return offset % slab->slot_bytes == 0 ? offset / slab->slot_bytes : SIZE_MAX;
}

/* An element begins so many bytes behind the page's first: a multiple of slot_bytes, as both are below 2^32.  (Lemire, Kaser and Kurz 2019.) */
static ALWAYS_INLINE bool slab_begins(const struct quire_slab *slab, size_t offset)
{
    return offset * slab->divide < slab->divide;
}

/* Of a table that has been replaced meanwhile: any entry. */
static ALWAYS_INLINE struct slab_page **slab_table_entry(const struct quire_slab *slab, struct slab_table *table, uintptr_t address)
{
    uintptr_t at = address >> (u32_load_relaxed(&slab->shift) & 63) & table->mask;
    return (struct slab_page **)(void *)((char *)table->entry + at);
}

static inline char *slab_slots(const struct slab_page *page)
{
    return (char *)addr_load_relaxed(&page->slots);
}

static inline char *slab_slot_at(const struct slab_page *page, size_t slot)
{
    return slab_slots(page) + slot * page->slab->slot_bytes;
}

static inline bool slab_is_marked(const struct quire_slab *slab, const void *slot)
{
    return !slab->straight && slots_is_marked(slot);
}

static inline unsigned slab_words(const struct slab_page *page)
{
    return (page->slot_count + WORD_BITS - 1U) / WORD_BITS;
}

/* Of a markable slab. */
static inline uint64_t *slab_marks(struct slab_page *page)
{
    return &page->free[slab_words(page)];
}

/* The bits of word number `word` that stand for slots. */
static inline uint64_t slab_word_bits(const struct slab_page *page, unsigned word)
{
    return bits_within(word, 0, page->slot_count);
}

static inline uint32_t slab_used(const struct slab_page *page)
{
    return (uint32_t)page->slot_count - page->free_count;
}

static inline size_t slab_slots_bytes(const struct slab_page *page)
{
    return page->slot_count * page->slab->slot_bytes;
}

static inline bool slab_is_home(const struct slab_page *page)
{
    return page->span_steps == 0;
}

static inline size_t slab_span_bytes(const struct slab_page *page)
{
    return (size_t)page->span_steps << SPAN_STEP_LOG2;
}

/* Of any but home. */
static inline struct quire_span slab_page_span(const struct slab_page *page)
{
    return (struct quire_span){slab_slots(page), slab_span_bytes(page), page->span_flags, page->span_cookie};
}

static inline size_t slab_page_bytes(const struct slab_page *page)
{
    return slab_is_home(page) ? slab_slots_bytes(page) : slab_span_bytes(page);
}

static inline bool slab_keeps_nothing(const struct quire_slab *slab)
{
    return (slab->flags & QUIRE_SLAB_KEEP_NOTHING) != 0;
}

C_DECLARATIONS_END
#endif
