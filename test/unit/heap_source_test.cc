// SPDX-License-Identifier: MIT
/* Heaps over every kind of source, each for real; and that what a heap takes, it gives back. */
#include <gtest/gtest.h>

#include <memory>
#include <sched.h>
#include <sys/mount.h>

#include "model/slab_worker.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "unit/heap_scope.h"
#include "unit/own_source.h"
#include "unit/source_kit.h"

namespace {

const size_t mib = 1 << 20;

/* Everything an ordinary heap does, over one source, from two threads; 0 when all of it went well, else the line. */
int life_of(struct quire_source *source, uint32_t flags)
{
    quire_heap_opts opts = {};
    opts.name = "mode", opts.source = source, opts.flags = flags;
    quire_heap *heap = quire_heap_create(&opts);
    OR_LINE(heap);
    Worker other;
    for (int round = 0; round < (memory_is_watched() ? 2 : 3); round++) {
        std::vector<std::pair<void *, size_t>> blocks;
        for (size_t i = 0; i < 300; i++) {
            size_t bytes = i % 60 == 7 ? 30000 + i * 300 : i * 7 % 900;
            void *p = i % 5 == 0   ? quire_heap_alloc_zero(heap, 1, bytes)
                      : i % 5 == 1 ? quire_heap_alloc_aligned(heap, bytes, size_t(1) << i % 13)
                      : i % 5 == 2 ? quire_heap_realloc(heap, quire_heap_alloc(heap, bytes / 2), bytes)
                                   : quire_heap_alloc(heap, bytes);
            OR_LINE(p && (i % 5 || holds_only(p, bytes, 0)));
            fill(p, bytes, i);
            blocks.push_back({p, bytes});
        }
        for (size_t i = 0; i < blocks.size(); i++)
            OR_LINE(holds(blocks[i].first, blocks[i].second, i) && quire_heap_owns(heap, blocks[i].first));
        HeapStats stats = {.struct_bytes = sizeof stats};
        quire_heap_stats(heap, &stats);
        OR_LINE(stats.live_blocks == blocks.size() && stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes);
        other.run([&] {
            for (size_t i = 0; i < 100; i++)
                quire_heap_free(heap, blocks[i].first);
        });
        for (size_t i = 100; i < blocks.size(); i++)
            quire_heap_free(heap, blocks[i].first);
        quire_heap_trim(heap);
        quire_heap_stats(heap, &stats);
        OR_LINE(stats.live_blocks == 0);
        OR_LINE(quire_heap_check(heap) == nullptr);
    }
    quire_heap_alloc(heap, 100), quire_heap_alloc(heap, 100000);
    quire_heap_destroy(heap);
    return 0;
}

/* Both kinds of heap, then everything is back. */
void works_over(struct quire_source *source)
{
    ASSERT_NE(source, nullptr) << "errno " << errno;
    struct quire_source *count = quire_source_count(source);
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE}) {
        EXPECT_EQ(life_of(count, flags), 0) << source->name << " flags " << flags;
        EXPECT_EQ(taken_settled(count, 0), 0u) << source->name;
    }
    EXPECT_GT(stats_of(count).takes, 0u) << source->name << ": its memory came from there";
    EXPECT_EQ(stats_of(count).takes, stats_of(count).gives) << source->name;
    EXPECT_EQ(quire_source_check(source), nullptr) << source->name;
    quire_source_destroy(count);
    quire_source_destroy(source);
}

} // namespace

TEST(HeapSource, every_source_feeds_a_heap)
{
    works_over(quire_source_default());
    works_over(quire_source_anon());
    works_over(quire_source_malloc());
    works_over(quire_source_memfd("heap"));
    works_over(quire_source_limit(quire_source_anon(), 64 << 20));
    works_over(quire_source_fail(quire_source_default(), 1000000));
    std::unique_ptr<char[]> buffer(new char[16 << 20]);
    works_over(quire_source_fixed(buffer.get(), 16 << 20));
}

TEST(HeapSource, files_work_and_leave_nothing)
{
    Directory directory;
    works_over(quire_source_file(directory.path.c_str(), "heap"));
    EXPECT_EQ(directory.list(), Names{});
}

TEST(HeapSource, blocks_lie_in_the_buffer_that_was_given_and_fill_it)
{
    std::vector<char> buffer(2 * mib);
    struct quire_source *fixed = quire_source_fixed(buffer.data(), buffer.size());
    for (size_t bytes : {size_t(64), size_t(1000), size_t(50000)}) {
        Heap heap({.source = fixed});
        const size_t room = heap.room_of(bytes);
        Blocks blocks = heap.alloc_until_refused(bytes);
        for (void *p : blocks)
            ASSERT_TRUE(p >= buffer.data() && static_cast<char *>(p) + bytes <= buffer.data() + buffer.size());
        if (!memory_is_watched()) {
            EXPECT_GE(blocks.size() * room, buffer.size() / 4 * 3) << bytes << ": its end is reached by blocks";
        }
        for (size_t i = 0; i < blocks.size(); i += 2)
            quire_heap_free(heap, blocks[i]);
        for (size_t i = 0; i < blocks.size(); i += 2)
            ASSERT_NE(blocks[i] = quire_heap_alloc(heap, bytes), nullptr) << "what was freed is there";
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        heap.free(blocks);
        quire_heap_trim(heap);
    }
    EXPECT_EQ(stats_of(fixed).taken_bytes, 0u);
    quire_source_destroy(fixed);
}

