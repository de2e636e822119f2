// SPDX-License-Identifier: MIT
/*
 * region.c - spans cut from large stretches of reserved addresses, lowest address first; a random one of the lowest while there is a secure heap.
 *
 *     range (64 GiB, 1 GiB, 64 MiB or 16 MiB of addresses, as the system grants)
 *     +-- region ---------------------------------+-- region --+ - - -
 *     | span | span |free| span |  never touched  |            |
 *     +------+------+----+------+-----------------+------------+
 *     0                committed ^                             (committed: readable and writable; beyond: PROT_NONE)
 *
 *     a page:   never handed out --take--> taken --give--> idle (resident; or filled ahead) --discard--> free and zero
 *                     free and zero <-----------------------------'
 *
 * Invariants, checked by region_check():
 *   S2  idle pages are free, aged pages are idle, and both lie below `committed`
 *   S3  a span that is given back is a taken run of just that length
 *   S4  the sums are what the maps say
 *
 * Locks: regions.lock over everything here.  It is never held while another lock is taken but the page map's, nor across a fork (region_after_fork()).
 * Not here: which idle pages go back when (region_idle.c), the CPUs' caches in front (source_default.c).
 */
#include <errno.h>
#include <stdint.h>

#include "base/align.h"
#include "base/panic.h"
#include "base/random.h"
#include "os/os.h"
#include "pages/lost.h"
#include "pages/pagemap.h"
#include "pages/reaper.h"
#include "pages/region_internal.h"

struct regions regions = {.lock = LOCK_INIT(LOCK_REGIONS)};
struct region *region_by_id[REGIONS_MAX];

/* Ranges to try for, the largest first, and no more than a sixteenth of what the process may map at all: the rest is the program's. */
static const size_t range_bytes[] = {(size_t)64 << 30, (size_t)1 << 30, (size_t)64 << 20, (size_t)16 << 20};
enum { RANGE_SIZES = sizeof range_bytes / sizeof range_bytes[0], RANGE_FEW = 64 << 20 };

/* Committing in steps keeps mprotect rare; a step is address space and, without overcommit, a charge: so not too large. */
static const size_t commit_step_bytes = 4 * MIB;
#define EXPECT_SPARSE_BYTES (4 * MIB)
enum { SCATTER_PLACES = 8 };

/* The smallest huge pages of any CPU have 1 MiB: below that the system need not be asked, which is a part of what a short program takes to start. */
static enum region_kind kind_of(size_t bytes)
{
    size_t huge_bytes = bytes >= MIB ? os_huge_bytes() : 0;
    return huge_bytes != 0 && bytes % huge_bytes == 0 ? REGION_HUGE : REGION_SMALL;
}

static bool range_reserve_locked(void)
{
    size_t all = os_address_space_bytes() / 16, most = regions.few && all > RANGE_FEW ? RANGE_FEW : all;
    for (int i = 0; i < RANGE_SIZES; i++) {
        if (range_bytes[i] > most)
            continue;
        size_t region_bytes = range_bytes[i] < REGION_BYTES_MAX ? range_bytes[i] : REGION_BYTES_MAX;
        size_t table_bytes = (size_t)PAGEMAP_ENTRIES << os_page_shift(); /* larger than a region where pages are larger than 4 KiB */
        size_t align_bytes = range_bytes[i] % table_bytes == 0 && table_bytes > region_bytes ? table_bytes : region_bytes;
        void *start;
        if (os_reserve(range_bytes[i], align_bytes, &start) == 0) {
            os_name(start, range_bytes[i], "quire");
            (void)os_advise_dontdump(start, range_bytes[i]); /* or who writes a core file by hand (gcore) would read all of it */
            regions.range_next = start;
            regions.range_end = regions.range_next + range_bytes[i];
            regions.range_region_bytes = region_bytes;
            regions.sums.reserved_bytes += range_bytes[i];
            if (regions.sums.out_bytes_peak == 0) /* nobody has any memory of ours, so whoever looks for a note finds where all notes are */
                pagemap_expect(start, range_bytes[i]);
            return true;
        }
    }
    return false;
}

