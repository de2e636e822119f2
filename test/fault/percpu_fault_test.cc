// SPDX-License-Identifier: MIT
/* The nth system call, or the nth span, cannot be had: {0} + ENOMEM, nothing lost, and the next success works.  For every n until none fails. */
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <thread>
#include <vector>

#include <quire/percpu.h>

#include "each_call.h"
#include "model/slab_no_barrier.h"
#include "model/slab_worker.h"
#include "os/os_rseq.h"
#include "support.h"

namespace {

using Ref = struct quire_percpu_ref;
const size_t page = os_page_bytes();

/* How many calls of a program failed, each of them with ENOMEM. */
struct Failures {
    int count = 0;
    bool sees(bool success)
    {
        if (!success) {
            EXPECT_EQ(errno, ENOMEM);
            count++;
        }
        errno = 0;
        return success;
    }
};

struct Counted {
    Ref ref;
    intptr_t value;
};

/* Objects of two sizes, each of its own number, on its CPU and by its address. */
std::vector<Counted> allocate(quire_percpu *pool, size_t count, Failures &failures)
{
    std::vector<Counted> all;
    errno = 0;
    for (size_t i = 0; i < count; i++) {
        Ref ref = quire_percpu_alloc(pool, i % 3 ? 400 : 64, 0);
        if (!failures.sees(ref.bits != 0))
            continue;
        EXPECT_EQ(quire_percpu_sum(pool, ref), 0) << "zero";
        quire_percpu_add(pool, ref, intptr_t(i));
        *static_cast<intptr_t *>(quire_percpu_at(pool, ref, 2)) += 1;
        all.push_back({ref, intptr_t(i) + 1});
    }
    for (int i = 0; i < 3; i++) { /* what it costs is not counted: it may fail at any time */
        Ref ref = quire_percpu_alloc_nowait(pool, 64, 0);
        EXPECT_TRUE(ref.bits || errno == ENOMEM);
        if (ref.bits)
            all.push_back({ref, 0});
    }
    for (const Counted &each : all)
        EXPECT_EQ(quire_percpu_sum(pool, each.ref), each.value) << "every object is whole";
    return all;
}

void free_some(quire_percpu *pool, const std::vector<Counted> &all, size_t from, size_t to)
{
    errno = 42;
    for (size_t i = from; i < to; i++) {
        EXPECT_EQ(quire_percpu_sum(pool, all[i].ref), all[i].value);
        quire_percpu_free(pool, all[i].ref);
    }
    EXPECT_EQ(errno, 42) << "freeing keeps it";
}

void sound(quire_percpu *pool, size_t live)
{
    struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
    quire_percpu_stats(pool, &stats);
    EXPECT_EQ(stats.mapped_bytes, stats.live_bytes + stats.free_bytes + stats.meta_bytes);
    EXPECT_EQ(stats.live_objects, live);
    EXPECT_EQ(quire_percpu_check(pool), nullptr);
}

/* A little of everything by two threads, going on after each failure.  Returns how many calls failed. */
int program(struct quire_source *source, size_t reserve_bytes, Worker &other)
{
    Failures failures;
    quire_percpu_opts opts = {};
    opts.name = "fault", opts.source = source, opts.chunk_bytes = 3 * page, opts.cpus = 3, opts.reserve_bytes = reserve_bytes;
    quire_percpu *pool = nullptr;
    for (int tries = 0; tries < 8 && !pool; tries++)
        failures.sees((pool = quire_percpu_create(&opts)) != nullptr);
    if (!pool)
        return failures.count;
    for (int round = 0; round < 2; round++) {
        std::vector<Counted> mine = allocate(pool, 120, failures), theirs;
        other.run([&] { theirs = allocate(pool, 60, failures); });
        sound(pool, mine.size() + theirs.size());
        other.run([&] { free_some(pool, mine, 0, mine.size() / 2); });
        free_some(pool, theirs, 0, theirs.size());
        quire_percpu_trim(pool);
        sound(pool, mine.size() - mine.size() / 2);
        free_some(pool, mine, mine.size() / 2, mine.size());
        sound(pool, 0);
    }
    quire_percpu_alloc(pool, 8, 0);
    quire_percpu_destroy(pool);
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

size_t taken_bytes(struct quire_source *source)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    return stats.taken_bytes;
}

} // namespace

