// SPDX-License-Identifier: MIT
/* The nth system call, or the nth span, cannot be had: NULL + ENOMEM, nothing lost, and the next success works.  For every n until none fails. */
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <quire/slab.h>

#include "each_call.h"
#include "model/slab_worker.h"
#include "model/slab_no_barrier.h"
#include "support.h"

namespace {

const size_t page = os_page_bytes();

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

/* Elements by one call after the other and by a batch, every one written. */
std::vector<char *> allocate(quire_slab *slab, size_t count, size_t element_bytes, Failures &failures)
{
    std::vector<char *> elements;
    auto keep = [&](void *p) {
        memset(p, int(elements.size()), element_bytes);
        elements.push_back(static_cast<char *>(p));
    };
    for (size_t i = 0; i < count; i++) {
        void *p = i % 7 ? quire_slab_alloc(slab) : quire_slab_alloc_zero(slab);
        if (failures.sees(p)) {
            if (i % 7 == 0) {
                EXPECT_EQ(static_cast<char *>(p)[element_bytes - 1], 0);
            }
            keep(p);
        }
    }
    std::vector<void *> batch(count);
    errno = 0;
    size_t got = quire_slab_alloc_batch(slab, batch.data(), count);
    if (got < count)
        failures.sees(nullptr);
    for (size_t i = 0; i < got; i++)
        keep(batch[i]);
    for (size_t i = 0; i < elements.size(); i++)
        EXPECT_EQ(elements[i][element_bytes - 1], char(i)) << "every element is whole";
    return elements;
}

/* A little of everything by two threads, going on after each failure.  Returns how many calls failed. */
int program(struct quire_source *source, uint32_t flags, Worker &other)
{
    const size_t element_bytes = 1000;
    Failures failures;
    quire_slab_opts opts = {};
    opts.source = source, opts.flags = flags, opts.name = "fault";
    quire_slab *slab = nullptr;
    for (int tries = 0; tries < 8 && !slab; tries++)
        failures.sees(slab = quire_slab_create(element_bytes, &opts));
    if (!slab)
        return failures.count;
    for (int round = 0; round < 2; round++) {
        std::vector<char *> mine = allocate(slab, 150, element_bytes, failures), theirs;
        other.run([&] { theirs = allocate(slab, 60, element_bytes, failures); });
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
        quire_slab_stats(slab, &stats);
        EXPECT_EQ(stats.mapped_bytes, stats.live_bytes + stats.free_bytes + stats.meta_bytes);
        EXPECT_EQ(stats.live_elements, mine.size() + theirs.size());
        errno = 42;
        other.run([&] {
            errno = 43;
            for (size_t i = 0; i < mine.size() / 2; i++)
                quire_slab_free(slab, mine[i]);
            EXPECT_EQ(errno, 43);
        });
        quire_slab_free_batch(slab, reinterpret_cast<void **>(theirs.data()), theirs.size());
        EXPECT_EQ(errno, 42) << "freeing keeps it";
        quire_slab_trim(slab);
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        for (size_t i = mine.size() / 2; i < mine.size(); i++)
            quire_slab_free(slab, mine[i]);
        quire_slab_stats(slab, &stats);
        EXPECT_EQ(stats.live_elements, 0u);
        EXPECT_EQ(quire_slab_check(slab), nullptr);
    }
    quire_slab_alloc(slab);
    quire_slab_destroy(slab);
    struct quire_slab *shared = quire_slab_shared_acquire(40);
    if (failures.sees(shared)) {
        void *p = quire_slab_alloc(shared);
        failures.sees(p);
        quire_slab_free(shared, p);
        quire_slab_shared_release(shared);
    }
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

const uint32_t some_flags[] = {0, QUIRE_SLAB_KEEP_NOTHING | QUIRE_SLAB_DONT_DUMP, QUIRE_SLAB_SINGLE_THREAD, QUIRE_SLAB_DEFRAG};

} // namespace

TEST(SlabFault, for_every_span_that_cannot_be_had_nothing_is_lost)
{
    Worker other;
    for (uint32_t flags : some_flags) {
        uint64_t nth = 1;
        for (bool refused = true; refused; nth++) {
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
        EXPECT_GE(nth, 10u) << "the program takes many spans";
    }
}

TEST(SlabFault, for_every_system_call_that_fails_once_or_from_then_on_nothing_is_lost)
{
    struct Case {
        const char *name;
        std::function<struct quire_source *()> source;
        std::vector<os_call> kinds;
    } cases[] = {{"none", [] { return static_cast<struct quire_source *>(nullptr); }, {OS_MAP, OS_UNMAP, OS_DISCARD, OS_ADVISE}},
                 {"anon", [] { return quire_source_anon(); }, {OS_MAP, OS_UNMAP, OS_ADVISE}},
                 {"malloc", [] { return quire_source_malloc(); }, {OS_LIBC, OS_ADVISE}},
                 {"memfd", [] { return quire_source_memfd("fault"); }, {OS_MAP, OS_UNMAP, OS_ADVISE, OS_GROW, OS_MEMFD}}};
    Worker other;
    for (auto &[name, make, kinds] : cases) {
        struct quire_source *own = make(), *source = own ? own : quire_source_default();
        program(own, 0, other); /* what is kept for good is there now */
        quire_source_trim(source);
        size_t before = taken_at_rest(source);
        EachCall each(
            name, 4, 40, [&, own = own](int variant) { program(own, some_flags[variant], other); },
            [&] {
                EXPECT_EQ(taken_settled(source, before), before);
                EXPECT_EQ(quire_source_check(source), nullptr);
                quire_source_trim(source);
            });
        each.leave_out_what_is_not_called();
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            for (bool onwards : {false, true})
                if (!onwards || kind != OS_THREAD) /* has a test of its own, by the sources */
                    each.fail(kind, onwards);
        each.expect_failed(kinds);
        EXPECT_EQ(program(own, 0, other), 0) << name << ": afterwards everything works";
        quire_source_destroy(own);
    }
}

TEST(SlabFault, no_bookkeeping_is_lost_by_failures)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch map memory too";
    Worker other;
    auto rounds = [&] {
        for (uint64_t nth = 1; nth < 40; nth++) {
            Fault fault(OS_MAP, nth);
            program(quire_source_anon(), some_flags[nth % 4], other);
        }
        quire_source_trim(quire_source_default());
    };
    rounds(), rounds();
    size_t before = mapped_bytes();
    for (int i = 0; i < 5; i++)
        rounds();
    EXPECT_LE(mapped_bytes(), before + (1 << 20)) << "200 programs later";
}

TEST(SlabFault, a_threads_first_allocation_without_memory_is_null_and_its_next_one_works)
{
    for (bool onwards : {false, true})
        for (uint64_t nth = 1; nth < 6; nth++) {
            quire_slab_opts opts = {};
            opts.source = quire_source_anon();
            quire_slab *slab = quire_slab_create(3000, &opts);
            quire_slab_alloc(slab);
            std::thread([&] {
                {
                    Fault fault(OS_MAP, nth, onwards);
                    for (int i = 0; i < 40; i++) {
                        errno = 0;
                        void *p = quire_slab_alloc(slab);
                        EXPECT_TRUE(p || errno == ENOMEM);
                        quire_slab_free(slab, p);
                        quire_slab_free(slab, nullptr);
                    }
                }
                EXPECT_NE(quire_slab_alloc(slab), nullptr);
            }).join();
            EXPECT_EQ(quire_slab_check(slab), nullptr);
            quire_slab_destroy(slab);
        }
}

TEST(SlabFault, a_thread_without_memory_for_pages_of_its_own_frees_what_others_allocated)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    std::vector<void *> elements(1000);
    ASSERT_EQ(quire_slab_alloc_batch(slab, elements.data(), 1000), 1000u);
    for (int kind = 0; kind < OS_CALL_COUNT; kind++)
        std::thread([&] {
            Fault fault(os_call(kind), 1, true);
            quire_slab_free(slab, elements.back());
            elements.pop_back();
            quire_slab_free_batch(slab, &elements[elements.size() - 10], 10);
            elements.resize(elements.size() - 10);
        }).join();
    struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
    quire_slab_stats(slab, &stats);
    EXPECT_EQ(stats.live_elements, elements.size());
    EXPECT_EQ(quire_slab_check(slab), nullptr);
    quire_slab_destroy(slab);
}