/* The maps of a region lie together in zeroed memory of their own: struct, bitmap, idle, aged, cached. */
static struct region *region_map_new(size_t pages)
{
    size_t set_bytes = align_up(pages, 64) / 8, map_bytes = align_up(bitmap_memory_bytes(pages), 64);
    size_t struct_bytes = align_up(sizeof(struct region), 64);
    size_t bytes = align_up(struct_bytes + map_bytes + 3 * set_bytes, os_page_bytes());
    void *memory;
    if (os_map(bytes, os_page_bytes(), &memory) != 0)
        return NULL;
    struct region *region = memory;
    char *at = (char *)memory + struct_bytes;
    region->pages = pages;
    region->meta_bytes = bytes;
    bitmap_init(&region->map, at, pages);
    region->idle = (uint64_t *)(void *)(at + map_bytes);
    region->aged = (uint64_t *)(void *)(at + map_bytes + set_bytes);
    region->cached = (uint64_t *)(void *)(at + map_bytes + 2 * set_bytes);
    return region;
}

/*
 * Spans are cut from the lowest addresses up, so what is expected will lie there.  Lowest of all lie the first pages of each size, of which much is
 * never touched: these come as they are.
 */
static void region_meet_locked(const struct region *region)
{
    if (regions.expect_bytes == 0 || region->kind != REGION_SMALL)
        return;
    size_t huge_bytes = os_huge_bytes(), first = align_up(EXPECT_SPARSE_BYTES, huge_bytes ? huge_bytes : 1), most = region->pages << os_page_shift();
    size_t end = huge_bytes ? align_down(regions.expect_bytes < most ? regions.expect_bytes : most, huge_bytes) : 0;
    if (end > first)
        (void)os_advise_huge(region->start + first, end - first);
    regions.expect_bytes = 0;
}

void region_expect(size_t bytes)
{
    lock_take(&regions.lock);
    regions.expect_bytes = bytes;
    for (uint32_t i = 0; i < regions.count; i++)
        region_meet_locked(region_by_id[i]);
    lock_drop(&regions.lock);
}

static struct region *region_create_locked(enum region_kind kind, size_t span_bytes)
{
    if (regions.count == REGIONS_MAX || (regions.range_next == regions.range_end && !range_reserve_locked()))
        return NULL;
    /* A span of more than a quarter of a region would waste the rest of it. */
    if (span_bytes > regions.range_region_bytes / 4)
        return NULL;
    struct region *region = region_map_new(regions.range_region_bytes >> os_page_shift());
    if (!region)
        return NULL;
    region->start = regions.range_next;
    region->kind = kind;
    region->id = regions.count;
    regions.range_next += regions.range_region_bytes;
    region_by_id[regions.count] = region;
    atomic_fence_signal(); /* the child of a fork goes through all that are counted */
    regions.count++;
    regions.sums.meta_bytes += region->meta_bytes;
    if (kind == REGION_HUGE)
        (void)os_advise_huge(region->start, regions.range_region_bytes); /* refused: ordinary pages will do */
    region_meet_locked(region);
    return region;
}

/* Make the pages below `end` writable. */
static int region_commit_locked(struct region *region, size_t end)
{
    if (end <= region->committed_pages)
        return 0;
    unsigned shift = os_page_shift();
    size_t target = align_up(end, commit_step_bytes >> shift);
    if (target > region->pages)
        target = region->pages;
    char *from = region->start + (region->committed_pages << shift);
    int error = os_commit(from, (target - region->committed_pages) << shift);
    if (error && target > end) { /* a tight limit: only what is needed */
        target = end;
        error = os_commit(from, (target - region->committed_pages) << shift);
    }
    if (error)
        return error;
    (void)os_advise_dump(from, (target - region->committed_pages) << shift); /* refused: core files lack these pages */
    region->committed_pages = target;
    return 0;
}

