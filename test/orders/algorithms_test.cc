// SPDX-License-Identifier: MIT
/*
 * The parts of the library that have no lock, or are one, in every execution that acquire and release allow; and once more for each of their orders with
 * that one relaxed, which must come to a failure: so each order is needed, and each program can fail.
 *
 * base/bias.c and base/lock.c are the library's own files, with the explorer's atomics in place of base/atomic.h.  The others are the steps of the
 * functions that are named beside them, on fewer and smaller data.
 */
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/bias.h"
#include "explorer.h"
#include "os/os.h"
#define class class_ /* a parameter's name there */
#include "heap/heap_door.h"
#undef class

using namespace orders;

/* ---- what bias.c and lock.c ask of the system ---- */

extern "C" {
int os_barrier_init(void) { return 0; }
void os_barrier(void) { barrier(); }
void os_sleep_ns(uint64_t) { cpu_pause(); }
void os_yield(void) { cpu_pause(); }
void os_futex_wait(uint32_t *word, uint32_t expected, uint64_t) { orders_step(ORDERS_WAIT, ORDERS_RELAXED, word, 0, expected); }
bool os_is_unrepaired(void) { return false; }
void os_repair(void) {}
bool os_futex_wake(uint32_t *word, int)
{
    orders_step(ORDERS_WAKE, ORDERS_RELAXED, word, 0, 0);
    return true;
}
size_t pagemap_noted(void) { return 2; }
bool sanitize_watched(void) { return false; }
bool sanitize_race_watched(void) { return false; }
void sanitize_begin_of_use(const void *) {}
void sanitize_end_of_use(const void *) {}
}

namespace {

/* Sound as it is; and broken without any of its orders, but for those named, each with its reason in the caller's comment. */
void prove(const Program &program, const std::set<std::string> &may_go = {})
{
    Result sound = explore(program);
    EXPECT_EQ(sound.wrong, "");
    EXPECT_GT(sound.outcomes.size(), 0u);
    std::set<std::string> went;
    for (const Site &site : sound.sites)
        if (explore(program, &site).wrong.empty())
            went.insert(name_of(program, site));
    EXPECT_EQ(went, may_go) << "orders that nothing depends on";
    ::testing::Test::RecordProperty("states", int(sound.states));
    ::testing::Test::RecordProperty("orders", int(sound.sites.size()));
}

struct lock the_lock = LOCK_INIT(LOCK_HEAP);
uint32_t data; /* plain: what is protected */

void inside()
{
    write(&data, read(&data) + 1);
}

} // namespace

TEST(Orders, lock_admits_one_at_a_time)
{
    auto user = [] { lock_take(&the_lock), inside(), lock_drop(&the_lock); };
    auto trier = [] {
        if (lock_try(&the_lock))
            inside(), lock_drop(&the_lock);
    };
    prove({{{"lock", &the_lock.word, 0}, {"data", &data, 0}}, {user, user, trier}, nullptr});
}

/* lock_slow() when it has spun enough: nobody sleeps on a lock that is free. */
TEST(Orders, lock_wakes_who_sleeps)
{
    auto user = [] {
        uint32_t expected = 0;
        if (!u32_cas_acquire(&the_lock.word, &expected, 1))
            while (u32_exchange_acquire(&the_lock.word, LOCK_SLEPT_FOR) != 0)
                os_futex_wait(&the_lock.word.word, LOCK_SLEPT_FOR, 0);
        inside();
        lock_drop(&the_lock);
    };
    prove({{{"lock", &the_lock.word, 0}, {"data", &data, 0}}, {user, user, user}, nullptr});
}

TEST(Orders, bias_admits_the_favoured_thread_or_one_visitor)
{
    static struct bias bias = BIAS_INIT(LOCK_HEAP_LOCAL);
    ASSERT_TRUE(bias_works());
    auto favoured = [] {
        for (int i = 0; i < 2; i++) {
            if (bias_enter(&bias)) {
                inside();
                bias_leave(&bias);
            } else {
                bias_take(&bias);
                inside();
                bias_drop(&bias, true);
            }
        }
    };
    auto visitor = [] { bias_visit(&bias), inside(), bias_drop(&bias, true); };
    const std::vector<Word> words = {{"active", &bias.active, 0}, {"open", &bias.open, 1}, {"lock", &bias.lock.word, 0}, {"data", &data, 0}};
    prove({words, {favoured, visitor}, nullptr});
    if (getenv("QUIRE_TEST_LONG")) {
        EXPECT_EQ(explore({words, {favoured, visitor, visitor}, nullptr}).wrong, "");
    }
}

