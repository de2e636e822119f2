// SPDX-License-Identifier: MIT
// One misuse a test, and the exact line it stops the process with: by free and by free_batch, of elements of this thread and of another.
#include "death/slab_death.h"

#include <fcntl.h>
#include <sys/wait.h>

namespace {

class SlabDeathTest : public testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(By, SlabDeathTest,
                         testing::Values(Way{"free", 0, false, false}, Way{"batch", 0, true, false}, Way{"free_of_theirs", 0, false, true},
                                         Way{"batch_of_theirs", 0, true, true}, Way{"free_inlined", 0, false, false, true},
                                         Way{"free_inlined_of_theirs", 0, false, true, true}, Way{"free_by_one_thread", QUIRE_SLAB_SINGLE_THREAD, false, false},
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
            struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
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

TEST(SlabUseAfterFreeDeathTest, an_element_freed_twice_among_so_many_that_they_are_sorted_is_not_handed_out_twice)
{
    if (barrier_is_refused || memory_is_watched())
        GTEST_SKIP() << "only cached elements are sorted";
    quire_slab_opts opts = {};
    opts.name = "conn";
    for (size_t between : {1, 500, 9000}) { /* the copies are in one magazine, or in two */
        EXPECT_DEATH(
            {
                quire_slab *slab = quire_slab_create(256, &opts);
                std::vector<void *> v(12000);
                for (int i = 0; i < 3; i++) {
                    for (void *&p : v)
                        p = quire_slab_alloc(slab);
                    for (void *p : v)
                        quire_slab_free(slab, p);
                }
                for (void *&p : v)
                    p = quire_slab_alloc(slab);
                for (size_t i = 0; i < v.size(); i++) {
                    quire_slab_free(slab, v[i * 7919 % v.size()]);
                    memset(v[0], 1, 8); /* which was the first */
                    if (i == between)
                        quire_slab_free(slab, v[0]);
                }
                std::set<void *> out;
                for (size_t i = 0; i <= v.size(); i++)
                    if (!out.insert(quire_slab_alloc(slab)).second)
                        exit(0);
            },
            line("E[17] [a-z, ]+"));
    }
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

/* Freed, written to and freed again: one copy goes to its page, the other is had from a magazine; and the page, all of which seems free, is to go. */
static void free_twice_and_lose_the_page(size_t count, size_t first, size_t last)
{
    quire_slab *slab = quire_slab_create(1024, nullptr);
    std::vector<char *> elements(count), again;
    for (char *&element : elements)
        element = static_cast<char *>(quire_slab_alloc(slab));
    for (size_t i = 0; i < first; i++)
        quire_slab_free(slab, elements[i]);
    quire_slab_trim(slab);
    for (size_t i = first; i < count; i++) {
        quire_slab_free(slab, elements[i]);
        if (i == count - last)
            quire_slab_free(slab, memset(elements[i], 0, 16));
    }
    while (again.size() < 2 * count && (again.empty() || quire_slab_owns(slab, again.back())))
        again.push_back(static_cast<char *>(memset(quire_slab_alloc(slab), 'x', 1024)));
    for (size_t i = 0; i + 1 < again.size(); i++)
        quire_slab_free(slab, again[i]);
    quire_slab_trim(slab);
    again.back()[0] = 'y';
}

TEST(SlabUseAfterFreeDeathTest, a_page_does_not_go_while_a_second_copy_of_one_of_its_elements_is_in_use)
{
    if (barrier_is_refused || memory_is_watched())
        GTEST_SKIP() << "only a cached element is marked";
    for (size_t count = 4; count < 150; count += 7)
        for (size_t first = 0; first < count; first += 1 + count / 6)
            for (size_t last = 1; last < count - first; last += 1 + count / 6) {
                pid_t child = fork();
                if (child == 0) {
                    dup2(open("/dev/null", O_WRONLY), 2);
                    free_twice_and_lose_the_page(count, first, last);
                    _exit(0);
                }
                int status = 0;
                ASSERT_EQ(waitpid(child, &status, 0), child);
                EXPECT_TRUE(WIFSIGNALED(status) && (WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP)) << status << ": " << count << " elements, " << first << " freed before, and one twice, " << last << " from the end";
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
