// SPDX-License-Identifier: MIT
/* Magazines of one thread: how many it keeps, and how many go at once. */
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wextra"
#include "slots/slots.h"
#pragma GCC diagnostic pop

namespace {

const size_t slot_bytes = 64;
const uint32_t own_max = 100;

/* A cache whose full magazines go to, and come from, a list here. */
class Cache {
public:
    Cache()
    {
        slots_setup();
        small = room_for_one();
        small->is_small = true;
        slots_set(&cache, small);
        magazine *large = fresh();
        slots_set(&cache, large);
    }

    /* Frees so many slots, as an allocator's long way does it. */
    void free(size_t count)
    {
        for (size_t i = 0; i < count; i++) {
            if (reinterpret_cast<atomic_addr *>(addr_load_relaxed(&cache.top)) >= cache.end && !slots_return(&cache, own_max)) {
                slots_beyond beyond = {[](magazine *full, void *self) { static_cast<Cache *>(self)->give(full); }, [](void *self) { return static_cast<Cache *>(self)->fresh(); }, this};
                slots_overflow(&cache, own_max, &beyond, small);
            }
            auto *top = reinterpret_cast<atomic_addr *>(addr_load_relaxed(&cache.top));
            addr_store_relaxed(top, ++last * slot_bytes);
            addr_store_relaxed(&cache.top, reinterpret_cast<uintptr_t>(top + 1));
        }
    }

    /* And allocates. */
    void alloc(size_t count)
    {
        for (size_t i = 0; i < count; i++) {
            if (slots_current(&cache) == 0 && !slots_turn(&cache)) {
                magazine *mag = depot ? depot : filled();
                depot = mag == depot ? mag->next : depot;
                magazine *empty = cache.cur;
                slots_set(&cache, mag);
                magazine_push(&cache.spare, empty);
                slots_had(&cache);
                takes++;
            }
            addr_store_relaxed(&cache.top, addr_load_relaxed(&cache.top) - sizeof(atomic_addr));
        }
    }

    size_t slots() const { return slots_count(&cache) + magazines_count(depot); }

    slot_cache cache = {};
    size_t gives = 0, takes = 0, most_at_once = 0;

private:
    magazine *room_for_one()
    {
        memory.push_back(std::make_unique<char[]>(sizeof(magazine) + MAGAZINE_SLOTS * sizeof(atomic_addr)));
        auto *mag = reinterpret_cast<magazine *>(memory.back().get());
        magazine_init(mag, MAGAZINE_SLOTS);
        return mag;
    }
    magazine *fresh()
    {
        magazine *spare = magazine_pop(&cache.spare);
        return spare ? spare : room_for_one();
    }
    magazine *filled()
    {
        magazine *mag = room_for_one();
        while (mag->count < MAGAZINE_SLOTS)
            addr_store_relaxed(&magazine_slots(mag)[mag->count++], ++last * slot_bytes);
        return mag;
    }
    void give(magazine *full)
    {
        size_t at_once = 0;
        for (magazine *next; full; full = next, at_once++) {
            next = full->next;
            EXPECT_EQ(full->count, uint32_t(MAGAZINE_SLOTS));
            magazine_push(&depot, full);
        }
        most_at_once = std::max(most_at_once, at_once);
        gives++;
    }

    magazine *small, *depot = nullptr;
    uintptr_t last = 0;
    std::vector<std::unique_ptr<char[]>> memory;
};

} // namespace

/* What is fetched ahead of a magazine's last slots stands in front of its first. */
TEST(Slots, in_front_of_the_first_slot_stand_addresses_that_are_mapped)
{
    Cache c;
    c.free(4 * MAGAZINE_SLOTS);
    std::vector<const magazine *> all{c.cache.cur, c.cache.prev};
    for (const magazine *mag = c.cache.own; mag; mag = mag->next)
        all.push_back(mag);
    size_t seen = 0;
    for (const magazine *mag : all)
        for (int i = 1; mag && i <= MAGAZINE_BELOW; i++, seen++)
            EXPECT_EQ(addr_load_relaxed(magazine_slots(mag) - i), uintptr_t(&slots_nothing)) << i;
    EXPECT_GE(seen, size_t(MAGAZINE_BELOW));
}

TEST(Slots, of_large_ones_a_thread_keeps_little_for_itself)
{
    const uint32_t most = 128;
    for (size_t bytes : {16u, 512u, 2048u})
        EXPECT_GE(slots_own_max(bytes, most) * slots_magazine_bytes(bytes), std::min(size_t(16) << 20, most * slots_magazine_bytes(bytes))) << bytes;
    for (size_t bytes : {2304u, 4096u, 32768u})
        EXPECT_EQ(slots_own_max(bytes, most), 1u) << bytes;
}

TEST(Slots, a_thread_that_only_frees_keeps_one_magazine)
{
    Cache c;
    c.free(100 * MAGAZINE_SLOTS);
    EXPECT_EQ(c.gives, 99u);
    EXPECT_EQ(c.most_at_once, 1u);
    EXPECT_EQ(c.slots(), 100u * MAGAZINE_SLOTS);
    EXPECT_EQ(c.cache.owns, 0u);
}

TEST(Slots, where_others_are_at_the_lock_it_gives_four_at_once)
{
    Cache c;
    slots_batch(&c.cache, slot_bytes);
    c.free(100 * MAGAZINE_SLOTS);
    EXPECT_LE(c.gives, 25u);
    EXPECT_EQ(c.most_at_once, 4u);
    EXPECT_LE(c.cache.owns, 3u);
    EXPECT_EQ(c.slots(), 100u * MAGAZINE_SLOTS) << "none is lost on the way";
}

TEST(Slots, what_is_large_goes_one_by_one)
{
    Cache c;
    slots_batch(&c.cache, 1000);
    c.free(10 * MAGAZINE_SLOTS);
    EXPECT_EQ(c.most_at_once, 1u);
}

TEST(Slots, what_a_thread_frees_and_allocates_in_turns_stops_going_elsewhere)
{
    for (bool batch : {false, true}) {
        Cache c;
        if (batch)
            slots_batch(&c.cache, slot_bytes);
        auto turn = [&] {
            c.alloc(20 * MAGAZINE_SLOTS + 5);
            c.free(20 * MAGAZINE_SLOTS + 5);
        };
        turn();
        c.cache.demand = c.cache.owns - 1; /* one too few: what it gives it misses, and gives again */
        for (int i = 0; i < 3; i++)
            turn();
        size_t gives = c.gives, takes = c.takes;
        for (int i = 0; i < 20; i++)
            turn();
        EXPECT_EQ(c.gives, gives);
        EXPECT_EQ(c.takes, takes);
    }
}
