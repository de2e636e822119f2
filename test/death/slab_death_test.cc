// SPDX-License-Identifier: MIT
// One misuse a test, and the exact line it stops the process with: by free and by free_batch, of elements of this thread and of another.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <quire/arena.h>
#include <quire/quire.h>
#include <quire/slab.h>

#include "base/compiler.h"
#include "model/slab_worker.h"
#include "model/slab_no_barrier.h"
#include "support.h"

namespace {

const size_t ELEMENT_BYTES = 96;
std::string line(const std::string &words) { return "^quire: slab \"conn\": " + words + ": address 0x[0-9a-f]+\n"; }
const std::string e1 = line("E1 the element is free already"), e2 = line("E2 not an address of a slab");
const std::string e3 = line("E3 not where an element begins"), e4 = line("E4 an element of another slab");
const char e5[] = "^quire: slab: E5 not a live slab: address 0x[0-9a-f]+\n";
const char e6[] = "^quire: slab( \"[^\"]*\")?: E6 released more often than acquired: address 0x[0-9a-f]+\n";

/* How a misuse is done. */
struct Way {
    const char *name;
    uint32_t flags;
    bool batch;  /* by free_batch, behind a good element and a NULL */
    bool theirs; /* another thread, which lives, has allocated the elements */
};

/* A slab and who uses it; made inside the process that is to stop, so that the other thread is there. */
class Scene {
public:
    explicit Scene(const Way &way_, size_t element_bytes = ELEMENT_BYTES, size_t limit_bytes = 0) : way(way_)
    {
        quire_slab_opts opts = {};
        opts.name = "conn", opts.flags = way.flags, opts.limit_bytes = limit_bytes;
        slab = quire_slab_create(element_bytes, &opts);
        good = alloc();
        alloc(); /* no page of the tests is empty */
    }
    char *alloc()
    {
        void *p = nullptr;
        if (way.theirs)
            owner.run([&] { p = quire_slab_alloc(slab); });
        else
            p = quire_slab_alloc(slab);
        return static_cast<char *>(p);
    }
    void free(void *p)
    {
        if (!way.batch)
            return quire_slab_free(slab, p);
        void *batch[] = {nullptr, p};
        quire_slab_free_batch(slab, batch, 2);
    }
    /* All at once: the misused one is found among its neighbours. */
    void free_all(std::vector<void *> elements)
    {
        if (way.batch)
            quire_slab_free_batch(slab, elements.data(), elements.size());
        else
            for (void *p : elements)
                quire_slab_free(slab, p);
    }
    quire_slab *slab;
    char *good;
    Worker owner;

private:
    Way way;
};

class SlabDeathTest : public testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(By, SlabDeathTest,
                         testing::Values(Way{"free", 0, false, false}, Way{"batch", 0, true, false}, Way{"free_of_theirs", 0, false, true},
                                         Way{"batch_of_theirs", 0, true, true}, Way{"free_by_one_thread", QUIRE_SLAB_SINGLE_THREAD, false, false},
                                         Way{"batch_by_one_thread", QUIRE_SLAB_SINGLE_THREAD, true, false},
                                         Way{"free_defragmented", QUIRE_SLAB_DEFRAG, false, false},
                                         Way{"free_keeping_nothing", QUIRE_SLAB_KEEP_NOTHING, false, false},
                                         Way{"free_exactly", QUIRE_SLAB_EXACT, false, false}, Way{"batch_of_theirs_exactly", QUIRE_SLAB_EXACT, true, true}),
                         [](const testing::TestParamInfo<Way> &info) { return info.param.name; });

} // namespace

/* ---- E1 ---- */

TEST_P(SlabDeathTest, freed_twice_at_once)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            char *p = scene.alloc();
            scene.free(p);
            scene.free(p);
        },
        e1);
}

TEST_P(SlabDeathTest, freed_twice_among_others)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            void *p = scene.alloc();
            void *q = scene.alloc();
            scene.free_all({p, nullptr, q, scene.alloc(), q});
        },
        e1);
}