static void sums_out_locked(size_t bytes)
{
    regions.sums.out_bytes += bytes;
    if (regions.sums.out_bytes > regions.sums.out_bytes_peak)
        regions.sums.out_bytes_peak = regions.sums.out_bytes;
}

void region_scatter(bool on)
{
    (void)u32_add_relaxed(&regions.scatters, on ? 1 : UINT32_MAX);
}

/* Another place than the lowest, which is taken and writable already: of those that are writable, too, so that it costs no more memory. */
static size_t scatter_locked(struct region *region, size_t lowest, size_t pages, unsigned align_log2)
{
    size_t place[SCATTER_PLACES] = {lowest};
    unsigned count = 1;
    for (; count < SCATTER_PLACES; count++) {
        size_t idx = place[count] = bitmap_alloc(&region->map, pages, align_log2);
        if (idx != BITMAP_NONE && idx + pages <= region->committed_pages)
            continue;
        if (idx != BITMAP_NONE)
            bitmap_free(&region->map, idx);
        break;
    }
    unsigned chosen = random_next(&regions.random) % count;
    for (unsigned i = 0; i < count; i++)
        if (i != chosen)
            bitmap_free(&region->map, place[i]);
    return place[chosen];
}

/* How many of these are idle, and came ahead: nobody has had them.  From now on somebody has those before `end`. */
static size_t blank_out_locked(struct region *region, size_t idx, size_t end)
{
    size_t from = idx > region->zero_from ? idx : region->zero_from, to = end < region->filled_to ? end : region->filled_to;
    if (from >= to)
        return 0;
    region->zero_from = to;
    return bits_count_in(region->idle, from, to);
}

/* These pages are taken, for a span of so many bytes.  How many of them were idle, and may not be zero; *over_bytes: region_over_locked(). */
static size_t pages_out_locked(struct region *region, size_t idx, size_t pages, size_t span_bytes, size_t *over_bytes)
{
    unsigned shift = os_page_shift();
    size_t warm = bits_count_in(region->idle, idx, idx + pages), blank = blank_out_locked(region, idx, idx + pages);
    if (warm) {
        bits_clear(region->idle, idx, idx + pages);
        bits_clear(region->aged, idx, idx + pages);
        regions.sums.idle_bytes -= warm << shift;
    }
    sums_out_locked(pages << shift);
    *over_bytes = warm < pages ? region_over_locked(span_bytes) : 0;
    return warm - blank;
}

static int take_cut_locked(size_t bytes, size_t align_bytes, struct quire_span *out, size_t *over_bytes)
{
    unsigned shift = os_page_shift(), align_log2 = log2_floor(align_bytes) - shift;
    enum region_kind kind = kind_of(bytes);
    struct region *region = NULL;
    size_t pages = bytes >> shift, idx = BITMAP_NONE;
    for (uint32_t i = 0; i < regions.count && idx == BITMAP_NONE; i++) {
        region = region_by_id[i];
        if (region->kind == kind && region->pages >> align_log2 != 0) /* it begins at a multiple of its own size: an alignment above that may be none */
            idx = bitmap_alloc(&region->map, pages, align_log2);
    }
    if (idx == BITMAP_NONE) {
        region = region_create_locked(kind, bytes > align_bytes ? bytes : align_bytes);
        if (!region || (idx = bitmap_alloc(&region->map, pages, align_log2)) == BITMAP_NONE)
            return -ENOMEM;
    }
    if (region_commit_locked(region, idx + pages) != 0) {
        bitmap_free(&region->map, idx);
        return -ENOMEM;
    }
    if (unlikely(u32_load_relaxed(&regions.scatters) != 0) && kind == REGION_SMALL)
        idx = scatter_locked(region, idx, pages, align_log2);
    size_t used = pages_out_locked(region, idx, pages, bytes, over_bytes);
    if (QUIRE_CHECK)
        bits_clear_one(region->cached, idx);
    *out = (struct quire_span){.start = region->start + (idx << shift),
                               .bytes = bytes,
                               .flags = used ? 0 : QUIRE_SPAN_ZERO,
                               .cookie = SPAN_REGION | region->id << ORIGIN_BITS};
    return 0;
}

