// SPDX-License-Identifier: MIT
/* What the child of a fork finds when another thread was in the middle of something: made here by hand, one seam a test. */
#include <gtest/gtest.h>

#include <set>
#include <sys/mman.h>
#include <sys/wait.h>

#include <quire/source.h>

#include "base/bias.h"
#include "model/slab_worker.h"
#include "owner/record.h"
#include "pages/lost.h"
#include "pages/pagemap.h"
#include "pages/reaper.h"
#include "pages/region_internal.h"
#include "support.h"
#include "unit/heap_scope.h"

#include "unit/heap_inside.h"

namespace {
const size_t page = os_page_bytes();
quire_source *source = quire_source_default();

struct quire_source_stats stats()
{
    struct quire_source_stats out = {.struct_bytes = sizeof out};
    quire_source_stats(source, &out);
    return out;
}

struct region *region_of(const quire_span &span, size_t *idx)
{
    struct region *region = region_by_id[span.cookie >> ORIGIN_BITS];
    *idx = size_t(static_cast<char *>(span.start) - region->start) >> os_page_shift();
    return region;
}
} // namespace

TEST(AfterFork, a_span_on_its_way_to_the_system_is_given_back)
{
    quire_source_trim(source);
    size_t taken = stats().taken_bytes, idx;
    quire_span span;
    ASSERT_EQ(source->verbs->take(source, 1000 * page, page, &span), 0);
    struct region *region = region_of(span, &idx);
    /* Another thread was discarding it with the lock open, its warm part counted already. */
    regions.leaving[0] = {region, idx};
    regions.sums.idle_bytes += 500 * page;
    region_after_fork();
    EXPECT_EQ(regions.leaving[0].region, nullptr);
    EXPECT_EQ(stats().taken_bytes, taken);
    EXPECT_EQ(stats().idle_bytes, 1000 * page) << "it may be dirty, so it is idle";
    EXPECT_EQ(quire_source_check(source), nullptr);
    EXPECT_EQ(quire_source_trim(source), 1000 * page);
}

TEST(AfterFork, a_span_that_the_forking_thread_itself_has_on_its_way_is_left_to_it)
{
    quire_source_trim(source);
    size_t taken = stats().taken_bytes, idx;
    quire_span span;
    ASSERT_EQ(source->verbs->take(source, 1000 * page, page, &span), 0);
    struct region *region = region_of(span, &idx);
    regions.leaving[0] = {region, idx, 500 * page, os_thread_pointer()};
    regions.sums.idle_bytes += 500 * page;
    regions.leaving[1] = {region, idx, 0, nullptr}; /* with the lock this thread has others' spans out of reach */
    lock_take(&regions.lock);
    region_after_fork();
    EXPECT_TRUE(lock_is_mine(&regions.lock));
    EXPECT_TRUE(lock_held(&regions.lock));
    EXPECT_EQ(regions.leaving[0].region, region);
    EXPECT_EQ(regions.leaving[1].region, nullptr);
    lock_drop(&regions.lock);
    u32_store_relaxed(&regions.lock.word, 1); /* another's */
    region_after_fork();
    EXPECT_EQ(regions.leaving[0].region, region);
    EXPECT_EQ(stats().taken_bytes, taken + 1000 * page);
    EXPECT_EQ(stats().idle_bytes, 500 * page);
    regions.leaving[0].region = nullptr;
    regions.sums.idle_bytes -= 500 * page;
    source->verbs->give(source, &span);
    EXPECT_EQ(stats().taken_bytes, taken);
    EXPECT_EQ(quire_source_check(source), nullptr);
}

/* Another thread was making a span longer: it had not begun, was in the middle, or had yet to say so. */
TEST(AfterFork, a_span_that_was_becoming_longer_is_as_it_was)
{
    quire_source_trim(source);
    for (int stage = 0; stage < 4; stage++) {
        quire_span span;
        ASSERT_EQ(source->verbs->take(source, 300 * page, page, &span), 0);
        size_t taken = stats().taken_bytes, idx, more = 33;
        struct region *region = region_of(span, &idx);
        ASSERT_FALSE(bitmap_taken(&region->map, idx + 300));
        regions.growing = {&span, region, idx + 300, span.bytes};
        if (stage > 0) {
            ASSERT_TRUE(bitmap_extend(&region->map, idx, more));
        }
        if (stage == 1)
            bits_set(region->map.starts, idx + 300, idx + 301); /* still a run of its own */
        if (stage == 3)
            span.bytes += more * page;
        u32_store_relaxed(&regions.lock.word, 1);
        region_after_fork();
        EXPECT_EQ(regions.growing.span, nullptr);
        EXPECT_EQ(span.bytes, 300 * page) << stage;
        EXPECT_FALSE(bitmap_taken(&region->map, idx + 300)) << stage;
        EXPECT_EQ(stats().taken_bytes, taken) << stage;
        EXPECT_EQ(quire_source_check(source), nullptr) << stage;
        source->verbs->give(source, &span);
        EXPECT_EQ(quire_source_check(source), nullptr) << stage;
    }
}

