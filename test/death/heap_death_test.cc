// SPDX-License-Identifier: MIT
/*
 * The thirty classic kinds of misuse, one a test, and the exact line each stops the process with.
 *
 *     freed twice           1 at once   2 with other operations between   3 after it was handed out again   4 by its owner, then by another
 *                           thread   5 by another thread, then by its owner   6 by another thread, while the first is on its way   7 by two
 *                           threads, after the first has arrived   8 a large one   9 an aligned one   10 what realloc moved
 *     freed, then           11 reallocated   12 asked for its size
 *     no block begins there 13 inside a small one   14 inside a large one   15 one byte off   16 past the last one of a page
 *     never a block         17 on the stack   18 static   19 code   20 small numbers, wild ones   21 libc's   22 the system's
 *     somebody else's       23 of a slab, an arena, the heap's own bookkeeping; and a block to them   24 of another heap   25 of a heap that is gone
 *     written               26 while on its way to its owner
 *     only secure heaps     27 past the end   28 before the start   29 into a block of no bytes   30 after it was freed
 *
 * The first 26 are stopped by every heap; heap_secure_death_test.cc has the last four.
 */
#include "death/heap_death.h"

#include <set>
#include <sys/mman.h>

#include <quire/arena.h>
#include <quire/quire.h>
#include <quire/slab.h>

#include "os/os.h"
#include "pages/pagemap.h"

namespace {

/* Misuse is no race: one heap will do where a fork takes long. */
const std::vector<HeapWay> ways =
    BUILT_WITH_TSAN ? std::vector<HeapWay>{{"a heap", 0, false}}
                    : std::vector<HeapWay>{{"a heap", 0, false}, {"a secure heap", QUIRE_HEAP_SECURE, false}, {"the default heap", 0, true}};

const char e1[] = "E1 the block is free already", e2[] = "E2 not an address of a heap", e3[] = "E3 inside a block", e4[] = "E4 a block of another heap";
const char e2_or_e3[] = "E[23] [a-z ]+";

/* A statement done to a fresh scene `s` of each way stops the process with a line of the heap's name and `words`; or with that very line. */
#define STOPS_WITH_LINE(statement, line)                                                                                           \
    for (const HeapWay &way : ways)                                                                                                \
    EXPECT_DEATH(                                                                                                                  \
        {                                                                                                                          \
            HeapScene s(way);                                                                                                      \
            statement;                                                                                                             \
        },                                                                                                                         \
        line)                                                                                                                      \
        << way.name
#define STOPS(statement, words) STOPS_WITH_LINE(statement, heap_line(words, !way.of_process))

} // namespace

/* ---- freed twice ---- */

TEST(HeapDeathTest, kind_01_freed_twice_at_once)
{
    for (size_t bytes : {size_t(0), size_t(50), size_t(3000), size_t(30000)})
        STOPS(char *p = s.alloc(bytes); s.free(p); s.free(p), e1);
}

TEST(HeapDeathTest, kind_02_freed_twice_with_other_operations_between)
{
    STOPS(auto many = s.alloc_many(1000, 50); s.free(many[500]); for (int i = 0; i < 400; i++) s.free(many[size_t(i)]); s.alloc_many(100, 700);
          s.free(many[500]), e1);
}

TEST(HeapDeathTest, kind_03_freed_once_too_often_after_it_was_handed_out_again)
{
    STOPS(
        uintptr_t at = uintptr_t(s.alloc(50)); s.free(reinterpret_cast<void *>(at));
        for (int i = 0; i < 100000 && uintptr_t(s.alloc(50)) != at; i++) {}
        s.free(reinterpret_cast<void *>(at)); /* frees what is now somebody else's: nobody can tell */
        s.free(reinterpret_cast<void *>(at)), e1);
}

TEST(HeapDeathTest, kind_04_freed_by_its_owner_and_then_by_another_thread)
{
    STOPS(char *p = s.alloc(50); s.free(p); s.free_there(p); s.settle(), e1);
}

TEST(HeapDeathTest, kind_05_freed_by_another_thread_and_then_by_its_owner)
{
    STOPS(char *p = s.alloc(50); s.free_there(p); s.free(p); s.settle(), e1);
}

TEST(HeapDeathTest, kind_06_freed_twice_by_another_thread_while_the_first_is_on_its_way)
{
    STOPS(char *p = s.alloc(50); s.free_there(p); s.free_there(p), e1);
    STOPS(auto many = s.alloc_many(40, 50); for (char *p : many) s.free_there(p); s.free_there(many[3]), e1);
}