TEST(HeapSource, a_small_buffer_is_a_small_heap_and_then_enomem)
{
    for (size_t kib : {8u, 16u, 20u, 32u, 64u, 100u, 128u, 300u}) {
        std::vector<char> buffer(kib << 10);
        struct quire_source *fixed = quire_source_fixed(buffer.data(), buffer.size());
        if (!fixed)
            continue;
        quire_heap_opts opts = {.source = fixed};
        errno = 0;
        quire_heap *heap = quire_heap_create(&opts);
        ASSERT_TRUE(heap || errno == ENOMEM);
        for (size_t bytes : {size_t(10), size_t(100), size_t(3000), size_t(40000), mib}) {
            errno = 0;
            void *p = heap ? quire_heap_alloc(heap, bytes) : nullptr;
            EXPECT_TRUE(p || !heap || errno == ENOMEM) << kib << " KiB, " << bytes;
            EXPECT_TRUE(!p || bytes < kib << 10);
            if (p)
                memset(p, 1, bytes);
        }
        EXPECT_TRUE(!heap || !quire_heap_check(heap));
        quire_heap_destroy(heap);
        EXPECT_EQ(stats_of(fixed).taken_bytes, 0u);
        quire_source_destroy(fixed);
    }
}

TEST(HeapSource, a_counting_source_sees_one_tenants_memory)
{
    struct quire_source *a = quire_source_count(quire_source_default()), *b = quire_source_count(quire_source_default());
    {
        Heap of_a({.source = a}), of_b({.source = b});
        of_a.alloc_many(50000, 64), of_b.alloc(10);
        char *large = of_a.alloc(3 * mib);
        EXPECT_GE(stats_of(a).taken_bytes, 3200000u + 3 * mib);
        EXPECT_LE(stats_of(a).taken_bytes, of_a.stats().mapped_bytes);
        EXPECT_LE(stats_of(b).taken_bytes, of_b.stats().mapped_bytes);
        large = static_cast<char *>(quire_heap_realloc(of_a, large, 12 * mib));
        EXPECT_LE(stats_of(a).taken_bytes, of_a.stats().mapped_bytes) << "a block that grew is on the account once";
        EXPECT_GE(of_a.stats().mapped_bytes, 15 * mib);
        quire_heap_free(of_a, large);
    }
    EXPECT_EQ(stats_of(a).taken_bytes + stats_of(b).taken_bytes, 0u);
    quire_source_destroy(a), quire_source_destroy(b);
}

TEST(HeapSource, a_budget_is_shared_by_the_heaps_that_have_it)
{
    struct quire_source *budget = quire_source_limit(quire_source_default(), 4 * mib);
    {
        Heap first({.source = budget}), second({.source = budget});
        Blocks blocks = first.alloc_until_refused(1000);
        EXPECT_GE(blocks.size(), 2000u);
        second.alloc_until_refused(1000);
        first.free(blocks);
        quire_heap_trim(first);
        EXPECT_GE(second.alloc_until_refused(1000).size(), 2000u);
        EXPECT_LE(stats_of(budget).peak_bytes, 4 * mib);
    }
    EXPECT_EQ(stats_of(budget).taken_bytes, 0u);
    quire_source_destroy(budget);
}

TEST(HeapSource, blocks_over_memfd_are_shared_with_the_child_of_a_fork)
{
    struct quire_source *source = quire_source_memfd("shared");
    {
        Heap heap({.source = source});
        char *p = heap.alloc(64), *large = heap.alloc(mib);
        strcpy(p, "parent"), strcpy(large, "parent");
        EXPECT_EQ(in_child([&] {
                      bool both = strcmp(p, "parent") == 0 && strcmp(large, "parent") == 0;
                      strcpy(p, "child"), strcpy(large, "child");
                      return both ? 0 : 1;
                  }),
                  0);
        EXPECT_STREQ(p, "child");
        EXPECT_STREQ(large, "child");
    }
    quire_source_destroy(source);
}

TEST(HeapSource, a_source_of_the_users_own_with_five_verbs_is_enough)
{
    static const struct quire_source_verbs verbs = {sizeof verbs,
        own_take, own_give, [](struct quire_source *, void *, size_t) {}, [](struct quire_source *, void *, size_t) { return 0; },
        [](struct quire_source *) {}, nullptr, nullptr, nullptr};
    OwnSource own = {{&verbs, "own"}, 0, 8 << 20};
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE}) {
        EXPECT_EQ(life_of(&own.base, flags), 0);
        EXPECT_EQ(own.taken_bytes, 0u);
    }
    {
        Heap heap({.source = &own.base});
        EXPECT_GT(heap.alloc_until_refused(64).size(), 10000u) << "and errno is ENOMEM, whatever the source said";
        errno = 0;
        EXPECT_EQ(quire_heap_alloc(heap, 9 << 20), nullptr);
        EXPECT_EQ(errno, ENOMEM);
    }
    EXPECT_EQ(own.taken_bytes, 0u);
}