static int take_cut(size_t bytes, size_t align_bytes, struct quire_span *out)
{
    if (kind_of(bytes) == REGION_HUGE && align_bytes < os_huge_bytes())
        align_bytes = os_huge_bytes();
    if (bytes > REGION_BYTES_MAX / 4 || align_bytes > REGION_BYTES_MAX / 4)
        return -ENOMEM;
    size_t over_bytes = 0;
    lock_take(&regions.lock);
    int error = take_cut_locked(bytes, align_bytes, out, &over_bytes);
    region_unlock(over_bytes);
    return error;
}

/* Memory from elsewhere: counted like the rest. */
static int take_elsewhere(size_t bytes, size_t align_bytes, enum span_origin origin, struct quire_span *out)
{
    void *start;
    int error = origin == SPAN_DIRECT ? os_map(bytes, align_bytes, &start) : os_libc_alloc(bytes, align_bytes, &start);
    if (error)
        return error;
    *out = (struct quire_span){start, bytes, origin == SPAN_DIRECT ? QUIRE_SPAN_ZERO : 0, origin};
    lock_take(&regions.lock);
    regions.elsewhere_bytes += bytes;
    sums_out_locked(bytes);
    lock_drop(&regions.lock);
    return 0;
}

int region_take(size_t bytes, size_t align_bytes, bool is_last, struct quire_span *out)
{
    if (bytes > PTRDIFF_MAX || align_bytes > PTRDIFF_MAX)
        return -ENOMEM;
    bool done = take_cut(bytes, align_bytes, out) == 0 || take_elsewhere(bytes, align_bytes, SPAN_DIRECT, out) == 0;
    return done || (is_last && take_elsewhere(bytes, align_bytes, SPAN_LIBC, out) == 0) ? 0 : -ENOMEM;
}

/* How much of a span stays warm: counted as idle at once, so that two givers cannot both use the same room. */
static size_t keep_room_locked(const struct region *region, size_t bytes)
{
    size_t most = regions.sums.out_bytes_peak;
    if (region_turns_over_locked() && most < regions.most_bytes)
        most = regions.most_bytes;
    size_t idle_max = reaper_decay_is_0() ? 0 : region_idle_bytes_max(most, size_load_relaxed(&regions.cached_bytes_max));
    size_t room = idle_max > regions.sums.idle_bytes ? idle_max - regions.sums.idle_bytes : 0;
    size_t unit = region->kind == REGION_HUGE ? os_huge_bytes() : os_page_bytes();
    return room < bytes ? align_down(room, unit) : bytes;
}

static struct region_leaving *leaving_add_locked(struct region *region, size_t idx, size_t warm_bytes)
{
    for (int i = 0; i < REGION_LEAVING_MAX; i++)
        if (!regions.leaving[i].region) {
            regions.leaving[i] = (struct region_leaving){.idx = idx, .warm_bytes = warm_bytes, .thread = os_thread_pointer()};
            atomic_fence_signal(); /* the child of a fork */
            regions.leaving[i].region = region;
            return &regions.leaving[i];
        }
    return NULL; /* many at once: this one holds the lock */
}

void region_refuse(const void *start)
{
    panic("source", "default", "S3 a span that was not taken is given back", start);
}

/* The region and page of a span that says it was cut from one; false when it is no taken run of that length (S3). */
static bool span_place(const struct quire_span *span, struct region **region, size_t *idx)
{
    uint32_t id = span->cookie >> ORIGIN_BITS;
    *region = id < REGIONS_MAX ? region_by_id[id] : NULL;
    *idx = *region ? (size_t)((char *)span->start - (*region)->start) >> os_page_shift() : 0;
    return *region && *idx < (*region)->pages && bitmap_run(&(*region)->map, *idx) == span->bytes >> os_page_shift();
}

