// SPDX-License-Identifier: MIT
/*
 * quire/cpp/slab_allocator.hpp - for containers of nodes: one slab for each type of node.
 *
 *     std::list<job, quire::slab_allocator<job>> jobs;        // the slab is that of std::_List_node<job>
 *
 *     container ---> this thread's cache of the type: up to 128 free nodes or 8 KiB, compiled into the container ---> the type's slab
 *
 * Who owns the slabs: the process.  A type's slab is made with its first node, serves all threads and all containers, and never ends, so that containers
 * may outlive main(); it costs one OS page, and pages without a node go back by themselves.  So all these allocators are equal: nodes may be spliced, merged
 * and swapped between any two containers, and freed by any thread.
 *
 * What stays of the slab's checks, in the cache: a second free by the thread that freed first stops the process at once (E1) while the node is in the cache;
 * a free node whose first word was written to, or that was freed by another thread too, when it is about to be handed out (E7).  What is no node of the
 * slab is found when the cache is given back, in batches, not at the free.  A group with `cache_bytes = 0` has every check of quire_slab_free() at the call,
 * and so has a program that is compiled with AddressSanitizer, or with QUIRE_NODE_CACHE 0.
 * For the slab's statistics, walks and trim the nodes in caches live.  A thread's cache goes back when it ends.
 */
#ifndef QUIRE_CPP_SLAB_ALLOCATOR_HPP
#define QUIRE_CPP_SLAB_ALLOCATOR_HPP

#include <atomic>
#include <cstring>
#include <quire/cpp/base.hpp>
#include <quire/cpp/heap.hpp>
#include <quire/cpp/slab.hpp>

