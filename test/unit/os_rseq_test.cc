// SPDX-License-Identifier: MIT
/* Each sequence alone, over units made by hand: what it changes, what it leaves alone, and what it tells the kernel. */
#include <gtest/gtest.h>

#include <cstdlib>
#include <sched.h>
#include <thread>

#include "os/os.h"
#include "os/os_rseq.h"
#include "support.h"

#if QUIRE_CPU_X86_64 || QUIRE_CPU_AARCH64
namespace {
constexpr unsigned UNIT_SHIFT = 12, CPUS = 4;
constexpr size_t UNIT_BYTES = size_t(1) << UNIT_SHIFT, WORD = 64;
constexpr intptr_t UNSEEN = -77;

/* Four CPUs' units in a row, over an area whose CPU the test sets; a place in them that holds an intptr_t. */
class Units {
public:
    Units()
    {
        os_rseq_force(OS_RSEQ_FAKE);
        memory = static_cast<char *>(aligned_alloc(UNIT_BYTES, CPUS * UNIT_BYTES));
        memset(memory, 0, CPUS * UNIT_BYTES);
        window.rseq_offset = os_rseq_offset();
        window.unit_mask = ~uintptr_t(UNIT_BYTES - 1);
        window.unit_shift = UNIT_SHIFT;
        window.cpus = CPUS;
    }
    Units(const Units &) = delete;
    ~Units()
    {
        free(memory);
        os_cpu_fake_set(-1);
        os_rseq_force(OS_RSEQ_AUTO);
    }
    uintptr_t bits() const { return reinterpret_cast<uintptr_t>(memory) + WORD; }
    intptr_t &word(unsigned cpu) { return *reinterpret_cast<intptr_t *>(memory + cpu * UNIT_BYTES + WORD); }
    void touch(unsigned cpu) { memory[cpu * UNIT_BYTES] = 1; }
    /* Bytes that are not zero, but for the words of which the test knows. */
    size_t strays(unsigned cpus_written) const
    {
        size_t n = 0;
        for (size_t i = 0; i < CPUS * UNIT_BYTES; i++) {
            size_t offset = i % UNIT_BYTES;
            bool known = i / UNIT_BYTES < cpus_written && (offset == 0 || (offset >= WORD && offset < WORD + sizeof(intptr_t)));
            n += memory[i] != 0 && !known;
        }
        return n;
    }
    quire_percpu_window window = {};

private:
    char *memory;
};

struct Area {
    uint32_t cpu_id_start, cpu_id;
    uint64_t rseq_cs;
};
struct Descriptor {
    uint32_t version, flags;
    uint64_t start, commit_bytes, abort;
};
Area *area_of(const quire_percpu_window &window)
{
    return reinterpret_cast<Area *>(os_thread_pointer() + window.rseq_offset);
}

/* What a word held, and whether the long way is to be gone instead. */
struct Seen {
    bool short_way, differs;
    intptr_t word;
};
Seen exchange(const Units &units, intptr_t expected, intptr_t desired)
{
    const intptr_t change[2] = {expected, desired};
    Seen seen = {false, false, UNSEEN};
    seen.short_way = os_rseq_cmpxchg(&units.window, units.bits(), change, &seen.word, &seen.differs);
    return seen;
}
bool add(const Units &units, intptr_t value) { return quire_percpu_add_try(&units.window, units.bits(), value); }

/* What the kernel reads: a piece of code that ends behind its start, and where it restarts, outside, behind the signature. */
void expect_descriptor(const Units &units)
{
    const Descriptor *cs = reinterpret_cast<const Descriptor *>(area_of(units.window)->rseq_cs);
    ASSERT_NE(cs, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(cs) % 32, 0u);
    EXPECT_EQ(cs->version, 0u);
    EXPECT_EQ(cs->flags, 0u);
    EXPECT_GT(cs->commit_bytes, 8u);
    EXPECT_LT(cs->commit_bytes, 200u);
    EXPECT_GE(cs->abort - cs->start, cs->commit_bytes) << "the restart is no part of what restarts";
    uint32_t signature;
    memcpy(&signature, reinterpret_cast<const char *>(cs->abort) - 4, 4);
    EXPECT_EQ(signature, QUIRE_CPU_X86_64 ? 0x53053053u : 0xd428bc00u);
}
} // namespace

