// SPDX-License-Identifier: MIT
/* The nth system call, or the nth span, cannot be had: NULL + ENOMEM, nothing lost, and the next success works.  For every n until none fails. */
#include <gtest/gtest.h>

#include <cerrno>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <tuple>
#include <vector>

#include <quire/heap.h>

#include "each_call.h"
#include "model/slab_no_barrier.h"
#include "model/slab_worker.h"
#include "support.h"

namespace {

const size_t page = os_page_bytes();
const size_t mib = 1 << 20;
const uint32_t both_flags[] = {0, QUIRE_HEAP_SECURE};

/* How many calls of a program failed, each of them with ENOMEM. */
struct Failures {
    int count = 0;
    bool sees(const void *p)
    {
        if (!p) {
            EXPECT_EQ(errno, ENOMEM);
            count++;
        }
        errno = 0;
        return p != nullptr;
    }
};

struct Block {
    char *p;
    size_t bytes;
};

/* What a block of its size holds, as far as it is looked at. */
void write(const Block &block)
{
    if (block.bytes > 0)
        block.p[0] = char(block.bytes), block.p[block.bytes - 1] = char(block.bytes + 1), block.p[block.bytes / 2] = char(block.bytes + 2);
}
void expect_whole(const Block &block)
{
    bool whole = block.bytes <= 2 || (block.p[0] == char(block.bytes) && block.p[block.bytes - 1] == char(block.bytes + 1) &&
                                      block.p[block.bytes / 2] == char(block.bytes + 2));
    EXPECT_TRUE(whole) << block.bytes;
}

/* Blocks by every way there is, a few of them large, every one written. */
std::vector<Block> allocate(quire_heap *heap, size_t count, Failures &failures)
{
    std::vector<Block> blocks;
    errno = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = i % 25 == 9 ? 50000 + i * 1000 : i % 10 == 4 ? 4000 : i * 13 % 700;
        void *p = i % 4 == 0   ? quire_heap_alloc_zero(heap, 1, bytes)
                  : i % 4 == 1 ? quire_heap_alloc_aligned(heap, bytes, size_t(1) << i % 14)
                               : quire_heap_alloc(heap, bytes);
        if (!failures.sees(p))
            continue;
        blocks.push_back({static_cast<char *>(p), bytes});
        EXPECT_TRUE(i % 4 || bytes == 0 || (blocks.back().p[0] == 0 && blocks.back().p[bytes - 1] == 0)) << "zeroed";
        write(blocks.back());
    }
    return blocks;
}

/* A block gets another size, or stays as it is. */
void resize(quire_heap *heap, Block &block, size_t bytes, Failures &failures)
{
    char first = block.bytes ? block.p[0] : 0;
    errno = 0;
    void *p = quire_heap_realloc(heap, block.p, bytes);
    if (failures.sees(p)) {
        EXPECT_TRUE(block.bytes == 0 || *static_cast<char *>(p) == first);
        block = {static_cast<char *>(p), bytes};
        write(block);
    }
    expect_whole(block);
}

/* Up, down, across the border of large; a few far up, where the system moves them, and down again. */
void reallocate(quire_heap *heap, std::vector<Block> &blocks, Failures &failures)
{
    const size_t sizes[] = {20, 600, 40000, 300000, 3000, 100};
    for (size_t i = 0; i < blocks.size(); i += 5)
        resize(heap, blocks[i], sizes[i / 5 % 6], failures);
    for (size_t i = 0; i < blocks.size(); i += 33)
        for (size_t bytes : {size_t(50000), size_t(400000), size_t(900000), size_t(450000), size_t(70000), 10 + i})
            resize(heap, blocks[i], bytes, failures);
}

void free_some(quire_heap *heap, const std::vector<Block> &blocks, size_t from, size_t to)
{
    errno = 42;
    for (size_t i = from; i < to; i++) {
        expect_whole(blocks[i]);
        quire_heap_free(heap, blocks[i].p);
    }
    EXPECT_EQ(errno, 42) << "freeing keeps it";
}

