// SPDX-License-Identifier: MIT
/* Looking at a slab: walk, owns, statistics, names, check. */
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <thread>

#include <quire/arena.h>

#include "model/slab_worker.h"
#include "slab/slab_mark.h"
#include "unit/slab_scope.h"

namespace {
const size_t page = os_page_bytes();
} // namespace

/* ---- walk ---- */

TEST(SlabLook, walk_visits_each_live_element_once_whoever_allocated_it)
{
    Slab slab(72);
    Worker a, b;
    Elements mine = slab.alloc(700), theirs;
    a.run([&] { theirs = slab.alloc(700); });
    b.run([&] { slab.free(Elements(mine.begin(), mine.begin() + 100)); }); /* freed, not collected */
    Elements live(mine.begin() + 100, mine.end());
    live.insert(live.end(), theirs.begin(), theirs.end());
    EXPECT_EQ(slab.walk(), sorted(live));
    b.run([&] { EXPECT_EQ(slab.walk(), sorted(live)); });
    slab.free(live);
    EXPECT_EQ(slab.walk(), Elements{});
}

TEST(SlabLook, walk_stops_at_the_first_answer_that_is_not_0_and_returns_it)
{
    Slab slab(16);
    EXPECT_EQ(quire_slab_walk(slab, [](void *, void *) { return 5; }, nullptr), 0) << "nothing to visit";
    slab.alloc(1000);
    for (int stop : {1, 2, 500, 1000}) {
        struct {
            int seen, stop;
        } count = {0, stop};
        auto visit = [](void *, void *arg) {
            auto *at = static_cast<decltype(count) *>(arg);
            return ++at->seen == at->stop ? -3 : 0;
        };
        EXPECT_EQ(quire_slab_walk(slab, visit, &count), -3);
        EXPECT_EQ(count.seen, stop);
    }
}

TEST(SlabLook, what_the_function_of_a_walk_frees_ahead_of_it_can_be_read_if_it_is_visited)
{
    Slab slab(64);
    struct Walk {
        Slab &slab;
        Elements live;
        int seen;
    } walk = {slab, slab.alloc(1000), 0};
    auto visit = [](void *element, void *arg) {
        auto *w = static_cast<Walk *>(arg);
        w->seen += static_cast<volatile char *>(element)[32] == 0;
        w->live.erase(std::remove(w->live.begin(), w->live.end(), element), w->live.end());
        w->slab.free(w->live);
        w->live.clear();
        return 0;
    };
    EXPECT_EQ(quire_slab_walk(slab, visit, &walk), 0);
    EXPECT_EQ(slab.walk().size(), 1u);
}

TEST(SlabLook, walk_without_a_function_is_einval)
{
    Slab slab(16);
    errno = 0;
    EXPECT_EQ(quire_slab_walk(slab, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST(SlabLook, walk_may_free_what_it_visits)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_KEEP_NOTHING, QUIRE_SLAB_SINGLE_THREAD, QUIRE_SLAB_KEEP_NOTHING | QUIRE_SLAB_SINGLE_THREAD}) {
        Slab slab(200, {.flags = flags});
        slab.alloc(3000);
        struct Arg {
            quire_slab *slab;
            int seen;
        } arg = {slab, 0};
        auto visit = [](void *p, void *a) {
            Arg *at = static_cast<Arg *>(a);
            memset(p, 9, 200);
            quire_slab_free(at->slab, p);
            at->seen++;
            return 0;
        };
        EXPECT_EQ(quire_slab_walk(slab, visit, &arg), 0);
        EXPECT_EQ(arg.seen, 3000);
        EXPECT_EQ(slab.stats().live_elements, 0u);
    }
}

TEST(SlabLook, walk_may_allocate_ask_trim_and_walk_again)
{
    Slab slab(64);
    slab.alloc(500);
    struct Arg {
        quire_slab *slab;
        size_t seen;
        Elements born;
    } arg = {slab, 0, {}};
    auto visit = [](void *p, void *a) {
        Arg *at = static_cast<Arg *>(a);
        EXPECT_TRUE(quire_slab_owns(at->slab, p));
        if (at->seen < 500)
            at->born.push_back(quire_slab_alloc(at->slab));
        if (at->seen % 100 == 0) {
            struct quire_slab_stats stats = slab_stats(at->slab);
            EXPECT_EQ(stats.live_elements, 500 + at->born.size());
            EXPECT_EQ(quire_slab_check(at->slab), nullptr);
            quire_slab_trim(at->slab);
            size_t inner = 0;
            quire_slab_walk(at->slab, [](void *, void *n) { ++*static_cast<size_t *>(n); return 0; }, &inner);
            EXPECT_EQ(inner, stats.live_elements);
        }
        at->seen++;
        return 0;
    };
    EXPECT_EQ(quire_slab_walk(slab, visit, &arg), 0);
    EXPECT_GE(arg.seen, 500u);
    EXPECT_LE(arg.seen, 1000u);
}