namespace quire {

/* The group of the containers that name no other. */
struct nodes {
    static constexpr const char *name = "nodes";
};

namespace detail {

/* How much of a type's free nodes a thread keeps at hand: the group's cache_bytes, or 8 KiB. */
template <class Group, class = void> struct cache_bytes_of : std::integral_constant<std::size_t, 8192> {};
template <class Group>
struct cache_bytes_of<Group, std::void_t<decltype(Group::cache_bytes)>> : std::integral_constant<std::size_t, Group::cache_bytes> {};

/* 0: the type is not cached. */
template <class T, class Group> constexpr std::size_t cache_nodes() noexcept
{
    constexpr std::size_t most = 128, fit = cache_bytes_of<Group>::value / sizeof(T);
    return sizeof(T) < sizeof(std::uintptr_t) || fit < 2 ? 0 : fit < most ? fit : most;
}

/* The slab of a type of node, in a group. */
template <class T, class Group> struct QUIRE_API node_slab {
    static inline std::atomic<::quire_slab *> made{nullptr};

    static ::quire_slab *get()
    {
        ::quire_slab *found = made.load(std::memory_order_acquire);
        return __builtin_expect(found != nullptr, 1) ? found : make();
    }

    static void *take() { return must(::quire_slab_alloc(get()), "quire::slab_allocator"); }
    static void give(void *p) noexcept { ::quire_slab_free(made.load(std::memory_order_acquire), p); }

private:
    [[gnu::cold, gnu::noinline]] static ::quire_slab *make()
    {
        slab_options options{};
        options.name = Group::name;
        ::quire_slab *mine = must(slab_for<T>(options), "quire::slab_allocator"), *first = nullptr;
        if (made.compare_exchange_strong(first, mine, std::memory_order_acq_rel))
            return mine;
        ::quire_slab_destroy(mine);
        return first;
    }
};

/* What lies at the bottom of an empty cache, and on top of a closed one: never marked. */
inline std::uintptr_t no_node = 0;

/*
 * A thread's free nodes of one type.
 *
 *     slots[0]     slots[1] ... slots[count]     slots[count + 1] ... slots[capacity]
 *     no_node      free nodes, the last on top   unused
 *
 * A free node carries a mark, its address's complement, in its first word; it is taken off when the node goes out.  An empty cache fails the same
 * comparison.  Closed (before the thread's first slow call, and in its last destructors): count == capacity and no_node on top, so that both
 * ways are slow.
 */
template <class T, class Group> struct QUIRE_API node_cache {
    static void *take()
    {
        node_cache &cache = self;
        void *p = cache.slots[cache.count];
        if (__builtin_expect(word_of(p) != mark(p), 0))
            return cache.take_slow(p);
        cache.count--;
        set_word(p, 0);
        return p;
    }

    static void give(void *p) noexcept
    {
        node_cache &cache = self;
        if (__builtin_expect(cache.count == capacity, 0) || __builtin_expect(word_of(p) == mark(p), 0))
            return cache.give_slow(p);
        set_word(p, mark(p));
        cache.slots[++cache.count] = p;
    }

private:
    static constexpr std::size_t capacity = cache_nodes<T, Group>();
    enum state_of_cache { NEW, OPEN, CLOSED };
    using slab_of = node_slab<T, Group>;

    constexpr node_cache() noexcept : count(capacity), state(NEW), slots{} { slots[0] = slots[capacity] = &no_node; }

    static std::uintptr_t mark(const void *p) noexcept { return ~reinterpret_cast<std::uintptr_t>(p); }
    static std::uintptr_t word_of(const void *p) noexcept
    {
        std::uintptr_t word;
        std::memcpy(&word, p, sizeof word);
        return word;
    }
    static void set_word(void *p, std::uintptr_t word) noexcept { std::memcpy(p, &word, sizeof word); }

    /* The thread's cache goes back with the thread; from then on its nodes go straight to the slab. */
    struct at_thread_end {
        ~at_thread_end() { self.close(); }
    };

    void open()
    {
        static thread_local at_thread_end end;
        static_cast<void>(end);
        state = OPEN;
        count = 0;
    }

    void close() noexcept
    {
        give_back(count);
        state = CLOSED;
        count = capacity;
        slots[capacity] = &no_node;
    }

    /* The `several` lowest nodes, which were free longest, to the slab. */
    void give_back(std::size_t several) noexcept
    {
        for (std::size_t i = 1; i <= several; i++) {
            if (__builtin_expect(word_of(slots[i]) != mark(slots[i]), 0))
                refuse_written(slots[i]);
            set_word(slots[i], 0);
        }
        if (several != 0)
            ::quire_slab_free_batch(slab_of::get(), slots + 1, several);
        count -= several;
        std::memmove(slots + 1, slots + 1 + several, count * sizeof *slots);
    }

    [[gnu::noinline]] void *take_slow(void *p)
    {
        if (p != &no_node)
            refuse_written(p);
        if (state == NEW)
            open();
        if (state == CLOSED)
            return slab_of::take();
        count = ::quire_slab_alloc_batch(slab_of::get(), slots + 1, (capacity + 1) / 2);
        if (count == 0)
            raise(errno, "quire::slab_allocator");
        for (std::size_t i = 1; i < count; i++)
            set_word(slots[i], mark(slots[i]));
        return slots[count--];
    }

    [[gnu::noinline]] void give_slow(void *p) noexcept
    {
        if (state == NEW)
            open();
        if (state == CLOSED)
            return slab_of::give(p);
        /* It may look free by chance, once in 2^64. */
        for (std::size_t i = 1; i <= count && word_of(p) == mark(p); i++)
            if (slots[i] == p)
                refuse_free(p);
        if (count == capacity)
            give_back((capacity + 1) / 2);
        set_word(p, mark(p));
        slots[++count] = p;
    }

    /* To the slab the node lives: the first free is taken, the second stops the process with the slab's own line. */
    [[noreturn, gnu::cold, gnu::noinline]] static void refuse_free(void *p) noexcept
    {
        slab_of::give(p);
        slab_of::give(p);
        std::abort();
    }

    /* The same for a free node that was written to: the slab finds it when it is about to hand it out. */
    [[noreturn, gnu::cold, gnu::noinline]] static void refuse_written(void *p) noexcept
    {
        std::uintptr_t word = word_of(p);
        set_word(p, 0);
        slab_of::give(p);
        set_word(p, word);
        static_cast<void>(::quire_slab_alloc(slab_of::get()));
        std::abort();
    }

    std::size_t count;
    state_of_cache state;
    void *slots[capacity + 1];

    static thread_local node_cache self;
};

template <class T, class Group> inline thread_local node_cache<T, Group> node_cache<T, Group>::self{};

} // namespace detail

/*
 * For list, map, set, unordered_map and what else has nodes: single objects are elements of the type's slab, arrays (a table of buckets, a vector) blocks
 * of the process's heap.  `Group`: containers of another group have slabs, statistics and a name of their own; see `nodes`.
 * All modules of a process must see one libquire, and the allocator's code with default visibility: else each has a slab of its own.
 */
template <class T, class Group = nodes> class slab_allocator {
public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;

    slab_allocator() noexcept = default;
    template <class U> slab_allocator(const slab_allocator<U, Group> &) noexcept {}

    [[nodiscard]] T *allocate(std::size_t count)
    {
        if (__builtin_expect(count == 1, 1))
            return static_cast<T *>(one());
        return static_cast<T *>(detail::heap_must_take(::quire_heap_default(), detail::bytes_of<T>(count), alignof(T)));
    }
    void deallocate(T *p, std::size_t count) noexcept
    {
        if (__builtin_expect(count != 1, 0))
            ::quire_heap_free(::quire_heap_default(), p);
        else if constexpr (is_cached())
            detail::node_cache<T, Group>::give(p);
        else
            detail::node_slab<T, Group>::give(p);
    }
    /* The slab that single objects come from, for statistics, a walk, a trim; it is not the caller's to destroy. */
    static ::quire_slab *get() { return detail::node_slab<T, Group>::get(); }

    template <class U> friend bool operator==(const slab_allocator &, const slab_allocator<U, Group> &) noexcept { return true; }
    template <class U> friend bool operator!=(const slab_allocator &, const slab_allocator<U, Group> &) noexcept { return false; }

private:
    static constexpr bool is_cached() noexcept { return QUIRE_NODE_CACHE && detail::cache_nodes<T, Group>() != 0; }
    static void *one()
    {
        if constexpr (is_cached())
            return detail::node_cache<T, Group>::take();
        else
            return detail::node_slab<T, Group>::take();
    }
};

/*
 * A base for classes whose `new` and `delete` are to be a slab's, of elements of `Bytes`: one slab for all of the group.  What is larger comes from the
 * process's heap.  Objects are aligned to 16 bytes: not for a class that asks for more.
 */
template <std::size_t Bytes, class Group> struct slab_element {
    static void *operator new(std::size_t bytes)
    {
        return bytes <= Bytes ? slot_allocator().allocate(1) : detail::heap_must_take(::quire_heap_default(), bytes, detail::align_bytes);
    }
    static void *operator new(std::size_t, void *place) noexcept { return place; }
    static void operator delete(void *p, std::size_t bytes) noexcept
    {
        if (bytes > Bytes)
            ::quire_heap_free(::quire_heap_default(), p);
        else if (p != nullptr)
            slot_allocator().deallocate(static_cast<slot *>(p), 1);
    }
    static void operator delete(void *, void *) noexcept {}

private:
    struct alignas(detail::align_bytes) slot {
        unsigned char bytes[Bytes];
    };
    using slot_allocator = slab_allocator<slot, Group>;
};

} // namespace quire

#endif