TEST_P(SlabDeathTest, freed_twice_with_other_operations_in_between)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            std::vector<void *> many;
            for (int i = 0; i < 1000; i++)
                many.push_back(scene.alloc());
            scene.free(many[500]);
            for (int i = 0; i < 400; i++)
                scene.free(many[size_t(i)]);
            scene.free(many[500]);
        },
        e1);
}

TEST_P(SlabDeathTest, freed_by_its_owner_and_then_by_another_thread)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            char *p = scene.alloc();
            scene.owner.run([&] { scene.free(p); });
            scene.free(p);
        },
        e1);
}

TEST_P(SlabDeathTest, freed_by_one_thread_and_then_by_a_third)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            char *p = scene.alloc();
            Worker third;
            third.run([&] { scene.free(p); });
            scene.free(p);
        },
        e1);
}

TEST_P(SlabDeathTest, freed_by_another_thread_and_then_by_its_owner)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            char *p = scene.alloc();
            Worker third;
            third.run([&] { scene.free(p); });
            scene.owner.run([&] { scene.free(p); });
        },
        e1);
}

TEST_P(SlabDeathTest, freed_once_too_often_after_another_thread_used_it_again)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            char *p = scene.alloc();
            scene.free(p);
            for (int i = 0; i < 100000 && scene.alloc() != p; i++) {
            }
            Worker third;
            third.run([&] { scene.free(p); }); /* frees what is now somebody else's: nobody can tell */
            scene.free(p);                     /* but one free too many there was */
        },
        e1);
}

TEST_P(SlabDeathTest, freed_after_the_thread_that_allocated_it_ended)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            void *p = nullptr;
            std::thread([&] { p = quire_slab_alloc(scene.slab), quire_slab_alloc(scene.slab); }).join();
            scene.free(p);
            scene.free(p);
        },
        e1);
}

TEST_P(SlabDeathTest, freed_though_it_was_never_handed_out)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            struct quire_slab_stats stats;
            quire_slab_stats(scene.slab, &stats);
            scene.free(scene.alloc() + stats.slot_bytes); /* elements come in the order of their addresses here */
        },
        e1);
}

TEST_P(SlabDeathTest, freed_twice_after_it_was_written_to_in_between)
{
    if (memory_is_watched())
        GTEST_SKIP() << "the write is what they stop";
    bool at_once = barrier_is_refused || (GetParam().flags & (QUIRE_SLAB_EXACT | QUIRE_SLAB_KEEP_NOTHING)) != 0;
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            char *p = scene.alloc();
            scene.free(p);
            memset(p, 1, 16);
            scene.free(p);
            if (at_once)
                exit(0);
            quire_slab_trim(scene.slab);
            size_t out = 0; /* before its second copy is handed out */
            for (int i = 0; i < 10000 && out < 2; i++)
                out += scene.alloc() == p;
        },
        at_once ? e1 : line("E[17] [a-z, ]+"));
}

TEST(SlabUseAfterFreeDeathTest, an_element_written_to_after_it_was_freed_is_not_handed_out_again)
{
    quire_slab_opts opts = {};
    opts.name = "conn";
    for (bool through_a_page : {false, true}) {
        if (barrier_is_refused || memory_is_watched())
            GTEST_SKIP() << "only a cached element is marked";
        EXPECT_DEATH(
            {
                quire_slab *slab = quire_slab_create(ELEMENT_BYTES, &opts);
                quire_slab_alloc(slab);
                char *p = static_cast<char *>(quire_slab_alloc(slab));
                quire_slab_free(slab, p);
                if (through_a_page)
                    quire_slab_trim(slab);
                p[3] ^= 1;
                for (int i = 0; i < 10000; i++)
                    quire_slab_alloc(slab);
            },
            line("E7 written to after it was freed, or freed twice"));
    }
}

/* ---- E2 ---- */

