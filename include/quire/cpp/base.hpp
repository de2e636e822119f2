// SPDX-License-Identifier: MIT
/*
 * quire/cpp/base.hpp - what the handles share: an owner, an error as an exception, a snapshot.  Included by the others.
 */
#ifndef QUIRE_CPP_BASE_HPP
#define QUIRE_CPP_BASE_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <quire/export.h>
#include <system_error>
#include <type_traits>
#include <utility>

namespace quire {

/* The deleter of an object whose memory is not given back by itself: its destructor runs. */
struct destroy_only {
    template <class T> void operator()(T *p) const noexcept { p->~T(); }
};

namespace detail {

/* What every block is aligned to. */
inline constexpr std::size_t align_bytes = 16;

[[noreturn, gnu::cold, gnu::noinline]] inline void raise(int error, const char *what)
{
#if QUIRE_EXCEPTIONS
    if (error == ENOMEM)
        throw std::bad_alloc();
    throw std::system_error(error, std::generic_category(), what);
#else
    static_cast<void>(error);
    static_cast<void>(what);
    std::abort();
#endif
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_length()
{
#if QUIRE_EXCEPTIONS
    throw std::bad_array_new_length();
#else
    std::abort();
#endif
}

/* The pointer, or the exception that errno stands for. */
template <class T> T *must(T *p, const char *what)
{
    if (__builtin_expect(p == nullptr, 0))
        raise(errno, what);
    return p;
}

inline void must(int result, const char *what)
{
    if (result != 0)
        raise(errno, what);
}

/* As the standard allocators do: the bytes of `count` objects, or std::bad_array_new_length. */
template <class T> std::size_t bytes_of(std::size_t count)
{
    if (__builtin_expect(count > PTRDIFF_MAX / sizeof(T), 0))
        raise_length();
    return count * sizeof(T);
}

/* Ends an object of the C interface. */
template <auto End> struct ender {
    template <class T> void operator()(T *p) const noexcept { End(p); }
};

/* One of the C interface's statistics.  Whatever a caller has to fill in first is filled in here. */
template <class Stats, class Object> Stats snapshot(void (*fill)(Object *, Stats *), Object *object) noexcept
{
    Stats stats{};
    stats.struct_bytes = sizeof stats;
    fill(object, &stats);
    return stats;
}

/* Where the block of an object begins that a pointer to one of its bases may lead to.  Asked for while it lives: its destructor ends what it is. */
template <class T> void *block_of(T *p) noexcept
{
    const volatile void *block = p;
    if constexpr (std::is_polymorphic_v<T>)
        block = dynamic_cast<const volatile void *>(p);
    return const_cast<void *>(block);
}

/* Gives memory back unless the constructor that it was taken for came to its end. */
template <class Free> struct unless_made {
    Free free;
    bool made = false;
    explicit unless_made(Free f) : free(f) {}
    unless_made(const unless_made &) = delete;
    unless_made &operator=(const unless_made &) = delete;
    ~unless_made()
    {
        if (!made)
            free();
    }
};

/* T(args...) in memory that `free` gives back if the constructor throws. */
template <class T, class Free, class... Args> T *construct(void *memory, Free free, Args &&...args)
{
    if constexpr (std::is_nothrow_constructible_v<T, Args...>) {
        return ::new (memory) T(std::forward<Args>(args)...);
    } else {
        unless_made<Free> guard(free);
        T *p = ::new (memory) T(std::forward<Args>(args)...);
        guard.made = true;
        return p;
    }
}

/* f(element ...) for a walk of the C interface: f returns nothing, or false to stop.  It must not throw: C is between. */
template <class F, class... T> int visit(F &f, T &...element) noexcept
{
    if constexpr (std::is_same_v<std::invoke_result_t<F &, T &...>, bool>) {
        return f(element...) ? 0 : 1;
    } else {
        f(element...);
        return 0;
    }
}

} // namespace detail
} // namespace quire

#endif
