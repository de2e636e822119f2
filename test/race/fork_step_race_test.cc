// SPDX-License-Identifier: MIT
/* A fork while another thread (fork_steps.h), or this one (own_forks.h), is at any instruction of an operation of a heap, a slab, the default source or a plan. */
#include "pages/source_internal.h"
#include "race/fork_steps.h"
#include "race/heap_race.h"
#include "race/own_forks.h"
#include "race/slab_race.h"
#include "steer_kit.h"
#include "unit/heap_inside.h"

#if QUIRE_CPU_X86_64
namespace {
enum { GOOD, CHECK_FAILED = 10, NO_MEMORY, OTHERS_PAINT };
enum { BLOCKS = 64, SMALL = 512, LARGE = 300000, LARGES = 100000, SLOT = 512 };

/* What two threads have, and what the operation of one of them leaves. */
struct World {
    quire_heap *heap;
    quire_slab *slab;
    void *own[BLOCKS], *other[BLOCKS], *large, *slots[BLOCKS], *others_slots[BLOCKS], *left[BLOCKS];
    bool made_way;
};

struct Stepped {
    const char *name;
    void (*run)(World &w);
    size_t before; /* small blocks that this thread frees first: its magazines are full then */
    int rounds;    /* so often, and more than once: then it has many */
};

/* This thread's full magazines of small blocks, beyond two; a secure heap has none. */
uint32_t owns(const World &w)
{
    return heap_mine(w.heap)->bin[heap_class_of(SMALL)].slots.owns;
}

void take_pages(size_t count, size_t bytes)
{
    quire_source *source = quire_source_default();
    quire_span spans[8];
    size_t had = 0;
    while (had < count && source->verbs->take(source, bytes, os_page_bytes(), &spans[had]) == 0)
        had++;
    while (had-- > 0)
        source->verbs->give(source, &spans[had]);
}

void fill_pages()
{
    quire_source *source = quire_source_default();
    quire_span span;
    quire_source_trim(source); /* or its memory is there */
    if (source->verbs->take(source, os_page_bytes(), os_page_bytes(), &span) == 0) {
        (void)source_fill(source, &span);
        source->verbs->give(source, &span);
    }
}

/* Six sizes, where a thread keeps four. */
void larges_come_and_go()
{
    quire_heap *heap = quire_heap_default();
    void *p[6];
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 6; i++)
            p[i] = quire_heap_alloc(heap, LARGES + (i << 14));
        for (void *block : p)
            quire_heap_free(heap, block);
    }
}

template <typename Get> void fill(void *(&into)[BLOCKS], Get get)
{
    for (void *&p : into)
        p = get();
}

const Stepped stepped[] = {
    {"heap: 64 blocks of a new size", [](World &w) { fill(w.left, [&] { return quire_heap_alloc(w.heap, 1000); }); }},
    {"heap: free of 64 of one's own", [](World &w) { for (void *p : w.own) quire_heap_free(w.heap, p); }},
    {"heap: free of 64 of one's own, past full magazines", [](World &w) { for (void *p : w.own) quire_heap_free(w.heap, p); }, 300},
    {"heap: full magazines make way for a page", [](World &w) { w.left[0] = quire_heap_alloc(w.heap, 2000), w.made_way = owns(w) == 0; }, 2000, 4},
    {"heap: free of 64 of another's", [](World &w) { for (void *p : w.other) quire_heap_free(w.heap, p); }},
    {"heap: a large block comes and grows", [](World &w) { w.left[0] = quire_heap_realloc(w.heap, quire_heap_alloc(w.heap, LARGE), 2 * LARGE); }},
    {"heap: a large block goes", [](World &w) { quire_heap_free(w.heap, w.large); }},
    {"heap: a block grows until it is large", [](World &w) { w.left[0] = quire_heap_realloc(w.heap, quire_heap_realloc(w.heap, w.own[0], 20000), LARGE); }},
    {"heap: trim", [](World &w) { for (void *p : w.own) quire_heap_free(w.heap, p); quire_heap_trim(w.heap); }},
    {"heap of the process: large blocks come and go", [](World &) { larges_come_and_go(); }},
    {"slab: 64 slots", [](World &w) { fill(w.left, [&] { return quire_slab_alloc(w.slab); }); }},
    {"slab: free of 64 of one's own", [](World &w) { for (void *p : w.slots) quire_slab_free(w.slab, p); }},
    {"slab: free of 64 of another's", [](World &w) { for (void *p : w.others_slots) quire_slab_free(w.slab, p); }},
    {"slab: trim", [](World &w) { for (void *p : w.slots) quire_slab_free(w.slab, p); quire_slab_trim(w.slab); }},
    {"source: pages come and go", [](World &) { take_pages(8, 2 * os_page_bytes()); }},
    {"source: spans of a million bytes", [](World &) { take_pages(4, size_t(1) << 20); }},
    {"source: spans of a quarter of a region", [](World &) { take_pages(5, size_t(256) << 20); }},
    {"source: a span is filled, and what is behind it", [](World &) { fill_pages(); }},
    {"source: trim", [](World &) { quire_source_trim(quire_source_default()); }},
};

