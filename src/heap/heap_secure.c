// SPDX-License-Identifier: MIT
/*
 * heap_secure.c - small blocks of a secure heap.
 *
 *     | what was asked for | slack: zero | canary |        a slot; a free one is zero from end to end
 *
 *     canary    0, then 2 bytes: the slack's length, then 5 that only the process's key, the address and the slack make
 *
 *     hand-out  a random bit of the page's word; the slot is still zero (E6), then the canary
 *     free      the canary and the slack are as they were (E7), the slot is zeroed and kept back (heap_late.c)
 *     remotely  the same by the thread that frees; the wiped block goes its owner's way (heap_remote.c), and is kept back there
 *
 * The canary's lowest byte, the first behind the block, is zero: a string that fills its block ends there.  The slack is known, so that sizes are exact:
 * what is usable is what was asked for, and a byte written behind it is seen at the free.
 *
 * Where the processor has tags (os_tags.h), a slot has one that its neighbours do not have, and another at each free: it is zeroed and gets it by the same
 * instructions.  The block's address bears it.  A slot that was never handed out has tag 0.
 *
 * Invariants:
 *   S1  a slot whose free or late bit is set is zero, and stays so until it is handed out or its page goes
 *   S2  a live block's canary, and its slack, are as they were written; one on its way home has a link there, or is zero
 *
 * Locks: inside the local, by its short way where that is open.  Not here: large blocks (heap_large.c, heap_sealed.c).
 */
#include "heap/heap_secure.h"

#include <errno.h>
#include <string.h>

#include "os/sanitize.h"

enum { WINDOW = 8, TOUCH_BYTES = 4096, SLACK_SHIFT = 8, SLACK_MASK = 0xffff, SLACK_KEY_SHIFT = 40 };

/* ---- canaries ---- */

static inline uint64_t slack_hidden(uint64_t slack)
{
    return ((slack ^ heap_key() >> SLACK_KEY_SHIFT) & SLACK_MASK) << SLACK_SHIFT;
}

static inline uint64_t canary_of(const void *p, uint64_t slack)
{
    uint64_t hash = ((uint64_t)os_untagged(p) ^ slack << 48) * UINT64_C(0x9e3779b97f4a7c15) ^ heap_key();
    return (hash & ~UINT64_C(0xffffff)) | slack_hidden(slack);
}

static inline char *canary_at(const void *p, size_t slot_bytes)
{
    return (char *)(uintptr_t)p + slot_bytes - HEAP_CANARY_BYTES;
}

static inline void canary_write(void *p, size_t slot_bytes, size_t bytes)
{
    uint64_t canary = canary_of(p, slot_bytes - HEAP_CANARY_BYTES - bytes);
    memcpy(canary_at(p, slot_bytes), &canary, sizeof canary);
}

/* How much was asked for; SIZE_MAX: the canary is broken.  Also of a block that others write to, or of a poisoned one. */
static NO_SANITIZE inline size_t asked_by_canary(const void *p, size_t slot_bytes)
{
    uint64_t canary;
    __builtin_memcpy(&canary, canary_at(p, slot_bytes), sizeof canary);
    uint64_t slack = (canary >> SLACK_SHIFT ^ heap_key() >> SLACK_KEY_SHIFT) & SLACK_MASK;
    return likely(canary == canary_of(p, slack)) && likely(slack <= slot_bytes - HEAP_CANARY_BYTES) ? slot_bytes - HEAP_CANARY_BYTES - slack : SIZE_MAX;
}

/* Whole words, two at a time: a slot is a multiple of 16 bytes. */
typedef uint64_t pair __attribute__((vector_size(16), aligned(16), may_alias));

static inline bool is_zero(const char *p, size_t bytes)
{
    pair all = {0, 0};
    for (size_t at = 0; at < bytes; at += sizeof all)
        all |= *(const pair *)(const void *)(p + at);
    return (all[0] | all[1]) == 0;
}

static inline bool is_zero_but_last(const char *p, size_t bytes)
{
    uint64_t last_but_one;
    memcpy(&last_but_one, p + bytes - sizeof(pair), sizeof last_but_one);
    return is_zero(p, bytes - sizeof(pair)) && last_but_one == 0;
}