/* heap_door.h: the favoured thread looks at one word of three, all of which the visitor changes. */
TEST(Orders, door_admits_the_favoured_thread_or_one_visitor)
{
    static struct heap_door door = HEAP_DOOR_INIT(LOCK_HEAP_LOCAL);
    ASSERT_TRUE(bias_works());
    static const auto admits = [](int way) {
        bias_approach(&door.bias);
        return way == 0 ? heap_door_admits(&door, 15) : way == 1 ? heap_door_admits_free(&door, 0) : bias_is_open(&door.bias);
    };
    auto favoured = [] {
        for (int way = 0; way < 3; way++) {
            bool is_in = admits(way);
            if (is_in)
                inside();
            bias_leave(&door.bias);
            if (!is_in)
                bias_take(&door.bias), inside(), heap_door_drop(&door, true);
        }
    };
    auto visitor = [] { heap_door_visit(&door), inside(), heap_door_drop(&door, true); };
    prove({{{"active", &door.bias.active, 0}, {"open", &door.bias.open, 1}, {"lock", &door.bias.lock.word, 0}, {"data", &data, 0},
            {"below", &door.below, HEAP_NEAR * HEAP_SLOT_ALIGN}, {"noted", &door.noted, 2}}, {favoured, visitor}, nullptr});
}

/* heap_remote.c: push(), heap_inbox_drain(): what two threads free arrives once, with what they wrote into it. */
TEST(Orders, inbox_brings_each_block_once_and_whole)
{
    static atomic_addr inbox;
    static struct {
        uint32_t link, content;
    } block[2];
    auto free_block = [](unsigned k) {
        return [k] {
            write(&block[k].content, 7 + k);
            uintptr_t head = addr_load_relaxed(&inbox);
            do
                write(&block[k].link, head);
            while (!addr_cas_release(&inbox, &head, k + 1));
        };
    };
    auto owner = [] {
        unsigned arrived = 0;
        while (arrived != 3) {
            if (addr_load_relaxed(&inbox) == 0) {
                cpu_pause();
                continue;
            }
            for (uint64_t p = addr_exchange_acquire(&inbox, 0); p; p = read(&block[p - 1].link)) {
                must(!(arrived & 1u << (p - 1)), "once");
                must(read(&block[p - 1].content) == 7 + p - 1, "what was written");
                arrived |= 1u << (p - 1);
            }
        }
    };
    prove({{{"inbox", &inbox, 0}, {"link 0", &block[0].link, 0}, {"content 0", &block[0].content, 0}, {"link 1", &block[1].link, 0},
            {"content 1", &block[1].content, 0}}, {free_block(0), free_block(1), owner}, nullptr});
}

/* slots.c: slots_depot_put(), slots_depot_take(); a magazine is had by one thread, with its slots, and the glance at the depot without the lock is only one. */
TEST(Orders, depot_hands_a_magazine_to_one)
{
    static atomic_addr depot;
    static uint32_t slots[2], next[2];
    auto put = [](unsigned k) {
        write(&slots[k], 30 + k);
        lock_take(&the_lock);
        write(&next[k], addr_load_relaxed(&depot));
        addr_store_relaxed(&depot, k + 1);
        lock_drop(&the_lock);
    };
    auto take = [] {
        if (addr_load_relaxed(&depot) == 0)
            return;
        lock_take(&the_lock);
        uint64_t mag = addr_load_relaxed(&depot);
        if (mag)
            addr_store_relaxed(&depot, read(&next[mag - 1]));
        lock_drop(&the_lock);
        if (mag) {
            must(read(&slots[mag - 1]) == 30 + mag - 1, "what it held");
            write(&slots[mag - 1], 0);
        }
    };
    prove({{{"depot", &depot, 0}, {"lock", &the_lock.word, 0}, {"slots 0", &slots[0], 0}, {"slots 1", &slots[1], 0}, {"next 0", &next[0], 0}, {"next 1", &next[1], 0}},
           {[put] { put(0), put(1); }, take, take}, nullptr});
}

/* pagemap.c: table_below(), leaf_fill(), pagemap_find_mappable(): nobody sees a table that is not filled in, nor an owner that is not. */
TEST(Orders, page_map_shows_whole_tables_and_whole_owners)
{
    enum { JUNK = 99, TABLE = 8, WIDE = 1 };
    static atomic_addr root, leaf[2];
    static uint32_t header[2];
    auto set = [](unsigned k) {
        return [k] {
            write(&header[k], 5);
            uintptr_t entry = addr_load_acquire(&root);
            if (entry != TABLE) {
                lock_take(&the_lock);
                entry = addr_load_relaxed(&root);
                if (entry != TABLE) {
                    addr_store_relaxed(&leaf[0], entry), addr_store_relaxed(&leaf[1], entry);
                    addr_store_release(&root, TABLE);
                }
                lock_drop(&the_lock);
            }
            addr_store_release(&leaf[k], 16 + k);
            must(addr_load_relaxed(&leaf[k]) == 16 + k, "the owner stays");
        };
    };
    auto find = [] {
        for (unsigned k = 0; k < 2; k++) {
            uintptr_t entry = addr_load_acquire(&root);
            if (entry == TABLE)
                entry = addr_load_acquire(&leaf[k]);
            must(entry == WIDE || entry == 16 + k, "an owner that it has had");
            if (entry != WIDE)
                must(read(&header[k]) == 5, "the owner's header");
        }
    };
    prove({{{"root", &root, WIDE}, {"leaf 0", &leaf[0], JUNK}, {"leaf 1", &leaf[1], JUNK}, {"lock", &the_lock.word, 0}, {"header 0", &header[0], 0}, {"header 1", &header[1], 0}},
           {set(0), set(1), find}, nullptr});
}