TEST(PercpuFault, for_every_span_that_cannot_be_had_nothing_is_lost)
{
    Worker other;
    for (size_t reserve : {0, 2000}) {
        uint64_t nth = 1;
        for (bool refused = true; refused; nth++) {
            struct quire_source *count = quire_source_count(quire_source_anon()), *fail = quire_source_fail(count, nth);
            int failed = program(fail, reserve, other);
            struct quire_source_stats stats = {.struct_bytes = sizeof stats};
            quire_source_stats(fail, &stats);
            refused = stats.failures != 0;
            EXPECT_LE(failed, 1) << "n " << nth << ": one span less is one refusal at most";
            EXPECT_EQ(taken_bytes(count), 0u) << "n " << nth;
            quire_source_destroy(fail);
            quire_source_destroy(count);
        }
        EXPECT_GE(nth, page > 4096 ? 4u : 10u) << "the program takes many spans";
    }
}

TEST(PercpuFault, for_every_system_call_that_fails_once_or_from_then_on_nothing_is_lost)
{
    struct Case {
        const char *name;
        std::function<struct quire_source *()> source;
        std::vector<os_call> kinds;
    } cases[] = {{"none", [] { return static_cast<struct quire_source *>(nullptr); }, {OS_MAP, OS_UNMAP, OS_DISCARD, OS_ADVISE}},
                 {"default", [] { return quire_source_count(quire_source_default()); }, {OS_DISCARD, OS_ADVISE}},
                 {"malloc", [] { return quire_source_malloc(); }, {OS_LIBC, OS_ADVISE}},
                 {"memfd", [] { return quire_source_memfd("fault"); }, {OS_MAP, OS_UNMAP, OS_ADVISE, OS_GROW, OS_MEMFD}}};
    Worker other;
    for (auto &[name, make, kinds] : cases) {
        struct quire_source *own = make(), *books = quire_source_default();
        program(own, 2000, other); /* what is kept for good is there now */
        quire_source_trim(books);
        size_t before = taken_at_rest(books), of_own = own ? taken_bytes(own) : 0;
        int refusals = 0;
        EachCall each(
            name, 2, 40, [&, own = own](int variant) { refusals += program(own, variant ? 2000 : 0, other); },
            [&, own = own] {
                EXPECT_EQ(taken_settled(books, before), before);
                EXPECT_EQ(own ? taken_bytes(own) : 0, of_own);
                quire_source_trim(books);
            });
        each.leave_out_what_is_not_called();
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            for (bool onwards : {false, true})
                if (kind != OS_THREAD) /* has a test of its own, by the sources */
                    each.fail(kind, onwards);
        each.expect_failed(kinds);
        if (!own) {
            EXPECT_GE(refusals, page > 4096 ? 5 : 100) << "other sources have what they kept, or another way";
        }
        EXPECT_EQ(quire_source_check(books), nullptr) << name;
        EXPECT_EQ(program(own, 2000, other), 0) << name << ": afterwards everything works";
        quire_source_destroy(own);
    }
}

TEST(PercpuFault, no_bookkeeping_is_lost_by_failures)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch map memory too";
    Worker other;
    auto rounds = [&] {
        for (uint64_t nth = 1; nth < 40; nth++) {
            Fault fault(OS_MAP, nth);
            program(nullptr, nth % 2 * 2000, other);
        }
        quire_source_trim(quire_source_default());
    };
    rounds(), rounds();
    size_t before = mapped_bytes();
    for (int i = 0; i < 5; i++)
        rounds();
    EXPECT_LE(mapped_bytes(), before + (1 << 20)) << "200 programs later";
}

TEST(PercpuFault, a_threads_first_allocation_without_memory_is_enomem_and_its_next_one_works)
{
    for (bool onwards : {false, true})
        for (uint64_t nth = 1; nth < 6; nth++) {
            quire_percpu_opts opts = {};
            opts.cpus = 2;
            quire_percpu *pool = quire_percpu_create(&opts);
            quire_percpu_alloc(pool, 8, 0);
            std::thread([&] {
                {
                    Fault fault(OS_MAP, nth, onwards);
                    for (int i = 0; i < 40; i++) {
                        errno = 0;
                        Ref ref = quire_percpu_alloc(pool, 3000, 0);
                        EXPECT_TRUE(ref.bits || errno == ENOMEM);
                        quire_percpu_free(pool, ref);
                        quire_percpu_free(pool, {0});
                    }
                }
                EXPECT_NE(quire_percpu_alloc(pool, 3000, 0).bits, 0u);
            }).join();
            EXPECT_EQ(quire_percpu_check(pool), nullptr);
            quire_percpu_destroy(pool);
        }
}

TEST(PercpuFault, a_thread_without_memory_for_chunks_of_its_own_frees_what_others_allocated_and_adds_to_it)
{
    quire_percpu *pool = quire_percpu_create(nullptr);
    std::vector<Ref> refs(1000);
    for (Ref &ref : refs)
        ref = quire_percpu_alloc(pool, 64, 0);
    for (int kind = 0; kind < OS_CALL_COUNT; kind++)
        std::thread([&] {
            Fault fault(os_call(kind), 1, true);
            for (int i = 0; i < 40; i++) {
                quire_percpu_add(pool, refs.back(), 3);
                EXPECT_EQ(quire_percpu_sum(pool, refs.back()), 3);
                quire_percpu_free(pool, refs.back());
                refs.pop_back();
            }
        }).join();
    sound(pool, refs.size());
    quire_percpu_destroy(pool);
}

