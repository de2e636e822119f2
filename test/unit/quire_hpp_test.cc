// SPDX-License-Identifier: MIT
/* quire/quire.hpp: the handles own and throw as the header says; containers over each allocator do what they do with new and delete. */
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory_resource>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <quire/quire.hpp>

namespace {

/* ---- what the standard asks for ---- */

template <class A> constexpr bool is_allocator()
{
    using traits = std::allocator_traits<A>;
    using other = typename traits::template rebind_alloc<char>;
    static_assert(std::is_same_v<typename traits::template rebind_alloc<typename A::value_type>, A>);
    static_assert(std::is_same_v<typename std::allocator_traits<other>::template rebind_alloc<typename A::value_type>, A>);
    static_assert(std::is_same_v<typename traits::pointer, typename A::value_type *>);
    static_assert(std::is_nothrow_copy_constructible_v<A> && std::is_nothrow_move_constructible_v<A> && std::is_nothrow_copy_assignable_v<A>);
    static_assert(std::is_nothrow_constructible_v<A, const other &> && std::is_nothrow_constructible_v<other, const A &>);
    static_assert(std::is_same_v<decltype(std::declval<A &>().allocate(1)), typename A::value_type *>);
    static_assert(noexcept(std::declval<A &>().deallocate(nullptr, 1)));
    static_assert(noexcept(std::declval<const A &>() == std::declval<const other &>()) && noexcept(std::declval<const A &>() != std::declval<const A &>()));
    return true;
}
static_assert(is_allocator<quire::arena_allocator<int>>() && is_allocator<quire::heap_allocator<long>>());
static_assert(is_allocator<quire::slab_allocator<int>>() && is_allocator<quire::slab_allocator<std::string>>());
static_assert(std::allocator_traits<quire::slab_allocator<int>>::is_always_equal::value);
static_assert(!std::allocator_traits<quire::arena_allocator<int>>::is_always_equal::value);
static_assert(!std::is_default_constructible_v<quire::arena_allocator<int>> && sizeof(std::list<int, quire::slab_allocator<int>>) == sizeof(std::list<int>));

template <class R> constexpr bool is_resource = std::is_base_of_v<std::pmr::memory_resource, R> && std::is_final_v<R>;
static_assert(is_resource<quire::arena_resource> && is_resource<quire::slab_resource> && is_resource<quire::heap_resource>);

template <class H> constexpr bool is_owner = std::is_nothrow_move_constructible_v<H> && std::is_nothrow_move_assignable_v<H> && !std::is_copy_constructible_v<H> &&
                                             !std::is_copy_assignable_v<H> && std::is_nothrow_destructible_v<H> && std::is_default_constructible_v<H>;
static_assert(is_owner<quire::arena> && is_owner<quire::slab<int>> && is_owner<quire::heap> && is_owner<quire::percpu_pool>);
static_assert(is_owner<quire::percpu<long>> && is_owner<quire::counter> && is_owner<quire::histogram> && is_owner<quire::histogram_snapshot>);
static_assert(!std::is_copy_constructible_v<quire::arena_scope> && !std::is_move_constructible_v<quire::arena_scope>);
static_assert(sizeof(quire::arena) == sizeof(void *) && sizeof(quire::slab<int>::unique_ptr) == 2 * sizeof(void *) && sizeof(quire::arena_ptr<int>) == sizeof(void *));

/* ---- kit ---- */

bool no_more_blocks(void *, std::size_t) { return false; }
template <class T> bool no_more(T &)
{
    return false;
}

/* Counts itself, and throws from its constructor when told. */
struct Noisy {
    static inline int alive = 0, throw_at = -1, made = 0;
    std::string text = "longer than what fits into a string itself";
    int value;
    Noisy(int v) : value(v)
    {
        if (made++ == throw_at)
            throw std::runtime_error("told to");
        alive++;
    }
    Noisy(const Noisy &other) : Noisy(other.value) {}
    Noisy &operator=(const Noisy &) = default;
    ~Noisy() { alive--; }
    friend bool operator<(const Noisy &a, const Noisy &b) { return a.value < b.value; }
    static void begin(int at)
    {
        alive = made = 0;
        throw_at = at;
    }
};

struct alignas(64) Wide {
    long value = 1;
};

/* Groups of slabs for single tests, so that what they hold can be counted. */
struct exact_group {
    static constexpr const char *name = "exact";
    static constexpr std::size_t cache_bytes = 0;
};

unsigned chance = 1;
int roll(int n)
{
    chance = chance * 1664525u + 1013904223u;
    return static_cast<int>(chance >> 8) % n;
}

template <class T> using exact = quire::slab_allocator<T, exact_group>;
template <class T> using pmr = std::pmr::polymorphic_allocator<T>;
template <class T> using from_slab = quire::slab_allocator<T>;
template <template <class> class Al> using String = std::basic_string<char, std::char_traits<char>, Al<char>>;
template <template <class> class Al> using Map = std::map<int, String<Al>, std::less<int>, Al<std::pair<const int, String<Al>>>>;
template <template <class> class Al> using Table = std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, Al<std::pair<const int, int>>>;

template <class M, class T, class L, class S> std::string said(const M &map, const T &table, const L &list, const S &set)
{
    std::string told;
    for (const auto &each : map)
        told += std::to_string(each.first) + each.second.c_str();
    long products = 0; /* in no order */
    for (const auto &each : table)
        products += each.first * each.second;
    told += std::to_string(products);
    for (int each : list)
        told += std::to_string(each);
    for (int each : set)
        told += std::to_string(each);
    return told;
}

/* A program with all the containers: what it says does not depend on who gives the memory. */
template <template <class> class Al> std::string program(const Al<char> &al)
{
    chance = 7;
    Map<Al> map(al), other(al);
    Table<Al> table(al);
    std::list<int, Al<int>> list(al), spliced(al);
    std::set<int, std::less<int>, Al<int>> set(al);
    std::vector<String<Al>, Al<String<Al>>> vector(al);
    for (int i = 0; i < 3000; i++) {
        int key = roll(200);
        map.erase(key + 1);
        map.emplace(key, String<Al>(static_cast<std::size_t>(roll(90)), 'x', al));
        table[roll(500)] += i;
        table.erase(roll(500));
        list.push_back(i);
        if (list.size() > 300)
            list.erase(std::next(list.begin(), roll(20)));
        set.insert(roll(400));
        set.erase(roll(400));
        vector.emplace_back(String<Al>(40, static_cast<char>('a' + roll(26)), al));
        if (vector.size() > 100)
            vector.erase(vector.begin(), vector.begin() + 50);
    }
    spliced.splice(spliced.end(), list, std::next(list.begin(), 5), list.end());
    spliced.sort();
    list.merge(spliced);
    other = map;
    other.emplace(-1, String<Al>("changed", al));
    map.swap(other);
    Map<Al> moved(std::move(map)), copied(moved, al);
    other = std::move(moved);
    copied.insert(other.extract(other.begin()));
    auto node = table.extract(table.begin());
    node.key() = 1000;
    table.insert(std::move(node));
    vector.insert(vector.begin(), 3, String<Al>("inserted, and long enough for memory of its own", al));
    std::vector<String<Al>, Al<String<Al>>> assigned(al);
    assigned = vector;
    std::string told = said(other, table, list, set) + std::to_string(copied.size()) + std::to_string(spliced.size());
    for (const auto &each : assigned)
        told += each.c_str();
    return told;
}

const std::string &wanted()
{
    static const std::string said = program<pmr>(std::pmr::new_delete_resource());
    return said;
}

} // namespace