TEST_P(SlabDeathTest, given_an_address_on_the_stack)
{
    EXPECT_DEATH({ char local[ELEMENT_BYTES]; Scene(GetParam()).free(local); }, e2);
}

TEST_P(SlabDeathTest, given_an_address_of_mallocs)
{
    EXPECT_DEATH(Scene(GetParam()).free(malloc(ELEMENT_BYTES)), e2);
}

TEST_P(SlabDeathTest, given_a_static_address)
{
    static char somewhere[ELEMENT_BYTES];
    EXPECT_DEATH(Scene(GetParam()).free(somewhere), e2);
}

TEST_P(SlabDeathTest, given_a_small_number_and_a_huge_one)
{
    EXPECT_DEATH(Scene(GetParam()).free(reinterpret_cast<void *>(16L)), e2);
    EXPECT_DEATH(Scene(GetParam()).free(reinterpret_cast<void *>(-16L)), e2);
    EXPECT_DEATH(Scene(GetParam()).free(reinterpret_cast<void *>(1L << 62)), e2);
}

TEST_P(SlabDeathTest, given_a_block_of_an_arena)
{
    EXPECT_DEATH(Scene(GetParam()).free(quire_arena_alloc(quire_arena_create(nullptr), ELEMENT_BYTES)), e2);
}

TEST_P(SlabDeathTest, given_a_span_of_the_default_source)
{
    quire_source *source = quire_source_default();
    quire_span span;
    ASSERT_EQ(source->verbs->take(source, os_page_bytes(), os_page_bytes(), &span), 0);
    EXPECT_DEATH(Scene(GetParam()).free(span.start), e2);
    source->verbs->give(source, &span);
}

/* ---- E3 ---- */

TEST_P(SlabDeathTest, given_the_middle_of_an_element)
{
    for (size_t offset : {size_t(1), size_t(8), size_t(16), ELEMENT_BYTES / 2, ELEMENT_BYTES - 1})
        EXPECT_DEATH(
            {
                Scene scene(GetParam());
                scene.free(scene.alloc() + offset);
            },
            e3);
}

TEST_P(SlabDeathTest, given_the_middle_of_an_element_whose_page_is_large)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam(), 100000);
            scene.free(scene.alloc() + 65536);
        },
        e3);
}

TEST_P(SlabDeathTest, given_the_end_of_a_page_that_no_element_fits_in)
{
    if (memory_is_watched())
        GTEST_SKIP() << "red zones change how elements fit";
    EXPECT_DEATH(
        {
            Scene scene(GetParam(), 3000, 300000);
            std::set<char *> all = {scene.good};
            for (char *p; (p = scene.alloc());) /* until every slot is handed out */
                all.insert(p);
            for (char *p : all) {
                char *behind = p + 3008;
                bool same_os_page = (uintptr_t(behind) - 1) / os_page_bytes() == uintptr_t(behind) / os_page_bytes();
                if (same_os_page && !all.count(behind) && !quire_slab_owns(scene.slab, behind) && all.count(behind - 2 * 3008))
                    scene.free(behind);
            }
        },
        e3);
}

TEST_P(SlabDeathTest, given_its_own_slab)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            scene.free(scene.slab);
        },
        "^quire: slab \"conn\": E[23] [a-z ]+: address 0x[0-9a-f]+\n");
}

/* ---- E4 ---- */

TEST_P(SlabDeathTest, given_an_element_of_another_slab_of_the_same_size)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            quire_slab_opts opts = {};
            opts.name = "other";
            scene.free(quire_slab_alloc(quire_slab_create(ELEMENT_BYTES, &opts)));
        },
        e4);
}

TEST_P(SlabDeathTest, given_an_element_of_another_slab_of_another_size)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            quire_slab_opts opts = {};
            opts.flags = QUIRE_SLAB_SINGLE_THREAD;
            quire_slab *other = quire_slab_create(5000, &opts);
            for (int i = 0; i < 100; i++)
                quire_slab_alloc(other);
            scene.free(quire_slab_alloc(other));
        },
        e4);
}