/* slab_gate.h, slab_thread.c: visit(), thread_unlock(): a thread inside, by its gate or with its lock, or a visitor; and the gate is open in the end. */
TEST(Orders, slab_gate_admits_its_thread_or_a_visitor)
{
    enum { NONE = 0, CACHE = 1 };
    static atomic_u32 gate, active, closed;
    auto unlock = [] {
        if (u32_load_relaxed(&closed)) {
            u32_store_relaxed(&closed, 0);
            u32_store_release(&gate, CACHE);
        }
        lock_drop(&the_lock);
    };
    auto thread = [unlock] {
        lock_take(&the_lock); /* its magazine was empty */
        inside();
        unlock();
        for (int i = 0; i < 2; i++) {
            u32_store_relaxed(&active, 1);
            bool is_open = u32_load_acquire(&gate) == CACHE; /* a dependency in the source: what is read next is reached by it */
            if (is_open)
                inside();
            atomic_fence_release();
            u32_store_relaxed(&active, 0);
            if (!is_open) {
                lock_take(&the_lock);
                inside();
                unlock();
            }
        }
    };
    auto close = [] { u32_store_relaxed(&closed, 1), u32_store_relaxed(&gate, NONE); };
    auto visitor = [close, unlock] {
        close();
        barrier();
        lock_take(&the_lock);
        u32_store_relaxed(&closed, 1);
        if (u32_load_relaxed(&gate) != NONE)
            close(), barrier();
        while (u32_load_acquire(&active))
            cpu_pause();
        inside();
        unlock();
    };
    prove({{{"gate", &gate, CACHE}, {"active", &active, 0}, {"closed", &closed, 0}, {"lock", &the_lock.word, 0}, {"data", &data, 0}}, {thread, visitor},
           [](const Notes &last) { return last[0] == CACHE; }});
}

/* counter.c: quire_counter_read(), read_slow(): who sees a time sees the sum that was begun then, or a later one (C1, C2). */
TEST(Orders, counter_shows_no_sum_older_than_its_time)
{
    static atomic_u64 read_ns;
    static atomic_addr read_sum;
    auto writer = [](uint64_t now) {
        return [now] {
            uint64_t seen = u64_load_acquire(&read_ns);
            if (seen < now && !(seen & 1) && u64_cas_acquire(&read_ns, &seen, seen | 1)) {
                addr_store_relaxed(&read_sum, now); /* the sum of that time */
                u64_store_release(&read_ns, now);
            }
        };
    };
    auto reader = [] {
        uint64_t seen = u64_load_acquire(&read_ns);
        if (!(seen & 1))
            must(addr_load_relaxed(&read_sum) >= seen, "the sum of that time, or a later one");
    };
    /* The swap's acquire: the load before it had the same store. */
    prove({{{"read_ns", &read_ns, 0}, {"read_sum", &read_sum, 0}}, {writer(2), writer(4), reader}, nullptr}, {"cas read_ns acquire"});
}

/* heap_trim.c, slab_trim.c and reaper.c: who makes work wakes the reaper, or the reaper sees the work before it sleeps. */
TEST(Orders, reaper_does_not_sleep_while_work_is_pending)
{
    enum { TICKING = 1, ASLEEP = 2 };
    static atomic_u32 state, pending;
    auto guest = [] {
        u32_store_relaxed(&pending, 1);
        atomic_fence_seq_cst();
        uint32_t seen = u32_load_relaxed(&state);
        if (seen == ASLEEP && u32_cas_relaxed(&state, &seen, TICKING))
            os_futex_wake(&state.word, 1);
    };
    auto reaper = [] {
        u32_store_release(&state, ASLEEP);
        atomic_fence_seq_cst();
        uint32_t asleep = ASLEEP;
        if (!(u32_load_relaxed(&pending) && u32_cas_relaxed(&state, &asleep, TICKING)))
            while (u32_load_relaxed(&state) == ASLEEP)
                os_futex_wait(&state.word, ASLEEP, 0);
        u32_store_relaxed(&pending, 0); /* the tick */
    };
    /* The store's release is for what the reaper did, which is not part of this. */
    prove({{{"state", &state, TICKING}, {"pending", &pending, 0}}, {guest, reaper}, nullptr}, {"store state release"});
}
