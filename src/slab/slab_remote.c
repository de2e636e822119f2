// SPDX-License-Identifier: MIT
/*
 * slab_remote.c - elements freed by other threads than the one that has their page.
 *
 *     other thread:  word.remote |= bit      first since the last collection: push the page on the owner's stack
 *     owner:         at its next refill: for each page of the stack: free |= remote, remote &= ~collected
 *
 * Nothing is lost: the owner takes `queued` back, passes a full fence, then reads the words; whoever set a bit before that is read, whoever
 * sets one after it finds `queued` 0 and pushes again.
 *
 * No double free goes unseen, and none is seen too late, that is, after its slot has been handed out again.  Two frees by others meet in the or.
 * The owner looks at `remote` before it frees.  A free by another looks at `free` and at the claimed slots before its or and after it; what it sees
 * there is only a suspicion, because the owner may be collecting the bit, or moving to another word, at that moment: it is settled at rest, with
 * the owner outside (slab_settle()), where a slot that was freed once is in one of the three only.  If owner and other free at the same moment
 * and neither sees the other, both bits are set, and the owner meets them before it hands the slot out: a claim publishes what it takes, in
 * `avail`, before the atomic and that takes it out of `remote`, so a late or finds it there.
 *
 * A page may be gone while the thread whose free made it empty is still about to push it: headers outlive that (slab_meta.c), and an unused
 * header on a stack is dropped.  A page that was moved to another local meanwhile is passed on.
 *
 * Locks: none: the stack is a list that many push on and one takes whole.  Not here: when to collect (slab_refill.c, slab_trim.c).
 */
#include "slab/slab_internal.h"

/* What of a word may not be freed, as far as another than the owner can see it. */
static uint64_t seems_not_live(const struct slab_page *page, unsigned word)
{
    uint64_t free = u64_load_acquire(&page->pair[word].free); /* acquire [slab-claim] */
    return free | slab_claimed(page, word);
}

void slab_refuse_bits(struct slab_page *page, unsigned word, uint64_t bits)
{
    slab_refuse(page->slab, SLAB_E1, slab_slot_at(page, word * WORD_BITS + bits_lowest(bits)));
}

/* Nothing in the page is live: a free by another thread that is still to be collected was one too many. */
void slab_refuse_remote(struct slab_page *page, unsigned word)
{
    uint64_t remote = u64_load_relaxed(&page->pair[word].remote);
    if (unlikely(remote))
        slab_refuse_bits(page, word, remote);
}

static void push(struct slab_local *local, struct slab_page *page)
{
    uintptr_t head = addr_load_relaxed(&local->remote);
    do
        addr_store_relaxed(&page->queue_next, head);
    while (!addr_cas_release(&local->remote, &head, (uintptr_t)page)); /* release [slab-queue] */
    if (unlikely(u32_load_relaxed(&local->slab->pending) == 0))
        slab_wake(local->slab);
}

/* The owner finds it at its next collection. */
void slab_queue(struct slab_page *page)
{
    if (u32_load_seq_cst(&page->queued) == 0 && u32_exchange_acquire(&page->queued, 1) == 0)
        push(slab_owner(page), page);
}

/* Whoever settles a doubt looks at headers outside of an operation: none is given back meanwhile. */
static atomic_u32 settlers;

static bool doubt_begin(void)
{
    u32_add_seq_cst(&settlers, 1);
    return false;
}

bool slab_is_settling(void)
{
    return u32_load_seq_cst(&settlers) != 0;
}

void slab_settlers_after_fork(void)
{
    u32_store_relaxed(&settlers, 0);
}

/*
 * The page went.  After the or, as a rule: what was freed was its last, and its owner, told of it by an earlier notice or by a refill, was faster
 * than we.  Before it, if there was nothing live: then the bits stand in a header without slots, where nobody else puts any and nobody collects.
 */
static NOINLINE bool page_went(struct slab_page *page, unsigned word, uint64_t bits, struct slab_doubt *doubt)
{
    bool slotless = !__atomic_load_n(&page->slots, __ATOMIC_ACQUIRE); /* acquire [slab-went] */
    if (slotless && (u64_load_seq_cst(&page->pair[word].remote) & bits))
        slab_refuse(page->slab, SLAB_E1, doubt->first + bits_lowest(bits) * page->slab->slot_bytes);
    doubt->bits = 0;
    return true;
}

/*
 * Free the slots of `bits`, which are counted from doubt->first; the caller does not have the page.  False: some of them seem not to be live, and doubt says what to settle, outside
 * the operation.
 */
bool slab_remote_free(struct slab_page *page, unsigned word, uint64_t bits, struct slab_doubt *doubt)
{
    const char *slots = doubt->first - (size_t)word * WORD_BITS * page->slab->slot_bytes;
    doubt->bits = bits;
    doubt->freed = false;
    doubt->page = page;
    doubt->word = word;
    if (unlikely(seems_not_live(page, word) & bits))
        return doubt_begin();
    if (unlikely(page->marks != NULL))
        slab_unmark_bits(page, word, bits);
    uint64_t twice = u64_or_seq_cst(&page->pair[word].remote, bits) & bits; /* release [slab-remote] */
    if (unlikely(twice))
        slab_refuse(page->slab, SLAB_E1, doubt->first + bits_lowest(twice) * page->slab->slot_bytes);
    if (unlikely(__atomic_load_n(&page->slots, __ATOMIC_RELAXED) != slots))
        return page_went(page, word, bits, doubt);
    doubt->bits = seems_not_live(page, word) & bits;
    doubt->freed = true;
    slab_queue(page);
    return likely(doubt->bits == 0) || doubt_begin();
}

