// SPDX-License-Identifier: MIT
// One misuse a test, and the exact line it stops the process with: of objects of this thread, of another one, of one that ended, and of the reserve.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <quire/arena.h>
#include <quire/percpu.h>
#include <quire/quire.h>
#include <quire/slab.h>

#include "base/compiler.h"
#include "model/slab_no_barrier.h"
#include "model/slab_worker.h"
#include "os/os_rseq.h"
#include "support.h"

namespace {

using Ref = struct quire_percpu_ref;
const size_t page = os_page_bytes();
const size_t OBJECT_BYTES = 96, UNIT_BYTES = 65536;

std::string line(const std::string &words) { return "^quire: percpu \"hits\": " + words + ": address 0x[0-9a-f]+\n"; }
const std::string e1 = line("E1 free of an object that is free already"), e2 = line("E2 not an object: never handed out, or inside one");
const std::string e3 = line("E3 not a multiple of 4"), e4 = line("E4 an object of another pool");
const std::string e1_or_e2 = line("E(1 free of an object that is free already|2 not an object: never handed out, or inside one)");
const char e5[] = "^quire: percpu: E5 not a live pool: address 0x[0-9a-f]+\n";

enum Whose { MINE, THEIRS, ENDED, RESERVE };

/* How a misuse comes about: whose the objects are, whether their copies were written, and how the pool finds its CPU. */
struct Way {
    const char *name;
    Whose whose;
    bool written;
    os_rseq_mode mode;
};

/* A pool and who allocates from it; made inside the process that is to stop, so that the other thread is there. */
class Scene {
public:
    explicit Scene(const Way &way_) : way(way_)
    {
        os_rseq_force(way.mode);
        quire_percpu_opts opts = {};
        opts.name = "hits", opts.cpus = 3, opts.chunk_bytes = UNIT_BYTES - page, opts.reserve_bytes = 10000;
        pool = quire_percpu_create(&opts);
        alloc(); /* no chunk of the tests is empty */
    }
    Ref alloc(size_t bytes = OBJECT_BYTES)
    {
        Ref ref = {0};
        if (way.whose == MINE)
            ref = quire_percpu_alloc(pool, bytes, 0);
        else if (way.whose == THEIRS)
            owner.run([&] { ref = quire_percpu_alloc(pool, bytes, 0); });
        else if (way.whose == ENDED)
            std::thread([&] { ref = quire_percpu_alloc(pool, bytes, 0); }).join();
        else
            ref = quire_percpu_alloc_nowait(pool, bytes, 0);
        if (way.written)
            quire_percpu_add(pool, ref, 1);
        return ref;
    }
    void free(Ref ref) { quire_percpu_free(pool, ref); }
    /* What waits in an inbox is looked at now. */
    void settle()
    {
        struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
        quire_percpu_stats(pool, &stats);
    }
    quire_percpu *pool;
    Worker owner;

private:
    Way way;
};

class PercpuDeathTest : public testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Of, PercpuDeathTest,
                         testing::Values(Way{"mine", MINE, false, OS_RSEQ_AUTO}, Way{"mine_written", MINE, true, OS_RSEQ_AUTO},
                                         Way{"mine_without_sequences", MINE, true, OS_RSEQ_OFF}, Way{"another_threads", THEIRS, false, OS_RSEQ_AUTO},
                                         Way{"another_threads_written", THEIRS, true, OS_RSEQ_AUTO}, Way{"an_ended_threads", ENDED, true, OS_RSEQ_AUTO},
                                         Way{"the_reserve", RESERVE, false, OS_RSEQ_AUTO}),
                         [](const testing::TestParamInfo<Way> &info) { return info.param.name; });

quire_percpu *named(const char *name)
{
    quire_percpu_opts opts = {};
    opts.name = name, opts.cpus = 2;
    return quire_percpu_create(&opts);
}

} // namespace

/* ---- E1 ---- */

TEST_P(PercpuDeathTest, freed_twice_at_once)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Ref ref = scene.alloc();
            scene.free(ref);
            scene.free(ref);
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_twice_with_other_operations_in_between)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            std::vector<Ref> many;
            for (int i = 0; i < 60; i++)
                many.push_back(scene.alloc());
            for (size_t i = 10; i < 50; i++)
                scene.free(many[i]);
            scene.free(many[30]);
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_by_its_owner_and_then_by_another_thread)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Ref ref = scene.alloc();
            scene.owner.run([&] { scene.free(ref); });
            scene.free(ref);
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_by_two_other_threads)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Ref ref = scene.alloc();
            Worker a;
            Worker b;
            a.run([&] { scene.free(ref); });
            b.run([&] { scene.free(ref); });
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_by_another_thread_and_then_by_its_owner_who_has_not_looked_yet)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Ref ref = scene.alloc();
            Worker third;
            third.run([&] { scene.free(ref); });
            scene.owner.run([&] { scene.free(ref); });
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_twice_into_an_inbox_that_many_frees_have_filled)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            std::vector<Ref> many;
            for (int i = 0; i < 80; i++)
                many.push_back(scene.alloc(8));
            Worker third;
            third.run([&] {
                for (Ref ref : many)
                    scene.free(ref);
                scene.free(many[70]);
            });
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_once_too_often_after_its_place_was_used_again)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Ref ref = scene.alloc();
            scene.free(ref);
            scene.settle();
            for (int i = 0; i < 3000 && scene.alloc().bits != ref.bits; i++) {
            }
            scene.free(ref); /* frees what is now somebody else's: nobody can tell */
            scene.free(ref); /* but one free too many there was */
            scene.settle();
        },
        e1);
}