TEST_P(SlabDeathTest, given_an_element_of_another_slab_in_the_midst_of_its_own)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            void *strange = quire_slab_alloc(quire_slab_create(ELEMENT_BYTES, nullptr));
            scene.free_all({scene.alloc(), scene.alloc(), strange, scene.alloc()});
        },
        e4);
}

/* ---- the slab itself ---- */

TEST(SlabHandleDeathTest, a_slab_without_a_name_is_refused_without_one)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    void *p = quire_slab_alloc(slab);
    quire_slab_free(slab, p);
    EXPECT_DEATH(quire_slab_free(slab, p), "^quire: slab: E1 the element is free already: address 0x[0-9a-f]+\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, names_are_copied_and_cut_to_31_bytes)
{
    char name[] = "0123456789012345678901234567890123456789";
    quire_slab_opts opts = {};
    opts.name = name;
    quire_slab *slab = quire_slab_create(64, &opts);
    memset(name, 'x', sizeof name - 1);
    EXPECT_DEATH(quire_slab_free(slab, name), "^quire: slab \"0123456789012345678901234567890\": E2 not an address of a slab: address 0x[0-9a-f]+\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, the_line_says_the_address_that_was_given)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    EXPECT_DEATH(quire_slab_free(slab, reinterpret_cast<void *>(0x1234560L)), "^quire: slab: E2 not an address of a slab: address 0x1234560\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, the_panic_hook_gets_the_line_and_the_address)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    quire_on_panic([](const char *message, const void *address) { fprintf(stderr, "hook: %s, %p\n", message, address); });
    EXPECT_DEATH(quire_slab_free(slab, reinterpret_cast<void *>(0x1234560L)),
                 "hook: quire: slab: E2 not an address of a slab: address 0x1234560, 0x1234560\n");
    quire_on_panic(nullptr);
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, destroyed_twice)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_SINGLE_THREAD}) {
        quire_slab_opts opts = {};
        opts.name = "conn", opts.flags = flags;
        quire_slab *slab = quire_slab_create(64, &opts);
        quire_slab_destroy(slab);
        EXPECT_DEATH(quire_slab_destroy(slab), e5);
    }
}

TEST(SlabHandleDeathTest, destroyed_by_a_pointer_to_something_else)
{
    static long long not_a_slab[512];
    EXPECT_DEATH(quire_slab_destroy(reinterpret_cast<quire_slab *>(not_a_slab)), e5);
    EXPECT_DEATH(quire_slab_destroy(reinterpret_cast<quire_slab *>(4096L)), e5);
    quire_slab *slab = quire_slab_create(64, nullptr);
    void *p = quire_slab_alloc(slab);
    EXPECT_DEATH(quire_slab_destroy(static_cast<quire_slab *>(p)), e5) << "an element of it";
    quire_arena *arena = quire_arena_create(nullptr);
    EXPECT_DEATH(quire_slab_destroy(reinterpret_cast<quire_slab *>(arena)), e5);
    quire_arena_destroy(arena);
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, used_after_destroy)
{
    if (!QUIRE_CHECK || BUILT_WITH_ASAN)
        GTEST_SKIP() << "the check build promises this; AddressSanitizer has words of its own";
    for (uint32_t flags : {0u, QUIRE_SLAB_SINGLE_THREAD}) {
        quire_slab_opts opts = {};
        opts.name = "conn", opts.flags = flags;
        quire_slab *slab = quire_slab_create(64, &opts);
        void *p = quire_slab_alloc(slab), *batch[2] = {p, nullptr};
        struct quire_slab_stats stats;
        quire_slab_destroy(slab);
        EXPECT_DEATH(quire_slab_alloc(slab), e5);
        EXPECT_DEATH(quire_slab_alloc_zero(slab), e5);
        EXPECT_DEATH(quire_slab_alloc_batch(slab, batch, 2), e5);
        EXPECT_DEATH(quire_slab_free(slab, p), e5);
        EXPECT_DEATH(quire_slab_free_batch(slab, batch, 2), e5);
        EXPECT_DEATH(quire_slab_trim(slab), e5);
        EXPECT_DEATH(quire_slab_stats(slab, &stats), e5);
        EXPECT_DEATH(quire_slab_check(slab), e5);
        EXPECT_DEATH(quire_slab_set_defrag(slab, 1), e5);
        EXPECT_DEATH(quire_slab_walk(slab, [](void *, void *) { return 0; }, nullptr), e5);
        EXPECT_DEATH(quire_slab_owns(slab, p), e5);
    }
}

