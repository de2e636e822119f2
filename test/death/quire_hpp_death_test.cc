// SPDX-License-Identifier: MIT
// Misuse of nodes that quire::slab_allocator has in a thread's cache, or would have: the slab's own lines.
#include <gtest/gtest.h>

#include <vector>

#include <quire/quire.hpp>

#include "model/slab_no_barrier.h"

namespace {

struct Hpp {
    static constexpr const char *name = "hpp";
};
struct HppExact {
    static constexpr const char *name = "hpp";
    static constexpr std::size_t cache_bytes = 0;
};
struct Node {
    long words[6];
};

} // namespace

TEST(QuireHppDeathTest, a_node_that_is_freed_twice)
{
    quire::slab_allocator<Node, Hpp> cached;
    quire::slab_allocator<Node, HppExact> exact;
    Node *one = cached.allocate(1), *other = exact.allocate(1);
    cached.deallocate(one, 1);
    exact.deallocate(other, 1);
    EXPECT_DEATH(cached.deallocate(one, 1), "quire: slab \"hpp\": E1 the element is free already");
    EXPECT_DEATH(exact.deallocate(other, 1), "quire: slab \"hpp\": E1 the element is free already");
}

TEST(QuireHppDeathTest, a_free_node_that_was_written_to_when_it_is_about_to_be_handed_out)
{
    if (barrier_is_refused && QUIRE_NODE_CACHE)
        GTEST_SKIP() << "only a cached element is marked";
    quire::slab_allocator<Node, Hpp> nodes;
    auto use = [&nodes] {
        Node *one = nodes.allocate(1);
        nodes.deallocate(one, 1);
        one->words[0] = 7;
        (void)nodes.allocate(1);
    };
    EXPECT_DEATH(use(), QUIRE_NODE_CACHE ? "quire: slab \"hpp\": E7" : "use-after-poison"); /* AddressSanitizer sees the write */
}

TEST(QuireHppDeathTest, a_small_array_that_is_freed_twice_or_written_to_when_it_is_free)
{
    quire::slab_allocator<char, Hpp> cached;
    quire::slab_allocator<char, HppExact> exact;
    char *one = cached.allocate(40), *other = exact.allocate(40);
    cached.deallocate(one, 40);
    exact.deallocate(other, 40);
    EXPECT_DEATH(cached.deallocate(one, 40), "quire: slab \"hpp\": E1 the element is free already");
    EXPECT_DEATH(exact.deallocate(other, 40), "quire: slab \"hpp\": E1 the element is free already");
    if (barrier_is_refused && QUIRE_NODE_CACHE)
        GTEST_SKIP() << "only a cached element is marked";
    EXPECT_DEATH((one[0] = 7, (void)cached.allocate(40)), QUIRE_NODE_CACHE ? "quire: slab \"hpp\": E7" : "use-after-poison");
}

TEST(QuireHppDeathTest, an_array_that_is_freed_with_another_size_when_the_cache_is_given_back)
{
    quire::slab_allocator<char, Hpp> chars;
    auto free_many = [&chars] {
        std::vector<char *> many;
        for (int i = 0; i < 200; i++)
            many.push_back(chars.allocate(40));
        for (char *each : many)
            chars.deallocate(each, 60);
    };
    EXPECT_DEATH(free_many(), "quire: slab \"hpp\": E4");
}

TEST(QuireHppDeathTest, what_is_no_node_of_the_slab_when_the_cache_is_given_back)
{
    quire::slab_allocator<Node, Hpp> nodes;
    static Node stranger;
    auto free_many = [&nodes] {
        std::vector<Node *> many;
        for (int i = 0; i < 300; i++)
            many.push_back(nodes.allocate(1));
        nodes.deallocate(&stranger, 1);
        for (Node *each : many)
            nodes.deallocate(each, 1);
    };
    EXPECT_DEATH(free_many(), "quire: slab \"hpp\": E2 not an address of a slab");
}

TEST(QuireHppDeathTest, a_block_of_a_resource_that_is_given_back_with_another_size_or_to_another_resource)
{
    quire::slab_resource pool("pool"), other("other");
    void *small = pool.allocate(40), *large = pool.allocate(5000);
    EXPECT_DEATH(pool.deallocate(small, 100), "quire: slab \"pool\": E4 ");
    EXPECT_DEATH(pool.deallocate(small, 5000), "quire: heap \"pool\": E2 ");
    EXPECT_DEATH(pool.deallocate(large, 100), "quire: slab \"pool\": E2 ");
    EXPECT_DEATH(other.deallocate(small, 40), "quire: slab \"other\": E4 ");
    EXPECT_DEATH(other.deallocate(large, 5000), "quire: heap \"other\": E4 ");
    pool.deallocate(small, 40);
    pool.deallocate(large, 5000);
}
