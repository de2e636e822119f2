// SPDX-License-Identifier: MIT
/*
 * quire/cpp/slab_resource.hpp - a std::pmr::memory_resource over a pool of slabs, one for each class of sizes.
 *
 *     bytes      1..128 by 16      ..256 by 32      ..512 by 64      ..1024 by 128      more
 *     from       a slab each, made at its first block                                   a heap of the resource's own
 *
 * The resource owns them: its end gives all memory back, also blocks that nobody deallocated, without destructors.  Any thread may use it.  A block is freed
 * with the size and alignment it was allocated with, as std::pmr asks; another class, or another resource, stops the process (slab E4 or E2, heap E4 or E2).
 */
#ifndef QUIRE_CPP_SLAB_RESOURCE_HPP
#define QUIRE_CPP_SLAB_RESOURCE_HPP

#include <atomic>
#include <memory_resource>
#include <quire/cpp/base.hpp>
#include <quire/heap.h>
#include <quire/slab.h>

namespace quire {

class slab_resource final : public std::pmr::memory_resource {
public:
    slab_resource() noexcept = default;
    /* `name`: of its slabs and its heap, in statistics; it must outlive the resource. */
    explicit slab_resource(const char *name) noexcept : name_(name) {}
    slab_resource(const slab_resource &) = delete;
    slab_resource &operator=(const slab_resource &) = delete;
    ~slab_resource() override
    {
        for (std::atomic<::quire_slab *> &each : slabs_)
            ::quire_slab_destroy(each.load(std::memory_order_acquire));
        ::quire_heap_destroy(heap_.load(std::memory_order_acquire));
    }

    /* Empty pages go back to the source.  Returns bytes. */
    std::size_t trim() noexcept
    {
        std::size_t bytes = 0;
        for (std::atomic<::quire_slab *> &each : slabs_)
            if (::quire_slab *slab = each.load(std::memory_order_acquire))
                bytes += ::quire_slab_trim(slab);
        ::quire_heap *heap = heap_.load(std::memory_order_acquire);
        return heap ? bytes + ::quire_heap_trim(heap) : bytes;
    }

private:
    static constexpr std::size_t slab_bytes_max = 1024, classes = 20;

    /* Eight classes up to 128 bytes, then four to each doubling. */
    static std::size_t class_of(std::size_t bytes) noexcept
    {
        if (bytes <= 128)
            return bytes == 0 ? 0 : (bytes - 1) / 16;
        std::size_t octave = static_cast<std::size_t>(63 - __builtin_clzll(bytes - 1)); /* 7 to 9 */
        return 8 + (octave - 7) * 4 + ((bytes - 1) >> (octave - 2)) - 4;
    }
    static std::size_t bytes_of_class(std::size_t index) noexcept
    {
        return index < 8 ? (index + 1) * 16 : (index % 4 + 5) << (5 + (index - 8) / 4);
    }
    static bool is_small(std::size_t bytes, std::size_t align) noexcept { return bytes <= slab_bytes_max && align <= detail::align_bytes; }

    /* The object at `place`, made by `make` if it is the first; who loses a race ends his own. */
    template <class T, class Make, class End> static T *first_of(std::atomic<T *> &place, Make make, End end)
    {
        T *found = place.load(std::memory_order_acquire);
        if (__builtin_expect(found != nullptr, 1))
            return found;
        T *mine = detail::must(make(), "quire::slab_resource");
        if (place.compare_exchange_strong(found, mine, std::memory_order_acq_rel))
            return mine;
        end(mine);
        return found;
    }
    ::quire_slab *slab(std::size_t index)
    {
        auto make = [this, index] {
            ::quire_slab_opts options{};
            options.name = name_;
            return ::quire_slab_create(bytes_of_class(index), &options);
        };
        return first_of(slabs_[index], make, ::quire_slab_destroy);
    }
    ::quire_heap *heap()
    {
        auto make = [this] {
            ::quire_heap_opts options{};
            options.name = name_;
            return ::quire_heap_create(&options);
        };
        return first_of(heap_, make, ::quire_heap_destroy);
    }

    void *do_allocate(std::size_t bytes, std::size_t align) override
    {
        void *p = is_small(bytes, align) ? ::quire_slab_alloc(slab(class_of(bytes))) : ::quire_heap_alloc_aligned(heap(), bytes, align);
        return detail::must(p, "quire::slab_resource");
    }
    void do_deallocate(void *p, std::size_t bytes, std::size_t align) override
    {
        if (is_small(bytes, align))
            ::quire_slab_free(slab(class_of(bytes)), p); /* the class's first, if p is of another: which is refused there */
        else
            ::quire_heap_free(heap(), p);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    const char *name_ = nullptr;
    std::atomic<::quire_slab *> slabs_[classes]{};
    std::atomic<::quire_heap *> heap_{nullptr};
};

} // namespace quire

#endif