TEST(HeapDeathTest, kind_07_freed_by_two_threads_after_the_first_has_arrived)
{
    STOPS(char *p = s.alloc(50); s.free_there(p); s.settle(); s.free_there(p); s.settle(), e1);
    STOPS(char *p = s.alloc(50); s.free_there(p); s.elsewhere.run([&] { s.free(p); }); s.settle(), e1);
}

TEST(HeapDeathTest, kind_08_a_large_block_freed_twice)
{
    STOPS(char *p = s.alloc(100000); s.free(p); s.free(p), e1);
    STOPS(char *p = s.alloc(100000); s.free_there(p); s.free(p), e1);
    STOPS(auto many = s.alloc_many(30, 70000); for (char *p : many) s.free(p); s.free(many[7]), e1);
}

TEST(HeapDeathTest, kind_09_an_aligned_block_freed_twice)
{
    for (size_t align : {size_t(64), size_t(4096), size_t(1) << 18})
        STOPS(void *p = quire_heap_alloc_aligned(s.heap, 100, align); s.free(p); s.free(p), e1);
}

TEST(HeapDeathTest, kind_10_what_realloc_has_moved_freed_where_it_was)
{
    STOPS(char *p = s.alloc(50); quire_heap_realloc(s.heap, p, 1000); s.free(p), e1);
    STOPS(char *p = s.alloc(20000); quire_heap_realloc(s.heap, p, 100000); s.free(p), e1);
    STOPS(char *p = s.alloc(100000); quire_heap_realloc(s.heap, p, 100); s.free(p), e1);
    STOPS(char *p = s.alloc(100000); for (int i = 0; i < 8; i++) s.alloc(100000); /* behind it, so that it moves */ if (quire_heap_realloc(s.heap, p, 2000000) != p) s.free(p), "E[12] [a-z ]+");
}

/* ---- freed, then ---- */

TEST(HeapDeathTest, kind_11_reallocated_after_it_was_freed)
{
    for (size_t bytes : {size_t(50), size_t(100000)})
        for (size_t to : {size_t(0), size_t(49), size_t(300000)})
            STOPS(char *p = s.alloc(bytes); s.free(p); quire_heap_realloc(s.heap, p, to), e1);
}

TEST(HeapDeathTest, kind_12_asked_for_its_size_after_it_was_freed)
{
    STOPS_WITH_LINE(char *p = s.alloc(50); s.free(p); quire_heap_usable_bytes(p),
                    "^quire: heap( \"conn\")?: E1 the block is free already: address 0x[0-9a-f]+\n");
    STOPS_WITH_LINE(char *p = s.alloc(100000); s.free(p); quire_heap_usable_bytes(p), heap_line(way.of_process && !memory_is_watched() ? e1 : e2, false)); /* kept by its thread, or gone */
}

/* ---- no block begins there ---- */

TEST(HeapDeathTest, kind_13_the_inside_of_a_small_block)
{
    for (size_t bytes : {size_t(17), size_t(3000), size_t(32000)})
        for (size_t at : {size_t(16), bytes / 2 / 16 * 16 + 16})
            if (at < bytes) {
                STOPS(s.free(s.alloc(bytes) + at), e3);
                STOPS(quire_heap_realloc(s.heap, s.alloc(bytes) + at, 10), e3);
                STOPS(quire_heap_usable_bytes(s.alloc(bytes) + at), e3);
            }
    STOPS(s.free_there(s.alloc(100) + 16), e3);
}

TEST(HeapDeathTest, kind_14_the_inside_of_a_large_block)
{
    for (size_t at : {size_t(16), size_t(4080), size_t(4096), size_t(50000), size_t(99999)})
        STOPS(s.free(s.alloc(100000) + at), at < os_page_bytes() ? e3 : e2_or_e3);
}

TEST(HeapDeathTest, kind_15_one_byte_off)
{
    for (size_t bytes : {size_t(0), size_t(1), size_t(50), size_t(5000), size_t(100000)})
        for (size_t at : {size_t(1), size_t(8)})
            STOPS(s.free(s.alloc(bytes) + at), e3);
    STOPS(s.free(s.alloc(100000) - 1), e2_or_e3);
}

TEST(HeapDeathTest, kind_16_past_the_last_block_handed_out)
{
    quire_heap *heap = quire_heap_create(nullptr);
    char *p = static_cast<char *>(quire_heap_alloc(heap, 64 - (sanitize_watched() ? REDZONE_BYTES : 0)));
    EXPECT_DEATH(quire_heap_free(heap, p + 64), heap_line("E1 the block is free already", false));
    quire_heap_destroy(heap);
}

