// SPDX-License-Identifier: MIT
/*
 * quire/cpp/slab_allocator.hpp - for containers of nodes: one slab for each type of node.
 *
 *     std::list<job, quire::slab_allocator<job>> jobs;        // the slab is that of std::_List_node<job>
 *
 *     container ---> this thread's cache of the type: up to 128 free nodes or 8 KiB, compiled into the container ---> the type's slab
 *     string    ---> this thread's cache of the size: up to 61 free arrays                                        ---> the size's slab, to 128 bytes
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

/* The slab at `place`, made by `make` if there is none; null, with errno, where that cannot be. */
template <class Make> ::quire_slab *slab_at(std::atomic<::quire_slab *> &place, Make make)
{
    ::quire_slab *found = place.load(std::memory_order_acquire);
    if (__builtin_expect(found != nullptr, 1))
        return found;
    ::quire_slab *mine = make();
    if (mine == nullptr || place.compare_exchange_strong(found, mine, std::memory_order_acq_rel))
        return mine;
    ::quire_slab_destroy(mine);
    return found;
}

/* What lies at the bottom of an empty cache, and on top of a closed one: never marked. */
inline std::uintptr_t no_node = 0;

inline constexpr const char *slab_allocator_name = "quire::slab_allocator";

/* One element, or null with errno. */
inline void *element_of(::quire_slab *slab) noexcept { return slab == nullptr ? nullptr : ::quire_slab_alloc(slab); }

/*
 * A thread's free elements of one slab, which Home::slab_of(cache) finds.
 *
 *     slots[0]     slots[1] ... slots[count]     slots[count + 1] ... slots[capacity]
 *     no_node      free, the last on top         unused
 *
 * A free element carries a mark, its address's complement, in its first word; it is taken off when the element goes out.  An empty cache fails the same
 * comparison.  Closed (before the thread's first slow call, and in its last destructors): count == capacity and no_node on top, so that both
 * ways are slow.
 */
template <class Home> struct QUIRE_API free_cache {
    static constexpr std::size_t capacity = Home::capacity;

    constexpr free_cache() noexcept : count(capacity), state(NEW), slots{} { slots[0] = slots[capacity] = &no_node; }

    /* Null, with errno, only where it does not throw. */
    void *take(bool throws = true)
    {
        void *p = slots[count];
        if (__builtin_expect(word_of(p) != mark(p), 0))
            return throws ? must(take_slow(p), slab_allocator_name) : take_slow(p);
        count--;
        set_word(p, 0);
        return p;
    }

    void give(void *p) noexcept
    {
        if (__builtin_expect(count == capacity, 0) || __builtin_expect(word_of(p) == mark(p), 0))
            return give_slow(p);
        set_word(p, mark(p));
        slots[++count] = p;
    }

    /* At the thread's end; from then on elements go straight to the slab. */
    void close() noexcept
    {
        if (state == OPEN)
            give_back(count);
        state = CLOSED;
        count = capacity;
        slots[capacity] = &no_node;
    }

private:
    enum state_of_cache { NEW, OPEN, CLOSED };

    static std::uintptr_t mark(const void *p) noexcept { return ~reinterpret_cast<std::uintptr_t>(p); }
    static std::uintptr_t word_of(const void *p) noexcept
    {
        std::uintptr_t word;
        std::memcpy(&word, p, sizeof word);
        return word;
    }
    static void set_word(void *p, std::uintptr_t word) noexcept { std::memcpy(p, &word, sizeof word); }
    ::quire_slab *slab() const noexcept { return Home::slab_of(*this); }

    void open()
    {
        struct at_thread_end {
            ~at_thread_end() { Home::close(); }
        };
        static thread_local at_thread_end end;
        static_cast<void>(end);
        state = OPEN;
        count = 0;
    }

    /* The `several` lowest, which were free longest, to the slab. */
    void give_back(std::size_t several) noexcept
    {
        for (std::size_t i = 1; i <= several; i++) {
            if (__builtin_expect(word_of(slots[i]) != mark(slots[i]), 0))
                refuse_written(slots[i]);
            set_word(slots[i], 0);
        }
        if (several != 0)
            ::quire_slab_free_batch(slab(), slots + 1, several);
        count -= several;
        std::memmove(slots + 1, slots + 1 + several, count * sizeof *slots);
    }

    [[gnu::noinline]] void *take_slow(void *p) noexcept
    {
        if (p != &no_node)
            refuse_written(p);
        if (state == NEW)
            open();
        ::quire_slab *from = slab();
        if (state == CLOSED)
            return element_of(from);
        count = from == nullptr ? 0 : ::quire_slab_alloc_batch(from, slots + 1, (capacity + 1) / 2);
        if (count == 0)
            return nullptr;
        for (std::size_t i = 1; i < count; i++)
            set_word(slots[i], mark(slots[i]));
        return slots[count--];
    }

    [[gnu::noinline]] void give_slow(void *p) noexcept
    {
        if (state == NEW)
            open();
        if (state == CLOSED)
            return ::quire_slab_free(slab(), p);
        /* It may look free by chance, once in 2^64. */
        for (std::size_t i = 1; i <= count && word_of(p) == mark(p); i++)
            if (slots[i] == p)
                refuse_free(p);
        if (count == capacity)
            give_back((capacity + 1) / 2);
        set_word(p, mark(p));
        slots[++count] = p;
    }

    /* To the slab the element lives: the first free is taken, the second stops the process with the slab's own line. */
    [[noreturn, gnu::cold, gnu::noinline]] void refuse_free(void *p) const noexcept
    {
        ::quire_slab_free(slab(), p);
        ::quire_slab_free(slab(), p);
        std::abort();
    }

    /* The same for a free element that was written to: the slab finds it when it is about to hand it out. */
    [[noreturn, gnu::cold, gnu::noinline]] void refuse_written(void *p) const noexcept
    {
        std::uintptr_t word = word_of(p);
        set_word(p, 0);
        ::quire_slab_free(slab(), p);
        set_word(p, word);
        static_cast<void>(::quire_slab_alloc(slab()));
        std::abort();
    }

    std::size_t count;
    state_of_cache state;
    void *slots[capacity + 1];
};