/* ---- containers ---- */

TEST(QuireHpp, containers_over_each_allocator_do_what_they_do_with_new_and_delete)
{
    quire::arena arena;
    {
        quire::arena_scope scope(arena);
        EXPECT_EQ(program<quire::arena_allocator>(arena), wanted());
    }
    EXPECT_EQ(program<from_slab>({}), wanted());
    EXPECT_EQ(arena.stats().live_bytes, 0u);
    EXPECT_EQ(arena.check(), nullptr);
    quire::heap heap;
    String<quire::heap_allocator> in_heap(100, 'x', heap), in_process(100, 'x');
    EXPECT_EQ(heap.stats().live_blocks, 1u);
    EXPECT_EQ((in_heap + "y").size(), 101u);
    in_heap = in_process + in_heap.c_str();
    EXPECT_EQ(in_heap.size(), 200u);
    EXPECT_EQ(heap.check(), nullptr);
}

TEST(QuireHpp, containers_over_each_memory_resource_do_what_they_do_with_new_and_delete)
{
    quire::arena arena;
    quire::heap heap;
    quire::arena_resource in_arena(arena);
    quire::heap_resource in_heap(heap), in_process;
    quire::slab_resource in_slabs("hpp"), others;
    for (std::pmr::memory_resource *resource : std::initializer_list<std::pmr::memory_resource *>{&in_arena, &in_heap, &in_process, &in_slabs}) {
        EXPECT_EQ(program<pmr>(resource), wanted());
        EXPECT_EQ(*resource, *resource);
        EXPECT_NE(*resource, others);
        for (std::size_t align = 1; align <= 4096; align *= 4)
            for (std::size_t bytes : {0, 1, 17, 128, 129, 250, 512, 1000, 1024, 1025, 70000}) {
                void *p = resource->allocate(bytes, align);
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % align, 0u);
                memset(p, 7, bytes);
                resource->deallocate(p, bytes, align);
            }
    }
    EXPECT_GT(in_slabs.trim(), 0u);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(QuireHpp, a_pool_of_slabs_gives_each_size_room_and_ends_with_what_is_left_in_it)
{
    quire::slab_resource pool;
    for (std::size_t bytes = 1; bytes <= 3000; bytes++)
        memset(pool.allocate(bytes), 7, bytes);
}