TEST(SlabHandleDeathTest, an_element_of_a_destroyed_slab_given_to_another)
{
    quire_slab *gone = quire_slab_create(64, nullptr);
    void *p = nullptr;
    for (int i = 0; i < 10000; i++)
        p = quire_slab_alloc(gone);
    quire_slab_destroy(gone);
    quire_slab_opts opts = {};
    opts.name = "conn";
    quire_slab *slab = quire_slab_create(4000, &opts);
    EXPECT_DEATH(quire_slab_free(slab, p), "^quire: slab \"conn\": E[234] [a-z ]+: address 0x[0-9a-f]+\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, released_more_often_than_acquired)
{
    quire_slab *kept = quire_slab_by_size_acquire(72), *slab = quire_slab_by_size_acquire(80);
    quire_slab_by_size_release(slab);
    EXPECT_DEATH(quire_slab_by_size_release(slab), e6);
    EXPECT_DEATH({ quire_slab_by_size_release(kept); quire_slab_by_size_release(kept); }, e6);
    quire_slab *large = quire_slab_by_size_acquire(5000);
    EXPECT_DEATH({ quire_slab_by_size_release(large); quire_slab_by_size_release(large); }, e6);
    quire_slab_by_size_release(kept), quire_slab_by_size_release(large);
}

TEST(SlabHandleDeathTest, released_though_it_was_not_acquired)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    static long long not_a_slab[512];
    EXPECT_DEATH(quire_slab_by_size_release(slab), e6);
    EXPECT_DEATH(quire_slab_by_size_release(reinterpret_cast<quire_slab *>(not_a_slab)), e6);
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, asan_sees_uses_of_freed_elements_and_writes_beside_live_ones)
{
    if (!BUILT_WITH_ASAN)
        GTEST_SKIP() << "this is what AddressSanitizer is asked";
    for (uint32_t flags : {0u, QUIRE_SLAB_SINGLE_THREAD}) {
        quire_slab_opts opts = {};
        opts.flags = flags;
        quire_slab *slab = quire_slab_create(10, &opts);
        char *p = static_cast<char *>(quire_slab_alloc(slab)), *q = static_cast<char *>(quire_slab_alloc(slab));
        volatile int behind = 10, before = -1;
        p[0] = p[9] = q[0] = q[9] = 1;
        EXPECT_DEATH(p[behind] = 1, "use-after-poison");
        EXPECT_DEATH(q[before] = 1, "use-after-poison") << "into the one before it";
        EXPECT_DEATH(q[behind] = 1, "use-after-poison");
        void *batch[40];
        ASSERT_EQ(quire_slab_alloc_batch(slab, batch, 40), 40u);
        EXPECT_DEATH(static_cast<char *>(batch[20])[behind] = 1, "use-after-poison");
        quire_slab_free(slab, p);
        EXPECT_DEATH(*p = 1, "use-after-poison");
        Worker().run([&] { quire_slab_free(slab, q); });
        EXPECT_DEATH(*q = 1, "use-after-poison");
        quire_slab_free_batch(slab, batch, 40);
        EXPECT_DEATH(*static_cast<char *>(batch[20]) = 1, "use-after-poison");
        quire_slab_trim(slab);
        EXPECT_DEATH(*static_cast<char *>(batch[20]) = 1, "use-after-poison|SEGV");
        quire_slab_destroy(slab);
        EXPECT_DEATH(*p = 1, "use-after-poison|SEGV");
    }
}
