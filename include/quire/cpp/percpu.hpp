// SPDX-License-Identifier: MIT
/*
 * quire/cpp/percpu.hpp - per-CPU objects (quire/percpu.h), counters (quire/counter.h) and histograms (quire/histogram.h).
 *
 *     struct traffic { std::intptr_t packets, bytes; };
 *     quire::percpu<traffic> seen;                       // zero on every CPU
 *     seen.add(&traffic::bytes, 1500);                   // from any thread
 *     quire::counter hits;
 *     ++hits;
 *     quire::histogram times_ns(7);
 *     times_ns.record(1234);
 *
 * All of them lie in a pool: one that is given, which must outlive them, or the process's, which never ends.
 */
#ifndef QUIRE_CPP_PERCPU_HPP
#define QUIRE_CPP_PERCPU_HPP

#include <optional>
#include <quire/counter.h>
#include <quire/cpp/base.hpp>
#include <quire/histogram.h>
#include <quire/percpu.h>

namespace quire {

using percpu_options = ::quire_percpu_opts;
using percpu_stats = struct ::quire_percpu_stats;
using histogram_stats = ::quire_histogram_stats;
using histogram_bucket = ::quire_histogram_bucket;

class percpu_pool {
public:
    percpu_pool() : percpu_pool(percpu_options{}) {}
    explicit percpu_pool(const percpu_options &options) : pool_(detail::must(::quire_percpu_create(&options), "quire::percpu_pool")) {}
    explicit percpu_pool(std::nullptr_t) : percpu_pool() {} /* what {} is taken for */
    static std::optional<percpu_pool> try_create(const percpu_options &options = {}) noexcept
    {
        ::quire_percpu *made = ::quire_percpu_create(&options);
        return made ? std::optional<percpu_pool>(adopt(made)) : std::nullopt;
    }
    /* The process's own, made at first use; it never ends. */
    static percpu_pool &process()
    {
        static percpu_pool *const pool = new percpu_pool(named("process"));
        return *pool;
    }

    static percpu_pool adopt(::quire_percpu *raw) noexcept { return percpu_pool(owner(raw)); }
    ::quire_percpu *get() const noexcept { return pool_.get(); }
    [[nodiscard]] ::quire_percpu *release() noexcept { return pool_.release(); }

    /* How many copies there are. */
    unsigned cpus() const noexcept { return ::quire_percpu_cpus(get()); }
    std::size_t trim() noexcept { return ::quire_percpu_trim(get()); }
    percpu_stats stats() const noexcept { return detail::snapshot<percpu_stats, const ::quire_percpu>(::quire_percpu_stats, get()); }
    const char *check() noexcept { return ::quire_percpu_check(get()); }

private:
    using owner = std::unique_ptr<::quire_percpu, detail::ender<::quire_percpu_destroy>>;
    explicit percpu_pool(owner made) noexcept : pool_(std::move(made)) {}
    static percpu_options named(const char *name) noexcept
    {
        percpu_options options{};
        options.name = name;
        return options;
    }

    owner pool_;
};

namespace detail {

/* A T to find the places of members in. */
template <class T> inline constexpr T sample{};

template <class W> inline constexpr bool is_word = std::is_integral_v<W> && sizeof(W) == sizeof(std::intptr_t);

} // namespace detail

/*
 * A T for each CPU, that begins as zero bytes and is never constructed nor destroyed.  Words of 64 bits are added to, on the copy of the CPU that the thread
 * runs on, as one step; all else is written through at(), and ordered by the caller.
 */
template <class T> class percpu {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_default_constructible_v<T>, "the copies are zero bytes, and no constructor runs");

public:
    percpu() : percpu(percpu_pool::process()) {}
    explicit percpu(percpu_pool &pool) : percpu(pool.get(), ::quire_percpu_alloc(pool.get(), sizeof(T), alignof(T)))
    {
        if (ref_.bits == 0)
            detail::raise(errno, "quire::percpu");
    }
    static std::optional<percpu> try_create(percpu_pool &pool) noexcept
    {
        ::quire_percpu_ref ref = ::quire_percpu_alloc(pool.get(), sizeof(T), alignof(T));
        return ref.bits ? std::optional<percpu>(percpu(pool.get(), ref)) : std::nullopt;
    }
    percpu(percpu &&other) noexcept : percpu(other.pool_, std::exchange(other.ref_, ::quire_percpu_ref{0})) {}
    percpu &operator=(percpu &&other) noexcept
    {
        percpu taken(std::move(other));
        std::swap(pool_, taken.pool_);
        std::swap(ref_, taken.ref_);
        return *this;
    }
    ~percpu()
    {
        if (ref_.bits != 0)
            ::quire_percpu_free(pool_, ref_);
    }