TEST(SlabLook, walks_inside_walks_may_each_free_what_they_visit)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_KEEP_NOTHING, QUIRE_SLAB_SINGLE_THREAD}) {
        Slab slab(5000, {.flags = flags});
        slab.alloc(200);
        struct Arg {
            quire_slab *slab;
            int depth, seen;
        } arg = {slab, 0, 0};
        static int (*visit)(void *, void *) = [](void *p, void *a) -> int {
            Arg *at = static_cast<Arg *>(a);
            if (!quire_slab_owns(at->slab, p))
                return 0; /* an inner walk was here already */
            quire_slab_free(at->slab, p);
            if (at->seen++ % 10 == 0 && at->depth < 3) {
                at->depth++;
                quire_slab_walk(at->slab, visit, at);
                quire_slab_trim(at->slab);
                at->depth--;
            }
            return 0;
        };
        EXPECT_EQ(quire_slab_walk(slab, visit, &arg), 0);
        EXPECT_EQ(arg.seen, 200);
        EXPECT_EQ(slab.stats().live_elements, 0u);
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        quire_slab_trim(slab);
        EXPECT_LE(slab.stats().empty_pages, 1u);
    }
}

TEST(SlabLook, a_page_that_becomes_empty_under_a_walk_goes_when_the_walk_leaves_it)
{
    Slab slab(page + 1000, {.flags = QUIRE_SLAB_KEEP_NOTHING});
    slab.alloc(200);
    struct Arg {
        quire_slab *slab;
        size_t seen;
    } arg = {slab, 0};
    auto visit = [](void *p, void *a) {
        Arg *at = static_cast<Arg *>(a);
        if (at->seen++ >= 50)
            quire_slab_free(at->slab, p);
        return 0;
    };
    EXPECT_EQ(quire_slab_walk(slab, visit, &arg), 0);
    EXPECT_EQ(slab.stats().live_elements, 50u);
    EXPECT_EQ(slab.stats().empty_pages, 0u);
}

TEST(SlabLook, what_another_thread_frees_during_a_walk_stays_readable)
{
    Slab slab(5000, {.flags = QUIRE_SLAB_KEEP_NOTHING});
    Worker other;
    Elements elements = slab.alloc(100);
    struct Arg {
        quire_slab *slab;
        Worker *other;
        size_t seen;
    } arg = {slab, &other, 0};
    auto visit = [](void *p, void *a) {
        Arg *at = static_cast<Arg *>(a);
        if (at->seen++ == 0)
            return 0; /* the first stays */
        at->other->run([&] {
            quire_slab_free(at->slab, p);
            quire_slab_trim(at->slab);
        });
        if (!memory_is_watched()) {
            (void)*static_cast<volatile char *>(p);
        }
        return 0;
    };
    EXPECT_EQ(quire_slab_walk(slab, visit, &arg), 0);
    EXPECT_EQ(arg.seen, 100u);
    EXPECT_EQ(slab.stats().live_elements, 1u);
}

/* ---- owns ---- */

TEST(SlabLook, owns_knows_every_byte_of_its_live_elements_and_nothing_else)
{
    Slab slab(100), same_size(100);
    char *p = static_cast<char *>(quire_slab_alloc(slab)), *q = static_cast<char *>(quire_slab_alloc(slab));
    for (size_t i = 0; i < 100; i++)
        EXPECT_TRUE(quire_slab_owns(slab, p + i) && quire_slab_owns(slab, q + i)) << i;
    EXPECT_FALSE(quire_slab_owns(same_size, p));
    quire_slab_free(slab, p);
    EXPECT_FALSE(quire_slab_owns(slab, p));
    EXPECT_FALSE(quire_slab_owns(slab, p + 50));
    EXPECT_TRUE(quire_slab_owns(slab, q));
    Worker().run([&] {
        EXPECT_TRUE(quire_slab_owns(slab, q + 99));
        quire_slab_free(slab, q);
        EXPECT_FALSE(quire_slab_owns(slab, q)) << "freed by another thread, collected or not";
    });
    EXPECT_FALSE(quire_slab_owns(slab, q));
}