TEST(SlabFault, elements_are_had_from_what_is_there_when_no_system_call_works_any_more)
{
    quire_slab *slab = quire_slab_create(100, nullptr);
    Worker other;
    std::vector<void *> elements(5000);
    ASSERT_EQ(quire_slab_alloc_batch(slab, elements.data(), 5000), 5000u);
    other.run([&] { quire_slab_free_batch(slab, elements.data(), 2500); });
    quire_slab_free_batch(slab, &elements[2500], 1000);
    Fault map(OS_MAP, 1, true), unmap(OS_UNMAP, 1, true), protect(OS_PROTECT, 1, true), libc(OS_LIBC, 1, true), discard(OS_DISCARD, 1, true);
    size_t got = 0;
    while (got < 3500 && (elements[got] = quire_slab_alloc(slab)))
        got++;
    EXPECT_EQ(got, 3500u) << "all that was freed, by whomever";
    EXPECT_EQ(quire_slab_check(slab), nullptr);
    quire_slab_free_batch(slab, elements.data(), 3500);
    quire_slab_trim(slab);
    EXPECT_EQ(quire_slab_check(slab), nullptr);
    quire_slab_destroy(slab);
}

TEST(SlabFault, with_nothing_left_of_the_default_source_every_call_is_enomem_and_what_lives_goes_on)
{
    quire_slab *kept = quire_slab_create(100, nullptr);
    std::vector<void *> elements(5000);
    ASSERT_EQ(quire_slab_alloc_batch(kept, elements.data(), 5000), 5000u);
    quire_source_trim(quire_source_default());
    std::vector<quire_slab *> slabs;
    {
        Fault map(OS_MAP, 1, true), protect(OS_PROTECT, 1, true), libc(OS_LIBC, 1, true);
        quire_slab *slab;
        while (slabs.size() < 100000 && (slab = quire_slab_create(1000, nullptr)))
            slabs.push_back(slab);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_LT(slabs.size(), 100000u);
        for (quire_slab *each : slabs)
            for (int i = 0; i < 1000 && quire_slab_alloc(each); i++) {
            }
        errno = 0;
        EXPECT_EQ(quire_slab_create(8, nullptr), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        errno = 0;
        EXPECT_EQ(quire_slab_shared_acquire(24), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        std::thread([&] { /* one that has no record yet */
            errno = 0;
            void *p = quire_slab_alloc(kept);
            EXPECT_TRUE(p || errno == ENOMEM);
            quire_slab_free(kept, p);
            quire_slab_free_batch(kept, elements.data(), 2500);
        }).join();
        EXPECT_GE(quire_slab_alloc_batch(kept, elements.data(), 2500), 1500u) << "what was freed is there, but for small pages";
        EXPECT_EQ(quire_slab_check(kept), nullptr);
    }
    for (quire_slab *slab : slabs) {
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        quire_slab_destroy(slab);
    }
    EXPECT_NE(quire_slab_alloc(kept), nullptr);
    EXPECT_EQ(quire_slab_check(kept), nullptr);
    quire_slab_destroy(kept);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(SlabFault, a_slab_over_a_budget_takes_no_more_and_gives_all_back)
{
    Worker other;
    for (size_t pages = 1; pages < 120; pages += 7) {
        struct quire_source *limit = quire_source_limit(quire_source_default(), pages * page);
        program(limit, some_flags[pages % 4], other);
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(limit, &stats);
        EXPECT_LE(stats.peak_bytes, pages * page);
        EXPECT_EQ(stats.taken_bytes, 0u);
        quire_source_destroy(limit);
    }
}
