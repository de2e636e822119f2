// SPDX-License-Identifier: MIT
/* A fork while another thread (fork_steps.h), or this one (own_forks.h), is at any instruction of an operation of a pool.  No sequence: it would be restarted by each trap. */
#include "race/fork_steps.h"
#include "race/own_forks.h"
#include "race/percpu_operations.h"

#if QUIRE_CPU_X86_64
namespace {
struct Stepped {
    const char *name;
    void (*run)(quire_percpu *pool, PercpuOwner &me, PercpuOwner &other);
};

void free_raw(quire_percpu *pool, PercpuObject &object) { quire_percpu_free(pool, object.ref); }

/* What is had is lost to the test: the pool's end takes it. */
const Stepped stepped[] = {
    {"alloc", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { quire_percpu_alloc(pool, 40, 0); }},
    {"alloc, aligned", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { quire_percpu_alloc(pool, 200, 256); }},
    {"alloc of a new chunk", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { quire_percpu_alloc(pool, os_page_bytes(), 0); }},
    {"nowait", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { quire_percpu_alloc_nowait(pool, 600, 0); }},
    {"free of one's own", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { free_raw(pool, me.objects[PERCPU_OWN_ONE]); }},
    {"free of the last of one's own chunk", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { free_raw(pool, me.objects[PERCPU_OWN_LONE]); }},
    {"free of another's", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) { free_raw(pool, other.objects[PERCPU_OTHER_ONE]); }},
    {"free of the last of another's chunk", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) { free_raw(pool, other.objects[PERCPU_OTHER_LONE]); }},
    {"free of more than an inbox holds",
     [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) {
         for (PercpuObject &object : other.many)
             free_raw(pool, object);
     }},
    {"trim", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { quire_percpu_trim(pool); }},
    {"the first add of a chunk", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { quire_percpu_add(pool, me.fresh[0].ref, 5); }},
};

class SteppedRun {
public:
    SteppedRun(const Stepped &x_) : x(x_), pool(eight_a_chunk()) {}

    unsigned run(uint64_t last)
    {
        b.set_up(pool);
        unsigned forks = fork_at_steps(x.name, {1, last, test_long() ? 100u : 4u}, [this] { set_up_own(); }, [this] { x.run(pool, a, b); }, [this] { return child_of_an_operation(pool, a, b); });
        EXPECT_STREQ(quire_percpu_check(pool), nullptr);
        return forks;
    }
    void run_own()
    {
        std::thread([this] { b.set_up(pool); }).join();
        std::thread([this] {
            set_up_own();
            OwnForks::during(x.name, test_long() ? 100000 : 5000, test_long() ? 1000 : 4, [this] { x.run(pool, a, b); }, [this] { return child_of_an_operation(pool, a, b); });
        }).join();
        EXPECT_STREQ(quire_percpu_check(pool), nullptr);
    }

private:
    const Stepped &x;
    Pool pool;
    PercpuOwner a, b;

    void set_up_own()
    {
        a.set_up(pool);
        PercpuObject object = {}; /* in a chunk that nobody has written */
        object.ref = quire_percpu_alloc(pool, stats_of(pool).unit_bytes, 0);
        a.fresh.push_back(object);
    }
};
} // namespace

TEST(PercpuFork, at_any_instruction_of_an_operation)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    Mode set(OS_RSEQ_OFF);
    for (const Stepped &x : stepped) {
        SteppedRun(x).run(1); /* once, so that what the first call finds has been found */
        unsigned forks = SteppedRun(x).run(test_long() ? 100000 : 4000);
        EXPECT_GT(forks, 10u) << x.name;
        RecordProperty(x.name, int(forks));
        if (HasFailure())
            return;
    }
}

TEST(PercpuFork, at_any_instruction_of_the_forking_threads_own_operation)
{
    if (memory_is_watched())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    Mode set(OS_RSEQ_OFF);
    for (const Stepped &x : stepped)
        SteppedRun(x).run_own();
}

TEST(PercpuFork, at_any_instruction_of_an_operation_of_a_thread_that_has_few_objects)
{
    if (memory_is_watched())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    Mode set(OS_RSEQ_OFF);
    PercpuFew few(1000000);
    for (const Stepped &x : stepped) {
        SteppedRun(x).run(1);
        EXPECT_GT(SteppedRun(x).run(test_long() ? 100000 : 2000), 5u) << x.name;
        if (HasFailure())
            return;
        SteppedRun(x).run_own();
    }
}
#endif
