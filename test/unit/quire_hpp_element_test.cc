// SPDX-License-Identifier: MIT
/* quire/quire.hpp: classes with a new and delete of their own, and owners of a class's base. */
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <quire/quire.hpp>

namespace {

TEST(QuireHppElements, an_object_of_the_processs_heap_with_a_wide_alignment_is_aligned)
{
    constexpr std::size_t wide = 1 << 20;
    struct alignas(wide) element : quire::heap_element {
        char bytes[wide];
    };
    std::vector<std::unique_ptr<element>> elements;
    for (int i = 0; i < 5; i++) {
        elements.emplace_back(new element);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(elements.back().get()) % wide, 0u);
        EXPECT_TRUE(quire_heap_owns(quire_heap_default(), elements.back().get()));
    }
}

TEST(QuireHppElements, an_object_of_a_group_of_slabs_with_a_wide_alignment_is_aligned)
{
    struct element : quire::slab_element<80, quire::nodes> {
        alignas(64) char bytes[64];
    };
    std::vector<std::unique_ptr<element>> elements;
    for (int i = 0; i < 20; i++) {
        elements.emplace_back(new element);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(elements.back().get()) % 64, 0u);
        EXPECT_TRUE(quire_heap_owns(quire_heap_default(), elements.back().get()));
    }
}

/* With its own new and delete a class hides the program's, also those that it does not have. */
template <class Base> struct Told : Base {
    explicit Told(bool throws)
    {
        if (throws)
            throw std::runtime_error("told to");
    }
};
template <class Base> struct alignas(64) ToldWide : Told<Base> {
    using Told<Base>::Told;
};
struct Quiet {
    static constexpr const char *name = "quiet";
    static constexpr std::size_t cache_bytes = 0;
};

std::size_t live_blocks()
{
    return quire::detail::snapshot<quire::heap_stats, const quire_heap>(quire_heap_stats, quire_heap_default()).live_blocks;
}

template <class T> void new_without_exceptions()
{
    std::unique_ptr<T> one(new (std::nothrow) T(false));
    ASSERT_NE(one, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one.get()) % alignof(T), 0u);
    EXPECT_THROW(delete new (std::nothrow) T(true), std::runtime_error);
}

TEST(QuireHppElements, a_class_with_its_own_new_has_the_one_that_gives_null_too)
{
    std::size_t before = live_blocks();
    new_without_exceptions<Told<quire::heap_element>>();
    new_without_exceptions<ToldWide<quire::heap_element>>();
    new_without_exceptions<Told<quire::slab_element<16, Quiet>>>();
    new_without_exceptions<ToldWide<quire::slab_element<16, Quiet>>>();
    struct large : Told<quire::slab_element<16, Quiet>> {
        using Told::Told;
        char bytes[100];
    };
    new_without_exceptions<large>();
    EXPECT_EQ(live_blocks(), before);
}

struct First {
    virtual ~First() = default;
    int first = 1;
};
struct Second {
    virtual ~Second() = default;
    int second = 2;
};
struct Both : First, Second {
    std::string text = "longer than what fits into a string itself";
};

TEST(QuireHppElements, an_owner_of_a_base_gives_back_the_whole_object)
{
    quire::heap heap;
    for (int i = 0; i < 3; i++) {
        quire::heap_ptr<Second> by_second = heap.make_unique<Both>();
        EXPECT_EQ(by_second->second, 2);
        quire::heap_ptr<First> by_first = heap.make_unique<Both>();
        quire::heap_ptr<const Both> constant = heap.make_unique<Both>();
        Second *base = heap.make<Both>();
        heap.destroy(base);
        EXPECT_EQ(heap.stats().live_blocks, 3u);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

} // namespace

TEST(QuireHppElements, an_object_that_never_changes_is_made_and_ended_as_others_are)
{
    quire::heap heap;
    quire::arena arena;
    quire::slab<const std::string> slab;
    const std::string text(100, 'x');
    auto of_heap = heap.make_unique<const std::string>(text);
    auto of_arena = arena.make_unique<const std::string>(text);
    const std::string *until_the_end = arena.make<const std::string>(text); /* the arena ends what it owns: LeakSanitizer looks */
    auto of_slab = slab.make_unique(text);
    const std::string *by_hand = slab.make(text);
    EXPECT_TRUE(*of_heap == text && *of_arena == text && *until_the_end == text && *of_slab == text && *by_hand == text);
    slab.destroy(by_hand);
}
