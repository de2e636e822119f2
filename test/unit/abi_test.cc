// SPDX-License-Identifier: MIT
// Structs of a program that was compiled against an older or a newer header.  The outsides of these are in test/install/test_abi.py.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <quire/arena.h>
#include <quire/counter.h>
#include <quire/heap.h>
#include <quire/histogram.h>
#include <quire/slab.h>

#include "base/abi.h"
#include "unit/own_source.h"

/* What programs have compiled into them, or place themselves: as it was in 0.2, as long as the SONAME is (doc/abi.md). */
static_assert(offsetof(quire_arena_window, cursor) == 0 && offsetof(quire_arena_window, end) == 8);
static_assert(offsetof(quire_percpu_window, rseq_offset) == 0 && offsetof(quire_percpu_window, unit_mask) == 8);
static_assert(offsetof(quire_percpu_window, unit_shift) == 16 && offsetof(quire_percpu_window, cpus) == 20);
static_assert(offsetof(quire_slab_window, gate) == 0 && offsetof(quire_slab_window, divide) == 8); /* it may gain words behind */
static_assert(offsetof(quire_slab_window, table) == 16 && offsetof(quire_slab_window, shift) == 24);
static_assert(offsetof(quire_slab_page_window, slots) == 0 && offsetof(quire_slab_page_window, slab) == 8 && offsetof(quire_slab_page_window, carved) == 16);
static_assert(offsetof(quire_slab_table_window, mask) == 0 && sizeof(quire_slab_table_window) == 8); /* its entries lie behind */
static_assert(offsetof(quire_slab_magazine_window, top) == 0 && offsetof(quire_slab_magazine_window, key) == 8 && offsetof(quire_slab_magazine_window, end) == 16);
static_assert(offsetof(quire_slab_gate_window, magazine) == 0 && offsetof(quire_slab_gate_window, active) == 8);
static_assert(offsetof(quire_counter, pool) == 0 && offsetof(quire_counter, ref) == 8 && sizeof(quire_counter) == 32);
static_assert(offsetof(quire_histogram, ref) == 8 && offsetof(quire_histogram, precision_bits) == 16 && sizeof(quire_histogram) == 24);
static_assert(sizeof(struct quire_arena_mark) == 64 && sizeof(quire_span) == 24 && sizeof(quire_source) == 16 && sizeof(quire_percpu_ref) == 8);