TEST(QuireHpp, a_constructor_that_throws_leaves_no_node_behind)
{
    using set_of = std::set<Noisy, std::less<Noisy>, exact<Noisy>>;
    for (int at = 0; at < 20; at++) {
        Noisy::begin(at);
        set_of set;
        int refused = 0;
        for (int i = 0; i < 10; i++)
            try {
                set.emplace(i);
            } catch (const std::runtime_error &) {
                refused++;
            }
        EXPECT_EQ(refused, at < 10);
        EXPECT_EQ(static_cast<int>(set.size()), Noisy::alive);
    }
    EXPECT_EQ(Noisy::alive, 0);
}

TEST(QuireHpp, nodes_with_a_wide_alignment_are_aligned)
{
    std::list<Wide, from_slab<Wide>> list(100);
    quire::arena arena;
    std::list<Wide, quire::arena_allocator<Wide>> other(100, Wide(), arena);
    for (const Wide &each : list)
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&each) % 64, 0u);
    for (const Wide &each : other)
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&each) % 64, 0u);
    quire::slab<Wide> slab;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.make()) % 64, 0u);
}

TEST(QuireHpp, allocators_refuse_more_than_an_array_may_have)
{
    quire::arena arena;
    std::size_t many = PTRDIFF_MAX / sizeof(long) + 1;
    EXPECT_THROW((void)quire::arena_allocator<long>(arena).allocate(many), std::bad_array_new_length);
    EXPECT_THROW((void)quire::slab_allocator<long>().allocate(many), std::bad_array_new_length);
    EXPECT_THROW((void)quire::heap_allocator<long>().allocate(many), std::bad_array_new_length);
    EXPECT_THROW((void)quire::heap_allocator<long>().allocate(many - 1), std::bad_alloc);
}

/* ---- handles ---- */

TEST(QuireHpp, an_option_that_cannot_be_is_a_system_error_and_no_memory_is_bad_alloc)
{
    quire::arena_options unknown{}, small{};
    unknown.flags = 1u << 31;
    small.limit_bytes = 1;
    EXPECT_THROW(quire::arena{unknown}, std::system_error);
    EXPECT_THROW(quire::arena{small}, std::bad_alloc);
    errno = 0;
    EXPECT_FALSE(quire::arena::try_create(unknown).has_value());
    EXPECT_EQ(errno, EINVAL);
    EXPECT_TRUE(quire::arena::try_create().has_value());
    quire::slab_options slabs{};
    slabs.flags = 1u << 31;
    EXPECT_THROW(quire::slab<int>{slabs}, std::system_error);
    EXPECT_FALSE(quire::slab<int>::try_create(slabs).has_value());
    quire::heap_options heaps{};
    heaps.flags = 1u << 31;
    EXPECT_THROW(quire::heap{heaps}, std::system_error);
    EXPECT_FALSE(quire::heap::try_create(heaps).has_value());
    quire::percpu_options pools{};
    pools.flags = 1;
    EXPECT_THROW(quire::percpu_pool{pools}, std::system_error);
    EXPECT_FALSE(quire::percpu_pool::try_create(pools).has_value());
    EXPECT_THROW(quire::histogram{11}, std::system_error);
    EXPECT_FALSE(quire::histogram_snapshot::try_create(11).has_value());
}