/* A slot that was free bears its mark until it is handed out, also where it comes straight from its page. */
TEST(SlabLook, an_element_lives_before_anything_is_written_to_it)
{
    for (size_t bytes : {size_t(8), size_t(200), 2 * page}) {
        quire_slab *slab = slab_create_markable(bytes, nullptr);
        ASSERT_NE(slab, nullptr);
        for (int round = 0; round < 3; round++) {
            Elements all;
            for (int i = 0; i < 300; i++)
                all.push_back(i % 2 ? quire_slab_alloc(slab) : slab_alloc_marked(slab));
            for (void *p : all)
                EXPECT_TRUE(quire_slab_owns(slab, p)) << bytes << " B, round " << round;
            EXPECT_EQ(slab_stats(slab).live_elements, all.size());
            quire_slab_free_batch(slab, all.data(), all.size());
        }
        quire_slab_destroy(slab);
    }
}

TEST(SlabLook, owns_follows_no_pointer)
{
    Slab slab(64);
    slab.alloc(10);
    quire_arena *arena = quire_arena_create(nullptr);
    char local, *heap = new char[100];
    void *nothing = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (const void *wild : {static_cast<const void *>(nullptr), static_cast<const void *>(&local), static_cast<const void *>(heap),
                             static_cast<const void *>(&page), static_cast<const void *>(nothing), static_cast<const void *>(quire_arena_alloc(arena, 8)),
                             static_cast<const void *>(static_cast<quire_slab *>(slab))})
        EXPECT_FALSE(quire_slab_owns(slab, wild)) << wild;
    for (int shift = 0; shift < 64; shift++)
        for (uintptr_t low : {uintptr_t(0), uintptr_t(1), ~uintptr_t(0), uintptr_t(4096)})
            EXPECT_FALSE(quire_slab_owns(slab, reinterpret_cast<const void *>((low << shift) ^ (uintptr_t(1) << shift)))) << shift;
    munmap(nothing, page);
    delete[] heap;
    quire_arena_destroy(arena);
}

/* ---- statistics ---- */

TEST(SlabLook, statistics_count_elements_pages_and_sets_and_add_up_after_every_step)
{
    Slab slab(64, {.name = "numbers"});
    Worker other;
    EXPECT_EQ(slab.stats().element_bytes, 64u);
    EXPECT_EQ(slab.stats().live_elements, 0u);
    Elements elements = slab.alloc(10000);
    struct quire_slab_stats full = slab.stats();
    EXPECT_EQ(full.live_elements, 10000u);
    EXPECT_EQ(full.empty_pages, 0u);
    EXPECT_EQ(full.caches, bias_works() ? 1u : 0u);
    EXPECT_GE(full.mapped_bytes, 640000u);
    other.run([&] { quire_slab_free(slab, elements[0]); });
    EXPECT_EQ(slab.stats().live_elements, 9999u);
    elements.erase(elements.begin());
    slab.free(elements);
    struct quire_slab_stats empty = slab.stats();
    EXPECT_EQ(empty.live_elements, 0u);
    EXPECT_EQ(empty.empty_pages, empty.pages) << "all of them";
    EXPECT_EQ(empty.free_bytes + empty.meta_bytes, empty.mapped_bytes);
    EXPECT_GE(empty.peak_bytes, full.mapped_bytes);
    EXPECT_LE(empty.peak_bytes, full.mapped_bytes + 16 * page);
}

TEST(SlabLook, statistics_add_up_while_a_thread_sleeps_with_cached_pages)
{
    Slab slab(1000);
    Worker a, b;
    Elements theirs;
    a.run([&] {
        theirs = slab.alloc(1000);
        slab.free(Elements(theirs.begin(), theirs.begin() + 500));
    });
    EXPECT_EQ(slab.stats().live_elements, 500u);
    b.run([&] {
        slab.free(Elements(theirs.begin() + 500, theirs.end()));
        EXPECT_EQ(slab.stats().live_elements, 0u);
    });
    EXPECT_EQ(slab.stats().empty_pages, slab.stats().pages);
}

TEST(SlabLook, the_equation_holds_on_every_snapshot_that_is_taken_while_others_work)
{
    Slab slab(48);
    uint32_t stop = 0;
    auto work = [&](uint64_t seed) {
        Random random(seed);
        Elements mine;
        while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
            if (mine.size() < 2000 && random.below(2)) {
                mine.push_back(quire_slab_alloc(slab));
            } else if (!mine.empty()) {
                quire_slab_free(slab, mine.back());
                mine.pop_back();
            }
        }
        slab.free(mine);
    };
    std::thread a(work, 1), b(work, 2);
    for (int i = 0; i < 300; i++) {
        struct quire_slab_stats stats = slab.stats();
        EXPECT_LE(stats.live_elements, 4000u);
        EXPECT_EQ(quire_slab_check(slab), nullptr);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    a.join(), b.join();
    EXPECT_EQ(slab.stats().live_elements, 0u);
}
