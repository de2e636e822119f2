// SPDX-License-Identifier: MIT
/*
 * heap_operations.h - two owners of pages, and everything a thread may do with a heap, by name.
 *
 * A and B have each allocated the same: pages of eight slots, some of them freed again, and a large block.  An operation takes OWN_... of its own
 * blocks and OTHER_... of the other's, so that two operations at once never mean the same block.
 */
#pragma once

#include "race/heap_race.h"
#include "race/slab_seam.h"

constexpr size_t HEAP_OPERATION_BYTES = 8192, HEAP_OPERATION_LARGE = 300000;
enum { OWN_FIRST = 0, OWN_END = 8, OTHER_FIRST = 8, OTHER_END = 16, OWN_LATER = 16, OTHER_LATER = 17, HEAP_KEPT = 18, HEAP_COUNT = 20, OWN_LARGE = 20, OTHER_LARGE = 21, HEAP_ALL = 22 };

struct HeapOwner {
    void *blocks[HEAP_ALL];
    std::vector<void *> fresh; /* had during the operation */
    static size_t bytes_of(int i) { return i < HEAP_COUNT ? HEAP_OPERATION_BYTES : HEAP_OPERATION_LARGE; }
    void set_up(quire_heap *heap)
    {
        for (int i = 0; i < HEAP_ALL; i++) {
            blocks[i] = quire_heap_alloc(heap, bytes_of(i));
            heap_paint(blocks[i], bytes_of(i), reinterpret_cast<uintptr_t>(blocks[i]));
        }
    }
    void drop(quire_heap *heap, int i)
    {
        EXPECT_TRUE(heap_is_painted(blocks[i]));
        scribble(blocks[i], 16);
        quire_heap_free(heap, blocks[i]);
        blocks[i] = nullptr;
    }
    void drop_all(quire_heap *heap, int first, int end)
    {
        for (int i = first; i < end; i++)
            if (blocks[i])
                drop(heap, i);
    }
    void take(quire_heap *heap, size_t count, size_t bytes = HEAP_OPERATION_BYTES)
    {
        while (count-- > 0) {
            void *p = quire_heap_alloc(heap, bytes);
            ASSERT_NE(p, nullptr);
            heap_paint(p, bytes, reinterpret_cast<uintptr_t>(p));
            fresh.push_back(p);
        }
    }
    /* The owner's block becomes one of `me`, whose thread this is. */
    void resize(quire_heap *heap, int i, size_t bytes, HeapOwner &me)
    {
        size_t had = heap_bytes_of(blocks[i]);
        void *p = quire_heap_realloc(heap, blocks[i], bytes);
        ASSERT_NE(p, nullptr);
        EXPECT_TRUE(heap_is_painted(p, std::min(had, bytes)));
        blocks[i] = nullptr;
        heap_paint(p, bytes, reinterpret_cast<uintptr_t>(p));
        me.fresh.push_back(p);
    }
};

/* What is tried at the moment, for who fails or panics. */
inline char heap_at_work[200];

struct HeapOperation {
    const char *name;
    void (*run)(quire_heap *heap, HeapOwner &me, HeapOwner &other);
    bool newcomer = false; /* done by a thread that has not used the heap yet */
    bool ends = false;     /* the operation is the end of its thread */
};

inline const HeapOperation heap_operations[] = {
    {"alloc", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.take(heap, 1); }},
    {"alloc of ten", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.take(heap, 10); }},
    {"alloc of a new size", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.take(heap, 2, 100); }},
    {"free of one's own", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.drop(heap, OWN_LATER); }},
    {"free of a page of one's own", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.drop_all(heap, OWN_FIRST, OWN_END); }},
    {"free of another's", [](quire_heap *heap, HeapOwner &, HeapOwner &other) { other.drop(heap, OTHER_LATER); }},
    {"free of a page of another's", [](quire_heap *heap, HeapOwner &, HeapOwner &other) { other.drop_all(heap, OTHER_FIRST, OTHER_END); }},
    {"resize", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.resize(heap, OWN_LATER, 20000, me); }},
    {"resize of another's", [](quire_heap *heap, HeapOwner &me, HeapOwner &other) { other.resize(heap, OTHER_LATER, 20000, me); }},
    {"alloc of a large one", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.take(heap, 1, HEAP_OPERATION_LARGE); }},
    {"free of a large one", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.drop(heap, OWN_LARGE); }},
    {"free of another's large one", [](quire_heap *heap, HeapOwner &, HeapOwner &other) { other.drop(heap, OTHER_LARGE); }},
    {"growth of a large one", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.resize(heap, OWN_LARGE, 2000000, me); }},
    {"trim", [](quire_heap *heap, HeapOwner &, HeapOwner &) { quire_heap_trim(heap); }},
    {"statistics", [](quire_heap *heap, HeapOwner &, HeapOwner &) { EXPECT_TRUE(adds_up(stats_of(heap))); }},
    {"check", [](quire_heap *heap, HeapOwner &, HeapOwner &) { EXPECT_STREQ(quire_heap_check(heap), nullptr) << heap_at_work; }},
    {"walk", [](quire_heap *heap, HeapOwner &, HeapOwner &) { heap_visited(heap); }},
    {"a newcomer's alloc", [](quire_heap *heap, HeapOwner &me, HeapOwner &) { me.take(heap, 3); }, true},
    {"a newcomer's free", [](quire_heap *heap, HeapOwner &, HeapOwner &other) { other.drop(heap, OTHER_LATER); }, true},
    {"end of the thread", [](quire_heap *, HeapOwner &, HeapOwner &) {}, false, true},
};

/* As A does it, stopping at its step k. */
class HeapArmed {
public:
    static void set_up_for(const HeapOperation &op, quire_heap *heap, HeapOwner &me)
    {
        if (op.newcomer)
            std::thread([&] { me.set_up(heap); }).join();
        else
            me.set_up(heap);
    }
    static void run(const HeapOperation &op, int k, quire_heap *heap, HeapOwner &me, HeapOwner &other)
    {
        if (op.ends)
            watch_end();
        Seam::arm(k);
        op.run(heap, me, other);
        if (!op.ends)
            Seam::disarm();
    }

private:
    /* Destructors of this key run in every round there is: the last one disarms. */
    static inline pthread_key_t end_key;
    static void at_end(void *rounds_left)
    {
        if (uintptr_t left = reinterpret_cast<uintptr_t>(rounds_left) - 1)
            pthread_setspecific(end_key, reinterpret_cast<void *>(left));
        else
            Seam::disarm();
    }
    static void watch_end()
    {
        static const int made = pthread_key_create(&end_key, at_end);
        EXPECT_EQ(made, 0);
        pthread_setspecific(end_key, reinterpret_cast<void *>(uintptr_t(PTHREAD_DESTRUCTOR_ITERATIONS)));
    }
};
