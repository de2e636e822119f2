// SPDX-License-Identifier: MIT
/* A handler forks in the middle of its own thread's operation with a slab, and returns: the child ends what was begun, and goes on; so does its parent. */
#include <fcntl.h>

#include <quire/stats.h>

#include "race/own_forks.h"
#include "race/slab_race.h"

namespace {
constexpr size_t BYTES = 512, LASTING = 100, MANY = 300;
enum { ALL_GOOD = 0, CHECK_FAILED = 10, SUM_WRONG, NO_MEMORY, OTHERS_PAINT, TWICE, WALK_WRONG };

quire_slab_opts eight_a_page()
{
    quire_slab_opts opts = {};
    opts.page_bytes_max = 8 * BYTES;
    return opts;
}

int count_one(void *, void *n) { return ++*static_cast<size_t *>(n), 0; }

/* Allocates, verifies and frees. */
int allocates(quire_slab *slab, uint64_t stamp)
{
    std::vector<void *> mine(MANY);
    for (void *&p : mine) {
        if (!(p = quire_slab_alloc(slab)))
            return NO_MEMORY;
        paint(p, BYTES, stamp);
    }
    for (void *p : mine) {
        if (!is_painted(p, BYTES) || stamp_of(p) != stamp)
            return OTHERS_PAINT;
        quire_slab_free(slab, p);
    }
    return ALL_GOOD;
}

/* In the child, when what was interrupted has been done.  `lasting` were there before, by this thread and by others. */
int child_lives(quire_slab *slab, void **lasting, size_t count)
{
    if (!is_sound(slab, "at once"))
        return CHECK_FAILED;
    SlabStats s = stats_of(slab);
    size_t seen = 0;
    if (!adds_up(s) || s.live_elements < count)
        return SUM_WRONG;
    if (quire_slab_walk(slab, count_one, &seen) != 0 || seen != s.live_elements)
        return WALK_WRONG;
    int mine = allocates(slab, 5), theirs = ALL_GOOD;
    std::thread([&] { theirs = allocates(slab, 6); }).join();
    for (size_t i = 0; i < count; i++) {
        if (!is_painted(lasting[i], BYTES) || stamp_of(lasting[i]) != 1)
            return OTHERS_PAINT;
        quire_slab_free(slab, lasting[i]);
        if (quire_slab_owns(slab, lasting[i]))
            return TWICE;
    }
    quire_slab_trim(slab);
    if (!is_sound(slab, "used") || !adds_up(stats_of(slab)))
        return CHECK_FAILED;
    return mine ? mine : theirs;
}

/* ---- at each instruction ---- */

#if QUIRE_CPU_X86_64
struct Place {
    quire_slab *slab;
    void *own[40];
};

struct Operation {
    const char *name;
    void (*run)(Place &place);
};
const Operation operations[] = {
    {"an alloc and its free", [](Place &at) { quire_slab_free(at.slab, quire_slab_alloc(at.slab)); }},
    {"allocs until pages come, and frees until they go",
     [](Place &at) {
         for (void *&p : at.own)
             p = quire_slab_alloc(at.slab);
         for (void *p : at.own)
             quire_slab_free(at.slab, p);
         quire_slab_trim(at.slab);
     }},
    {"batches",
     [](Place &at) {
         size_t got = quire_slab_alloc_batch(at.slab, at.own, std::size(at.own));
         quire_slab_free_batch(at.slab, at.own, got);
     }},
    {"looking",
     [](Place &at) {
         size_t n = 0;
         (void)stats_of(at.slab);
         (void)quire_slab_check(at.slab);
         (void)quire_slab_owns(at.slab, at.own);
         (void)quire_slab_walk(at.slab, count_one, &n);
     }},
    {"statistics of all",
     [](Place &) {
         int nowhere = open("/dev/null", O_WRONLY);
         quire_stats_write(nowhere, QUIRE_STATS_JSON);
         close(nowhere);
     }},
    {"the defragmenter, on and off",
     [](Place &at) {
         quire_slab_set_defrag(at.slab, 1);
         quire_slab_free(at.slab, quire_slab_alloc(at.slab));
         quire_slab_set_defrag(at.slab, 0);
     }},
    {"a slab that comes, and goes",
     [](Place &) {
         quire_slab *slab = quire_slab_create(BYTES, nullptr);
         quire_slab_free(slab, quire_slab_alloc(slab));
         quire_slab_destroy(slab);
     }},
    {"a shared one",
     [](Place &) {
         quire_slab *slab = quire_slab_shared_acquire(BYTES);
         quire_slab_free(slab, quire_slab_alloc(slab));
         quire_slab_shared_release(slab);
     }},
};

/* Forks in the middle of it; `knows`: the thread has used the slab before.  Others have, and wait. */
void fork_in(const Operation &operation, bool knows)
{
    Slab slab(BYTES, eight_a_page()), second(BYTES);
    void *lasting[2 * LASTING];
    std::atomic<bool> leave{false};
    std::atomic<int> ready{0};
    auto has = [&](void **here) {
        for (size_t i = 0; i < LASTING; i++)
            here[i] = quire_slab_alloc(slab), paint(here[i], BYTES, 1);
        for (int i = 0; i < 20; i++)
            quire_slab_free(slab, quire_slab_alloc(slab));
    };
    std::thread other([&] {
        has(lasting);
        for (ready = 1; !leave;)
            usleep(100);
    });
    while (!ready)
        usleep(100);
    std::thread([&] {
        Place place = {slab, {}};
        if (knows)
            has(lasting + LASTING);
        SCOPED_TRACE(knows ? "" : "by a newcomer");
        OwnForks::during(operation.name, test_long() ? 200000 : 20000, test_long() ? 1000 : 8, [&] { operation.run(place); },
                         [&] { return child_lives(slab, lasting, knows ? 2 * LASTING : LASTING); });
    }).join();
    leave = true;
    other.join();
    EXPECT_STREQ(quire_slab_check(slab), nullptr);
    quire_slab_free_batch(slab, lasting, knows ? 2 * LASTING : LASTING);
}
#endif

/* ---- beside others that are at work ---- */

/* Allocates and frees, one by one and many at once, until `ends`; nothing from malloc.  False: an element is not as it was left. */
bool churn(quire_slab *slab, uint64_t seed, const std::function<bool()> &ends)
{
    Random random(seed);
    std::array<void *, MANY> elements = {};
    bool good = true;
    while (good && !ends()) {
        size_t first = random.below(MANY), count = random.below(20) == 0 ? random.below(MANY - first) : 1;
        for (void **p = &elements[first]; good && p < &elements[first] + count; p++) {
            good = !*p || is_painted(*p, BYTES);
            if (*p) {
                free_either_way(slab, *p), *p = nullptr;
            } else {
                good = good && (*p = alloc_either_way(slab)) != nullptr;
                if (good)
                    paint(*p, BYTES, seed);
            }
        }
        if (void *batch[40]; good && random.below(20) == 0) {
            size_t got = quire_slab_alloc_batch(slab, batch, std::size(batch));
            for (size_t i = 0; i < got; i++)
                paint(batch[i], BYTES, seed + 1000);
            good = got == std::size(batch);
            for (size_t i = 0; good && i < got; i++)
                good = is_painted(batch[i], BYTES) && stamp_of(batch[i]) == seed + 1000;
            quire_slab_free_batch(slab, batch, got);
        }
        if (random.below(100) == 0)
            quire_slab_trim(slab);
        if (random.below(100) == 0)
            good &= adds_up(stats_of(slab)) || ForksBySignal::is_in_child(); /* what others were changing is made good when this operation has ended */
    }
    for (void *p : elements)
        if (p)
            quire_slab_free(slab, p);
    return good;
}
} // namespace

