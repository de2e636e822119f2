// SPDX-License-Identifier: MIT
/* Whom a local's door lets in by the short way, and when; that it keeps out who must stay outside: orders/algorithms_test.cc. */
#include <gtest/gtest.h>

#include <sys/wait.h>

#include "model/slab_worker.h"
#include "support.h"
#include "unit/heap_scope.h"

#include "unit/heap_inside.h"

namespace {
/* Every way in says the same. */
enum Way { CLOSED, OPEN, MIXED };
Way way(const heap_door &door)
{
    const bool admits[] = {heap_door_admits(&door, 0), heap_door_admits(&door, HEAP_NEAR * HEAP_SLOT_ALIGN - 1), heap_door_admits_free(&door, 0), heap_door_admits_free(&door, pagemap_noted() - 1), bias_is_open(&door.bias)};
    const auto open = std::count(std::begin(admits), std::end(admits), true);
    EXPECT_FALSE(heap_door_admits(&door, HEAP_NEAR * HEAP_SLOT_ALIGN)) << "whose bin may not be ready";
    EXPECT_FALSE(heap_door_admits_free(&door, pagemap_noted())) << "which has no note";
    EXPECT_EQ(door.nothing, 0u) << "which a page without a note leads to";
    return open == 0 ? CLOSED : open == 5 ? OPEN : MIXED;
}
Way open_where_barriers_work()
{
    return bias_works() ? OPEN : CLOSED;
}
/* One allocation, and its end: the calling thread's local of the process's heap afterwards. */
heap_local *used()
{
    quire_heap_free(quire_heap_default(), quire_heap_alloc(quire_heap_default(), 16));
    return heap_tls.self;
}
} // namespace

TEST(HeapDoor, is_closed_until_its_lock_is_dropped_in_favour_of_a_thread)
{
    heap_door door = HEAP_DOOR_INIT(LOCK_FILE);
    EXPECT_EQ(way(door), CLOSED);
    bias_take(&door.bias);
    heap_door_drop(&door, false);
    EXPECT_EQ(way(door), CLOSED);
    bias_take(&door.bias);
    heap_door_drop(&door, true);
    EXPECT_EQ(way(door), open_where_barriers_work());
    EXPECT_FALSE(heap_door_reset(&door));
    EXPECT_EQ(way(door), CLOSED);
}

TEST(HeapDoor, of_threads_without_a_local_is_closed)
{
    EXPECT_EQ(way(heap_door_closed), CLOSED);
    EXPECT_FALSE(heap_door_admits(&heap_local_none.door, 0)) << "who allocates there is told nothing else";
    EXPECT_EQ(way(heap_of_process.home.door), CLOSED);
}

TEST(HeapDoor, is_closed_while_another_visits_and_open_again_behind_it)
{
    heap_local *local = nullptr;
    Worker other;
    other.run([&] { local = used(); });
    ASSERT_NE(local, &heap_local_none);
    EXPECT_EQ(way(local->door), open_where_barriers_work());
    heap_list_lock();
    heap_visit(local);
    EXPECT_EQ(way(local->door), CLOSED);
    heap_release(local);
    heap_list_unlock();
    EXPECT_EQ(way(local->door), open_where_barriers_work());
}

TEST(HeapDoor, of_a_thread_that_has_ended_is_closed)
{
    heap_local *local = nullptr;
    {
        Worker other;
        other.run([&] { local = used(); });
    }
    EXPECT_EQ(way(local->door), CLOSED);
}

/* A child that went the long way for good would be right, and slow: nobody would see it. */
TEST(HeapDoor, is_open_in_the_child_of_a_fork_once_that_has_allocated)
{
    Worker other;
    other.run(used); /* so that the child is not as its parent left it */
    used();
    pid_t child = fork();
    if (child == 0) {
        bool was_closed = heap_tls.self == &heap_local_none;
        used();
        used();
        _exit(!was_closed ? 2 : way(heap_tls.self->door) == open_where_barriers_work() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}
