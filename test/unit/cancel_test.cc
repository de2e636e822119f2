// SPDX-License-Identifier: MIT
/* No function is a point of cancellation: a thread that was cancelled goes through all of them, with locks that others need. */
#include <gtest/gtest.h>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <quire/arena.h>
#include <quire/heap.h>
#include <quire/percpu.h>
#include <quire/slab.h>
#include <quire/source.h>
#include <quire/stats.h>

#include "source_kit.h"

namespace {
/* Pages in files: each is opened, reserved and removed. */
void use_a_slab_in_files(const char *directory)
{
    quire_source *source = quire_source_file(directory, "cancelled");
    ASSERT_NE(source, nullptr);
    quire_slab_opts opts = {};
    opts.source = source;
    quire_slab *slab = quire_slab_create(64, &opts);
    std::vector<void *> elements;
    for (int i = 0; i < 20000; i++)
        elements.push_back(quire_slab_alloc(slab));
    for (void *each : elements)
        quire_slab_free(slab, each);
    quire_slab_destroy(slab);
    quire_source_destroy(source);
}

void use_the_others(int out)
{
    EXPECT_EQ(quire_stats_write(out, QUIRE_STATS_JSON), 0);
    quire_heap *heap = quire_heap_create(nullptr);
    for (size_t bytes : {size_t(16), size_t(5000), size_t(1) << 20, size_t(64) << 20})
        quire_heap_free(heap, quire_heap_alloc(heap, bytes));
    quire_heap_trim(heap);
    quire_heap_destroy(heap);
    quire_percpu *pool = quire_percpu_create(nullptr);
    quire_percpu_destroy(pool);
    quire_arena *arena = quire_arena_create(nullptr);
    quire_arena_alloc(arena, 1 << 20);
    quire_arena_destroy(arena);
}

struct Task {
    const char *directory;
    int out;
    bool is_done;
};

void *main_of_one_that_is_cancelled(void *arg)
{
    Task *task = static_cast<Task *>(arg);
    pthread_cancel(pthread_self());
    use_a_slab_in_files(task->directory);
    use_the_others(task->out);
    task->is_done = true;
    pthread_testcancel();
    return nullptr;
}
} // namespace

TEST(Cancel, a_thread_that_was_cancelled_comes_back_from_every_call)
{
    Directory directory;
    Task task = {directory.path.c_str(), open("/dev/null", O_WRONLY), false};
    pthread_t thread;
    void *result = nullptr;
    ASSERT_EQ(pthread_create(&thread, nullptr, main_of_one_that_is_cancelled, &task), 0);
    pthread_join(thread, &result);
    close(task.out);
    EXPECT_EQ(result, PTHREAD_CANCELED);
    ASSERT_TRUE(task.is_done);
    EXPECT_EQ(directory.list(), Names{});
}