/* ---- never a block ---- */

TEST(HeapDeathTest, kind_17_an_address_on_the_stack)
{
    STOPS(char local[64] = {}; s.free(local), e2);
    STOPS(char local[64] = {}; quire_heap_realloc(s.heap, local, 100), e2);
}

TEST(HeapDeathTest, kind_18_a_static_address)
{
    static char somewhere[64];
    STOPS(s.free(somewhere), e2);
    STOPS_WITH_LINE(quire_heap_usable_bytes(somewhere), heap_line("E2 not an address of a heap", false));
}

TEST(HeapDeathTest, kind_19_an_address_of_code)
{
    STOPS(s.free(reinterpret_cast<void *>(&quire_heap_create)), e2);
}

TEST(HeapDeathTest, kind_20_small_numbers_and_wild_ones)
{
    for (long number : {1L, 16L, 4095L, -1L, -16L, 1L << 46, 1L << 47, 1L << 62})
        STOPS(s.free(reinterpret_cast<void *>(number)), e2);
    for (unsigned bit : {47u, 48u, 56u, 60u, 63u}) /* all but one bit of a block's address */
        STOPS(s.free(reinterpret_cast<void *>(uintptr_t(s.alloc(50)) ^ uintptr_t(1) << bit)), e2_or_e3);
}

TEST(HeapDeathTest, kind_21_a_block_of_libcs)
{
    for (size_t bytes : {size_t(10), size_t(1000000)})
        STOPS(s.free(malloc(bytes)), e2);
    STOPS(quire_heap_realloc(s.heap, malloc(10), 20), e2);
}

TEST(HeapDeathTest, kind_22_a_mapping_of_the_systems)
{
    STOPS(s.free(mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), e2);
    quire_source *source = quire_source_default();
    quire_span span;
    ASSERT_EQ(source->verbs->take(source, os_page_bytes(), os_page_bytes(), &span), 0);
    STOPS(s.free(span.start), e2);
    source->verbs->give(source, &span);
}

/* ---- somebody else's ---- */

TEST(HeapDeathTest, kind_23_what_other_allocators_gave_and_what_they_are_given)
{
    STOPS(s.free(quire_slab_alloc(quire_slab_create(50, nullptr))), e2);
    STOPS(s.free(quire_arena_alloc(quire_arena_create(nullptr), 50)), e2);
    STOPS(s.free(s.heap), e2);
    STOPS_WITH_LINE(quire_slab_free(quire_slab_create(50, nullptr), s.keep), "^quire: slab: E2 not an address of a slab: address 0x[0-9a-f]+\n");
}

TEST(HeapDeathTest, kind_24_a_block_of_another_heap)
{
    for (size_t bytes : {size_t(50), size_t(100000)}) {
        STOPS(s.free(quire_heap_alloc(quire_heap_create(nullptr), bytes)), e4);
        STOPS(quire_heap_realloc(s.heap, quire_heap_alloc(quire_heap_create(nullptr), bytes), 10), e4);
        STOPS_WITH_LINE(quire_heap_free(quire_heap_create(nullptr), s.alloc(bytes)), heap_line("E4 a block of another heap", false));
    }
}

TEST(HeapDeathTest, kind_25_a_block_of_a_heap_that_is_gone)
{
    for (size_t bytes : {size_t(50), size_t(100000)})
        STOPS(quire_heap *gone = quire_heap_create(nullptr); void *p = nullptr; for (int i = 0; i < 100; i++) p = quire_heap_alloc(gone, bytes);
              quire_heap_destroy(gone); s.free(p), "E[1234] [a-z ]+");
}

/* ---- written ---- */

TEST(HeapDeathTest, kind_26_written_to_while_on_its_way_to_its_owner)
{
    if (sanitize_watched())
        GTEST_SKIP() << "there nothing is on its way: the owner's page is visited";
    for (ptrdiff_t at : {0, 3, 8, 15})
        for (size_t victim : {size_t(1), size_t(20), size_t(35)}) /* one of 40: the last of a chain is linked anew when it is sent */
            EXPECT_DEATH(
                {
                    HeapScene s(ways[0]);
                    auto many = s.alloc_many(40, 50);
                    for (char *p : many)
                        s.free_there(p);
                    stray_change(many[victim], at);
                    s.settle();
                },
                heap_line("E6 a freed block was written to"));
}