TEST(OsRseq, adding_changes_the_word_of_the_threads_cpu_and_nothing_else)
{
    Units units;
    units.touch(0), units.touch(2);
    os_cpu_fake_set(2);
    EXPECT_TRUE(add(units, 5));
    EXPECT_TRUE(add(units, -12));
    os_cpu_fake_set(0);
    EXPECT_TRUE(add(units, INTPTR_MAX));
    EXPECT_TRUE(add(units, 1));
    EXPECT_EQ(units.word(2), -7);
    EXPECT_EQ(units.word(0), INTPTR_MIN) << "it wraps around";
    EXPECT_EQ(units.word(1), 0);
    EXPECT_EQ(units.strays(3), 0u);
}

TEST(OsRseq, a_cpu_without_a_copy_is_sent_the_long_way)
{
    Units units;
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        units.touch(cpu);
    void *node = nullptr, *popped = nullptr;
    for (int cpu : {int(CPUS), int(CPUS) + 1, 1000000, -1, -2}) {
        os_cpu_fake_set(cpu);
        EXPECT_FALSE(add(units, 1));
        EXPECT_FALSE(os_rseq_push(&units.window, units.bits(), &node));
        EXPECT_FALSE(os_rseq_pop(&units.window, units.bits(), &popped));
        EXPECT_FALSE(exchange(units, 0, 4).short_way);
        EXPECT_EQ(exchange(units, 0, 4).word, UNSEEN);
    }
    EXPECT_EQ(node, nullptr);
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        EXPECT_EQ(units.word(cpu), 0);
    EXPECT_EQ(units.strays(CPUS), 0u);
}

TEST(OsRseq, the_first_write_of_a_cpu_is_sent_the_long_way)
{
    Units units;
    units.touch(1);
    void *node = nullptr, *popped = nullptr;
    os_cpu_fake_set(3);
    EXPECT_FALSE(add(units, 1));
    EXPECT_FALSE(os_rseq_push(&units.window, units.bits(), &node));
    EXPECT_FALSE(os_rseq_pop(&units.window, units.bits(), &popped));
    EXPECT_FALSE(exchange(units, 0, 4).short_way);
    EXPECT_EQ(units.strays(0), 1u) << "only the byte that says that CPU 1 has written";
}

TEST(OsRseq, cmpxchg_exchanges_what_is_expected_and_says_what_else_there_is)
{
    Units units;
    units.touch(1);
    os_cpu_fake_set(1);
    units.word(1) = 40;
    Seen seen = exchange(units, 40, 41);
    EXPECT_TRUE(seen.short_way && !seen.differs);
    EXPECT_EQ(seen.word, 40);
    EXPECT_EQ(units.word(1), 41);
    seen = exchange(units, 40, 42);
    EXPECT_TRUE(seen.short_way && seen.differs);
    EXPECT_EQ(seen.word, 41);
    EXPECT_EQ(units.word(1), 41);
    EXPECT_EQ(units.strays(2), 0u);
}

TEST(OsRseq, a_list_gives_back_what_was_pushed_last)
{
    Units units;
    units.touch(0), units.touch(1);
    void *nodes[5] = {};
    void *popped = &popped;
    for (int cpu : {0, 1}) {
        os_cpu_fake_set(cpu);
        EXPECT_TRUE(os_rseq_pop(&units.window, units.bits(), &popped));
        EXPECT_EQ(popped, nullptr) << "an empty list";
    }
    for (int i = 0; i < 5; i++) {
        os_cpu_fake_set(i % 2);
        EXPECT_TRUE(os_rseq_push(&units.window, units.bits(), &nodes[i]));
    }
    for (int i = 4; i >= 0; i--) {
        os_cpu_fake_set(i % 2);
        EXPECT_EQ(nodes[i], i >= 2 ? &nodes[i - 2] : nullptr) << "a node's first word is the link";
        EXPECT_TRUE(os_rseq_pop(&units.window, units.bits(), &popped));
        EXPECT_EQ(popped, &nodes[i]);
    }
    EXPECT_EQ(units.word(0) | units.word(1), 0);
    EXPECT_EQ(units.strays(2), 0u);
}