TEST(QuireHpp, empty_braces_are_no_options)
{
    quire::arena arena({});
    quire::slab<int> slab({});
    quire::heap heap({}), braced{{}};
    quire::percpu_pool pool({});
    EXPECT_TRUE(arena.get() && slab.get() && heap.get() && braced.get() && pool.get());
}

TEST(QuireHpp, memory_that_is_out_is_bad_alloc_or_null)
{
    quire::arena_options arenas{};
    arenas.limit_bytes = 1 << 16;
    quire::arena arena(arenas);
    EXPECT_THROW((void)arena.allocate(1 << 20), std::bad_alloc);
    EXPECT_EQ(arena.try_allocate(1 << 20), nullptr);
    EXPECT_THROW((std::vector<char, quire::arena_allocator<char>>(1 << 20, arena)), std::bad_alloc);
    quire::slab_options slabs{};
    slabs.limit_bytes = 1 << 16;
    quire::slab<Wide> slab(slabs);
    while (slab.try_make())
        continue;
    EXPECT_THROW((void)slab.make(), std::bad_alloc);
    quire::heap_options heaps{};
    heaps.limit_bytes = 1 << 20;
    quire::heap heap(heaps);
    EXPECT_THROW((void)heap.allocate(1 << 22), std::bad_alloc);
    EXPECT_EQ(heap.try_allocate(1 << 22), nullptr);
}

template <class Owner, class Allocator> void expect_swapped_containers_own_what_they_hold()
{
    Owner one, other;
    std::vector<int, Allocator> ones(100, 1, one), others(100, 2, other);
    std::swap(ones, others);
    EXPECT_EQ(ones[0], 2);
    EXPECT_EQ(ones.get_allocator().get(), other.get());
    EXPECT_TRUE(other.owns(ones.data()) && one.owns(others.data()));
}

TEST(QuireHpp, swapped_containers_take_their_memory_along)
{
    expect_swapped_containers_own_what_they_hold<quire::arena, quire::arena_allocator<int>>();
    expect_swapped_containers_own_what_they_hold<quire::heap, quire::heap_allocator<int>>();
}

TEST(QuireHpp, an_arena_runs_the_destructors_of_what_make_made_last_first)
{
    Noisy::begin(-1);
    quire::arena arena;
    arena.make<Noisy>(1);
    std::string order;
    arena.defer([&order] { order += "a"; });
    {
        quire::arena_scope scope(arena);
        arena.make<Noisy>(2);
        arena.defer([&order, text = std::string(100, 'x')] { order += text.size() == 100 ? "b" : "?"; });
        EXPECT_EQ(*arena.make<int>(4), 4);
        quire::arena_ptr<Noisy> owned = arena.make_unique<Noisy>(3);
        EXPECT_EQ(Noisy::alive, 3);
    }
    EXPECT_EQ(Noisy::alive, 1);
    arena.emplace<Noisy>(5)->~Noisy();
    quire::arena_mark mark = arena.mark();
    EXPECT_EQ(arena.copy("text"), "text");
    EXPECT_EQ(arena.make_array<long>(100)[99], 0);
    const int numbers[] = {1, 2, 3};
    EXPECT_EQ(arena.copy(numbers, 3)[2], 3);
    arena.rewind(mark);
    arena.reset();
    EXPECT_EQ(Noisy::alive, 0);
    EXPECT_EQ(order, "ba");
    Noisy::begin(0);
    EXPECT_THROW(arena.make<Noisy>(1), std::runtime_error);
    EXPECT_EQ(Noisy::alive, 0);
}

TEST(QuireHpp, a_handle_that_moves_takes_the_object_along_and_ends_the_one_it_had)
{
    quire::arena one, two;
    quire_arena *raw = one.get();
    int *kept = one.make<int>(5);
    two = std::move(one);
    EXPECT_TRUE(two.get() == raw && two.owns(kept) && *kept == 5);
    quire::arena back = quire::arena::adopt(two.release());
    EXPECT_EQ(back.get(), raw);
    quire::counter first, second;
    first += 5;
    second = std::move(first);
    EXPECT_EQ((++second).sum(), 6);
    quire::percpu<long> copies, others(std::move(copies));
    others.add(3);
    copies = std::move(others);
    EXPECT_EQ(copies.sum(), 3);
    quire::slab<Noisy> slab, moved(std::move(slab));
    EXPECT_NE(moved.get(), nullptr);
}