/* The last `bytes` before `end`, at most 16 without a branch; `room` bytes before it are the block's. */
static ALWAYS_INLINE bool slack_is_zero(const char *end, size_t bytes, size_t room)
{
    static const uint64_t from[4] = {0, 0, UINT64_MAX, UINT64_MAX}; /* 16 bytes, of which the last so many count: read from that byte on */
    pair seen, counted;
    if (likely(bytes <= sizeof seen) && likely(room >= sizeof seen)) {
        memcpy(&seen, end - sizeof seen, sizeof seen);
        memcpy(&counted, (const char *)from + bytes, sizeof counted);
        seen &= counted;
        return (seen[0] | seen[1]) == 0;
    }
    char all = 0;
    for (size_t at = 1; at <= bytes; at++)
        all = (char)(all | end[-(ptrdiff_t)at]);
    return all == 0;
}

/* A slot: a multiple of 16 bytes. */
static ALWAYS_INLINE void zero_slot(char *p, size_t bytes)
{
    if (unlikely(bytes > 256)) {
        memset(p, 0, bytes);
        return;
    }
    for (size_t at = 0; at < bytes; at += sizeof(pair)) {
        *(pair *)(void *)(p + at) = (pair){0, 0};
        __asm__ volatile("" ::: "memory"); /* or it becomes a call */
    }
}

/* Neither 0 nor its neighbours' tag, nor the one that it has. */
static COLD char *tag_anew(char *p, size_t slot, size_t slot_bytes, bool zero)
{
    enum { EVEN = 0x5555, ODD = 0xaaaa, NONE = 1 };
    uint32_t own = UINT32_C(1) << (((uintptr_t)p & os_tag_bits) >> OS_TAG_SHIFT);
    return os_tag_anew(p, slot_bytes, NONE | own | (slot % 2 ? EVEN : ODD), zero);
}

/* Which of the two it is that breaks a canary. */
static COLD __attribute__((noreturn)) void refuse_broken(const struct heap_page *page, const char *p)
{
    size_t slot = heap_slot_of(page, p);
    bool is_free = heap_slot_is_free(page, slot) || heap_is_marked(p) || is_zero(p, page->slot_bytes);
    heap_refuse(heap_of_page(page), is_free ? HEAP_E1 : HEAP_E7, p);
}

size_t heap_secure_asked(const struct heap_page *page, const void *p)
{
    if (unlikely(page->class == HEAP_ZERO))
        return 0;
    size_t asked = asked_by_canary(p, page->slot_bytes);
    if (unlikely(asked == SIZE_MAX))
        refuse_broken(page, p);
    return asked;
}

size_t heap_secure_asked_roughly(const struct heap_page *page, const void *p)
{
    size_t asked = page->class == HEAP_ZERO ? 0 : asked_by_canary(p, page->slot_bytes);
    return asked == SIZE_MAX ? page->slot_bytes - HEAP_CANARY_BYTES : asked;
}

bool heap_secure_resize(const struct heap_page *page, void *p, size_t bytes)
{
    size_t room = page->slot_bytes - HEAP_CANARY_BYTES;
    if (page->class == HEAP_ZERO || bytes == 0 || bytes > room || (bytes < room / 2 && room > HEAP_SLOT_ALIGN) || heap_of_page(page)->is_watched)
        return false;
    size_t had = heap_secure_asked(page, p);
    if (unlikely(!slack_is_zero((char *)p + room, room - had, room))) /* or what was written past the end would become the block's */
        heap_refuse(heap_of_page(page), HEAP_E7, p);
    if (bytes < had)
        memset((char *)p + bytes, 0, had - bytes);
    canary_write(p, page->slot_bytes, bytes);
    return true;
}

/* ---- hand-out ---- */

/* Another word of the page with a free slot, the first from a random one on. */
static bool next_word(struct heap_bin *bin, uint64_t *bits)
{
    const struct heap_page *page = bin->page;
    unsigned word = (unsigned)((uint64_t)heap_secure_random() * page->words >> 32);
    for (unsigned tries = 0; tries < page->words; tries++) {
        if (page->free[word] != 0) {
            bin->word_at = (uint16_t)word;
            *bits = page->free[word];
            return true;
        }
        word = word + 1 < page->words ? word + 1 : 0;
    }
    return false;
}