namespace {
/* A struct of `bytes` bytes at the very end of its memory, so that AddressSanitizer sees what goes past it, filled with `fill` behind its length. */
class Struct {
public:
    Struct(size_t bytes, size_t struct_bytes, char fill = 0) : memory(bytes, fill) { memcpy(memory.data(), &struct_bytes, sizeof struct_bytes); }
    void *get() { return memory.data(); }
    size_t struct_bytes() const { return word(0); }
    size_t word(size_t offset) const
    {
        size_t value;
        memcpy(&value, memory.data() + offset, sizeof value);
        return value;
    }
    char &at(size_t offset) { return memory[offset]; }
    bool is(size_t from, size_t to, char value) const
    {
        for (size_t i = from; i < to; i++)
            if (memory[i] != value)
                return false;
        return true;
    }

private:
    std::vector<char> memory;
};

/* Every struct that a program hands in or has filled: as if its last word had come with a later version than the first. */
template <class T> constexpr abi_layout grown_layout(const char *type) { return {type, sizeof(T), sizeof(T) - sizeof(size_t)}; }
const abi_layout grown[] = {
    grown_layout<quire_arena_opts>("quire_arena_opts"), grown_layout<quire_slab_opts>("quire_slab_opts"),
    grown_layout<quire_percpu_opts>("quire_percpu_opts"), grown_layout<quire_heap_opts>("quire_heap_opts"),
    grown_layout<quire_source_verbs>("quire_source_verbs"), grown_layout<struct quire_arena_stats>("quire_arena_stats"),
    grown_layout<struct quire_slab_stats>("quire_slab_stats"), grown_layout<struct quire_percpu_stats>("quire_percpu_stats"),
    grown_layout<struct quire_heap_stats>("quire_heap_stats"), grown_layout<struct quire_heap_class_stats>("quire_heap_class_stats"),
    grown_layout<struct quire_histogram_stats>("quire_histogram_stats"), grown_layout<struct quire_source_stats>("quire_source_stats"),
};

class EveryStruct : public testing::TestWithParam<abi_layout> {
protected:
    const abi_layout layout = GetParam();
    Struct own{layout.bytes, 0, 0x55};
};
std::string name_of(const testing::TestParamInfo<abi_layout> &info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Abi, EveryStruct, testing::ValuesIn(grown), name_of);

/* A taker of options. */
struct Taker {
    const char *name;
    size_t bytes, flags_at, source_at;
    std::function<bool(const void *)> take; /* false with errno; what it made is gone again */
};
void PrintTo(const Taker &taker, std::ostream *out) { *out << taker.name; }

template <class Opts, class Object> Taker taker(const char *name, Object *(*create)(const Opts *), void (*destroy)(Object *))
{
    return {name, sizeof(Opts), offsetof(Opts, flags), offsetof(Opts, source), [=](const void *opts) {
                Object *object = create(static_cast<const Opts *>(opts));
                destroy(object);
                return object != nullptr;
            }};
}
quire_slab *slab_of_64(const quire_slab_opts *opts) { return quire_slab_create(64, opts); }
const Taker takers[] = {
    taker("arena", quire_arena_create, quire_arena_destroy),
    taker("slab", slab_of_64, quire_slab_destroy),
    taker("percpu", quire_percpu_create, quire_percpu_destroy),
    taker("heap", quire_heap_create, quire_heap_destroy),
};
class Options : public testing::TestWithParam<Taker> {
protected:
    const Taker &taker = GetParam();
    int taken(Struct &opts)
    {
        errno = 0;
        return taker.take(opts.get()) ? 0 : errno;
    }
};
template <class T> std::string named(const testing::TestParamInfo<T> &info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Abi, Options, testing::ValuesIn(takers), named<Taker>);

/* A filler of statistics. */
struct Filler {
    const char *name;
    size_t bytes;
    std::function<void(void *)> fill;
};
template <class Stats, class Object> Filler filler(const char *name, Object *object, void (*stats)(const Object *, Stats *))
{
    return {name, sizeof(Stats), [=](void *out) { stats(object, static_cast<Stats *>(out)); }};
}
int class_of_the_default_heap(void *out) { return quire_heap_class_stats(quire_heap_default(), 3, static_cast<struct quire_heap_class_stats *>(out)); }

/* Objects that live as long as the process: the figures themselves are other tests'. */
std::vector<Filler> fillers()
{
    static quire_arena *arena = quire_arena_create(nullptr);
    static quire_slab *slab = quire_slab_create(64, nullptr);
    static quire_percpu *pool = quire_percpu_create(nullptr);
    static quire_histogram_snapshot *snapshot = quire_histogram_snapshot_create(3);
    return {
        filler("arena", arena, quire_arena_stats),
        filler("slab", slab, quire_slab_stats),
        filler("percpu", pool, quire_percpu_stats),
        filler("heap", quire_heap_default(), quire_heap_stats),
        {"heap_class", sizeof(struct quire_heap_class_stats), [](void *out) { ASSERT_EQ(class_of_the_default_heap(out), 0); }},
        filler("histogram", snapshot, quire_histogram_snapshot_stats),
        filler("source", quire_source_default(), quire_source_stats),
    };
}
class Statistics : public testing::TestWithParam<size_t> {
protected:
    const Filler filler = fillers()[GetParam()];
};
INSTANTIATE_TEST_SUITE_P(Abi, Statistics, testing::Range(size_t(0), size_t(7)), [](const testing::TestParamInfo<size_t> &info) { return fillers()[info.param].name; });
} // namespace

TEST_P(EveryStruct, of_an_older_program_is_read_with_zeros_for_what_it_does_not_have)
{
    for (size_t struct_bytes : {layout.first_bytes, size_t(0)}) {
        Struct theirs(layout.first_bytes, struct_bytes, 7);
        ASSERT_EQ(abi_read(&layout, own.get(), theirs.get()), 0);
        EXPECT_EQ(own.struct_bytes(), layout.bytes);
        EXPECT_TRUE(own.is(sizeof(size_t), layout.first_bytes, 7));
        EXPECT_TRUE(own.is(layout.first_bytes, layout.bytes, 0));
    }
}