    ::quire_percpu_ref ref() const noexcept { return ref_; }
    unsigned cpus() const noexcept { return ::quire_percpu_cpus(pool_); }
    /* One CPU's copy; cpu < cpus(). */
    T &at(unsigned cpu) const noexcept { return *static_cast<T *>(::quire_percpu_at(pool_, ref_, cpu)); }
    template <class F> void for_each(F &&f) const
    {
        for (unsigned cpu = 0, all = cpus(); cpu < all; cpu++)
            f(at(cpu));
    }

    /* Of a percpu<std::intptr_t> and its like. */
    void add(std::intptr_t value) noexcept
    {
        static_assert(detail::is_word<T>, "a word of 64 bits is added to; name a member, or use at()");
        ::quire_percpu_add(pool_, ref_, value);
    }
    T sum() const noexcept
    {
        static_assert(detail::is_word<T>, "words of 64 bits are added up; name a member, or use for_each()");
        return static_cast<T>(::quire_percpu_sum(pool_, ref_));
    }
    /* Of a member of a struct: add(&traffic::bytes, 1500). */
    template <class W, class C> void add(W C::*member, std::intptr_t value) noexcept { ::quire_percpu_add(pool_, word(member), value); }
    template <class W, class C> W sum(W C::*member) const noexcept { return static_cast<W>(::quire_percpu_sum(pool_, word(member))); }

private:
    percpu(::quire_percpu *pool, ::quire_percpu_ref ref) noexcept : pool_(pool), ref_(ref) {}
    template <class W, class C> ::quire_percpu_ref word(W C::*member) const noexcept
    {
        static_assert(detail::is_word<W>, "a word of 64 bits");
        const T &in = detail::sample<T>;
        auto offset = reinterpret_cast<const char *>(&(in.*member)) - reinterpret_cast<const char *>(&in);
        return {ref_.bits + static_cast<std::uintptr_t>(offset)};
    }

    ::quire_percpu *pool_;
    ::quire_percpu_ref ref_;
};

/* A number that many threads add to.  Moving one is for when nobody uses it. */
class counter {
public:
    counter() : counter(percpu_pool::process()) {}
    explicit counter(percpu_pool &pool) { detail::must(::quire_counter_init(&counter_, pool.get()), "quire::counter"); }
    static std::optional<counter> try_create(percpu_pool &pool) noexcept
    {
        ::quire_counter made{};
        return ::quire_counter_init(&made, pool.get()) == 0 ? std::optional<counter>(counter(made)) : std::nullopt;
    }
    counter(counter &&other) noexcept : counter_(std::exchange(other.counter_, ::quire_counter{})) {}
    counter &operator=(counter &&other) noexcept
    {
        counter taken(std::move(other));
        std::swap(counter_, taken.counter_);
        return *this;
    }
    ~counter() { ::quire_counter_fini(&counter_); }

    ::quire_counter *get() noexcept { return &counter_; }
    void add(std::intptr_t value) noexcept { ::quire_counter_add(&counter_, value); }
    counter &operator+=(std::intptr_t value) noexcept { return add(value), *this; }
    counter &operator-=(std::intptr_t value) noexcept { return add(static_cast<std::intptr_t>(0 - static_cast<std::uintptr_t>(value))), *this; }
    counter &operator++() noexcept { return *this += 1; }
    counter &operator--() noexcept { return *this -= 1; }
    /* To report: exact when nobody adds. */
    std::intptr_t sum() const noexcept { return ::quire_counter_sum(&counter_); }
    /* To decide again and again: at most a millisecond old. */
    std::intptr_t read() noexcept { return ::quire_counter_read(&counter_); }

private:
    explicit counter(const ::quire_counter &made) noexcept : counter_(made) {}

    ::quire_counter counter_{};
};