/* A type of node, in a group: its slab, and each thread's cache of it. */
template <class T, class Group> struct QUIRE_API node_home {
    static constexpr std::size_t capacity = cache_nodes<T, Group>();
    static constexpr bool is_cached = QUIRE_NODE_CACHE && capacity != 0;

    static ::quire_slab *slab()
    {
        return slab_at(made, [] {
            slab_options options{};
            options.name = Group::name;
            return slab_for<T>(options);
        });
    }
    static ::quire_slab *slab_of(const free_cache<node_home> &) { return slab(); }
    static void close() noexcept { cache.close(); }

    static void *take(bool throws = true)
    {
        if constexpr (is_cached)
            return cache.take(throws);
        else
            return throws ? must(element_of(slab()), slab_allocator_name) : element_of(slab());
    }
    static void give(void *p) noexcept
    {
        if constexpr (is_cached)
            cache.give(p);
        else
            ::quire_slab_free(slab(), p);
    }

private:
    static inline std::atomic<::quire_slab *> made{nullptr};
    static thread_local free_cache<node_home> cache;
};
template <class T, class Group> inline thread_local free_cache<node_home<T, Group>> node_home<T, Group>::cache{};

/* Small arrays of a group, whatever is in them: a slab and a cache for each size, 16 to 128 bytes by 16. */
template <class Group> struct QUIRE_API array_home {
    static constexpr std::size_t bytes_max = 128, classes = bytes_max / align_bytes, capacity = 61; /* a cache has 512 bytes */
    static constexpr bool is_cached = QUIRE_NODE_CACHE && cache_nodes<std::uintptr_t[bytes_max / sizeof(std::uintptr_t)], Group>() != 0;

    static ::quire_slab *slab(std::size_t index)
    {
        return slab_at(made[index], [index] {
            slab_options options{};
            options.name = Group::name;
            return ::quire_slab_create((index + 1) * align_bytes, &options);
        });
    }
    static ::quire_slab *slab_of(const free_cache<array_home> &one) { return slab(static_cast<std::size_t>(&one - caches)); }
    static void close() noexcept
    {
        for (free_cache<array_home> &each : caches)
            each.close();
    }

    static void *take(std::size_t bytes)
    {
        if constexpr (is_cached)
            return caches[index_of(bytes)].take();
        else
            return must(element_of(slab(index_of(bytes))), slab_allocator_name);
    }
    static void give(void *p, std::size_t bytes) noexcept
    {
        if constexpr (is_cached)
            caches[index_of(bytes)].give(p);
        else
            ::quire_slab_free(slab(index_of(bytes)), p);
    }

private:
    static constexpr std::size_t index_of(std::size_t bytes) noexcept { return (bytes - 1) / align_bytes; }

    static inline std::atomic<::quire_slab *> made[classes]{};
    static thread_local free_cache<array_home> caches[classes];
};
template <class Group> inline thread_local free_cache<array_home<Group>> array_home<Group>::caches[classes]{};

} // namespace detail