TEST(SlabHandler, a_fork_at_any_instruction_of_an_operation_lets_the_child_end_it)
{
#if QUIRE_CPU_X86_64
    if (memory_is_watched())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    for (const Operation &operation : operations)
        for (bool knows : {true, false})
            fork_in(operation, knows);
#else
    GTEST_SKIP() << "one instruction at a time: the processor's trap flag is x86's";
#endif
}

TEST(SlabHandler, a_thread_that_forks_beside_others_goes_on_in_the_child_with_what_it_was_at)
{
    if (memory_is_watched())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    for (int others : {0, 2}) {
        Slab slab(BYTES, eight_a_page());
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < others; i++)
            threads.emplace_back([&, i] { EXPECT_TRUE(churn(slab, uint64_t(i), [&] { return stop.load(); })); });
        auto work = [&](const ForksBySignal::Ends &ends) { return churn(slab, 77, ends); };
        auto child = [&](bool good) { return good ? child_lives(slab, nullptr, 0) : int(OTHERS_PAINT); };
        EXPECT_EQ(ForksBySignal::bad_children(test_long() ? 3000 : 100, 2000, work, child), 0) << "beside " << others << " threads";
        stop = true;
        for (std::thread &thread : threads)
            thread.join();
        EXPECT_EQ(slab.live(), 0u);
    }
}