/* What threads kept is had once. */
int child_has_larges()
{
    quire_heap *heap = quire_heap_default();
    void *p[8];
    for (int i = 0; i < 8; i++)
        if (!(p[i] = quire_heap_alloc(heap, LARGES)))
            return NO_MEMORY;
    for (int i = 0; i < 8; i++)
        memset(p[i], i, LARGES);
    for (int i = 0; i < 8; i++)
        if (static_cast<unsigned char *>(p[i])[0] != i || static_cast<unsigned char *>(p[i])[LARGES - 1] != i)
            return OTHERS_PAINT;
    for (void *block : p)
        quire_heap_free(heap, block);
    return quire_heap_check(heap) ? CHECK_FAILED : GOOD;
}

int child_of(World &w)
{
    if (quire_heap_check(w.heap) || quire_slab_check(w.slab))
        return CHECK_FAILED;
    if (int error = child_has_larges())
        return error;
    void *blocks[BLOCKS], *slots[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = quire_heap_alloc(w.heap, i == 0 ? LARGE : i % 2 ? 1000 : SMALL);
        slots[i] = quire_slab_alloc(w.slab);
        if (!blocks[i] || !slots[i])
            return NO_MEMORY;
        memset(blocks[i], i, SMALL);
        memset(slots[i], i + 100, SLOT);
    }
    take_pages(8, os_page_bytes());
    take_pages(5, size_t(256) << 20);
    for (int i = 0; i < BLOCKS; i++) {
        for (size_t at = 0; at < SMALL; at++)
            if (static_cast<unsigned char *>(blocks[i])[at] != i || static_cast<unsigned char *>(slots[i])[at] != i + 100)
                return OTHERS_PAINT;
        quire_heap_free(w.heap, blocks[i]);
        quire_slab_free(w.slab, slots[i]);
    }
    quire_source_trim(quire_source_default());
    return quire_heap_check(w.heap) || quire_slab_check(w.slab) ? CHECK_FAILED : GOOD;
}

class SteppedRun {
public:
    SteppedRun(const Stepped &x_, uint32_t flags) : x(x_)
    {
        quire_heap_opts heap = {.struct_bytes = sizeof heap};
        heap.flags = flags;
        w.heap = quire_heap_create(&heap);
        quire_slab_opts slab = {.struct_bytes = sizeof slab};
        w.slab = quire_slab_create(SLOT, &slab);
    }
    ~SteppedRun()
    {
        quire_heap_destroy(w.heap);
        quire_slab_destroy(w.slab);
    }

    unsigned run(const Steps::Which &which)
    {
        set_up(w.other, w.others_slots);
        unsigned forks = fork_at_steps(x.name, which, [this] { set_up_own(); }, [this] { x.run(w); }, [this] { return child_of(w); });
        EXPECT_TRUE(w.made_way || !x.rounds);
        EXPECT_STREQ(quire_heap_check(w.heap), nullptr);
        EXPECT_STREQ(quire_slab_check(w.slab), nullptr);
        return forks;
    }
    void run_own()
    {
        std::thread([this] { set_up(w.other, w.others_slots); }).join();
        std::thread([this] {
            set_up_own();
            OwnForks::during(x.name, test_long() ? 200000 : 5000, test_long() ? 1000 : 3, [this] { x.run(w); }, [this] { return child_of(w); });
        }).join();
        EXPECT_STREQ(quire_heap_check(w.heap), nullptr);
        EXPECT_STREQ(quire_slab_check(w.slab), nullptr);
    }

private:
    const Stepped &x;
    World w = {};

    void set_up_own()
    {
        std::vector<void *> before(x.before);
        for (int round = 0; round <= x.rounds; round++) {
            for (void *&p : before)
                p = quire_heap_alloc(w.heap, SMALL);
            if (round == x.rounds)
                set_up(w.own, w.slots), w.large = quire_heap_alloc(w.heap, LARGE);
            for (void *p : before)
                quire_heap_free(w.heap, p);
        }
        std::thread([this] { /* it ends, and a trim finds what it had */
            for (size_t bytes = 16; bytes < 4000; bytes += bytes / 2)
                quire_heap_free(w.heap, quire_heap_alloc(w.heap, bytes));
        }).join();
        if (x.rounds && bias_works()) {
            EXPECT_TRUE(owns(w) > 8 || heap_is_secure(w.heap)) << owns(w);
            heap_mine(w.heap)->pages_had = 15999; /* the next is one where it looks, and so many did not come from magazines */
            heap_mine(w.heap)->way_again_ns = 0;
        }
    }