void sound(quire_heap *heap, size_t live)
{
    struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
    quire_heap_stats(heap, &stats);
    EXPECT_EQ(stats.mapped_bytes, stats.live_bytes + stats.free_bytes + stats.meta_bytes);
    EXPECT_EQ(stats.live_blocks, live);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

/* A little of everything by two threads, going on after each failure.  Returns how many calls failed. */
int program(struct quire_source *source, uint32_t flags, Worker &other)
{
    Failures failures;
    quire_heap_opts opts = {};
    opts.source = source, opts.flags = flags, opts.name = "fault";
    quire_heap *heap = nullptr;
    for (int tries = 0; tries < 8 && !heap; tries++)
        failures.sees(heap = quire_heap_create(&opts));
    if (!heap)
        return failures.count;
    for (int round = 0; round < 2; round++) {
        std::vector<Block> mine = allocate(heap, 80, failures), theirs;
        other.run([&] { theirs = allocate(heap, 40, failures); });
        sound(heap, mine.size() + theirs.size());
        other.run([&] {
            free_some(heap, mine, 0, mine.size() / 2);
            reallocate(heap, theirs, failures);
        });
        mine.erase(mine.begin(), mine.begin() + long(mine.size() / 2));
        reallocate(heap, mine, failures);
        sound(heap, mine.size() + theirs.size());
        free_some(heap, theirs, 0, theirs.size());
        quire_heap_trim(heap);
        sound(heap, mine.size());
        free_some(heap, mine, 0, mine.size());
        sound(heap, 0);
    }
    quire_heap_alloc(heap, 100), quire_heap_alloc(heap, mib);
    quire_heap_destroy(heap);
    return failures.count;
}

/* Address space of the process: bookkeeping that is lost shows here. */
size_t mapped_bytes()
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;
    if (!file || fscanf(file, "%lu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * size_t(sysconf(_SC_PAGESIZE)); /* the kernel's, also where larger ones are pretended */
}

} // namespace

TEST(HeapFault, for_every_span_that_cannot_be_had_nothing_is_lost)
{
    Worker other;
    for (uint32_t flags : both_flags) {
        uint64_t nth = 1;
        for (bool refused = true; refused && nth < 500; nth += test_long() ? 1 : BUILT_WITH_TSAN ? 7 : under_asan() ? 3 : 1) {
            struct quire_source *count = quire_source_count(quire_source_default()), *fail = quire_source_fail(count, nth);
            int failed = program(fail, flags, other);
            struct quire_source_stats stats = {.struct_bytes = sizeof stats};
            quire_source_stats(fail, &stats);
            refused = stats.failures != 0;
            EXPECT_LE(failed, 1) << "n " << nth << ": one span less is one refusal at most";
            EXPECT_EQ(taken_settled(count, 0), 0u) << "n " << nth;
            quire_source_destroy(fail);
            quire_source_destroy(count);
        }
        EXPECT_GE(nth, 20u) << "the program takes many spans";
        EXPECT_LT(nth, 500u);
    }
}

static void nothing_is_lost(const char *name, struct quire_source *own)
{
    Worker other;
    struct quire_source *source = own ? own : quire_source_default();
    program(own, 0, other), program(own, QUIRE_HEAP_SECURE, other); /* what is kept for good is there now */
    quire_source_trim(source);
    size_t before = taken_at_rest(source);
    int kind = 0;
    EachCall each(
        name, 2, BUILT_WITH_TSAN ? 3 : under_asan() ? 4 : 12, /* guards that cannot be lifted keep their spans: they have a test of their own */
        [&](int variant) { program(own, kind == OS_PROTECT ? 0 : both_flags[variant], other); },
        [&] {
            EXPECT_EQ(taken_settled(source, before), before);
            EXPECT_EQ(quire_source_check(source), nullptr);
            quire_source_trim(source);
        });
    each.leave_out_what_is_not_called();
    for (; kind < OS_CALL_COUNT; kind++)
        for (bool onwards : {false, true})
            if (!onwards || (kind != OS_THREAD && !BUILT_WITH_TSAN)) /* the sources have a test of their own for threads */
                each.fail(kind, onwards);
    EXPECT_EQ(program(own, 0, other), 0) << "afterwards everything works";
    quire_source_destroy(own);
}

/* One test for each source: the long form takes a minute of each. */
TEST(HeapFault, for_every_system_call_that_fails_once_or_from_then_on_nothing_is_lost)
{
    nothing_is_lost("none", nullptr);
}

TEST(HeapFault, for_every_system_call_over_the_anonymous_source_nothing_is_lost)
{
    nothing_is_lost("anon", quire_source_anon());
}

TEST(HeapFault, for_every_system_call_over_malloc_nothing_is_lost)
{
    nothing_is_lost("malloc", quire_source_malloc());
}

TEST(HeapFault, for_every_system_call_over_a_memfd_nothing_is_lost)
{
    nothing_is_lost("memfd", quire_source_memfd("fault"));
}

namespace {

/* Each path that asks the system for something, once or twice. */
int every_path(uint32_t flags)
{
    Failures failures;
    quire_heap_opts opts = {};
    opts.flags = flags;
    quire_heap *heap = nullptr;
    for (int tries = 0; tries < 8 && !heap; tries++)
        failures.sees(heap = quire_heap_create(&opts));
    if (!heap)
        return failures.count;
    std::vector<Block> blocks;
    for (size_t bytes : {size_t(0), size_t(100), size_t(4000), size_t(30000), size_t(50000), mib})
        for (int way = 0; way < 3; way++) {
            void *p = way == 0 ? quire_heap_alloc(heap, bytes) : way == 1 ? quire_heap_alloc_zero(heap, 1, bytes) : quire_heap_alloc_aligned(heap, bytes, 8192);
            if (failures.sees(p))
                blocks.push_back({static_cast<char *>(p), bytes}), write(blocks.back());
        }
    for (size_t bytes : {size_t(50000), size_t(400000), size_t(900000), 4 * mib, 2 * mib, 300000 + 2 * mib, size_t(70000), size_t(40000)})
        for (size_t i = 1; i < blocks.size(); i += 6)
            resize(heap, blocks[i], bytes, failures);
    sound(heap, blocks.size());
    free_some(heap, blocks, 0, blocks.size());
    for (size_t bytes : {size_t(90000), size_t(70000), size_t(80000)}) /* a secure heap moves the memory of one to the next */
        if (char *p = static_cast<char *>(quire_heap_alloc_zero(heap, 1, bytes)); failures.sees(p)) {
            EXPECT_EQ(p[0] | p[bytes - 1], 0);
            quire_heap_free(heap, memset(p, 'x', bytes));
        }
    quire_heap_trim(heap);
    sound(heap, 0);
    quire_heap_destroy(heap);
    quire_source_trim(quire_source_default());
    return failures.count;
}

} // namespace

TEST(HeapFault, every_system_call_of_every_path_fails_once_and_each_kind_was_reached)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not resized in place there";
    const std::tuple<uint32_t, bool, std::vector<os_call>> cases[] = {
        {0, true, {OS_MAP, OS_UNMAP, OS_REMAP, OS_DISCARD}},
        {QUIRE_HEAP_SECURE, true, {OS_MAP, OS_UNMAP, OS_REMAP, OS_SEAL, OS_MARK, OS_PROTECT, OS_DISCARD}},
        {QUIRE_HEAP_SECURE, false, {OS_MAP, OS_UNMAP, OS_REMAP, OS_SEAL, OS_PROTECT, OS_DISCARD}}};
    for (auto &[flags, has_marks, kinds] : cases) {
        Fault unmarked(OS_MARK, has_marks ? 0 : 1, true);
        every_path(flags);
        EachCall each(
            "flags " + std::to_string(flags) + (has_marks ? "" : " unmarked"), 1, UINT64_MAX, [flags = flags](int) { every_path(flags); }, [] {});
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            if (kind != OS_MARK || has_marks) {
                each.fail(kind, false);
                RecordProperty("failed_" + std::to_string(kind) + "_" + std::to_string(flags) + (has_marks ? "" : "_unmarked"), std::to_string(each.failed[kind]));
            }
        each.expect_failed(kinds);
        EXPECT_EQ(every_path(flags), 0) << "afterwards everything works";
        EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
    }
}