/* A free slot is looked at when it leaves its page, and when the page goes. */
TEST(HeapDeathTest, written_to_after_it_has_gone_to_its_page)
{
    if (sanitize_watched())
        GTEST_SKIP() << "the sanitizer's to find";
    const std::string line = heap_line("E6 a freed block was written to");
    for (ptrdiff_t at : {0, 3, 8, 15}) {
        EXPECT_DEATH({ HeapScene s(ways[0]); char *p = s.alloc(50); s.alloc(50); s.free(p); s.settle(); stray_change(p, at); s.alloc_many(3000, 50); }, line);
        EXPECT_DEATH({ HeapScene s(ways[0]); char *p = s.alloc(3000); s.free(p); s.settle(); stray_change(p, at); quire_heap_trim(s.heap); }, line);
        HeapScene s(ways[0]);
        char *p = s.alloc(50);
        s.free(p);
        s.settle();
        EXPECT_EQ(quire_heap_check(s.heap), nullptr);
        stray_change(p, at);
        EXPECT_STREQ(quire_heap_check(s.heap), "heap P1");
        stray_change(p, at);
        EXPECT_EQ(quire_heap_check(s.heap), nullptr);
        quire_heap_destroy(s.heap);
    }
}

/* The second free cannot know; whoever would have the block then can.  Nor does its page go. */
TEST(HeapDeathTest, freed_twice_from_its_page_with_a_write_between)
{
    if (sanitize_watched())
        GTEST_SKIP() << "there it is found at once";
    const std::string line = heap_line("E[16] [a-z ]+");
    EXPECT_DEATH({ HeapScene s(ways[0]); char *p = s.alloc(50); s.free(p); s.settle(); stray_write(p, 0, 1); s.free(p); s.settle(); }, line);
    EXPECT_DEATH({ HeapScene s(ways[0]); char *p = s.alloc(50); s.free(p); s.settle(); stray_write(p, 0, 1); s.free(p); s.alloc_many(3000, 50); }, line);
    EXPECT_DEATH({
        HeapScene s(ways[0]); auto many = s.alloc_many(8, 3000);
        for (char *p : many) s.free(p);
        s.settle(); stray_write(many[0], 0, 1); s.free(many[0]); s.alloc(3000); quire_heap_trim(s.heap); }, line);
}

/* What is freed when all magazines are full goes to its page, past them: the first lie in a magazine then, the last in their pages, which stay. */
TEST(HeapDeathTest, freed_twice_among_so_many_that_the_magazines_stay_full)
{
    const auto free_most = [](HeapScene &s) {
        auto many = s.alloc_many(4000, 50);
        for (size_t i = 0; i < many.size(); i++)
            if (i % 50)
                s.free(many[i]);
        return many;
    };
    for (size_t which : {1, 101, 2999, 3999})
        STOPS(s.free(free_most(s)[which]), e1);
    if (sanitize_watched())
        return;
    for (size_t which : {2999, 3999}) /* its first word is not what tells */
        EXPECT_DEATH({ HeapScene s(ways[0]); char *p = free_most(s)[which]; stray_write(p, 0, 1); s.free(p); }, heap_line(e1)) << which;
}

/* What a free finds where a foreign address would lie among ours is another's page. */
TEST(HeapDeathTest, an_address_as_far_from_a_block_as_the_near_page_map_reaches)
{
    STOPS(auto p = uintptr_t(s.alloc(50)); size_t far = (size_load_relaxed(&pagemap_near.mask) + 1) * os_page_bytes();
          s.free(reinterpret_cast<void *>(p ^ (far > os_page_bytes() ? far : uintptr_t(1) << 46))), e2);
    STOPS(auto p = uintptr_t(s.alloc(50)); s.free(reinterpret_cast<void *>(p ^ uintptr_t(1) << 46)), e2);
}

/* ---- heaps themselves ---- */

TEST(HeapDeathTest, a_block_freed_twice_among_so_many_that_they_are_sorted_is_not_handed_out_twice)
{
    if (memory_is_watched())
        GTEST_SKIP() << "only cached blocks are sorted";
    for (size_t between : {1, 500, 9000}) /* the copies are in one magazine, or in two */
        EXPECT_DEATH(
            {
                HeapScene s(ways[0]);
                std::vector<char *> v;
                for (int i = 0; i < 4; i++) {
                    v = s.alloc_many(12000, 256);
                    for (size_t k = 0; k < v.size() && i < 3; k++)
                        s.free(v[k]);
                }
                for (size_t i = 0; i < v.size(); i++) {
                    s.free(v[i * 7919 % v.size()]);
                    memset(v[0], 1, 16); /* which was the first */
                    if (i == between)
                        s.free(v[0]);
                }
                std::set<char *> out;
                for (size_t i = 0; i <= v.size(); i++)
                    if (!out.insert(s.alloc(256)).second)
                        exit(0);
            },
            heap_line("E[16] [a-z ]+"));
}