static ALWAYS_INLINE void *take(struct heap_bin *bin)
{
    struct heap_page *page = bin->page;
    uint64_t bits = page ? page->free[bin->word_at] : 0;
    if (bits == 0 && (!page || !next_word(bin, &bits)))
        return NULL;
    unsigned first = bits_lowest(bits), turn = heap_secure_random() % WINDOW;
    uint64_t window = (bits >> first & ((1u << WINDOW) - 1)) * ((1u << WINDOW) + 1); /* twice: it is turned by a shift */
    unsigned bit = first + (bits_lowest(window >> turn) + turn) % WINDOW;
    heap_bits_set(&page->free[bin->word_at], bits & ~(UINT64_C(1) << bit));
    size_t slot = bin->word_at * (size_t)WORD_BITS + bit;
    char *p = heap_slot_tagged(page, slot);
    if (os_tags_on() && (uintptr_t)p == os_untagged(p) && page->class != HEAP_ZERO)
        p = tag_anew(p, slot, page->slot_bytes, false); /* handed out for the first time */
    return p;
}

void *heap_secure_take_quick(struct heap_local *local, unsigned class)
{
    if (unlikely(!bias_enter(&local->door.bias)))
        return NULL;
    void *p = take(&local->bin[class]);
    bias_leave(&local->door.bias);
    return p;
}

void *heap_secure_take(struct heap_bin *bin)
{
    return take(bin);
}

bool heap_secure_has_room(const struct heap_bin *bin)
{
    return bin->page && heap_page_live(bin->page) < bin->page->slots;
}

static ALWAYS_INLINE void hand_out(const struct quire_heap *heap, void *p, size_t slot_bytes, size_t bytes)
{
    uint64_t *at = (uint64_t *)(void *)canary_at(p, slot_bytes), canary = canary_of(p, slot_bytes - HEAP_CANARY_BYTES - bytes);
    /* Fresh memory is written first and read then: the other way the system would give it in two faults. */
    for (size_t page = 0; unlikely(slot_bytes - page > TOUCH_BYTES); page += TOUCH_BYTES)
        word_add_in_place((uint64_t *)(void *)((char *)p + page), 0);
    word_add_in_place(at, canary);
    if (unlikely(*at != canary) || unlikely(!is_zero_but_last(p, slot_bytes)))
        heap_refuse(heap, HEAP_E6, p);
}

void *heap_malloc_secure(size_t bytes)
{
    struct heap_local *local = heap_tls.self;
    if (unlikely(bytes - 1 >= HEAP_SMALL_MAX - HEAP_CANARY_BYTES) || unlikely(!bias_enter(&local->door.bias)))
        return heap_malloc_slow(bytes);
    struct heap_bin *bin = &local->bin[heap_class_of(bytes + HEAP_CANARY_BYTES)];
    void *p = take(bin);
    bias_leave(&local->door.bias);
    if (unlikely(p == NULL))
        return heap_malloc_slow(bytes);
    hand_out(&heap_of_process, p, bin->slot_bytes, bytes);
    return p;
}

void heap_secure_hand_out(const struct quire_heap *heap, void *p, unsigned class, size_t bytes)
{
    size_t slot_bytes = heap_class_bytes(class);
    if (unlikely(class == HEAP_ZERO))
        return;
    if (likely(!heap->is_watched)) {
        hand_out(heap, p, slot_bytes, bytes);
        return;
    }
    sanitize_undefined(p, slot_bytes);
    canary_write(p, slot_bytes, bytes);
    sanitize_no_access((char *)p + slot_bytes - heap->tail_bytes, heap->tail_bytes);
}

/* ---- free ---- */

/* `said`: how large it is to be, or NOT_SAID; false: it is not, and nothing has changed. */
#define NOT_SAID SIZE_MAX