TEST(HeapFault, no_bookkeeping_is_lost_by_failures)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch map memory too";
    Worker other;
    auto rounds = [&] {
        for (uint64_t nth = 1; nth < 40; nth++) {
            Fault fault(OS_MAP, nth);
            program(quire_source_anon(), both_flags[nth % 2], other);
        }
        quire_source_trim(quire_source_default());
    };
    rounds(), rounds();
    size_t before = mapped_bytes();
    for (int i = 0; i < 3; i++)
        rounds();
    EXPECT_LE(mapped_bytes(), before + mib) << "120 programs later";
}

TEST(HeapFault, a_threads_first_allocation_without_memory_is_null_and_its_next_one_works)
{
    for (bool onwards : {false, true})
        for (uint64_t nth = 1; nth < 6; nth++) {
            quire_heap_opts opts = {};
            opts.source = quire_source_anon();
            quire_heap *heap = quire_heap_create(&opts);
            quire_heap_alloc(heap, 3000);
            std::thread([&] {
                {
                    Fault fault(OS_MAP, nth, onwards);
                    for (size_t i = 0; i < 40; i++) {
                        errno = 0;
                        void *p = quire_heap_alloc(heap, i * 300);
                        EXPECT_TRUE(p || errno == ENOMEM);
                        quire_heap_free(heap, p);
                        quire_heap_free(heap, nullptr);
                    }
                }
                EXPECT_NE(quire_heap_alloc(heap, 3000), nullptr);
            }).join();
            EXPECT_EQ(quire_heap_check(heap), nullptr);
            quire_heap_destroy(heap);
        }
}

