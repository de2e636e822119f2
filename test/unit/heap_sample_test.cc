// SPDX-License-Identifier: MIT
/* Blocks that a heap which is not secure makes as if it were (heap_sample.c), while another thread is at them: nobody waits. */
#include <gtest/gtest.h>

#include "model/slab_worker.h"
#include "unit/heap_scope.h"

#include "unit/heap_inside.h"

namespace {

/* Another thread makes or frees a sample, for as long as this lives. */
class Busy {
public:
    explicit Busy(quire_heap *heap) : sample(reinterpret_cast<heap_local *>(addr_load_acquire(&heap->sample)))
    {
        other.run([this] { lock_take(&sample->door.bias.lock); });
    }
    ~Busy()
    {
        other.run([this] { lock_drop(&sample->door.bias.lock); });
    }

private:
    heap_local *sample;
    Worker other;
};

bool is_sampled(const void *p)
{
    return heap_page_is_secure(heap_page_find(p));
}

void sample(quire_heap *heap)
{
    heap->samples = true;
}

} // namespace

#define SKIP_WATCHED()       \
    if (memory_is_watched()) \
    GTEST_SKIP() << "it samples nothing there"

TEST(HeapSample, a_block_made_meanwhile_is_as_all_others)
{
    SKIP_WATCHED();
    Heap heap;
    sample(heap);
    char *before = heap.alloc(100), *meanwhile;
    {
        Busy busy(heap);
        meanwhile = heap.alloc(100);
    }
    char *after = heap.alloc(300); /* of a size whose short way is not open yet */
    EXPECT_TRUE(is_sampled(before));
    EXPECT_FALSE(is_sampled(meanwhile));
    EXPECT_TRUE(is_sampled(after));
    heap.free({before, meanwhile, after});
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapSample, one_freed_meanwhile_arrives_later)
{
    SKIP_WATCHED();
    Heap heap;
    sample(heap);
    Blocks blocks = heap.alloc_many(10, 100);
    {
        Busy busy(heap);
        for (void *p : blocks)
            quire_heap_free(heap, p);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
    EXPECT_TRUE(heap.walk().empty());
}

/* One that is freed while another thread is at the samples; then `after` is done to it. */
template <typename After> void freed_meanwhile(const After &after)
{
    Heap heap;
    sample(heap);
    char *p = heap.alloc(100);
    {
        Busy busy(heap);
        quire_heap_free(heap, p);
    }
    after(heap, p);
}

TEST(HeapSampleDeathTest, one_freed_meanwhile_and_again_is_refused)
{
    SKIP_WATCHED();
    EXPECT_DEATH(freed_meanwhile([](quire_heap *heap, char *p) { quire_heap_free(heap, p); }), "E1 the block is free already");
    EXPECT_DEATH(freed_meanwhile([](quire_heap *heap, char *p) {
                     Busy busy(heap);
                     quire_heap_free(heap, p);
                 }),
                 "E1 the block is free already");
}

TEST(HeapSampleDeathTest, one_freed_meanwhile_and_written_to_is_refused)
{
    SKIP_WATCHED();
    EXPECT_DEATH(freed_meanwhile([](quire_heap *heap, char *p) {
                     memset(p, 'x', 100);
                     (void)heap_stats(heap);
                 }),
                 "E6 a freed block was written to");
}