/* One slot, with its owner at rest: what is live and not yet freed is freed; what is in two places was freed twice. */
static bool settle_at_rest(struct slab_page *page, size_t slot, bool freed)
{
    unsigned word = (unsigned)(slot / WORD_BITS);
    uint64_t bit = UINT64_C(1) << slot % WORD_BITS, not_live = seems_not_live(page, word) & bit;
    if (freed)
        return (not_live & u64_load_relaxed(&page->pair[word].remote)) == 0;
    if (not_live)
        return false;
    if (page->marks)
        slab_unmark_bits(page, word, bit);
    if (u64_or_seq_cst(&page->pair[word].remote, bit) & bit) /* release [slab-remote] */
        return false;
    slab_queue(page);
    return true;
}

/* The page went after its owner had looked for late frees, with nothing live, and before our bit was set: there it stands, in an unused header. */
static bool stands_in_unused(const struct slab_doubt *doubt, uint64_t bit)
{
    struct slab_visit visit;
    slab_visit_begin(&visit, slab_owner(doubt->page)); /* it may be on its way still */
    bool slotless = !__atomic_load_n(&doubt->page->slots, __ATOMIC_ACQUIRE); /* acquire [slab-went] */
    bool stands = slotless && (u64_load_seq_cst(&doubt->page->pair[doubt->word].remote) & bit) != 0;
    slab_visit_end(&visit);
    return stands;
}

static void settle_one(struct quire_slab *slab, const struct slab_doubt *doubt, unsigned number)
{
    void *element = doubt->first + number * slab->slot_bytes;
    struct slab_visit visit;
    struct slab_place place;
    const char *refused;
    bool twice = false, freed = doubt->freed;
    for (;;) {
        refused = slab_locate(slab, element, &place);
        if (refused)
            break;
        slab_visit_begin(&visit, slab_owner(place.page));
        bool owned = !slab_locate(slab, element, &place) && slab_owner(place.page) == visit.local; /* still, or now */
        twice = owned && !settle_at_rest(place.page, place.slot, freed);
        slab_visit_end(&visit);
        if (owned)
            break;
    }
    if (twice || (freed && (refused || place.page != doubt->page) && stands_in_unused(doubt, UINT64_C(1) << number)))
        slab_refuse(slab, SLAB_E1, element);
    if (refused && !freed) /* the page of an element that is freed already may be gone */
        slab_refuse(slab, refused, element);
}

void slab_settle(struct quire_slab *slab, struct slab_doubt doubt)
{
    if (doubt.bits == 0)
        return;
    for (; doubt.bits; doubt.bits &= doubt.bits - 1)
        settle_one(slab, &doubt, bits_lowest(doubt.bits));
    u32_sub_relaxed(&settlers, 1);
}

/* The owner takes what others have freed into `page`. */
void slab_collect(struct slab_local *local, struct slab_page *page)
{
    const struct slab_lane *lane = &local->lane[page->lane];
    for (unsigned w = 0; w < page->words; w++) {
        struct slab_pair *pair = &page->pair[w];
        uint64_t taken = u64_load_relaxed(&pair->remote);
        if (taken == 0)
            continue;
        uint64_t free = u64_load_relaxed(&pair->free), known = free | (pair == lane->pair ? u64_load_relaxed(&lane->avail) : 0);
        if (unlikely(taken & known))
            slab_refuse_bits(page, w, taken & known);
        u64_store_release(&pair->free, free | taken);  /* release [slab-claim] */
        u64_and_acq_rel(&pair->remote, ~taken);        /* acquire [slab-remote] */
        (void)slab_used_less(page, bits_count(taken));
    }
    slab_page_rejoin(local, page);
    slab_page_freed(local, page); /* the last look at it: it may be gone */
}

/* An unused header: its page went while it was on its way here.  It may be in use again at any moment, and then others may have been relying on
 * this notice. */
static void drop_unused(struct slab_page *page)
{
    u32_store_relaxed(&page->queued, 0);
    atomic_fence_seq_cst();
    if (__atomic_load_n(&page->state, __ATOMIC_ACQUIRE) != PAGE_UNUSED)
        slab_queue(page);
}

static NOINLINE void drain_taken(struct slab_local *local, struct slab_page *page)
{
    for (struct slab_page *next; page; page = next) {
        next = (struct slab_page *)addr_load_relaxed(&page->queue_next);
        if (unlikely(__atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == PAGE_UNUSED)) {
            drop_unused(page);
            continue;
        }
        struct slab_local *owner = slab_owner(page); /* in use: if it is ours it stays ours, and in use */
        if (unlikely(owner != local)) {
            push(owner, page);
            continue;
        }
        u32_store_relaxed(&page->queued, 0);
        atomic_fence_seq_cst();
        slab_collect(local, page);
    }
}

void slab_drain(struct slab_local *local)
{
    if (addr_load_relaxed(&local->remote) != 0)
        drain_taken(local, (struct slab_page *)addr_exchange_acquire(&local->remote, 0)); /* acquire [slab-queue] */
}