static ALWAYS_INLINE bool wipe(const struct heap_page *page, size_t slot, char **block, size_t said)
{
    char *p = *block;
    if (unlikely(page->class == HEAP_ZERO))
        return said == NOT_SAID || said == 0;
    size_t slot_bytes = page->slot_bytes, room = slot_bytes - HEAP_CANARY_BYTES, asked = asked_by_canary(p, slot_bytes);
    if (unlikely(asked == SIZE_MAX))
        refuse_broken(page, p);
    if (said != NOT_SAID && unlikely(asked != said))
        return false;
    if (unlikely(!slack_is_zero(p + room, room - asked, room)) && !heap_of_page(page)->is_watched)
        heap_refuse(heap_of_page(page), HEAP_E7, p);
    if (os_tags_on())
        *block = tag_anew(p, slot, slot_bytes, true);
    else
        zero_slot(p, slot_bytes);
    return true;
}

void *heap_secure_wipe(struct heap_page *page, size_t slot)
{
    char *p = heap_slot_tagged(page, slot);
    (void)wipe(page, slot, &p, NOT_SAID);
    return p;
}

static ALWAYS_INLINE void release(struct heap_local *local, struct heap_page *page, size_t slot)
{
    uint64_t bit = UINT64_C(1) << slot % WORD_BITS, *late = heap_late_word(page, slot), *word = &page->free[slot / WORD_BITS];
    heap_bits_set(word, *word | bit);
    heap_bits_set(late, *late & ~bit);
    if (unlikely(--page->until == 0))
        heap_page_due(local, page);
}

static ALWAYS_INLINE void keep_back(struct heap_local *local, struct heap_page *page, size_t slot)
{
    uint64_t *late = heap_late_word(page, slot);
    heap_bits_set(late, *late | UINT64_C(1) << slot % WORD_BITS);
    /* An idle local's pages may become another's: nothing of them may wait here. */
    if (unlikely(heap_is_idle(local) || !heap_late_is_there(local))) {
        release(local, page, slot);
        return;
    }
    struct heap_late_block due = heap_late_put(local, (struct heap_late_block){page, slot});
    if (likely(due.page != NULL))
        release(local, due.page, due.slot);
}

void heap_secure_arrive(struct heap_local *local, struct heap_page *page, size_t slot)
{
    keep_back(local, page, slot);
}

static ALWAYS_INLINE bool free_inside(struct heap_local *local, struct heap_page *page, size_t slot, size_t said)
{
    uint64_t bit = UINT64_C(1) << slot % WORD_BITS;
    char *p = heap_slot_tagged(page, slot);
    if (unlikely((page->free[slot / WORD_BITS] | *heap_late_word(page, slot)) & bit))
        heap_refuse(local->heap, HEAP_E1, p);
    if (unlikely(local->heap->is_watched))
        sanitize_defined(p, page->slot_bytes);
    if (!wipe(page, slot, &p, said))
        return false;
    if (unlikely(local->heap->is_watched))
        sanitize_no_access(p, page->slot_bytes);
    keep_back(local, page, slot);
    return true;
}

void heap_secure_free(struct heap_local *local, struct heap_page *page, size_t slot)
{
    (void)free_inside(local, page, slot, NOT_SAID);
}

/* The long way once for each local: there its quarantine is made. */
static ALWAYS_INLINE bool free_mine(struct heap_local *local, struct heap_page *page, size_t slot, size_t said)
{
    if (unlikely(!local->late) || unlikely(!bias_enter(&local->door.bias)))
        return false;
    heap_tls.inside++;
    bool done = free_inside(local, page, slot, said);
    heap_tls.inside--;
    bias_leave(&local->door.bias);
    if (unlikely(heap_tls.has_work))
        heap_thread_outside();
    return done;
}

bool heap_secure_free_quick(struct quire_heap *heap, struct heap_local *local, struct heap_page *page, void *p)
{
    struct heap_local *owner = heap_owner(page);
    size_t slot = heap_slot_of(page, p);
    if (unlikely(slot == SIZE_MAX) || unlikely(!heap_tag_is_right(page, p)) || unlikely(owner->heap != heap) || unlikely(owner->is_sample))
        return false;
    if (likely(owner == local))
        return free_mine(local, page, slot, NOT_SAID);
    if (page->class == HEAP_ZERO || heap_slot_is_free(page, slot) || heap_is_marked(p) || heap->is_watched || !bias_enter(&local->door.bias))
        return false;
    heap_out_add(local, owner, heap_secure_wipe(page, slot));
    bias_leave(&local->door.bias);
    if (unlikely(heap_tls.has_work))
        heap_thread_outside();
    return true;
}