TEST(PercpuFault, objects_are_had_from_what_is_there_when_no_system_call_works_any_more)
{
    quire_percpu_opts opts = {};
    opts.cpus = 2, opts.chunk_bytes = 15 * page, opts.reserve_bytes = 10000;
    quire_percpu *pool = quire_percpu_create(&opts);
    Worker other;
    std::vector<Ref> refs(3000);
    for (Ref &ref : refs)
        ref = quire_percpu_alloc(pool, 96, 0);
    other.run([&] {
        for (size_t i = 1; i < 1500; i += 2)
            quire_percpu_free(pool, refs[i]);
    });
    for (size_t i = 1501; i < 3000; i += 2)
        quire_percpu_free(pool, refs[i]);
    Fault map(OS_MAP, 1, true), unmap(OS_UNMAP, 1, true), protect(OS_PROTECT, 1, true), libc(OS_LIBC, 1, true), discard(OS_DISCARD, 1, true);
    for (size_t i = 1; i < 3000; i += 2) {
        refs[i] = quire_percpu_alloc(pool, 96, 0);
        ASSERT_NE(refs[i].bits, 0u) << "all that was freed, by whomever: " << i;
        quire_percpu_add(pool, refs[i], 1);
        ASSERT_EQ(quire_percpu_sum(pool, refs[i]), 1);
    }
    EXPECT_NE(quire_percpu_alloc_nowait(pool, 96, 0).bits, 0u) << "the reserve is there";
    sound(pool, 3001);
    for (Ref ref : refs)
        quire_percpu_free(pool, ref);
    quire_percpu_trim(pool);
    sound(pool, 1);
    quire_percpu_destroy(pool);
}

TEST(PercpuFault, chunks_that_cannot_be_unmapped_are_not_lost)
{
    quire_percpu_opts opts = {};
    opts.cpus = 2, opts.chunk_bytes = 15 * page;
    size_t before = taken_bytes(quire_source_anon());
    quire_percpu *pool = quire_percpu_create(&opts);
    for (int round = 0; round < 3; round++) {
        std::vector<Ref> refs(2000);
        for (Ref &ref : refs)
            quire_percpu_add(pool, ref = quire_percpu_alloc(pool, 96, 0), 1);
        Fault unmap(OS_UNMAP, 1, true), discard(OS_DISCARD, 1, round == 2);
        for (Ref ref : refs)
            quire_percpu_free(pool, ref);
        quire_percpu_trim(pool);
        sound(pool, 0);
    }
    quire_percpu_destroy(pool);
    quire_source_trim(quire_source_anon());
    EXPECT_EQ(taken_settled(quire_source_anon(), before), before);
}

TEST(PercpuFault, a_trim_whose_pages_cannot_be_given_back_changes_nothing_and_gives_nothing)
{
    quire_percpu_opts opts = {};
    opts.cpus = 2;
    quire_percpu *pool = quire_percpu_create(&opts);
    std::vector<Ref> refs(50);
    for (Ref &ref : refs) {
        ref = quire_percpu_alloc(pool, 3 * page, page);
        memset(quire_percpu_at(pool, ref, 0), 7, 3 * page);
    }
    for (size_t i = 0; i < 50; i += 2)
        quire_percpu_free(pool, refs[i]);
    {
        Fault discard(OS_DISCARD, 1, true);
        EXPECT_EQ(quire_percpu_trim(pool), 0u);
        sound(pool, 25);
    }
    if (!memory_is_watched()) {
        EXPECT_GT(quire_percpu_trim(pool), 0u);
    }
    for (size_t i = 1; i < 50; i += 2)
        EXPECT_EQ(static_cast<char *>(quire_percpu_at(pool, refs[i], 0))[3 * page - 1], 7);
    sound(pool, 25);
    quire_percpu_destroy(pool);
}

TEST(PercpuFault, a_pool_over_a_budget_takes_no_more_and_gives_all_back)
{
    Worker other;
    for (size_t pages = 1; pages < 160; pages += 9) {
        struct quire_source *limit = quire_source_limit(quire_source_anon(), pages * page);
        program(limit, pages % 2 * 2000, other);
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(limit, &stats);
        EXPECT_LE(stats.peak_bytes, pages * page);
        EXPECT_EQ(stats.taken_bytes, 0u);
        quire_source_destroy(limit);
    }
}