TEST(HeapFault, a_thread_without_memory_for_pages_of_its_own_frees_what_others_allocated)
{
    for (uint32_t flags : both_flags) {
        quire_heap_opts opts = {};
        opts.flags = flags;
        quire_heap *heap = quire_heap_create(&opts);
        std::vector<void *> blocks;
        for (size_t i = 0; i < 60 * OS_CALL_COUNT + 40; i++)
            blocks.push_back(quire_heap_alloc(heap, i % 100 ? 64 : 100000));
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            std::thread([&] {
                Fault fault(os_call(kind), 1, true);
                for (int i = 0; i < 60; i++) {
                    quire_heap_free(heap, blocks.back());
                    blocks.pop_back();
                }
            }).join();
        sound(heap, blocks.size());
        quire_heap_destroy(heap);
    }
}

TEST(HeapFault, blocks_are_had_from_what_is_there_when_no_system_call_works_any_more)
{
    quire_heap *heap = quire_heap_create(nullptr);
    Worker other;
    std::vector<void *> blocks;
    for (int i = 0; i < 5000; i++)
        blocks.push_back(quire_heap_alloc(heap, 100));
    other.run([&] {
        for (size_t i = 0; i < 2500; i++)
            quire_heap_free(heap, blocks[i]);
    });
    for (size_t i = 2500; i < 5000; i += 2)
        quire_heap_free(heap, blocks[i]);
    {
        Fault map(OS_MAP, 1, true), remap(OS_REMAP, 1, true), unmap(OS_UNMAP, 1, true), protect(OS_PROTECT, 1, true), libc(OS_LIBC, 1, true), discard(OS_DISCARD, 1, true);
        size_t got = 0;
        while (got < 1250 && quire_heap_alloc(heap, 100))
            got++;
        EXPECT_EQ(got, 1250u) << "at least what lies between live ones";
        quire_heap_trim(heap);
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        for (size_t i = 2501; i < 5000; i += 2)
            quire_heap_free(heap, blocks[i]);
    }
    sound(heap, 1250);
    quire_heap_destroy(heap);
}

