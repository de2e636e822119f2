// SPDX-License-Identifier: MIT
/*
 * percpu_operations.h - two owners of chunks, and everything a thread may do with a pool, by name.
 *
 * A and B have each allocated the same; eight objects fill a chunk:
 *
 *     chunk 0     | all live          |      an operation takes OWN_... of its own objects and OTHER_... of the other's
 *     chunk 1, 2  | one live object   |      freeing it empties the chunk: one for the owner, one for a stranger
 *     beside      | MANY small ones   |      more than an inbox holds
 */
#pragma once

#include "race/percpu_race.h"

constexpr size_t PERCPU_OPERATION_BYTES = 1000, MANY = 70;
enum { PERCPU_OWN_ONE = 0, PERCPU_OTHER_ONE = 1, PERCPU_OWN_LONE = 15, PERCPU_OTHER_LONE = 23, OWNED = 24 };

struct PercpuOwner {
    PercpuObject objects[OWNED];
    std::vector<PercpuObject> many, fresh; /* fresh: had during the operation */

    static PercpuObject make(quire_percpu *pool, size_t bytes, uint64_t stamp, bool nowait = false)
    {
        PercpuObject object = {};
        object.bytes = bytes;
        object.ref = nowait ? quire_percpu_alloc_nowait(pool, bytes, 0) : quire_percpu_alloc(pool, bytes, 0);
        if (is_none(object.ref)) {
            EXPECT_TRUE(nowait);
            return object;
        }
        EXPECT_TRUE(is_zero(pool, object));
        paint(pool, object, unsigned(stamp % quire_percpu_cpus(pool)), stamp);
        add_to(pool, object, intptr_t(stamp));
        return object;
    }
    void set_up(quire_percpu *pool)
    {
        for (uint64_t i = 0; i < OWNED; i++)
            objects[i] = make(pool, PERCPU_OPERATION_BYTES, i + 1);
        for (uint64_t i = 0; i < MANY; i++)
            many.push_back(make(pool, 8, i + 1));
        for (int i = 8; i < OWNED; i++)
            if (i != PERCPU_OWN_LONE && i != PERCPU_OTHER_LONE)
                drop(pool, i);
    }
    void drop(quire_percpu *pool, int i) { let_go(pool, objects[i]); }
    void drop_many(quire_percpu *pool)
    {
        for (PercpuObject &object : many)
            let_go(pool, object);
    }
    void take(quire_percpu *pool, size_t bytes, unsigned count, bool nowait = false)
    {
        for (unsigned i = 0; i < count; i++)
            fresh.push_back(make(pool, bytes, 1000 + i, nowait));
    }
    /* Verified, freed and forgotten. */
    static void let_go(quire_percpu *pool, PercpuObject &object)
    {
        if (is_none(object.ref))
            return;
        EXPECT_TRUE(is_as_left(pool, object)) << object.bytes << " bytes at " << object.ref.bits << " have another owner";
        quire_percpu_free(pool, object.ref);
        object.ref = {0};
    }
    template <class Fn> void each(const Fn &fn)
    {
        for (PercpuObject &object : objects)
            fn(object);
        for (PercpuObject &object : many)
            fn(object);
        for (PercpuObject &object : fresh)
            fn(object);
    }
};

struct PercpuOperation {
    const char *name;
    void (*run)(quire_percpu *pool, PercpuOwner &me, PercpuOwner &other);
    bool newcomer = false; /* done by a thread that has not used the pool yet */
    bool ends = false;     /* the operation is the end of its thread */
};

inline void look_at(quire_percpu *pool)
{
    PercpuStats s = stats_of(pool);
    EXPECT_EQ(s.mapped_bytes, s.live_bytes + s.free_bytes + s.meta_bytes);
}

inline const PercpuOperation percpu_operations[] = {
    {"alloc", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { me.take(pool, 40, 1); }},
    {"alloc of a new chunk", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { me.take(pool, stats_of(pool).unit_bytes, 1); }},
    {"nowait", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { me.take(pool, 600, 3, true); }},
    {"free of one's own", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { me.drop(pool, PERCPU_OWN_ONE); }},
    {"free of the last of one's own chunk", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { me.drop(pool, PERCPU_OWN_LONE); }},
    {"free of another's", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) { other.drop(pool, PERCPU_OTHER_ONE); }},
    {"free of the last of another's chunk", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) { other.drop(pool, PERCPU_OTHER_LONE); }},
    {"free of more than an inbox holds", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) { other.drop_many(pool); }},
    {"trim", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { quire_percpu_trim(pool); }},
    {"statistics", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { look_at(pool); }},
    {"check", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &) { EXPECT_STREQ(quire_percpu_check(pool), nullptr); }},
    {"a newcomer's alloc", [](quire_percpu *pool, PercpuOwner &me, PercpuOwner &) { me.take(pool, 40, 3); }, true},
    {"a newcomer's free", [](quire_percpu *pool, PercpuOwner &, PercpuOwner &other) { other.drop(pool, PERCPU_OTHER_LONE); }, true},
    {"end of the thread", [](quire_percpu *, PercpuOwner &, PercpuOwner &) {}, false, true},
};

/* Eight of the operations' objects a chunk, and a reserve, so that everything happens. */
inline quire_percpu_opts eight_a_chunk()
{
    quire_percpu_opts opts = small_units();
    opts.reserve_bytes = os_page_bytes() / 4;
    return opts;
}

enum { CHILD_IS_GOOD = 0, CHILD_CHECK_FAILED = 10, CHILD_SAW_OTHERS_PAINT, CHILD_STATS_WRONG, CHILD_HAD_NO_MEMORY, CHILD_OWNS_NOT };

/* ---- the child of a fork in the middle of an operation ---- */

/* What an operation was at is lost or whole; everything else is as it was. */
inline bool is_touched_by_operation(int i, bool others) { return others ? i == PERCPU_OTHER_ONE || i == PERCPU_OTHER_LONE : i == PERCPU_OWN_ONE || i == PERCPU_OWN_LONE; }

inline int child_of_an_operation(quire_percpu *pool, PercpuOwner &a, PercpuOwner &b)
{
    if (quire_percpu_check(pool)) {
        fprintf(stderr, "in the child: %s\n", quire_percpu_check(pool));
        return CHILD_CHECK_FAILED;
    }
    PercpuStats s = stats_of(pool);
    if (s.mapped_bytes != s.live_bytes + s.free_bytes + s.meta_bytes)
        return CHILD_STATS_WRONG;
    int found = CHILD_IS_GOOD;
    for (PercpuOwner *owner : {&a, &b})
        for (int i = 0; i < OWNED; i++) {
            PercpuObject &object = owner->objects[i];
            if (is_none(object.ref) || is_touched_by_operation(i, owner == &b))
                continue;
            if (!quire_percpu_owns(pool, object.ref))
                return CHILD_OWNS_NOT;
            if (!is_as_left(pool, object))
                found = CHILD_SAW_OTHERS_PAINT;
            quire_percpu_free(pool, object.ref);
        }
    for (int i = 0; i < 300; i++) {
        quire_percpu_ref ref = quire_percpu_alloc(pool, 100, 0);
        if (is_none(ref))
            return CHILD_HAD_NO_MEMORY;
        if (quire_percpu_sum(pool, ref) != 0)
            return CHILD_SAW_OTHERS_PAINT;
        quire_percpu_add(pool, ref, i);
    }
    quire_percpu_trim(pool);
    if (quire_percpu_check(pool))
        return CHILD_CHECK_FAILED;
    quire_percpu_destroy(pool);
    return found;
}