TEST_P(PercpuDeathTest, freed_twice_though_a_larger_object_lies_there_now)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Ref first = scene.alloc();
            Ref second = scene.alloc();
            Ref end = scene.alloc();
            scene.free(first);
            scene.free(second);
            scene.settle();
            Ref large = {0};
            for (int i = 0; i < 100 && large.bits != first.bits; i++)
                large = scene.alloc(2 * OBJECT_BYTES);
            scene.free(large.bits == first.bits ? second : end);
            scene.free(end);
            scene.settle();
        },
        e1_or_e2);
}

TEST_P(PercpuDeathTest, freed_after_its_chunk_has_gone)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            quire_percpu *pool = named("hits");
            Ref ref = quire_percpu_alloc(pool, 64, 0);
            quire_percpu_free(pool, ref);
            quire_percpu_trim(pool);
            quire_percpu_free(pool, ref);
        },
        e2);
}

/* ---- E2 ---- */

TEST_P(PercpuDeathTest, freed_though_it_was_never_handed_out)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            scene.free({scene.alloc().bits + UNIT_BYTES / 4});
            scene.settle();
        },
        e1_or_e2);
}

TEST_P(PercpuDeathTest, given_the_inside_of_an_object)
{
    for (size_t offset : {size_t(4), size_t(8), OBJECT_BYTES / 2, OBJECT_BYTES - 4})
        EXPECT_DEATH(
            {
                Scene scene(GetParam());
                scene.free({scene.alloc().bits + offset});
                scene.settle();
            },
            e2);
}

TEST_P(PercpuDeathTest, given_the_beginning_of_a_unit)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            scene.free({scene.alloc().bits / UNIT_BYTES * UNIT_BYTES});
            scene.settle();
        },
        e2);
}

TEST_P(PercpuDeathTest, given_another_cpus_copy)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            scene.free({uintptr_t(quire_percpu_at(scene.pool, scene.alloc(), 1))});
        },
        e2);
}

TEST_P(PercpuDeathTest, given_addresses_of_other_things)
{
    static char somewhere[64] __attribute__((aligned(8)));
    char local[64] __attribute__((aligned(8)));
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(somewhere)}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(local)}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(malloc(64))}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({16}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(-16)}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(1) << 62}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(quire_arena_alloc(quire_arena_create(nullptr), 64))}), e2);
    EXPECT_DEATH(Scene(GetParam()).free({uintptr_t(quire_slab_alloc(quire_slab_create(64, nullptr)))}), e2);
}

TEST_P(PercpuDeathTest, given_its_own_pool)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            scene.free({uintptr_t(scene.pool)});
        },
        e2);
}

/* ---- E3 ---- */

TEST_P(PercpuDeathTest, given_what_is_not_a_multiple_of_4)
{
    for (uintptr_t offset : {1, 2, 3, 49, 95})
        EXPECT_DEATH(
            {
                Scene scene(GetParam());
                scene.free({scene.alloc().bits + offset});
            },
            e3);
}

/* ---- E4 ---- */

TEST_P(PercpuDeathTest, given_an_object_of_another_pool)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Scene other(GetParam());
            scene.free(other.alloc());
        },
        e4);
}

TEST_P(PercpuDeathTest, given_an_object_of_another_pool_with_units_of_another_size)
{
    for (size_t chunk_bytes : {size_t(1), size_t(16384), size_t(300000), size_t(1) << 20, size_t(5) << 20})
        EXPECT_DEATH(
            {
                Scene scene(GetParam());
                quire_percpu_opts opts = {};
                opts.cpus = 2;
                opts.chunk_bytes = chunk_bytes;
                quire_percpu *other = quire_percpu_create(&opts);
                quire_percpu_alloc(other, chunk_bytes / 2, 0);
                scene.free(quire_percpu_alloc(other, 8, 0));
            },
            e4);
}

TEST_P(PercpuDeathTest, at_sum_and_the_first_add_are_given_an_object_of_another_pool)
{
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Scene other(GetParam());
            quire_percpu_at(scene.pool, other.alloc(), 0);
        },
        e4);
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            Scene other(GetParam());
            (void)quire_percpu_sum(scene.pool, other.alloc());
        },
        e4);
}