TEST(HeapSource, a_full_disk_is_enomem_and_never_a_signal)
{
    Directory directory;
    int status = in_child([&] {
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("tmpfs", directory.path.c_str(), "tmpfs", 0, "size=1m") != 0)
            return int(CHILD_SKIPS);
        quire_source *source = quire_source_file(directory.path.c_str(), "heap");
        quire_heap_opts opts = {.source = source};
        quire_heap *heap = quire_heap_create(&opts);
        if (!heap)
            return 1;
        for (size_t bytes : {size_t(500), size_t(50000), size_t(500)}) {
            Blocks blocks;
            errno = 0;
            for (void *p; blocks.size() < 10000 && (p = quire_heap_alloc(heap, bytes));) {
                memset(p, 1, bytes); /* a SIGBUS here if its space were not reserved */
                blocks.push_back(p);
            }
            if (errno != ENOMEM || blocks.size() * bytes > 1 << 20 || blocks.size() * bytes < 1 << 18)
                return 2;
            for (void *p : blocks)
                quire_heap_free(heap, p);
            quire_heap_trim(heap);
            if (quire_heap_check(heap))
                return 3;
        }
        quire_heap_destroy(heap);
        quire_source_destroy(source);
        return directory.list().empty() ? 0 : 4;
    });
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "no file system can be mounted here";
    EXPECT_EQ(status, 0);
}

TEST(HeapSource, with_no_decay_a_program_of_one_thread_stays_one)
{
    if (!os_is_single_threaded()) { /* libc remembers earlier threads, also in the child of a fork */
        EXPECT_EQ(in_child([] { return execl("/proc/self/exe", "unit", "--gtest_filter=HeapSource.with_no_decay*", nullptr); }), 0);
        return;
    }
    EXPECT_EQ(in_child([] {
                  OR_LINE(quire_source_set_decay(quire_source_default(), 0) == 0);
                  quire_heap *heap = quire_heap_create(nullptr);
                  quire_heap_free(heap, quire_heap_alloc(heap, 100));
                  quire_heap_free(heap, quire_heap_alloc(heap, 100000));
                  quire_heap_destroy(heap);
                  usleep(50000);
                  return unshare(CLONE_NEWUSER) == 0 || errno != EINVAL ? 0 : 1; /* EINVAL: there are others */
              }),
              0);
}

TEST(HeapSource, a_large_block_does_not_keep_the_clock_asleep)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "it has a thread of its own from the start";
    EXPECT_EQ(in_child([] {
                  OR_LINE(quire_source_set_decay(quire_source_default(), 20000000) == 0);
                  quire_source *source = quire_source_count(quire_source_anon());
                  quire_heap_opts opts = {.source = source};
                  quire_heap *heap = quire_heap_create(&opts);
                  auto taken = [&] {
                      struct quire_source_stats stats = {.struct_bytes = sizeof stats};
                      quire_source_stats(source, &stats);
                      return stats.taken_bytes;
                  };
                  Worker other;
                  other.run([&] { quire_heap_free(heap, quire_heap_alloc(heap, 16)); });
                  quire_heap_free(heap, quire_heap_alloc(heap, 16));
                  usleep(500000); /* the clock has nothing to do, and sleeps */
                  OR_LINE(quire_heap_alloc(heap, 100000));
                  other.run([&] {
                      for (int round = 0; round < 20; round++) {
                          std::vector<void *> blocks;
                          for (int i = 0; i < 8000; i++)
                              blocks.push_back(quire_heap_alloc(heap, 1000));
                          for (void *p : blocks)
                              quire_heap_free(heap, p);
                      }
                  });
                  for (int late = 0; late < 1000 && taken() > mib; late++)
                      usleep(10000);
                  return taken() <= mib ? 0 : 1;
              }),
              0);
}

TEST(HeapSource, who_asks_for_a_clock_later_and_could_have_none_asks_again)
{
    EXPECT_EQ(in_child([] {
                  quire_source *common = quire_source_default();
                  Worker other;
                  other.run([] {}); /* so that this is no program of one thread */
                  OR_LINE(quire_source_set_decay(common, 20000000) == 0);
                  reaper_defer(0);
                  os_fault_set(OS_THREAD, 1, true);
                  reaper_wake();
                  reaper_start_due(false);
                  OR_LINE(reaper_keeps_nothing()); /* there is none */
                  os_fault_set(OS_THREAD, 0, false);
                  for (int late = 0; late < 500 && reaper_keeps_nothing(); late++) {
                      usleep(10000);
                      quire_span span;
                      OR_LINE(common->verbs->take(common, 3 * os_page_bytes(), os_page_bytes(), &span) == 0);
                      common->verbs->give(common, &span);
                      reaper_start_due(false);
                  }
                  return reaper_keeps_nothing() ? 1 : 0;
              }),
              0);
}