/* Its length and the map's change together for the child of a fork, which finds `growing` (region_after_fork()). */
static bool extend_locked(struct region *region, size_t end, size_t more, struct quire_span *span)
{
    size_t had_bytes = span->bytes, idx = end - (had_bytes >> os_page_shift());
    if (end + more > region->pages || bits_test(region->map.taken, end) || region_commit_locked(region, end + more) != 0)
        return false;
    regions.growing = (struct region_growing){NULL, region, end, had_bytes};
    atomic_fence_signal();
    regions.growing.span = span;
    atomic_fence_signal();
    bool done = bitmap_extend(&region->map, idx, more);
    if (done)
        span->bytes = had_bytes + (more << os_page_shift());
    atomic_fence_signal();
    regions.growing.span = NULL;
    return done;
}

bool region_extend(struct quire_span *span, size_t more_bytes)
{
    unsigned shift = os_page_shift();
    struct region *region;
    size_t idx, over_bytes = 0, had = span->bytes >> shift, more = more_bytes >> shift;
    if (span_origin(span) != SPAN_REGION || more_bytes > REGION_BYTES_MAX)
        return false;
    lock_take(&regions.lock);
    bool done = span_place(span, &region, &idx) && region->kind == REGION_SMALL && extend_locked(region, idx + had, more, span);
    if (done)
        (void)pages_out_locked(region, idx + had, more, span->bytes, &over_bytes);
    region_unlock(over_bytes);
    return done;
}

static void give_cut(const struct quire_span *span, bool keep_warm)
{
    unsigned shift = os_page_shift();
    struct region *region;
    size_t idx, pages = span->bytes >> shift;
    lock_take(&regions.lock);
    if (!span_place(span, &region, &idx)) {
        lock_drop(&regions.lock); /* the hook may want to look around */
        region_refuse(span->start);
    }
    size_t warm = keep_warm ? keep_room_locked(region, span->bytes) : 0;
    regions.sums.idle_bytes += warm;
    if (warm < span->bytes) {
        /* Still marked as taken, so nobody else can have these pages while the lock is open; on the list of those that leave, so that the child of
         * a fork at this moment can finish it. */
        struct region_leaving *leaving = leaving_add_locked(region, idx, warm);
        if (leaving)
            lock_drop(&regions.lock);
        bool gone = os_discard((char *)span->start + warm, span->bytes - warm) == 0;
        if (leaving) {
            lock_take(&regions.lock);
            leaving->region = NULL;
        }
        if (!gone) { /* kept and counted; a later tick tries again */
            regions.sums.idle_bytes += span->bytes - warm;
            warm = span->bytes;
        }
    }
    if (warm) {
        bits_set(region->idle, idx, idx + (warm >> shift));
        if (idx + (warm >> shift) > region->idle_end)
            region->idle_end = idx + (warm >> shift);
    }
    bitmap_free(&region->map, idx);
    if (warm < span->bytes)
        region_forgets_locked(region, idx, idx + pages);
    regions.sums.out_bytes -= span->bytes;
    lock_drop(&regions.lock);
}

void region_note(const struct quire_span *span, bool is_cached)
{
    struct region *region;
    size_t idx;
    lock_take(&regions.lock);
    bool good = span_place(span, &region, &idx) && bits_test(region->cached, idx) != is_cached;
    if (good)
        (is_cached ? bits_set_one : bits_clear_one)(region->cached, idx);
    lock_drop(&regions.lock);
    if (!good)
        region_refuse(span->start);
}

void region_give(const struct quire_span *span, bool keep_warm)
{
    switch (span_origin(span)) {
    case SPAN_REGION:
        give_cut(span, keep_warm);
        return;
    case SPAN_DIRECT:
        lost_unmap(span->start, span->bytes);
        break;
    case SPAN_LIBC:
        os_libc_free(span->start);
        break;
    default:
        region_refuse(span->start);
    }
    lock_take(&regions.lock);
    regions.elsewhere_bytes -= span->bytes;
    regions.sums.out_bytes -= span->bytes;
    lock_drop(&regions.lock);
}