TEST_P(PercpuDeathTest, at_and_sum_are_given_what_is_no_object)
{
    EXPECT_DEATH(quire_percpu_at(Scene(GetParam()).pool, {4096}, 0), e2);
    EXPECT_DEATH(quire_percpu_at(Scene(GetParam()).pool, {0}, 0), e2);
    EXPECT_DEATH((void)quire_percpu_sum(Scene(GetParam()).pool, {uintptr_t(&page)}), e2);
    EXPECT_DEATH(
        {
            Scene scene(GetParam());
            quire_percpu_at(scene.pool, {scene.alloc().bits + 1}, 0);
        },
        e3);
}

/* ---- the pool itself ---- */

TEST(PercpuHandleDeathTest, a_pool_without_a_name_is_refused_without_one)
{
    quire_percpu *pool = quire_percpu_create(nullptr);
    Ref ref = quire_percpu_alloc(pool, 8, 0);
    quire_percpu_free(pool, ref);
    EXPECT_DEATH(quire_percpu_free(pool, ref), "^quire: percpu: E1 free of an object that is free already: address 0x[0-9a-f]+\n");
    quire_percpu_destroy(pool);
}

TEST(PercpuHandleDeathTest, names_are_copied_and_cut_to_31_bytes)
{
    char name[] = "0123456789012345678901234567890123456789";
    quire_percpu *pool = named(name);
    memset(name, 'x', sizeof name - 1);
    EXPECT_DEATH(quire_percpu_free(pool, {4096}), "^quire: percpu \"0123456789012345678901234567890\": E2 not an object[^\n]*: address 0x1000\n");
    quire_percpu_destroy(pool);
}

TEST(PercpuHandleDeathTest, the_panic_hook_gets_the_line_and_the_address_and_may_look_at_the_pool)
{
    static quire_percpu *pool;
    pool = named("hits");
    Ref ref = quire_percpu_alloc(pool, 8, 0), other = quire_percpu_alloc(pool, 8, 0);
    quire_percpu_add(pool, ref, 1);
    quire_percpu_free(pool, other);
    quire_on_panic([](const char *message, const void *address) {
        struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
        quire_percpu_stats(pool, &stats);
        fprintf(stderr, "hook: %.25s, %d, %zu live\n", message, address != nullptr, stats.live_objects);
    });
    EXPECT_DEATH(quire_percpu_free(pool, other), "hook: quire: percpu \"hits\": E1 , 1, 1 live\n");
    EXPECT_DEATH(
        {
            Worker().run([&] { quire_percpu_free(pool, other); });
            quire_percpu_trim(pool);
        },
        "hook: quire: percpu \"hits\": E1 , 1, 1 live\n");
    quire_on_panic(nullptr);
    quire_percpu_destroy(pool);
}

TEST(PercpuHandleDeathTest, destroyed_twice)
{
    quire_percpu *pool = named("hits");
    quire_percpu_destroy(pool);
    EXPECT_DEATH(quire_percpu_destroy(pool), e5);
}

TEST(PercpuHandleDeathTest, destroyed_by_a_pointer_to_something_else)
{
    static long long not_a_pool[2048];
    EXPECT_DEATH(quire_percpu_destroy(reinterpret_cast<quire_percpu *>(not_a_pool)), e5);
    EXPECT_DEATH(quire_percpu_destroy(reinterpret_cast<quire_percpu *>(4096L)), e5);
    quire_percpu *pool = named("hits");
    EXPECT_DEATH(quire_percpu_destroy(static_cast<quire_percpu *>(quire_percpu_at(pool, quire_percpu_alloc(pool, 64, 0), 0))), e5) << "an object of it";
    quire_percpu_destroy(pool);
}

TEST(PercpuHandleDeathTest, an_object_of_a_destroyed_pool_given_to_another)
{
    quire_percpu *gone = named("gone");
    Ref ref = quire_percpu_alloc(gone, 64, 0);
    quire_percpu_destroy(gone);
    quire_percpu *pool = named("hits");
    EXPECT_DEATH(quire_percpu_free(pool, ref), e2);
    quire_percpu_destroy(pool);
}

TEST(PercpuHandleDeathTest, asan_sees_uses_of_freed_copies_and_of_what_was_never_handed_out)
{
    if (!BUILT_WITH_ASAN)
        GTEST_SKIP() << "this is what AddressSanitizer is asked";
    quire_percpu *pool = named("hits");
    Ref ref = quire_percpu_alloc(pool, 64, 0), kept = quire_percpu_alloc(pool, 64, 0);
    volatile char *copies[] = {static_cast<char *>(quire_percpu_at(pool, ref, 0)), static_cast<char *>(quire_percpu_at(pool, ref, 1))};
    volatile char *last = static_cast<char *>(quire_percpu_at(pool, kept, 1));
    for (volatile char *copy : copies)
        copy[0] = copy[63] = 1;
    EXPECT_DEATH(last[64] = 1, "use-after-poison") << "behind the last object";
    quire_percpu_free(pool, ref);
    for (volatile char *copy : copies) {
        EXPECT_DEATH(copy[0] = 1, "use-after-poison");
        EXPECT_DEATH((void)copy[63], "use-after-poison");
    }
    last[63] = 1;
    quire_percpu_destroy(pool);
    EXPECT_DEATH(last[0] = 1, "use-after-poison|SEGV");
}