/* The counts of a histogram at one moment; for one thread at a time. */
class histogram_snapshot {
public:
    explicit histogram_snapshot(unsigned precision_bits = 7)
        : snapshot_(detail::must(::quire_histogram_snapshot_create(precision_bits), "quire::histogram_snapshot"))
    {
    }
    static std::optional<histogram_snapshot> try_create(unsigned precision_bits = 7) noexcept
    {
        ::quire_histogram_snapshot *made = ::quire_histogram_snapshot_create(precision_bits);
        return made ? std::optional<histogram_snapshot>(adopt(made)) : std::nullopt;
    }
    static histogram_snapshot adopt(::quire_histogram_snapshot *raw) noexcept { return histogram_snapshot(raw, 0); }
    [[nodiscard]] ::quire_histogram_snapshot *release() noexcept { return snapshot_.release(); }
    ::quire_histogram_snapshot *get() const noexcept { return snapshot_.get(); }

    void reset() noexcept { ::quire_histogram_snapshot_reset(get()); }
    /* What the other has recorded too, and less what an earlier one of the same histogram had: std::system_error where they do not fit. */
    void merge(const histogram_snapshot &other) { detail::must(::quire_histogram_snapshot_merge(get(), other.get()), "quire::histogram_snapshot"); }
    void subtract(const histogram_snapshot &earlier)
    {
        detail::must(::quire_histogram_snapshot_subtract(get(), earlier.get()), "quire::histogram_snapshot");
    }
    std::uint64_t percentile(double percent) const noexcept { return ::quire_histogram_snapshot_percentile(get(), percent); }
    histogram_stats stats() const noexcept
    {
        return detail::snapshot<histogram_stats, const ::quire_histogram_snapshot>(::quire_histogram_snapshot_stats, get());
    }
    /* f(bucket) for each that is not empty, lowest first, until f returns false; f may return nothing, and must not throw. */
    template <class F> bool for_each(F &&f) const
    {
        auto *at = std::addressof(f); /* a function has no address that is a void * */
        auto call = [](const histogram_bucket *bucket, void *arg) { return detail::visit(**static_cast<decltype(at) *>(arg), *bucket); };
        return ::quire_histogram_snapshot_walk(get(), call, &at) == 0;
    }

private:
    histogram_snapshot(::quire_histogram_snapshot *raw, int) noexcept : snapshot_(raw) {}

    std::unique_ptr<::quire_histogram_snapshot, detail::ender<::quire_histogram_snapshot_destroy>> snapshot_;
};

/* How often each value occurs.  Moving one is for when nobody uses it. */
class histogram {
public:
    explicit histogram(unsigned precision_bits = 7) : histogram(percpu_pool::process(), precision_bits) {}
    explicit histogram(percpu_pool &pool, unsigned precision_bits = 7)
    {
        detail::must(::quire_histogram_init(&histogram_, pool.get(), precision_bits), "quire::histogram");
    }
    static std::optional<histogram> try_create(percpu_pool &pool, unsigned precision_bits = 7) noexcept
    {
        ::quire_histogram made{};
        return ::quire_histogram_init(&made, pool.get(), precision_bits) == 0 ? std::optional<histogram>(histogram(made)) : std::nullopt;
    }
    histogram(histogram &&other) noexcept : histogram_(std::exchange(other.histogram_, ::quire_histogram{})) {}
    histogram &operator=(histogram &&other) noexcept
    {
        histogram taken(std::move(other));
        std::swap(histogram_, taken.histogram_);
        return *this;
    }
    ~histogram() { ::quire_histogram_fini(&histogram_); }

    ::quire_histogram *get() noexcept { return &histogram_; }
    void record(std::uint64_t value) noexcept { ::quire_histogram_record(&histogram_, value); }
    [[nodiscard]] histogram_snapshot snapshot() const
    {
        histogram_snapshot now(histogram_.precision_bits);
        snapshot(now);
        return now;
    }
    /* The same into one that is there already; std::system_error where that is more precise than the histogram. */
    void snapshot(histogram_snapshot &into) const { detail::must(::quire_histogram_snapshot_take(into.get(), &histogram_), "quire::histogram"); }

private:
    explicit histogram(const ::quire_histogram &made) noexcept : histogram_(made) {}

    ::quire_histogram histogram_{};
};

} // namespace quire

#endif