TEST(HeapHandleDeathTest, destroyed_twice_or_by_a_pointer_to_something_else)
{
    const std::string e5 = heap_line("E5 not a live heap", false);
    static long long not_a_heap[512];
    quire_heap *heap = quire_heap_create(nullptr);
    void *p = quire_heap_alloc(heap, 100);
    EXPECT_DEATH(quire_heap_destroy(reinterpret_cast<quire_heap *>(not_a_heap)), e5);
    EXPECT_DEATH(quire_heap_destroy(reinterpret_cast<quire_heap *>(4096L)), e5);
    EXPECT_DEATH(quire_heap_destroy(static_cast<quire_heap *>(p)), e5) << "a block of it";
    EXPECT_DEATH(quire_heap_destroy(reinterpret_cast<quire_heap *>(reinterpret_cast<char *>(heap) + 1)), e5);
    quire_heap_destroy(heap);
    EXPECT_DEATH(quire_heap_destroy(heap), e5);
}

TEST(HeapHandleDeathTest, names_are_copied_and_cut_to_31_bytes)
{
    char name[] = "0123456789012345678901234567890123456789";
    quire_heap_opts opts = {};
    opts.name = name;
    quire_heap *heap = quire_heap_create(&opts);
    memset(name, 'x', sizeof name - 1);
    EXPECT_DEATH(quire_heap_free(heap, name), "^quire: heap \"0123456789012345678901234567890\": E2 not an address of a heap: address 0x[0-9a-f]+\n");
    quire_heap_destroy(heap);
}

TEST(HeapHandleDeathTest, the_line_and_the_hook_say_the_address_that_was_given)
{
    quire_heap *heap = quire_heap_create(nullptr);
    EXPECT_DEATH(quire_heap_free(heap, reinterpret_cast<void *>(0x1234560L)), "^quire: heap: E2 not an address of a heap: address 0x1234560\n");
    quire_on_panic([](const char *message, const void *address) { fprintf(stderr, "hook: %s, %p\n", message, address); });
    EXPECT_DEATH(quire_heap_free(heap, reinterpret_cast<void *>(0x1234560L)), "hook: quire: heap: E2 not an address of a heap: address 0x1234560, 0x1234560\n");
    quire_on_panic(nullptr);
    quire_heap_destroy(heap);
}

TEST(HeapHandleDeathTest, the_hook_may_look_at_the_heap_and_allocate)
{
    static quire_heap *heap;
    heap = quire_heap_create(nullptr);
    void *p = quire_heap_alloc(heap, 100);
    quire_heap_free(heap, p);
    quire_on_panic([](const char *, const void *) {
        struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
        quire_heap_stats(heap, &stats);
        bool works = quire_heap_alloc(heap, 100) && quire_heap_alloc(quire_heap_default(), 100) && !quire_heap_check(heap);
        fprintf(stderr, "the hook has looked: %d\n", works);
    });
    EXPECT_DEATH(quire_heap_free(heap, p), "the hook has looked: 1\n");
    quire_on_panic(nullptr);
    quire_heap_destroy(heap);
}

TEST(HeapHandleDeathTest, asan_sees_uses_of_freed_blocks_and_writes_beside_live_ones)
{
    if (!BUILT_WITH_ASAN)
        GTEST_SKIP() << "this is what AddressSanitizer is asked";
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE}) {
        quire_heap_opts opts = {};
        opts.flags = flags;
        quire_heap *heap = quire_heap_create(&opts);
        char *p = static_cast<char *>(quire_heap_alloc(heap, 32)), *large = static_cast<char *>(quire_heap_alloc(heap, 65536));
        volatile int behind = int(quire_heap_usable_bytes(p));
        p[0] = p[behind - 1] = large[0] = large[65535] = 1;
        EXPECT_DEATH(p[behind] = 1, "use-after-poison");
        quire_heap_free(heap, p);
        EXPECT_DEATH(*static_cast<volatile char *>(p) = 1, "use-after-poison");
        char *q = static_cast<char *>(quire_heap_alloc(heap, 32));
        Worker().run([&] { quire_heap_free(heap, q); });
        EXPECT_DEATH(*static_cast<volatile char *>(q) = 1, "use-after-poison");
        quire_heap_destroy(heap);
        EXPECT_DEATH(*static_cast<volatile char *>(p) = 1, "use-after-poison|SEGV");
    }
}
