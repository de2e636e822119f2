// SPDX-License-Identifier: MIT
/*
 * slab_operations.h - two owners of pages, and everything a thread may do with a slab, by name.
 *
 * A and B have each allocated the same: pages of eight slots,
 *
 *     page 0      | all live            |      an operation takes OWN_... of its own elements and OTHER_... of the other's
 *     page 1, 2   | one live element    |      freeing it empties the page: one for the owner, one for a stranger
 *     page 3      | two live elements   |      one for each: the second of the two frees empties the page
 */
#pragma once

#include "race/slab_race.h"

constexpr size_t OPERATION_BYTES = 512;
enum { OWN_ONE = 0, OTHER_ONE = 1, OTHER_BATCH = 2, OTHER_BATCH_END = 6, OWN_LONE = 15, OTHER_LONE = 23, OWN_OF_TWO = 24, OTHER_OF_TWO = 25, COUNT = 32 };

struct Owner {
    void *elements[COUNT];
    std::vector<void *> fresh; /* had during the operation */
    void set_up(quire_slab *slab)
    {
        for (void *&p : elements)
            p = quire_slab_alloc(slab), paint(p, OPERATION_BYTES, reinterpret_cast<uintptr_t>(p));
        for (int i = 8; i < COUNT; i++)
            if (i != OWN_LONE && i != OTHER_LONE && i != OWN_OF_TWO && i != OTHER_OF_TWO)
                drop(slab, i);
    }
    void drop(quire_slab *slab, int i)
    {
        EXPECT_TRUE(is_painted(elements[i], OPERATION_BYTES));
        scribble(elements[i], OPERATION_BYTES);
        quire_slab_free(slab, elements[i]);
        elements[i] = nullptr;
    }
    void take(quire_slab *slab, size_t count)
    {
        std::vector<void *> got(count);
        EXPECT_EQ(quire_slab_alloc_batch(slab, got.data(), count), count);
        for (void *p : got)
            paint(p, OPERATION_BYTES, reinterpret_cast<uintptr_t>(p)), fresh.push_back(p);
    }
    void take_and_drop(quire_slab *slab, size_t count)
    {
        take(slab, count);
        for (; count > 0; count--) {
            quire_slab_free(slab, fresh.back());
            fresh.pop_back();
        }
    }
};

struct Operation {
    const char *name;
    void (*run)(quire_slab *slab, Owner &me, Owner &other);
    bool newcomer = false; /* done by a thread that has not used the slab yet */
    bool ends = false;     /* the operation is the end of its thread */
};

inline void drop_batch(quire_slab *slab, Owner &other)
{
    void *batch[OTHER_BATCH_END - OTHER_BATCH + 1];
    for (int i = OTHER_BATCH; i < OTHER_BATCH_END; i++)
        batch[i - OTHER_BATCH] = other.elements[i], other.elements[i] = nullptr;
    batch[OTHER_BATCH_END - OTHER_BATCH] = other.elements[OTHER_LONE];
    other.elements[OTHER_LONE] = nullptr;
    quire_slab_free_batch(slab, batch, OTHER_BATCH_END - OTHER_BATCH + 1);
}
inline int count_one(void *, void *n) { return ++*static_cast<size_t *>(n), 0; }

inline const Operation operations[] = {
    {"alloc", [](quire_slab *slab, Owner &me, Owner &) { me.take(slab, 1); }},
    {"alloc of twenty", [](quire_slab *slab, Owner &me, Owner &) { me.take(slab, 20); }},
    {"free of one's own", [](quire_slab *slab, Owner &me, Owner &) { me.drop(slab, OWN_ONE); }},
    {"free of the last of one's own page", [](quire_slab *slab, Owner &me, Owner &) { me.drop(slab, OWN_LONE); }},
    {"free of one of two", [](quire_slab *slab, Owner &me, Owner &) { me.drop(slab, OWN_OF_TWO); }},
    {"free of another's", [](quire_slab *slab, Owner &, Owner &other) { other.drop(slab, OTHER_ONE); }},
    {"free of the last of another's page", [](quire_slab *slab, Owner &, Owner &other) { other.drop(slab, OTHER_LONE); }},
    {"free of the other's of two", [](quire_slab *slab, Owner &, Owner &other) { other.drop(slab, OTHER_OF_TWO); }},
    {"batch of another's", [](quire_slab *slab, Owner &, Owner &other) { drop_batch(slab, other); }},
    {"trim", [](quire_slab *slab, Owner &, Owner &) { quire_slab_trim(slab); }},
    {"trim by which pages go", [](quire_slab *slab, Owner &me, Owner &) { me.take_and_drop(slab, 24), quire_slab_trim(slab); }},
    {"statistics", [](quire_slab *slab, Owner &, Owner &) { EXPECT_TRUE(adds_up(stats_of(slab))); }},
    {"check", [](quire_slab *slab, Owner &, Owner &) { EXPECT_STREQ(quire_slab_check(slab), nullptr); }},
    {"walk", [](quire_slab *slab, Owner &, Owner &) { size_t n = 0; quire_slab_walk(slab, count_one, &n); }},
    {"defragmenter on", [](quire_slab *slab, Owner &me, Owner &) { quire_slab_set_defrag(slab, 1), me.take(slab, 1); }},
    {"a newcomer's alloc", [](quire_slab *slab, Owner &me, Owner &) { me.take(slab, 10); }, true},
    {"a newcomer's free", [](quire_slab *slab, Owner &, Owner &other) { other.drop(slab, OTHER_LONE); }, true},
    {"end of the thread", [](quire_slab *, Owner &, Owner &) {}, false, true},
};

/* Every page of eight elements, so that pages come and go. */
inline quire_slab_opts eight_a_page(uint32_t flags)
{
    quire_slab_opts opts = {};
    opts.page_bytes_max = 8 * OPERATION_BYTES;
    opts.flags = flags;
    return opts;
}
