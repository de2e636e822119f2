// SPDX-License-Identifier: MIT
/*
 * quire/cpp/slab.hpp - slabs (quire/slab.h): the owner of one, for elements of one type.
 *
 * Any thread may make and destroy elements.  The slab's end frees what is left, without destructors, as a std::pmr resource does.
 * Not here: containers (slab_allocator.hpp), blocks of several sizes (slab_resource.hpp).
 */
#ifndef QUIRE_CPP_SLAB_HPP
#define QUIRE_CPP_SLAB_HPP

#include <optional>
#include <quire/cpp/base.hpp>
#include <quire/slab.h>

namespace quire {

using slab_options = ::quire_slab_opts;
using slab_stats = struct ::quire_slab_stats;

namespace detail {

/* The options, with T's alignment where they do not ask for more: at least a word, which a free element's mark needs. */
template <class T> slab_options aligned_for(slab_options options) noexcept
{
    constexpr std::size_t least = alignof(T) > alignof(std::uintptr_t) ? alignof(T) : alignof(std::uintptr_t);
    bool can_be = (options.align_bytes & (options.align_bytes - 1)) == 0; /* quire_slab_create() refuses the others */
    if (can_be && options.align_bytes < least)
        options.align_bytes = least;
    return options;
}

template <class T> ::quire_slab *slab_for(const slab_options &options) noexcept
{
    slab_options aligned = aligned_for<T>(options);
    return ::quire_slab_create(sizeof(T), &aligned);
}

} // namespace detail

template <class T> class slab {
public:
    /* Destroys an element and gives its memory back. */
    struct deleter {
        ::quire_slab *slab = nullptr;
        void operator()(T *p) const noexcept
        {
            p->~T();
            ::quire_slab_free(slab, const_cast<std::remove_cv_t<T> *>(p));
        }
    };
    using unique_ptr = std::unique_ptr<T, deleter>;

    slab() : slab(slab_options{}) {}
    explicit slab(const slab_options &options) : slab_(detail::must(detail::slab_for<T>(options), "quire::slab")) {}
    explicit slab(std::nullptr_t) : slab() {} /* what {} is taken for */
    static std::optional<slab> try_create(const slab_options &options = {}) noexcept
    {
        ::quire_slab *made = detail::slab_for<T>(options);
        return made ? std::optional<slab>(adopt(made)) : std::nullopt;
    }

    /* One whose elements are at least sizeof(T), and aligned for T. */
    static slab adopt(::quire_slab *raw) noexcept { return slab(owner(raw)); }
    ::quire_slab *get() const noexcept { return slab_.get(); }
    [[nodiscard]] ::quire_slab *release() noexcept { return slab_.release(); }

    template <class... Args> [[nodiscard]] T *make(Args &&...args)
    {
        return constructed(detail::must(::quire_slab_alloc(get()), "quire::slab"), std::forward<Args>(args)...);
    }
    /* Null, with errno ENOMEM, where the memory is out; what the constructor throws goes on. */
    template <class... Args> [[nodiscard]] T *try_make(Args &&...args)
    {
        void *p = ::quire_slab_alloc(get());
        return p ? constructed(p, std::forward<Args>(args)...) : nullptr;
    }
    void destroy(T *p) noexcept
    {
        if (p != nullptr)
            deleter{get()}(p);
    }
    template <class... Args> [[nodiscard]] unique_ptr make_unique(Args &&...args)
    {
        return unique_ptr(make(std::forward<Args>(args)...), deleter{get()});
    }

    /* f(element) for each that lives, until f returns false; f may return nothing, and must not throw.  False: it was stopped. */
    template <class F> bool for_each(F &&f)
    {
        auto *at = std::addressof(f); /* a function has no address that is a void * */
        auto call = [](void *p, void *arg) { return detail::visit(**static_cast<decltype(at) *>(arg), *static_cast<T *>(p)); };
        return ::quire_slab_walk(get(), call, &at) == 0;
    }
    void set_defrag(bool on) noexcept { ::quire_slab_set_defrag(get(), on); }
    std::size_t trim() noexcept { return ::quire_slab_trim(get()); }
    bool owns(const void *p) const noexcept { return ::quire_slab_owns(get(), p); }
    slab_stats stats() const noexcept { return detail::snapshot<slab_stats, const ::quire_slab>(::quire_slab_stats, get()); }
    const char *check() noexcept { return ::quire_slab_check(get()); }

private:
    using owner = std::unique_ptr<::quire_slab, detail::ender<::quire_slab_destroy>>;
    explicit slab(owner made) noexcept : slab_(std::move(made)) {}
    template <class... Args> T *constructed(void *p, Args &&...args)
    {
        return detail::construct<T>(p, [this, p] { ::quire_slab_free(get(), p); }, std::forward<Args>(args)...);
    }

    owner slab_;
};

} // namespace quire

#endif