/* A handler forked in the middle of it: its thread goes on with that. */
TEST(AfterFork, a_span_that_the_forking_thread_itself_makes_longer_is_left_to_it)
{
    quire_span span;
    ASSERT_EQ(source->verbs->take(source, 300 * page, page, &span), 0);
    size_t idx;
    struct region *region = region_of(span, &idx);
    regions.growing = {&span, region, idx + 300, span.bytes};
    ASSERT_TRUE(bitmap_extend(&region->map, idx, 33));
    lock_take(&regions.lock);
    region_after_fork();
    EXPECT_EQ(regions.growing.span, &span);
    EXPECT_EQ(bitmap_run(&region->map, idx), 333u);
    lock_drop(&regions.lock);
    regions.growing.span = nullptr;
    span.bytes += 33 * page;
    regions.sums.out_bytes += 33 * page;
    source->verbs->give(source, &span);
    EXPECT_EQ(quire_source_check(source), nullptr);
}

TEST(AfterFork, an_operation_cut_in_two_leaves_maps_and_sums_that_agree)
{
    quire_span kept, span;
    ASSERT_EQ(source->verbs->take(source, 3 * page, page, &kept), 0);
    ASSERT_EQ(source->verbs->take(source, 1000 * page, page, &span), 0);
    source->verbs->give(source, &span);
    size_t taken = stats().taken_bytes, idx;
    /* Another thread held the lock: sums half written, pages taken but still marked idle. */
    struct region *region = region_of(kept, &idx);
    bits_set(region->idle, idx, idx + 3);
    bits_set(region->aged, idx, idx + 3);
    regions.sums.idle_bytes += 12345;
    regions.sums.out_bytes -= page;
    u32_store_relaxed(&regions.lock.word, 1);
    region_after_fork();
    EXPECT_FALSE(lock_held(&regions.lock));
    EXPECT_EQ(quire_source_check(source), nullptr);
    EXPECT_EQ(stats().taken_bytes, taken);
    source->verbs->give(source, &kept);
    ASSERT_EQ(source->verbs->take(source, 8000 * page, page, &span), 0) << "addresses can be had again";
    source->verbs->give(source, &span);
    EXPECT_EQ(quire_source_check(source), nullptr);
}

TEST(AfterFork, nothing_changes_when_nobody_was_at_work)
{
    quire_span span;
    ASSERT_EQ(source->verbs->take(source, 40 * page, page, &span), 0);
    struct quire_source_stats before = stats();
    region_after_fork();
    pagemap_after_fork();
    lost_after_fork();
    struct quire_source_stats after = stats();
    EXPECT_EQ(before.taken_bytes, after.taken_bytes);
    EXPECT_EQ(before.idle_bytes, after.idle_bytes);
    source->verbs->give(source, &span);
}

/* A pointer that was kept too long writes where the link is: it is not followed, and what lies behind it stays as it is. */
TEST(AfterFork, a_link_of_refused_addresses_that_was_written_to_is_not_followed)
{
    auto written_to = [](size_t word) {
        quire_source *anon = quire_source_anon();
        quire_span at[3];
        for (quire_span &span : at)
            anon->verbs->take(anon, 4 * page, page, &span);
        {
            Fault fault(OS_UNMAP, 1, true);
            for (quire_span &span : at)
                anon->verbs->give(anon, &span);
        }
        static_cast<volatile uintptr_t *>(at[1].start)[word] = 0x414141414000;
        lost_retry();
        fprintf(stderr, "%zu", lost_bytes() / page);
        _exit(0);
    };
    for (size_t word = 0; word < 3; word++)
        EXPECT_EXIT(written_to(word), testing::ExitedWithCode(0), "^8$") << word;
}

TEST(AfterFork, a_refusal_to_unmap_is_tried_again_when_there_is_room)
{
    quire_source *anon = quire_source_anon();
    quire_span a, b;
    ASSERT_EQ(anon->verbs->take(anon, 4 * page, page, &a), 0);
    ASSERT_EQ(anon->verbs->take(anon, 4 * page, page, &b), 0);
    {
        Fault fault(OS_UNMAP, 1, true);
        anon->verbs->give(anon, &a);
        EXPECT_EQ(lost_bytes(), 4 * page);
        lost_retry();
        EXPECT_EQ(lost_bytes(), 4 * page) << "refused again, and kept again";
    }
    anon->verbs->give(anon, &b);
    EXPECT_EQ(lost_bytes(), 0u) << "an unmapping that worked is the sign to try";
}