TEST_P(EveryStruct, of_the_same_version_is_read_whole)
{
    Struct theirs(layout.bytes, layout.bytes, 7);
    ASSERT_EQ(abi_read(&layout, own.get(), theirs.get()), 0);
    EXPECT_TRUE(own.is(sizeof(size_t), layout.bytes, 7));
}

TEST_P(EveryStruct, of_a_newer_program_is_read_when_all_that_is_unknown_is_zero)
{
    const size_t longer = layout.bytes + 24;
    Struct theirs(longer, longer, 7);
    memset(&theirs.at(layout.bytes), 0, 24);
    ASSERT_EQ(abi_read(&layout, own.get(), theirs.get()), 0);
    EXPECT_TRUE(own.is(sizeof(size_t), layout.bytes, 7));
    for (size_t at = layout.bytes; at < longer; at++) {
        theirs.at(at) = 1;
        Struct untouched(layout.bytes, 0, 0x55);
        EXPECT_EQ(abi_read(&layout, untouched.get(), theirs.get()), -E2BIG) << at;
        EXPECT_TRUE(untouched.is(sizeof(size_t), layout.bytes, 0x55));
        theirs.at(at) = 0;
    }
}

TEST_P(EveryStruct, is_refused_with_a_length_that_no_version_had)
{
    for (size_t bytes : {size_t(1), sizeof(size_t), layout.first_bytes - 1}) {
        Struct theirs(layout.bytes, bytes);
        EXPECT_EQ(abi_verify(&layout, theirs.get()), -EINVAL) << bytes;
    }
    for (size_t bytes : {size_t(ABI_BYTES_MAX) + 1, SIZE_MAX, reinterpret_cast<size_t>(&errno)}) {
        Struct theirs(layout.bytes, bytes); /* and nothing is read behind its end */
        EXPECT_EQ(abi_verify(&layout, theirs.get()), -E2BIG) << bytes;
    }
}

TEST_P(EveryStruct, is_all_zero_where_there_is_none)
{
    ASSERT_EQ(abi_read(&layout, own.get(), nullptr), 0);
    EXPECT_EQ(own.struct_bytes(), layout.bytes);
    EXPECT_TRUE(own.is(sizeof(size_t), layout.bytes, 0));
}

TEST_P(EveryStruct, of_an_older_program_is_filled_to_its_end_and_no_further)
{
    for (size_t struct_bytes : {layout.first_bytes, size_t(0)}) {
        Struct theirs(layout.bytes, struct_bytes, 0x11), written(layout.bytes, 0, 7);
        abi_write(&layout, written.get(), theirs.get());
        EXPECT_EQ(theirs.struct_bytes(), layout.first_bytes);
        EXPECT_TRUE(theirs.is(sizeof(size_t), layout.first_bytes, 7));
        EXPECT_TRUE(theirs.is(layout.first_bytes, layout.bytes, 0x11));
    }
}

TEST_P(EveryStruct, of_a_newer_program_is_filled_with_zeros_where_nothing_is_known)
{
    const size_t longer = layout.bytes + 24;
    Struct theirs(longer + 8, longer, 0x11), written(layout.bytes, 0, 7);
    abi_write(&layout, written.get(), theirs.get());
    EXPECT_EQ(theirs.struct_bytes(), layout.bytes) << "so much is valid";
    EXPECT_TRUE(theirs.is(sizeof(size_t), layout.bytes, 7));
    EXPECT_TRUE(theirs.is(layout.bytes, longer, 0));
    EXPECT_TRUE(theirs.is(longer, longer + 8, 0x11));
}

TEST_P(Options, of_this_version_are_taken_with_their_size_and_without)
{
    for (size_t struct_bytes : {taker.bytes, size_t(0)}) {
        Struct opts(taker.bytes, struct_bytes);
        EXPECT_EQ(taken(opts), 0);
    }
    errno = 0;
    EXPECT_TRUE(taker.take(nullptr));
}

