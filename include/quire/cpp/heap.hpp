// SPDX-License-Identifier: MIT
/*
 * quire/cpp/heap.hpp - heaps (quire/heap.h): the owner, an allocator for containers, a std::pmr::memory_resource.
 *
 * heap is one of the program's own: its end frees all that is left in it, without destructors.  What takes no heap uses the process's, which never ends.
 */
#ifndef QUIRE_CPP_HEAP_HPP
#define QUIRE_CPP_HEAP_HPP

#include <memory_resource>
#include <optional>
#include <quire/cpp/base.hpp>
#include <quire/heap.h>

namespace quire {

using heap_options = ::quire_heap_opts;
using heap_stats = struct ::quire_heap_stats;

/* The deleter of one object of a heap; through any base that has a virtual destructor. */
struct heap_deleter {
    ::quire_heap *heap = nullptr;
    template <class T> void operator()(T *p) const noexcept
    {
        void *block = detail::block_of(p);
        p->~T();
        ::quire_heap_free(heap, block);
    }
};
template <class T> using heap_ptr = std::unique_ptr<T, heap_deleter>;

namespace detail {

inline void *heap_take(::quire_heap *heap, std::size_t bytes, std::size_t align) noexcept
{
    return __builtin_expect(align <= align_bytes, 1) ? ::quire_heap_alloc(heap, bytes) : ::quire_heap_alloc_aligned(heap, bytes, align);
}

inline void *heap_must_take(::quire_heap *heap, std::size_t bytes, std::size_t align)
{
    return must(heap_take(heap, bytes, align), "quire::heap");
}

} // namespace detail

class heap {
public:
    heap() : heap(heap_options{}) {}
    explicit heap(const heap_options &options) : heap_(detail::must(::quire_heap_create(&options), "quire::heap")) {}
    explicit heap(std::nullptr_t) : heap() {} /* what {} is taken for */
    static std::optional<heap> try_create(const heap_options &options = {}) noexcept
    {
        ::quire_heap *made = ::quire_heap_create(&options);
        return made ? std::optional<heap>(adopt(made)) : std::nullopt;
    }

    static heap adopt(::quire_heap *raw) noexcept { return heap(owner(raw)); }
    ::quire_heap *get() const noexcept { return heap_.get(); }
    [[nodiscard]] ::quire_heap *release() noexcept { return heap_.release(); }

    [[nodiscard]] void *allocate(std::size_t bytes, std::size_t align = detail::align_bytes) { return detail::heap_must_take(get(), bytes, align); }
    [[nodiscard]] void *try_allocate(std::size_t bytes, std::size_t align = detail::align_bytes) noexcept
    {
        return detail::heap_take(get(), bytes, align);
    }
    void deallocate(void *p) noexcept { ::quire_heap_free(get(), p); }
    /* As realloc: the block may move; when this throws, `p` is as it was. */
    [[nodiscard]] void *reallocate(void *p, std::size_t bytes) { return detail::must(::quire_heap_realloc(get(), p, bytes), "quire::heap"); }

    template <class T, class... Args> [[nodiscard]] T *make(Args &&...args)
    {
        void *p = allocate(sizeof(T), alignof(T));
        return detail::construct<T>(p, [this, p] { deallocate(p); }, std::forward<Args>(args)...);
    }
    /* Null, with errno ENOMEM, where the memory is out; what the constructor throws goes on. */
    template <class T, class... Args> [[nodiscard]] T *try_make(Args &&...args)
    {
        void *p = try_allocate(sizeof(T), alignof(T));
        return p ? detail::construct<T>(p, [this, p] { deallocate(p); }, std::forward<Args>(args)...) : nullptr;
    }
    template <class T> void destroy(T *p) noexcept
    {
        if (p != nullptr)
            heap_deleter{get()}(p);
    }
    template <class T, class... Args> [[nodiscard]] heap_ptr<T> make_unique(Args &&...args)
    {
        return heap_ptr<T>(make<T>(std::forward<Args>(args)...), heap_deleter{get()});
    }

