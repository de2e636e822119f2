// SPDX-License-Identifier: MIT
// One misuse of an Array Allocator a test, and the exact line it stops the process with.
#include <gtest/gtest.h>

#include <thread>

#include <quire/compat/netdata.h>
#include <quire/quire.h>

#include "support.h"

namespace {
ARAL *array_of(const char *name, size_t size) { return aral_create(name, size, 0, 0, nullptr, nullptr, nullptr, false, false, false); }
} // namespace

class AralDeathTest : public testing::Test {
protected:
    ~AralDeathTest() override { aral_destroy(nodes), aral_destroy(others); }
    ARAL *nodes = array_of("nodes", 64), *others = array_of("others", 64);
    char *p = static_cast<char *>(aral_mallocz(nodes));
};

#define DIES_OF(statement, words) EXPECT_DEATH(statement, "^quire: slab \"nodes\": " words ": address 0x[0-9a-f]+\n")

TEST_F(AralDeathTest, freed_twice_at_once)
{
    aral_freez(nodes, p);
    DIES_OF(aral_freez(nodes, p), "E1 the element is free already");
}

TEST_F(AralDeathTest, freed_twice_by_two_threads)
{
    std::thread([&] { aral_freez(nodes, p); }).join();
    DIES_OF((aral_freez(nodes, p), aral_mallocz(nodes), quire_on_panic(nullptr)), "E1 the element is free already");
}

TEST_F(AralDeathTest, a_marked_element_freed_twice)
{
    void *marked = aral_mallocz_marked(nodes);
    aral_mallocz_marked(nodes); /* the page stays */
    aral_freez(nodes, marked);
    DIES_OF(aral_freez(nodes, marked), "E1 the element is free already");
}

TEST_F(AralDeathTest, freed_after_it_was_reused_and_freed)
{
    aral_mallocz(nodes); /* the page stays */
    aral_freez(nodes, p);
    void *again[100];
    for (void *&q : again)
        q = aral_mallocz(nodes);
    for (void *q : again)
        aral_freez(nodes, q);
    DIES_OF(aral_freez(nodes, p), "E1 the element is free already");
}

TEST_F(AralDeathTest, freed_into_another_array_of_the_same_size)
{
    EXPECT_DEATH(aral_freez(others, p), "^quire: slab \"others\": E4 an element of another slab: address 0x[0-9a-f]+\n");
}

TEST_F(AralDeathTest, freed_by_an_address_in_the_middle)
{
    DIES_OF(aral_freez(nodes, p + 8), "E3 not where an element begins");
}

TEST_F(AralDeathTest, freed_although_never_allocated)
{
    char local[64];
    DIES_OF(aral_freez(nodes, local), "E2 not an address of a slab");
}

TEST_F(AralDeathTest, an_array_that_cannot_be_made_or_an_element_that_cannot_be_had_names_the_array)
{
    volatile size_t huge = SIZE_MAX;
    EXPECT_DEATH(array_of("huge", huge), "^quire: aral \"huge\": N1 out of memory: address 0x0\n");
    EXPECT_DEATH(array_of(nullptr, huge - 8), "^quire: aral: N1 out of memory: address 0x0\n");
    ARAL *large = array_of("large", size_t(1) << 46); /* AddressSanitizer may have a word before */
    EXPECT_DEATH(aral_mallocz(large), "quire: aral \"large\": N1 out of memory: address 0x[0-9a-f]+\n");
    EXPECT_DEATH(aral_callocz(large), "quire: aral \"large\": N1 out of memory: address 0x[0-9a-f]+\n");
    EXPECT_DEATH(aral_mallocz_marked(large), "quire: aral \"large\": N1 out of memory: address 0x[0-9a-f]+\n");
    EXPECT_DEATH(aral_callocz_marked(large), "quire: aral \"large\": N1 out of memory: address 0x[0-9a-f]+\n");
    aral_destroy(large);
}

TEST_F(AralDeathTest, destroyed_twice)
{
    ARAL *gone = array_of("gone", 8);
    aral_destroy(gone);
    EXPECT_DEATH(aral_destroy(gone), "^quire: aral: N4 not a live array: address 0x[0-9a-f]+\n");
}

TEST_F(AralDeathTest, destroyed_by_a_pointer_to_something_else)
{
    static long long not_an_array[64];
    EXPECT_DEATH(aral_destroy(reinterpret_cast<ARAL *>(not_an_array)), "^quire: aral: N4 not a live array: address 0x[0-9a-f]+\n");
    EXPECT_DEATH(aral_destroy(reinterpret_cast<ARAL *>(uintptr_t(4096))), "^quire: aral: N4 not a live array: address 0x1000\n") << "it is not looked at";
    EXPECT_DEATH(aral_destroy(reinterpret_cast<ARAL *>(reinterpret_cast<char *>(nodes) + 8)), "^quire: aral: N4 not a live array: address 0x[0-9a-f]+\n");
}

TEST_F(AralDeathTest, released_more_often_than_acquired)
{
    ARAL *shared = aral_by_size_acquire(40);
    EXPECT_DEATH(aral_by_size_release(nodes), "^quire: aral \"nodes\": N5 released more often than acquired: address 0x[0-9a-f]+\n");
    aral_by_size_release(shared);
    EXPECT_DEATH(aral_by_size_release(shared), "^quire: aral: N5 released more often than acquired: address 0x[0-9a-f]+\n");
    ARAL *own = aral_by_size_acquire(5000);
    aral_by_size_release(own);
    EXPECT_DEATH(aral_by_size_release(own), "^quire: aral: N5 released more often than acquired: address 0x[0-9a-f]+\n");
}

TEST_F(AralDeathTest, destroyed_although_others_may_have_acquired_it)
{
    ARAL *shared = aral_by_size_acquire(40);
    EXPECT_DEATH(aral_destroy(shared), "^quire: aral \"by-size-40\": N6 acquired by size, to be released: address 0x[0-9a-f]+\n");
    aral_by_size_release(shared);
}

TEST_F(AralDeathTest, the_panic_hook_gets_the_line)
{
    quire_on_panic([](const char *message, const void *) { fprintf(stderr, "hook: %s\n", message); });
    volatile size_t huge = SIZE_MAX;
    EXPECT_DEATH(array_of("huge", huge), "hook: quire: aral \"huge\": N1 out of memory: address 0x0\n");
    quire_on_panic(nullptr);
}