TEST(OsRseq, each_tells_the_kernel_where_it_begins_commits_and_restarts)
{
    Units units;
    units.touch(1);
    os_cpu_fake_set(1);
    Area *area = area_of(units.window);
    void *node = nullptr, *popped = nullptr;
    uint64_t seen[4];
    area->rseq_cs = 0;
    add(units, 1);
    expect_descriptor(units);
    seen[0] = area->rseq_cs, area->rseq_cs = 0, units.word(1) = 0;
    os_rseq_push(&units.window, units.bits(), &node);
    expect_descriptor(units);
    seen[1] = area->rseq_cs, area->rseq_cs = 0;
    os_rseq_pop(&units.window, units.bits(), &popped);
    expect_descriptor(units);
    seen[2] = area->rseq_cs, area->rseq_cs = 0;
    exchange(units, 0, 4);
    expect_descriptor(units);
    seen[3] = area->rseq_cs, area->rseq_cs = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            EXPECT_NE(seen[i], seen[j]) << "each has its own";
}

TEST(OsRseq, each_thread_has_an_area_at_the_same_distance_from_its_pointer)
{
    Units units;
    units.touch(1), units.touch(2);
    os_cpu_fake_set(1);
    std::thread([&] {
        EXPECT_FALSE(add(units, 1)) << "a new thread is on no CPU";
        os_cpu_fake_set(2);
        EXPECT_TRUE(add(units, 10));
    }).join();
    EXPECT_TRUE(add(units, 3));
    EXPECT_EQ(units.word(1), 3);
    EXPECT_EQ(units.word(2), 10);
}

TEST(OsRseq, where_sequences_do_not_work_they_run_on_an_area_that_says_no_cpu)
{
    Units units;
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        units.touch(cpu);
    os_rseq_force(OS_RSEQ_OFF);
    EXPECT_FALSE(os_rseq_works());
    units.window.rseq_offset = os_rseq_offset();
    units.window.cpus = UINT32_MAX; /* as many as there can be */
    EXPECT_FALSE(add(units, 1));
    std::thread([&] { EXPECT_FALSE(add(units, 1)); }).join();
    EXPECT_EQ(units.strays(CPUS), 0u);
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        EXPECT_EQ(units.word(cpu), 0);
}

TEST(OsRseq, the_area_that_libc_registered_is_used_and_has_the_real_cpu)
{
    os_rseq_force(OS_RSEQ_AUTO);
    if (!os_rseq_works())
        GTEST_SKIP() << "this system or this build has no sequences";
    Units units;
    os_rseq_force(OS_RSEQ_AUTO);
    units.window.rseq_offset = os_rseq_offset();
    const Area *area = area_of(units.window);
    for (int tries = 0; tries < 1000; tries++) { /* the thread may move between the two looks */
        int cpu = sched_getcpu();
        if (int(area->cpu_id) == cpu)
            return;
    }
    FAIL() << "the area never had the CPU that sched_getcpu() says";
}

TEST(OsRseq, where_atomics_do_it_the_tests_say_on_which_cpu_a_thread_is)
{
    os_rseq_force(OS_RSEQ_OFF);
    os_cpu_fake_set(1000);
    EXPECT_EQ(os_cpu_id(), 1000u);
    std::thread([] { EXPECT_LT(os_cpu_id(), 1000u) << "of their own thread only"; }).join();
    os_cpu_fake_set(-1);
    EXPECT_LT(os_cpu_id(), 1000u);
    os_rseq_force(OS_RSEQ_AUTO);
}
#endif
