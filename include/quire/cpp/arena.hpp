// SPDX-License-Identifier: MIT
/*
 * quire/cpp/arena.hpp - arenas (quire/arena.h): the owner, a scope, an allocator for containers, a std::pmr::memory_resource.
 *
 *     arena.make<T>(...)          its destructor runs when the arena goes back to before it, is reset, or ends
 *     arena.emplace<T>(...)       no destructor runs by itself; the memory goes with the arena
 *     arena.make_unique<T>(...)   the destructor runs when the pointer goes; the memory goes with the arena
 *
 * An arena is for one thread at a time.  A destructor that the arena runs may read the arena's memory and let containers over it go; it must not
 * allocate from it.
 */
#ifndef QUIRE_CPP_ARENA_HPP
#define QUIRE_CPP_ARENA_HPP

#include <cstring>
#include <memory_resource>
#include <optional>
#include <quire/arena.h>
#include <quire/cpp/base.hpp>
#include <string_view>

namespace quire {

using arena_options = ::quire_arena_opts;
using arena_stats = struct ::quire_arena_stats;
using arena_mark = struct ::quire_arena_mark;

template <class T> using arena_ptr = std::unique_ptr<T, destroy_only>;

namespace detail {

inline void *arena_take(::quire_arena *arena, std::size_t bytes, std::size_t align) noexcept
{
    return __builtin_expect(align <= align_bytes, 1) ? ::quire_arena_alloc(arena, bytes) : ::quire_arena_alloc_aligned(arena, bytes, align);
}

inline void *arena_must_take(::quire_arena *arena, std::size_t bytes, std::size_t align)
{
    return must(arena_take(arena, bytes, align), "quire::arena");
}

} // namespace detail

class arena {
public:
    arena() : arena(arena_options{}) {}
    explicit arena(const arena_options &options) : arena_(detail::must(::quire_arena_create(&options), "quire::arena")) {}
    explicit arena(std::nullptr_t) : arena() {} /* what {} is taken for */
    static std::optional<arena> try_create(const arena_options &options = {}) noexcept
    {
        ::quire_arena *made = ::quire_arena_create(&options);
        return made ? std::optional<arena>(adopt(made)) : std::nullopt;
    }

    static arena adopt(::quire_arena *raw) noexcept { return arena(owner(raw)); }
    ::quire_arena *get() const noexcept { return arena_.get(); }
    [[nodiscard]] ::quire_arena *release() noexcept { return arena_.release(); }

    [[nodiscard]] void *allocate(std::size_t bytes, std::size_t align = detail::align_bytes)
    {
        return detail::arena_must_take(get(), bytes, align);
    }
    [[nodiscard]] void *try_allocate(std::size_t bytes, std::size_t align = detail::align_bytes) noexcept
    {
        return detail::arena_take(get(), bytes, align);
    }

    template <class T, class... Args> T *emplace(Args &&...args)
    {
        return ::new (allocate(sizeof(T), alignof(T))) T(std::forward<Args>(args)...);
    }
    /* Null, with errno ENOMEM, where the memory is out; what the constructor throws goes on. */
    template <class T, class... Args> T *try_emplace(Args &&...args)
    {
        void *p = try_allocate(sizeof(T), alignof(T));
        return p ? ::new (p) T(std::forward<Args>(args)...) : nullptr;
    }
    template <class T, class... Args> T *make(Args &&...args)
    {
        T *made = emplace<T>(std::forward<Args>(args)...);
        return destroyed_at_end(made) ? made : detail::must<T>(nullptr, "quire::arena");
    }
    template <class T, class... Args> T *try_make(Args &&...args)
    {
        T *made = try_emplace<T>(std::forward<Args>(args)...);
        return made && destroyed_at_end(made) ? made : nullptr;
    }
    template <class T, class... Args> [[nodiscard]] arena_ptr<T> make_unique(Args &&...args)
    {
        return arena_ptr<T>(emplace<T>(std::forward<Args>(args)...));
    }

    /* `count` objects, each as T(). */
    template <class T> [[nodiscard]] T *make_array(std::size_t count)
    {
        static_assert(std::is_trivially_destructible_v<T>, "nobody would run the destructors: use a container with arena_allocator");
        T *first = static_cast<T *>(allocate(detail::bytes_of<T>(count), alignof(T)));
        std::uninitialized_value_construct_n(first, count);
        return first;
    }
    template <class T> [[nodiscard]] T *copy(const T *from, std::size_t count)
    {
        static_assert(std::is_trivially_copyable_v<T>, "copied as bytes");
        void *to = allocate(detail::bytes_of<T>(count), alignof(T));
        if (count != 0)
            std::memcpy(to, from, count * sizeof(T));
        return static_cast<T *>(to);
    }
    /* A zero byte follows the copy. */
    [[nodiscard]] std::string_view copy(std::string_view text)
    {
        char *to = static_cast<char *>(allocate(text.size() + 1, 1));
        if (!text.empty())
            std::memcpy(to, text.data(), text.size());
        to[text.size()] = 0;
        return {to, text.size()};
    }