TEST(HeapFault, with_nothing_left_of_the_default_source_every_call_is_enomem_and_what_lives_goes_on)
{
    quire_heap *kept = quire_heap_create(nullptr);
    std::vector<Block> blocks;
    for (size_t i = 0; i < 2000; i++) {
        blocks.push_back({static_cast<char *>(quire_heap_alloc(kept, 200)), 200});
        write(blocks.back());
    }
    quire_source_trim(quire_source_default());
    {
        Fault map(OS_MAP, 1, true), remap(OS_REMAP, 1, true), protect(OS_PROTECT, 1, true), libc(OS_LIBC, 1, true);
        size_t more = 0;
        errno = 0;
        for (void *p; more < 1000000 && (p = quire_heap_alloc(kept, 200)); more++) {
        }
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_LT(more, 1000000u);
        errno = 0;
        EXPECT_EQ(quire_heap_alloc(kept, size_t(1) << 40), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        errno = 0;
        EXPECT_EQ(quire_heap_realloc(kept, blocks[0].p, size_t(1) << 40), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        std::thread([&] { /* one that has nothing of its own yet */
            errno = 0;
            void *p = quire_heap_alloc(kept, 200);
            EXPECT_TRUE(p || errno == ENOMEM);
            quire_heap_free(kept, p);
            free_some(kept, blocks, 1000, 2000);
        }).join();
        EXPECT_EQ(quire_heap_check(kept), nullptr);
    }
    EXPECT_NE(quire_heap_alloc(kept, 200), nullptr);
    EXPECT_NE(quire_heap_alloc(kept, mib), nullptr);
    free_some(kept, blocks, 0, 1000);
    EXPECT_EQ(quire_heap_check(kept), nullptr);
    quire_heap_destroy(kept);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(HeapFault, a_guard_that_cannot_be_lifted_harms_nobody_who_comes_after)
{
    quire_heap_opts opts = {};
    opts.flags = QUIRE_HEAP_SECURE;
    quire_heap *guarded = quire_heap_create(&opts), *plain = quire_heap_create(nullptr);
    for (int i = 0; i < 20; i++) {
        void *p = quire_heap_alloc(guarded, 100000);
        ASSERT_NE(p, nullptr);
        {
            Fault protect(OS_PROTECT, 1, true);
            quire_heap_free(guarded, p);
        }
        p = quire_heap_alloc(plain, 100000 + 2 * page);
        ASSERT_NE(p, nullptr);
        memset(p, 1, 100000 + 2 * page);
    }
    sound(guarded, 0);
    quire_heap_destroy(guarded);
    sound(plain, 20);
    quire_heap_destroy(plain);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(HeapFault, a_process_that_may_map_no_more_gets_null_and_lives_on)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch map memory too";
    for (size_t bytes : {size_t(50), size_t(5000), size_t(100000), 3 * mib}) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit limit = {mapped_bytes() + 64 * mib, mapped_bytes() + 64 * mib};
            setrlimit(RLIMIT_AS, &limit);
            quire_heap_opts opts = {};
            opts.source = quire_source_anon(); /* the default one may have reserved more before */
            quire_heap *heap = quire_heap_create(&opts);
            std::vector<void *> blocks;
            blocks.reserve(200 * mib / bytes);
            errno = 0;
            for (void *p; heap && blocks.size() < blocks.capacity() && (p = quire_heap_alloc(heap, bytes));)
                blocks.push_back(memset(p, 1, bytes));
            bool refused = errno == ENOMEM && blocks.size() * bytes > 16 * mib;
            quire_heap_free(heap, blocks.back());
            blocks.back() = quire_heap_alloc(heap, bytes);
            refused = refused && blocks.back() && !quire_heap_check(heap);
            for (void *p : blocks)
                quire_heap_free(heap, p);
            quire_heap_trim(heap);
            void *other_size = quire_heap_alloc(heap, bytes / 2);
            _exit(refused && other_size && !quire_heap_check(heap) ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0) << bytes;
    }
}

TEST(HeapFault, a_heap_over_a_budget_takes_no_more_and_gives_all_back)
{
    Worker other;
    for (size_t pages = 1; pages < 400; pages += memory_is_watched() ? 61 : 23) {
        struct quire_source *limit = quire_source_limit(quire_source_default(), pages * page);
        program(limit, both_flags[pages % 2], other);
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(limit, &stats);
        EXPECT_LE(stats.peak_bytes, pages * page);
        EXPECT_EQ(stats.taken_bytes, 0u);
        quire_source_destroy(limit);
    }
}