static ALWAYS_INLINE bool free_of_process(owner_t found, const void *p, size_t said)
{
    enum { KIND_BITS = 7 };
    struct heap_local *local = heap_tls.self;
    struct heap_page *page = (struct heap_page *)(found - OWNER_MALLOC);
    if (unlikely(((uintptr_t)page & KIND_BITS) != 0) || unlikely(addr_load_relaxed(&page->owner) != ((uintptr_t)local | SECURE_OWNER)))
        return false;
    size_t slot = heap_slot_of(page, p);
    return likely(slot != SIZE_MAX) && likely(heap_tag_is_right(page, p)) && likely(free_mine(local, page, slot, said));
}

void heap_free_secure(uintptr_t found, void *p)
{
    if (unlikely(!free_of_process(found, p, NOT_SAID)))
        heap_free_any(p);
}

bool heap_free_secure_sized(void *p, size_t bytes)
{
    return bytes != NOT_SAID && free_of_process(pagemap_find(p), p, bytes);
}

void heap_secure_flush(struct heap_local *local)
{
    for (struct heap_late_block due; (due = heap_late_get(local)).page;)
        release(local, due.page, due.slot);
}

/* A line at a time: a program's first samples look at all that is kept back, again and again. */
bool heap_secure_is_clean(const struct heap_page *page, size_t slot)
{
    if (page->class == HEAP_ZERO)
        return true;
    const char *p = heap_slot_tagged(page, slot), *end = p + page->slot_bytes;
    pair all = {0, 0};
    for (; end - p >= CACHE_LINE_BYTES; p += CACHE_LINE_BYTES) {
        const pair *at = (const pair *)(const void *)p;
        all |= (at[0] | at[1]) | (at[2] | at[3]);
    }
    return (all[0] | all[1]) == 0 && is_zero(p, (size_t)(end - p));
}

static bool is_whole(const struct heap_page *page, const char *p)
{
    size_t room = page->slot_bytes - HEAP_CANARY_BYTES, asked = asked_by_canary(p, page->slot_bytes);
    if (asked == SIZE_MAX)
        return heap_is_marked(p) || is_zero(p, page->slot_bytes);
    return slack_is_zero(p + room, room - asked, room);
}

const char *heap_secure_check(const struct heap_page *page, bool alone)
{
    bool is_blind = heap_of_page(page)->is_watched || page->class == HEAP_ZERO;
    for (size_t slot = 0; slot < page->slots && !is_blind; slot++) {
        if (!heap_is_handed_out(page, slot) && !heap_secure_is_clean(page, slot))
            return "heap S1";
        if (alone && heap_is_handed_out(page, slot) && !is_whole(page, heap_slot_tagged(page, slot)))
            return "heap S2";
    }
    return NULL;
}

void heap_secure_page_goes(const struct quire_heap *heap, const struct heap_page *page, bool is_empty)
{
    for (size_t slot = 0; slot < page->slots && !heap->is_watched; slot++) {
        bool is_free = is_empty || !heap_is_handed_out(page, slot);
        if (is_free && unlikely(!heap_secure_is_clean(page, slot)))
            heap_refuse(heap, HEAP_E6, heap_slot_at(page, slot));
        if (!is_free && page->class != HEAP_ZERO)
            zero_slot(heap_slot_tagged(page, slot), page->slot_bytes); /* it ends with its heap */
    }
}

void heap_secure_untag(const struct heap_page *page)
{
    for (size_t slot = 0; slot < page->slots && os_tags_on() && page->class != HEAP_ZERO; slot++)
        if (heap_slot_tagged(page, slot) != heap_slot_at(page, slot))
            os_tags_clear(heap_slot_at(page, slot), page->slot_bytes);
}