    void set_up(void *(&blocks)[BLOCKS], void *(&slots)[BLOCKS])
    {
        fill(blocks, [this] { return quire_heap_alloc(w.heap, SMALL); });
        fill(slots, [this] { return quire_slab_alloc(w.slab); });
    }
};
} // namespace

TEST(ForkStep, at_any_instruction_of_an_operation)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    Random random(test_long() ? os_time_ns() : 1);
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE})
        for (const Stepped &x : stepped) {
            if (flags && strncmp(x.name, "heap", 4) != 0)
                continue;
            SteppedRun(x, flags).run({1, 1, 1}); /* once, so that what the first call finds has been found */
            unsigned forks = SteppedRun(x, flags).run({1 + random.below(8), test_long() ? 200000u : 6000u, test_long() ? 1000u : 3u});
            EXPECT_GT(forks, 5u) << x.name;
            RecordProperty(x.name, int(forks));
            if (HasFailure())
                return;
        }
}

TEST(ForkStep, at_any_instruction_of_the_forking_threads_own_operation)
{
    if (memory_is_watched())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE})
        for (const Stepped &x : stepped)
            if (!flags || strncmp(x.name, "heap", 4) == 0)
                SteppedRun(x, flags).run_own();
}

/* Blocks of a plan: new chunks, frees of one's own and of another's, what is moved to the heap. */
namespace {
enum { SITES = 4, PLAN_BYTES = 120, EACH = 700 }; /* more than a chunk */
void *plan_own[EACH], *plan_other[EACH], *plan_left[EACH];

void plan_fill(void *(&into)[EACH])
{
    for (int i = 0; i < EACH; i++)
        into[i] = alloc_at(1 + i % SITES, PLAN_BYTES);
}

int child_of_a_plan()
{
    void *mine[EACH];
    plan_fill(mine);
    for (int i = 0; i < EACH; i++)
        memset(mine[i], i, PLAN_BYTES);
    for (int i = 0; i < EACH; i++) {
        if (static_cast<unsigned char *>(mine[i])[0] != i % 256 || static_cast<unsigned char *>(mine[i])[PLAN_BYTES - 1] != i % 256)
            return OTHERS_PAINT;
        steer_free(mine[i]);
    }
    return steer_check() ? CHECK_FAILED : GOOD;
}

struct PlanWork {
    const char *name;
    void (*run)();
};
const PlanWork plan_works[] = {
    {"plan: 700 blocks", [] { plan_fill(plan_left); }},
    {"plan: frees of one's own", [] { for (void *p : plan_own) steer_free(p); }},
    {"plan: frees of another's", [] { for (void *p : plan_other) steer_free(p); }},
    {"plan: blocks that grow", [] { for (int i = 0; i < 20; i++) plan_left[i] = steer_realloc(plan_own[i], 4 * PLAN_BYTES); }},
};
const char *const NOT_HERE = "a child of a busy process waits for locks of the sanitizer's own";
} // namespace

TEST(ForkStep, at_any_instruction_where_a_plan_is_carried_out)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << NOT_HERE;
    steer_up_with_room();
    for (const PlanWork &work : plan_works) {
        std::thread([] { plan_fill(plan_other); }).join(); /* not the forking thread's: in its own chunks what others were just freeing stays counted (steer_thread.c) */
        unsigned forks = fork_at_steps(work.name, {1, test_long() ? 200000u : 6000u, test_long() ? 1000u : 3u}, [] { plan_fill(plan_own); }, work.run, child_of_a_plan);
        EXPECT_GT(forks, 5u) << work.name;
        EXPECT_EQ(steer_check(), nullptr);
        if (HasFailure())
            return;
    }
}

TEST(ForkStep, at_any_instruction_of_the_forking_thread_where_a_plan_is_carried_out)
{
    if (memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    steer_up_with_room();
    for (const PlanWork &work : plan_works) {
        std::atomic<bool> ready{false}, leave{false};
        std::thread other([&] { /* it lives: its chunks are its own */
            plan_fill(plan_other);
            for (ready = true; !leave;)
                usleep(100);
        });
        while (!ready)
            usleep(100);
        std::thread([&] {
            plan_fill(plan_own);
            OwnForks::during(work.name, test_long() ? 200000 : 5000, test_long() ? 1000 : 3, work.run, child_of_a_plan);
        }).join();
        leave = true;
        other.join();
        EXPECT_EQ(steer_check(), nullptr);
    }
}
#endif
