// SPDX-License-Identifier: MIT
/* quire_percpu_check() sees each of its invariants broken: here by hand, and put back. */
#include <gtest/gtest.h>

#include "unit/percpu_scope.h"

#define class klass /* a field there */
#include "percpu/percpu_internal.h"
#include "percpu/percpu_page.h"
#undef class

namespace {

/* One value is another until the end of the scope. */
template <typename T> class Changed {
public:
    Changed(T &place_, T value) : place(place_), was(place_) { place = value; }
    ~Changed() { place = was; }

private:
    T &place, was;
};

/* A pool of one thread with three chunks, holes in them, and copies that were written. */
class PercpuCheck : public testing::Test {
protected:
    PercpuCheck() : pool({.chunk_bytes = unit_of(65536), .cpus = 3})
    {
        refs = pool.alloc_many(1500, 100);
        for (size_t i = 0; i < refs.size(); i += 3) {
            pool.fill(refs[i], 100, 1);
            quire_percpu_free(pool, refs[i]);
        }
        chunk = percpu_chunk_find(pool, refs[1].bits);
        local = percpu_owner(chunk);
        EXPECT_GE(local->chunks, 3u);
        EXPECT_EQ(quire_percpu_check(pool), nullptr);
    }
    std::string verdict() const
    {
        const char *error = quire_percpu_check(pool);
        return error ? std::string(error).substr(0, 9) : "";
    }
    Pool pool;
    Refs refs;
    struct percpu_chunk *chunk;
    struct percpu_local *local;
};

/* Of all sizes, where a slot begins and beside it, in front of the first and behind the last. */
TEST(PercpuPage, a_slot_is_found_where_one_begins_and_nowhere_else)
{
    for (uint32_t words = 1; words <= PERCPU_PAGED_WORDS; words++) {
        const uint32_t bytes = words * 4, most = 1 << PERCPU_PAGE_LOG2_BIG;
        percpu_page some = {};
        some.start = 3 * most + (words & -words) * 4;
        some.slots = uint16_t(most / bytes - most / bytes / 8);
        some.reciprocal = percpu_page_reciprocal(words);
        for (uint32_t from = 0; from < most; from += bytes)
            for (uint32_t beside : {0u, 1u, 2u, 3u, bytes - 1}) {
                bool is_slot = beside == 0 && from / bytes < some.slots;
                ASSERT_EQ(percpu_page_slot(&some, size_t(some.start) + from + beside) < some.slots, is_slot) << words << " words, " << from << " + " << beside;
                if (is_slot) {
                    ASSERT_EQ(percpu_page_slot(&some, size_t(some.start) + from), from / bytes);
                }
            }
        for (uint32_t before = 1; before <= 2048; before++)
            ASSERT_GE(percpu_page_slot(&some, size_t(some.start) - before), some.slots) << words << " words, " << before << " in front";
    }
}

} // namespace

TEST_F(PercpuCheck, sees_a_bit_that_is_taken_and_starts_nothing)
{
    size_t bit = (refs[0].bits - uintptr_t(chunk->base)) >> chunk->bit_log2; /* free now */
    Changed<uint64_t> taken(chunk->map.taken[bit / 64], chunk->map.taken[bit / 64] | uint64_t(1) << bit % 64);
    EXPECT_EQ(verdict(), "percpu P1");
}

TEST_F(PercpuCheck, sees_a_unit_whose_first_bytes_are_free)
{
    Changed<uint64_t> taken(chunk->map.taken[0], chunk->map.taken[0] & ~uint64_t(1));
    EXPECT_EQ(verdict(), "percpu P1");
}

TEST_F(PercpuCheck, sees_objects_and_words_that_are_counted_wrongly)
{
    {
        Changed<uint32_t> more(chunk->room, chunk->room + 1);
        EXPECT_EQ(verdict(), "percpu P2");
    }
    {
        Changed<uint64_t> more(local->allocs, local->allocs + 1);
        EXPECT_EQ(verdict(), "percpu P2");
    }
    {
        Changed<size_t> more(local->room[chunk->grain], local->room[chunk->grain] + 1);
        EXPECT_EQ(verdict(), "percpu P2");
    }
    Changed<uint32_t> fewer(local->chunks, local->chunks - 1);
    EXPECT_EQ(verdict(), "percpu P2");
}

TEST_F(PercpuCheck, sees_a_chunk_on_the_list_of_another_class)
{
    Changed<uint32_t> other(chunk->klass, chunk->klass + 1);
    EXPECT_EQ(verdict(), "percpu P3");
}

TEST_F(PercpuCheck, sees_a_list_that_is_called_empty_and_one_that_is_called_filled)
{
    uint64_t &filled = local->filled[chunk->grain][chunk->klass / 64];
    Changed<uint64_t> cleared(filled, filled & ~(uint64_t(1) << chunk->klass % 64));
    EXPECT_EQ(verdict(), "percpu P3");
    Changed<uint64_t> more(local->filled[0][0], local->filled[0][0] ^ 1);
    EXPECT_EQ(verdict(), "percpu P3");
}

TEST_F(PercpuCheck, sees_a_write_into_a_freed_object_on_every_cpu_and_in_its_last_byte)
{
    if (memory_is_watched())
        GTEST_SKIP() << "whoever watches sees the write itself";
    for (unsigned cpu = 0; cpu < 3; cpu++)
        for (size_t byte : {0, 4, 99}) {
            char *copy = reinterpret_cast<char *>(refs[3].bits) + size_t(pool.at(refs[1], cpu) - pool.at(refs[1], 0));
            Changed<char> dirty(copy[byte], 1);
            EXPECT_EQ(verdict(), "percpu P4") << "CPU " << cpu << " byte " << byte;
        }
    EXPECT_EQ(verdict(), "");
}

TEST_F(PercpuCheck, sees_a_chunk_that_belongs_to_another_set)
{
    struct percpu_local *home = &static_cast<quire_percpu *>(pool)->home;
    addr_store_relaxed(&chunk->owner, uintptr_t(home));
    EXPECT_EQ(verdict(), "percpu P5");
    addr_store_relaxed(&chunk->owner, uintptr_t(local));
}

TEST_F(PercpuCheck, sees_a_chunk_that_the_page_map_does_not_know)
{
    pagemap_clear(chunk->base, os_page_bytes());
    EXPECT_EQ(verdict(), "percpu P5");
    ASSERT_EQ(pagemap_set(chunk->base, os_page_bytes(), owner_make(chunk, OWNER_PERCPU)), 0);
}

TEST_F(PercpuCheck, sees_more_than_the_limit)
{
    quire_percpu *raw = pool;
    Changed<size_t> limit(raw->account.limit_bytes, 4096);
    EXPECT_EQ(verdict(), "percpu P6");
}

TEST_F(PercpuCheck, sees_memory_that_is_counted_wrongly)
{
    quire_percpu *raw = pool;
    size_t mapped = size_load_relaxed(&raw->account.mapped_bytes);
    size_store_relaxed(&raw->account.mapped_bytes, mapped - 4096);
    EXPECT_EQ(verdict(), "percpu P6") << "mapped_bytes is the sum of all chunks and bookkeeping";
    size_store_relaxed(&raw->account.mapped_bytes, mapped);
}