/* What a thread sorts may be in the magazines of the one that forks inside an operation, and goes on with it: it had them from the depot. */
TEST(AfterFork, who_forked_inside_an_operation_beside_a_thread_that_sorts_has_no_block_twice)
{
    if (!bias_works())
        GTEST_SKIP() << "blocks are not cached there";
    const size_t bytes = 256, count = 40000;
    Heap heap;
    Worker sorter;
    for (int i = 0; i < 4; i++) {
        Blocks blocks = heap.alloc_many(count, bytes); /* another's: what lies in a thread's own pages goes there, not to the depot */
        sorter.run([&] {
            heap.free(shuffled(heap.alloc_many(count, bytes)));
            heap.free(shuffled(blocks));
        });
    }
    std::set<void *> out = {heap.alloc(bytes)};
    heap_local *mine = heap_mine(heap);
    slot_cache *sorted = nullptr;
    unsigned c = heap_class_of(bytes);
    for (heap_local *local = heap_locals(heap); local; local = local->next)
        if (local->bin[c].slots.kin && local->bin[c].slots.owns)
            sorted = &local->bin[c].slots;
    ASSERT_NE(sorted, nullptr);
    ASSERT_EQ(mine->bin[c].slots.key, slots_key_of(sorted->kin));
    sorted->is_sorting = true;
    (void)heap_hold(heap);
    pid_t child = fork();
    if (child == 0) {
        heap_release(mine);
        bool is_sound = !quire_heap_check(heap);
        while (is_sound && out.size() < 2 * count)
            is_sound = out.insert(quire_heap_alloc(heap, bytes)).second;
        _exit(is_sound ? 0 : 1);
    }
    heap_release(mine);
    sorted->is_sorting = false;
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    heap.free(Blocks(out.begin(), out.end()));
}

/* Another thread was putting fresh addresses in the place of a secure heap's last ones: how many there are is written, and where not yet. */
TEST(AfterFork, addresses_of_a_secure_heap_that_were_being_exchanged_are_none)
{
    quire_heap_opts opts = {};
    opts.flags = QUIRE_HEAP_SECURE;
    Heap heap(opts);
    if (heap_of_process.is_watched)
        GTEST_SKIP() << "large blocks are the source's there";
    const size_t bytes = 10 * page, low_bytes = 1 << 20, batch_bytes = 512 * page;
    heap.free(Blocks{heap.alloc(bytes)});
    auto *words = reinterpret_cast<uintptr_t *>(static_cast<quire_heap *>(heap)->sealed);
    size_t batch = 0;
    for (size_t i = 0; i + 1 < page / sizeof *words; i++)
        if (words[i] > batch_bytes && words[i] % page == 0 && words[i + 1] > batch_bytes / 2 && words[i + 1] < batch_bytes && words[i + 1] % page == 0)
            batch = i;
    ASSERT_NE(batch, 0u);
    void *low = mmap(reinterpret_cast<void *>(low_bytes / 16), low_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* as a program that lies there */
    unsigned char in[4096];
    ASSERT_EQ(mincore(low, low_bytes, in), 0);
    words[batch] = 0;
    for (int i = 0; i < 10; i++)
        EXPECT_GT(uintptr_t(heap.alloc(bytes)), batch_bytes) << i;
    EXPECT_EQ(mincore(low, low_bytes, in), 0) << "it is there still";
    munmap(low, low_bytes);
}

/* Another thread was taking a new record: the room begins behind it already, and is not counted smaller yet. */
TEST(AfterFork, records_lie_in_memory_of_their_own)
{
    static records all = {};
    all.lock.rank = LOCK_RECORDS;
    all.bytes = page / 4;
    all.end = [](void *) {};
    char *first = static_cast<char *>(record_new(&all));
    all.room_bytes += all.bytes;
    u32_store_relaxed(&all.lock.word, 1);
    EXPECT_TRUE(records_after_fork(&all));
    for (int i = 0; i < 8; i++) {
        char *next = static_cast<char *>(record_new(&all));
        ASSERT_NE(next, nullptr);
        EXPECT_TRUE(next != first + page) << i;
    }
}

TEST(AfterFork, whoever_was_about_to_read_its_local_of_a_heap_reads_one_that_has_nothing)
{
    Heap heap;
    Worker other;
    heap.alloc(100);
    other.run([&] { heap.alloc(100); }); /* so that the child is not as its parent left it */
    quire_heap *inside = heap;
    pid_t child = fork();
    if (child == 0)
        _exit(heap_tls.seen[inside->serial % HEAP_SEEN].local == &heap_local_none && heap_mine(inside) == &heap_local_none ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}