/*
 * For list, map, set, unordered_map and what else has nodes, and for strings: single objects are elements of the type's slab, arrays of up to 128 bytes of
 * a slab of their size, larger ones (a table of buckets, a vector) blocks of the process's heap.  `Group`: containers of another group have slabs,
 * statistics and a name of their own; see `nodes`.
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
        if (is_node(count))
            return static_cast<T *>(node::take());
        std::size_t bytes = detail::bytes_of<T>(count);
        if (is_small(bytes))
            return static_cast<T *>(arrays::take(bytes));
        return static_cast<T *>(detail::heap_must_take(::quire_heap_default(), bytes, alignof(T)));
    }
    void deallocate(T *p, std::size_t count) noexcept
    {
        if (is_node(count))
            node::give(p);
        else if (is_small(count * sizeof(T)))
            arrays::give(p, count * sizeof(T));
        else
            ::quire_heap_free(::quire_heap_default(), p);
    }
    /* The slab that single objects come from, for statistics, a walk, a trim; it is not the caller's to destroy. */
    static ::quire_slab *get() { return detail::must(node::slab(), detail::slab_allocator_name); }

    template <class U> friend bool operator==(const slab_allocator &, const slab_allocator<U, Group> &) noexcept { return true; }
    template <class U> friend bool operator!=(const slab_allocator &, const slab_allocator<U, Group> &) noexcept { return false; }

private:
    using node = detail::node_home<T, Group>;
    using arrays = detail::array_home<Group>;
    static bool is_node(std::size_t count) noexcept { return __builtin_expect(count == 1, sizeof(T) >= sizeof(std::uintptr_t)); }
    static bool is_small(std::size_t bytes) noexcept { return alignof(T) <= detail::align_bytes && bytes - 1 < arrays::bytes_max; }
};

/*
 * A base for classes whose `new` and `delete` are to be a slab's, of elements of `Bytes`: one slab for all of the group.  What is larger, or aligned to more
 * than 16 bytes, comes from the process's heap.
 */
template <std::size_t Bytes, class Group> struct slab_element {
    static void *operator new(std::size_t bytes)
    {
        return bytes <= Bytes ? slot_allocator().allocate(1) : detail::heap_must_take(::quire_heap_default(), bytes, detail::align_bytes);
    }
    static void *operator new(std::size_t bytes, std::align_val_t align)
    {
        return detail::heap_must_take(::quire_heap_default(), bytes, static_cast<std::size_t>(align));
    }
    static void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept
    {
        return bytes <= Bytes ? detail::node_home<slot, Group>::take(false) : detail::heap_take(::quire_heap_default(), bytes, detail::align_bytes);
    }
    static void *operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t &) noexcept
    {
        return detail::heap_take(::quire_heap_default(), bytes, static_cast<std::size_t>(align));
    }
    static void *operator new(std::size_t, void *place) noexcept { return place; }
    static void operator delete(void *p, std::size_t bytes) noexcept
    {
        if (bytes > Bytes)
            ::quire_heap_free(::quire_heap_default(), p);
        else if (p != nullptr)
            slot_allocator().deallocate(static_cast<slot *>(p), 1);
    }
    static void operator delete(void *p, std::size_t, std::align_val_t) noexcept { ::quire_heap_free(::quire_heap_default(), p); }
    /* These are for constructors that throw, after a new that does not. */
    static void operator delete(void *p, const std::nothrow_t &) noexcept
    {
        if (::quire_heap_owns(::quire_heap_default(), p))
            ::quire_heap_free(::quire_heap_default(), p);
        else
            slot_allocator().deallocate(static_cast<slot *>(p), 1);
    }
    static void operator delete(void *p, std::align_val_t, const std::nothrow_t &) noexcept { ::quire_heap_free(::quire_heap_default(), p); }
    static void operator delete(void *, void *) noexcept {}

private:
    struct alignas(detail::align_bytes) slot {
        unsigned char bytes[Bytes];
    };
    using slot_allocator = slab_allocator<slot, Group>;
};

} // namespace quire

#endif