TEST_P(Options, of_a_newer_program_are_taken_when_all_that_is_unknown_is_zero_and_else_e2big)
{
    const size_t longer = taker.bytes + 16;
    Struct opts(longer, longer);
    EXPECT_EQ(taken(opts), 0);
    opts.at(longer - 1) = 1;
    EXPECT_EQ(taken(opts), E2BIG);
}

TEST_P(Options, with_a_length_that_is_none_are_refused)
{
    Struct shorter(taker.bytes, taker.bytes - 1), pointer(taker.bytes, reinterpret_cast<size_t>("a name, where 0.1 had it"));
    EXPECT_EQ(taken(shorter), EINVAL);
    EXPECT_EQ(taken(pointer), E2BIG);
}

TEST_P(Options, with_a_flag_in_the_upper_half_are_refused_and_not_cut)
{
    Struct opts(taker.bytes, 0);
    opts.at(taker.flags_at + 5) = 1;
    EXPECT_EQ(taken(opts), EINVAL);
}

TEST_P(Options, with_a_source_whose_verbs_are_of_another_version_are_refused_where_these_are_not_known)
{
    struct {
        struct quire_source_verbs verbs;
        void (*later)(void);
    } longer = {*quire_source_anon()->verbs, nullptr};
    struct quire_source source = {&longer.verbs, "later"}, *address = &source;
    Struct opts(taker.bytes, 0);
    memcpy(&opts.at(taker.source_at), &address, sizeof address);
    longer.verbs.struct_bytes = sizeof longer;
    EXPECT_EQ(taken(opts), 0);
    longer.later = [] {};
    EXPECT_EQ(taken(opts), E2BIG);
    longer.verbs.struct_bytes = 8;
    EXPECT_EQ(taken(opts), EINVAL);
    EXPECT_EQ(quire_source_count(&source), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_P(Statistics, say_how_much_of_them_is_valid_for_every_length)
{
    for (size_t struct_bytes : {filler.bytes, size_t(0), filler.bytes + 16}) {
        Struct out(filler.bytes + 24, struct_bytes, 0x11);
        filler.fill(out.get());
        EXPECT_EQ(out.struct_bytes(), filler.bytes);
        EXPECT_FALSE(out.is(sizeof(size_t), filler.bytes, 0x11));
        size_t end = struct_bytes > filler.bytes ? struct_bytes : filler.bytes;
        EXPECT_TRUE(out.is(filler.bytes, end, 0));
        EXPECT_TRUE(out.is(end, filler.bytes + 24, 0x11));
    }
}

TEST_P(Statistics, are_the_same_for_a_newer_program)
{
    Struct now(filler.bytes, filler.bytes), later(filler.bytes + 64, filler.bytes + 64);
    filler.fill(now.get());
    filler.fill(later.get());
    for (size_t at = 0; at < filler.bytes; at += sizeof(size_t))
        EXPECT_EQ(now.word(at), later.word(at)) << at;
}

TEST(Abi, a_source_that_fills_a_longer_struct_of_statistics_writes_over_nothing)
{
    struct Later {
        struct quire_source_stats stats;
        size_t later[8];
    };
    static struct quire_source_verbs verbs = *quire_source_anon()->verbs;
    verbs.stats = [](const struct quire_source *, struct quire_source_stats *out) {
        Later all = {};
        all.stats.taken_bytes = 7;
        memset(all.later, 0x77, sizeof all.later);
        memcpy(static_cast<void *>(out), &all, sizeof all);
    };
    struct quire_source source = {&verbs, "later"};
    Struct out(sizeof(struct quire_source_stats) + 16, sizeof(struct quire_source_stats), 0x11);
    quire_source_stats(&source, static_cast<struct quire_source_stats *>(out.get()));
    EXPECT_EQ(out.struct_bytes(), sizeof(struct quire_source_stats));
    EXPECT_EQ(out.word(offsetof(struct quire_source_stats, taken_bytes)), 7u);
    EXPECT_TRUE(out.is(sizeof(struct quire_source_stats), sizeof(struct quire_source_stats) + 16, 0x11));
}