    /* f() when the arena goes back to before here, is reset, or ends; the last deferred first.  It must not throw. */
    template <class F> void defer(F &&f)
    {
        using call = std::decay_t<F>;
        call *kept = emplace<call>(std::forward<F>(f));
        auto run = [](void *p) {
            call *each = static_cast<call *>(p);
            (*each)();
            each->~call();
        };
        if (::quire_arena_defer(get(), run, kept) != 0)
            abandon(kept, errno);
    }

    arena_mark mark() const noexcept { return ::quire_arena_mark(get()); }
    void rewind(const arena_mark &to) noexcept { ::quire_arena_rewind(get(), to); }
    void reset() noexcept { ::quire_arena_reset(get()); }
    std::size_t trim() noexcept { return ::quire_arena_trim(get()); }
    bool owns(const void *p) const noexcept { return ::quire_arena_owns(get(), p); }
    arena_stats stats() const noexcept { return detail::snapshot<arena_stats, const ::quire_arena>(::quire_arena_stats, get()); }
    const char *check() const noexcept { return ::quire_arena_check(get()); }

private:
    using owner = std::unique_ptr<::quire_arena, detail::ender<::quire_arena_destroy>>;
    explicit arena(owner made) noexcept : arena_(std::move(made)) {}

    /* False, with errno, and the object is destroyed already: there was no memory to remember it. */
    template <class T> bool destroyed_at_end(T *made)
    {
        if constexpr (!std::is_trivially_destructible_v<T>) {
            auto end = [](void *p) { static_cast<T *>(p)->~T(); };
            if (::quire_arena_defer(get(), end, const_cast<std::remove_cv_t<T> *>(made)) != 0) {
                int error = errno;
                made->~T();
                errno = error;
                return false;
            }
        }
        return true;
    }
    template <class T> [[noreturn]] static void abandon(T *made, int error)
    {
        made->~T();
        detail::raise(error, "quire::arena");
    }

    owner arena_;
};

/* All that is allocated from the arena while this lives goes when it ends; scopes nest. */
class [[nodiscard]] arena_scope {
public:
    explicit arena_scope(arena &within) noexcept : arena_scope(within.get()) {}
    explicit arena_scope(::quire_arena *within) noexcept : arena_(within), mark_(::quire_arena_mark(within)) {}
    arena_scope(const arena_scope &) = delete;
    arena_scope &operator=(const arena_scope &) = delete;
    ~arena_scope() { ::quire_arena_rewind(arena_, mark_); }

private:
    ::quire_arena *arena_;
    arena_mark mark_;
};

/*
 * For containers that live no longer than the arena.  Deallocating does nothing.  As with std::pmr, a container keeps its arena when another is assigned to it;
 * swapped containers take their arenas along; a copy has the arena of what it was copied from.
 */
template <class T> class arena_allocator {
public:
    using value_type = T;
    using propagate_on_container_swap = std::true_type;

    arena_allocator(arena &from) noexcept : arena_(from.get()) {}
    explicit arena_allocator(::quire_arena *from) noexcept : arena_(from) {}
    template <class U> arena_allocator(const arena_allocator<U> &other) noexcept : arena_(other.get()) {}

    [[nodiscard]] T *allocate(std::size_t count)
    {
        return static_cast<T *>(detail::arena_must_take(arena_, detail::bytes_of<T>(count), alignof(T)));
    }
    void deallocate(T *, std::size_t) noexcept {}
    ::quire_arena *get() const noexcept { return arena_; }

    template <class U> friend bool operator==(const arena_allocator &a, const arena_allocator<U> &b) noexcept { return a.get() == b.get(); }
    template <class U> friend bool operator!=(const arena_allocator &a, const arena_allocator<U> &b) noexcept { return a.get() != b.get(); }

private:
    ::quire_arena *arena_;
};

/* The same for std::pmr: std::pmr::vector<int> v(&resource).  Equal is only itself. */
class arena_resource final : public std::pmr::memory_resource {
public:
    explicit arena_resource(arena &from) noexcept : arena_(from.get()) {}
    explicit arena_resource(::quire_arena *from) noexcept : arena_(from) {}
    ::quire_arena *get() const noexcept { return arena_; }

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override { return detail::arena_must_take(arena_, bytes, align); }
    void do_deallocate(void *, std::size_t, std::size_t) override {}
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    ::quire_arena *arena_;
};

} // namespace quire

#endif