TEST(QuireHpp, a_slab_makes_destroys_and_walks_and_takes_back_what_a_constructor_left)
{
    Noisy::begin(-1);
    quire::slab<Noisy> slab;
    Noisy *first = slab.make(1);
    {
        auto second = slab.make_unique(2);
        int sum = 0;
        EXPECT_TRUE(slab.for_each([&sum](Noisy &each) { sum += each.value; }));
        EXPECT_EQ(sum, 3);
        EXPECT_FALSE(slab.for_each([](Noisy &) { return false; }));
        EXPECT_FALSE(slab.for_each(no_more<Noisy>)); /* a function */
        EXPECT_FALSE(slab.for_each(&no_more<Noisy>));
        EXPECT_TRUE(slab.owns(second.get()));
    }
    EXPECT_EQ(Noisy::alive, 1);
    slab.destroy(first);
    slab.destroy(nullptr);
    Noisy::begin(0);
    EXPECT_THROW((void)slab.make(1), std::runtime_error);
    EXPECT_EQ(slab.stats().live_elements, 0u);
    EXPECT_EQ(slab.check(), nullptr);
}

TEST(QuireHpp, a_heap_makes_destroys_and_takes_back_what_a_constructor_left)
{
    Noisy::begin(-1);
    quire::heap heap;
    {
        quire::heap_ptr<Noisy> owned = heap.make_unique<Noisy>(1);
        heap.destroy(heap.make<Noisy>(2));
        EXPECT_TRUE(heap.owns(owned.get()));
    }
    void *p = heap.reallocate(heap.allocate(10), 1000), *seen = nullptr;
    EXPECT_GE(quire_heap_usable_bytes(p), 1000u);
    std::size_t sum = 0;
    EXPECT_TRUE(heap.for_each([&seen, &sum](void *block, std::size_t bytes) { seen = block, sum += bytes; }));
    EXPECT_EQ(seen, p);
    EXPECT_EQ(sum, quire_heap_usable_bytes(p));
    EXPECT_FALSE(heap.for_each([](void *, std::size_t) { return false; }));
    EXPECT_FALSE(heap.for_each(no_more_blocks)); /* a function */
    heap.deallocate(p);
    Noisy::begin(0);
    EXPECT_THROW((void)heap.make<Noisy>(1), std::runtime_error);
    EXPECT_EQ(Noisy::alive, 0);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(QuireHpp, a_counter_wraps_around_whichever_way_it_is_changed)
{
    quire::counter count;
    (count += INTPTR_MAX) += 1;
    EXPECT_EQ(count.sum(), INTPTR_MIN);
    count -= INTPTR_MIN;
    EXPECT_EQ(count.sum(), 0);
}

TEST(QuireHpp, a_histogram_gives_snapshots_that_merge_and_subtract)
{
    quire::histogram times(5);
    for (std::uint64_t i = 1; i <= 100; i++)
        times.record(i);
    quire::histogram_snapshot before = times.snapshot();
    EXPECT_EQ(before.stats().count, 100u);
    EXPECT_EQ(before.percentile(50), 50u);
    times.record(1000);
    quire::histogram_snapshot after = times.snapshot();
    after.subtract(before);
    EXPECT_EQ(after.stats().count, 1u);
    EXPECT_THROW(after.subtract(before), std::system_error);
    after.merge(before);
    EXPECT_FALSE(after.for_each(no_more<const quire::histogram_bucket>));
    std::uint64_t count = 0;
    EXPECT_TRUE(after.for_each([&count](const quire::histogram_bucket &bucket) { count += bucket.count; }));
    EXPECT_EQ(count, 101u);
    quire::counter in_flight;
    --(in_flight += 3) -= 1;
    EXPECT_EQ(in_flight.sum(), 1);
    EXPECT_EQ(in_flight.read(), 1);
}

TEST(QuireHpp, an_alignment_that_cannot_be_is_refused_as_by_the_c_interface)
{
    for (std::size_t align : {3, 5, 6, 7, 9, 12, 24}) {
        quire::slab_options options{};
        options.align_bytes = align;
        EXPECT_THROW(quire::slab<long> refused(options), std::system_error) << align;
    }
    for (std::size_t align : {0, 1, 2, 4, 8, 64}) {
        quire::slab_options options{};
        options.align_bytes = align;
        quire::slab<long> made(options);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made.make_unique(1).get()) % (align > 8 ? align : 8), 0u) << align;
    }
}