    /* f(block, usable bytes) for each that lives, until f returns false; f may return nothing, and must not throw.  False: it was stopped. */
    template <class F> bool for_each(F &&f)
    {
        auto *at = std::addressof(f); /* a function has no address that is a void * */
        auto call = [](void *p, std::size_t bytes, void *arg) { return detail::visit(**static_cast<decltype(at) *>(arg), p, bytes); };
        return ::quire_heap_walk(get(), call, &at) == 0;
    }
    std::size_t trim() noexcept { return ::quire_heap_trim(get()); }
    bool owns(const void *p) const noexcept { return ::quire_heap_owns(get(), p); }
    heap_stats stats() const noexcept { return detail::snapshot<heap_stats, const ::quire_heap>(::quire_heap_stats, get()); }
    const char *check() noexcept { return ::quire_heap_check(get()); }

private:
    using owner = std::unique_ptr<::quire_heap, detail::ender<::quire_heap_destroy>>;
    explicit heap(owner made) noexcept : heap_(std::move(made)) {}

    owner heap_;
};

/* For containers that live no longer than the heap; swapped ones take their heaps along.  All that are made without one are equal, and use the process's. */
template <class T> class heap_allocator {
public:
    using value_type = T;
    using propagate_on_container_swap = std::true_type;

    heap_allocator() noexcept : heap_(::quire_heap_default()) {}
    heap_allocator(heap &from) noexcept : heap_(from.get()) {}
    explicit heap_allocator(::quire_heap *from) noexcept : heap_(from) {}
    template <class U> heap_allocator(const heap_allocator<U> &other) noexcept : heap_(other.get()) {}

    [[nodiscard]] T *allocate(std::size_t count)
    {
        return static_cast<T *>(detail::heap_must_take(heap_, detail::bytes_of<T>(count), alignof(T)));
    }
    void deallocate(T *p, std::size_t) noexcept { ::quire_heap_free(heap_, p); }
    ::quire_heap *get() const noexcept { return heap_; }

    template <class U> friend bool operator==(const heap_allocator &a, const heap_allocator<U> &b) noexcept { return a.get() == b.get(); }
    template <class U> friend bool operator!=(const heap_allocator &a, const heap_allocator<U> &b) noexcept { return a.get() != b.get(); }

private:
    ::quire_heap *heap_;
};

/* A base for classes whose `new` and `delete` are to be the process's heap's. */
struct heap_element {
    static void *operator new(std::size_t bytes) { return detail::heap_must_take(::quire_heap_default(), bytes, detail::align_bytes); }
    static void *operator new(std::size_t bytes, std::align_val_t align)
    {
        return detail::heap_must_take(::quire_heap_default(), bytes, static_cast<std::size_t>(align));
    }
    static void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept
    {
        return detail::heap_take(::quire_heap_default(), bytes, detail::align_bytes);
    }
    static void *operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t &) noexcept
    {
        return detail::heap_take(::quire_heap_default(), bytes, static_cast<std::size_t>(align));
    }
    static void *operator new(std::size_t, void *place) noexcept { return place; }
    static void operator delete(void *p) noexcept { ::quire_heap_free(::quire_heap_default(), p); }
    static void operator delete(void *p, std::align_val_t) noexcept { ::quire_heap_free(::quire_heap_default(), p); }
    static void operator delete(void *p, const std::nothrow_t &) noexcept { ::quire_heap_free(::quire_heap_default(), p); }
    static void operator delete(void *p, std::align_val_t, const std::nothrow_t &) noexcept { ::quire_heap_free(::quire_heap_default(), p); }
    static void operator delete(void *, void *) noexcept {}
};

/* The same for std::pmr.  Any thread may use it.  Equal is only itself. */
class heap_resource final : public std::pmr::memory_resource {
public:
    heap_resource() noexcept : heap_(::quire_heap_default()) {}
    explicit heap_resource(heap &from) noexcept : heap_(from.get()) {}
    explicit heap_resource(::quire_heap *from) noexcept : heap_(from) {}
    ::quire_heap *get() const noexcept { return heap_; }

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override { return detail::heap_must_take(heap_, bytes, align); }
    void do_deallocate(void *p, std::size_t, std::size_t) override { ::quire_heap_free(heap_, p); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    ::quire_heap *heap_;
};

} // namespace quire

#endif
