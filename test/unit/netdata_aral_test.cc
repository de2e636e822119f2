// SPDX-License-Identifier: MIT
/* The Array Allocator's names: elements, marks, pages, page sizes, arrays by size.  Files and statistics have tests of their own. */
#include "netdata_aral_kit.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include "os/os.h"

namespace {

std::vector<char *> take(ARAL *ar, size_t count)
{
    std::vector<char *> all;
    for (size_t i = 0; i < count; i++)
        all.push_back(static_cast<char *>(aral_mallocz(ar)));
    return all;
}

void give(ARAL *ar, const std::vector<char *> &all)
{
    for (char *p : all)
        aral_freez(ar, p);
}

size_t pages_of(ARAL *ar)
{
    return aral_get_statistics(ar)->malloc.allocations;
}

uintptr_t os_page_of(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) / os_page_bytes();
}

/* The flags that the kernel has for the mapping of an address, as in smaps. */
std::string vm_flags(const void *address)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    bool inside = false;
    std::string flags;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            flags = line + 8;
    }
    if (file)
        fclose(file);
    return flags;
}

} // namespace

TEST(Aral, elements_of_any_size_are_distinct_aligned_and_hold_what_is_written)
{
    for (size_t size : {0, 1, 7, 8, 16, 17, 24, 64, 100, 1024, 4096, 8200, 70000, 3000000}) {
        ARAL *ar = array_of(size);
        EXPECT_EQ(aral_requested_element_size(ar), size);
        EXPECT_GE(aral_actual_element_size(ar), std::max<size_t>(size, 1));
        EXPECT_EQ(aral_actual_element_size(ar) % 16, 0u);
        std::vector<char *> all = take(ar, size < 70000 ? 1000 : 7);
        EXPECT_EQ(std::set<char *>(all.begin(), all.end()).size(), all.size());
        for (size_t i = 0; i < all.size(); i++) {
            EXPECT_EQ(reinterpret_cast<uintptr_t>(all[i]) % 16, 0u) << "the original gave 8";
            memset(all[i], static_cast<int>(i), size);
        }
        for (size_t i = 0; i < all.size(); i++)
            for (size_t at = 0; at < size; at += 1 + size / 50)
                ASSERT_EQ(all[i][at], static_cast<char>(i)) << "size " << size;
        EXPECT_EQ(aral_used_bytes(ar), all.size() * size);
        expect_sound(ar);
        give(ar, all);
        EXPECT_EQ(aral_used_bytes(ar), 0u);
        expect_sound(ar);
        aral_destroy(ar);
    }
}

TEST(Aral, a_slot_is_the_element_rounded_up_and_nothing_more)
{
    if (memory_is_watched())
        GTEST_SKIP() << "who watches has a few bytes behind each element";
    for (size_t size : {1, 16, 17, 100, 1024})
        for (ARAL *ar = array_of(size); ar; aral_destroy(ar), ar = nullptr)
            EXPECT_EQ(aral_actual_element_size(ar), (size + 15) / 16 * 16);
}

TEST(Aral, a_name_is_copied_and_cut_to_23_characters)
{
    char name[] = "0123456789012345678901234567890123456789";
    ARAL *ar = array_of(8, {.name = name}), *unnamed = array_of(8, {.name = nullptr});
    memset(name, 'x', sizeof name - 1);
    EXPECT_STREQ(aral_name(ar), "01234567890123456789012");
    EXPECT_EQ(strlen(aral_name(ar)), size_t(ARAL_MAX_NAME));
    EXPECT_STREQ(aral_name(unnamed), "");
    aral_destroy(ar), aral_destroy(unnamed);
}

TEST(Aral, callocz_clears_what_was_used_before)
{
    ARAL *ar = array_of(100);
    for (bool marked : {false, true}) {
        std::vector<char *> all;
        for (int i = 0; i < 500; i++)
            memset(all.emplace_back(static_cast<char *>(marked ? aral_mallocz_marked(ar) : aral_mallocz(ar))), 0xff, 100);
        give(ar, all);
        for (char *&p : all) {
            p = static_cast<char *>(marked ? aral_callocz_marked(ar) : aral_callocz(ar));
            ASSERT_EQ(std::count(p, p + 100, 0), 100);
        }
        give(ar, all);
    }
    aral_destroy(ar);
}

TEST(Aral, null_is_left_alone_and_errno_kept)
{
    AralStats stats = {};
    ARAL *ar = array_of(8, {.stats = &stats});
    void *p = aral_mallocz(ar);
    errno = 77;
    aral_freez(ar, nullptr);
    aral_unmark_allocation(ar, nullptr);
    EXPECT_EQ(stats.malloc.used_bytes, 8u);
    aral_freez(ar, p);
    aral_destroy(nullptr);
    aral_by_size_release(nullptr);
    aral_destroy(ar);
    EXPECT_EQ(errno, 77);
}

TEST(Aral, destroy_frees_what_lives)
{
    struct quire_source_stats before = {.struct_bytes = sizeof before}, after = {.struct_bytes = sizeof after};
    quire_source_stats(quire_source_default(), &before);
    for (int round = 0; round < 20; round++) {
        ARAL *ar = array_of(500);
        take(ar, 1000);
        aral_destroy(ar);
    }
    quire_source_stats(quire_source_default(), &after);
    EXPECT_LE(after.taken_bytes, before.taken_bytes + (64 << 10)) << "twenty times 500 KB would be seen";
}

TEST(Aral, the_first_page_has_room_for_the_initial_elements_and_for_two_at_least)
{
    for (size_t initial : {0, 2, 10, 100, 600}) {
        ARAL *ar = array_of(64, {.initial = initial});
        take(ar, 1);
        EXPECT_EQ(pages_of(ar), 1u);
        EXPECT_GE(aral_free_bytes(ar) + 64, std::max<size_t>(initial, 2) * 64) << initial;
        aral_destroy(ar);
    }
    ARAL *ar = array_of(64, {.initial = SIZE_MAX}); /* a hint, the largest page being the limit */
    take(ar, 1);
    EXPECT_LE(total_bytes_of(ar), (128 << 10) + (os_page_bytes() > 4096 ? 2 * os_page_bytes() : 0));
    aral_destroy(ar);
    ar = array_of(os_page_bytes(), {.initial = 1});
    take(ar, 2);
    EXPECT_EQ(pages_of(ar), 2 * os_page_bytes() > (64 << 10) ? 2u : 1u);
    aral_destroy(ar);
}

TEST(Aral, no_page_is_larger_than_the_largest_but_one_element_always_fits)
{
    for (size_t page_bytes : {4096, 16384, 262144}) {
        size_t largest = std::max(page_bytes, os_page_bytes()), count = 4 * largest / 64;
        ARAL *ar = array_of(64, {.page_bytes = page_bytes});
        take(ar, count);
        EXPECT_GE(pages_of(ar), count * aral_actual_element_size(ar) / largest);
        const AralStats *stats = aral_get_statistics(ar);
        EXPECT_GE((pages_of(ar) + 1) * largest, stats->malloc.allocated_bytes + stats->malloc.padding_bytes);
        aral_destroy(ar);
    }
    ARAL *ar = array_of(100000, {.page_bytes = 4096});
    take(ar, 3);
    EXPECT_EQ(pages_of(ar), 3u);
    aral_destroy(ar);
}

TEST(Aral, the_process_wide_largest_page_holds_for_arrays_that_exist_from_their_next_page_on)
{
    EXPECT_EQ(aral_optimal_malloc_page_size(), size_t(64 << 10));
    const size_t least = std::max(size_t(16 << 10), os_page_bytes()), most = 4 * least;
    aral_optimal_malloc_page_size_set(most);
    ARAL *follows = array_of(64), *own = array_of(64, {.page_bytes = most});
    std::vector<char *> keep = take(follows, 10000), keep_own = take(own, 10000);
    EXPECT_EQ(aral_optimal_malloc_page_size_set(1), size_t(16 << 10)) << "the floor";
    EXPECT_EQ(aral_optimal_malloc_page_size(), size_t(16 << 10));
    size_t pages = pages_of(follows), pages_own = pages_of(own);
    take(follows, 10000), take(own, 10000);
    EXPECT_GE(pages_of(follows), pages + 10000 * aral_actual_element_size(follows) / least - 4);
    EXPECT_LE(pages_of(own), pages_own + 10000 * aral_actual_element_size(own) / most + 1);
    ARAL *later = array_of(64);
    take(later, 10000);
    EXPECT_GE(pages_of(later), 10000 * aral_actual_element_size(later) / least);
    EXPECT_EQ(aral_optimal_malloc_page_size_set(64 << 10), size_t(64 << 10));
    aral_destroy(follows), aral_destroy(own), aral_destroy(later);
}

TEST(Aral, a_page_that_becomes_empty_goes_back_at_once_unless_it_is_the_last)
{
    ARAL *ar = array_of(1000, {.page_bytes = 16 << 10});
    std::vector<char *> all = take(ar, 1000);
    size_t most = pages_of(ar);
    EXPECT_GE(most, 1000 * 1000 / std::max<size_t>(16 << 10, os_page_bytes()) - 1);
    for (size_t i = 0; i < all.size(); i++) {
        aral_freez(ar, all[i]);
        size_t live = all.size() - i - 1;
        ASSERT_LE(pages_of(ar), live / 8 + 4) << "with " << live << " elements, freed in the order in which they came";
    }
    EXPECT_LE(pages_of(ar), 1u);
    aral_destroy(ar);
}

TEST(Aral, marked_elements_live_on_pages_of_their_own)
{
    ARAL *ar = array_of(64, {.page_bytes = os_page_bytes()});
    std::map<uintptr_t, bool> kind;
    std::vector<char *> all;
    for (int i = 0; i < 5000; i++) {
        bool marked = i % 3 == 0;
        all.push_back(static_cast<char *>(marked ? aral_mallocz_marked(ar) : aral_mallocz(ar)));
        auto [at, fresh] = kind.emplace(os_page_of(all.back()), marked);
        ASSERT_EQ(at->second, marked) << "element " << i;
        (void)fresh;
    }
    expect_sound(ar);
    give(ar, all); /* marked ones may be freed without unmarking */
    EXPECT_EQ(aral_used_bytes(ar), 0u);
    expect_sound(ar);
    aral_destroy(ar);
}

TEST(Aral, a_page_joins_the_ordinary_ones_when_its_last_marked_element_is_unmarked)
{
    ARAL *ar = array_of(64, {.page_bytes = os_page_bytes()});
    std::map<uintptr_t, std::vector<char *>> pages;
    for (int i = 0; i < 1000; i++) {
        char *p = static_cast<char *>(aral_mallocz_marked(ar));
        pages[os_page_of(p)].push_back(p);
    }
    auto &[page, elements] = *std::max_element(pages.begin(), pages.end(), [](auto &a, auto &b) { return a.second.size() < b.second.size(); });
    ASSERT_GE(elements.size(), 4u);
    aral_freez(ar, elements[0]); /* room on it, so that others could come */
    char *text = elements[1];
    strcpy(text, "nothing moves");
    for (size_t i = 1; i + 1 < elements.size(); i++)
        aral_unmark_allocation(ar, elements[i]);
    aral_unmark_allocation(ar, elements[1]); /* twice */
    aral_unmark_allocation(ar, elements[0]); /* free */
    aral_unmark_allocation(ar, text + 8);    /* no element */
    aral_unmark_allocation(ar, &elements);   /* anything */
    std::vector<char *> ordinary = take(ar, 2000);
    EXPECT_TRUE(std::none_of(ordinary.begin(), ordinary.end(), [&](char *p) { return os_page_of(p) == page; })) << "one is marked still";
    aral_unmark_allocation(ar, elements.back());
    std::vector<char *> more = take(ar, 2000);
    EXPECT_TRUE(std::any_of(more.begin(), more.end(), [&](char *p) { return os_page_of(p) == page; }));
    EXPECT_STREQ(text, "nothing moves");
    expect_sound(ar);
    aral_destroy(ar);
}

TEST(Aral, unmarking_an_ordinary_element_is_nothing)
{
    ARAL *ar = array_of(64);
    std::vector<char *> all = take(ar, 100);
    for (char *p : all)
        aral_unmark_allocation(ar, p);
    expect_sound(ar);
    give(ar, all);
    aral_destroy(ar);
}

TEST(Aral, an_array_for_one_thread_does_the_same)
{
    ARAL *ar = array_of(48, {.lockless = true});
    Random random(7);
    std::vector<char *> live;
    for (int step = 0; step < 20000; step++) {
        if (live.empty() || random.below(100) < 55) {
            live.push_back(static_cast<char *>(step % 5 ? aral_callocz(ar) : aral_mallocz_marked(ar)));
        } else {
            std::swap(live[random.below(live.size())], live.back());
            if (step % 3 == 0)
                aral_unmark_allocation(ar, live.back());
            aral_freez(ar, live.back());
            live.pop_back();
        }
        if (step % 1000 == 0)
            expect_sound(ar);
    }
    EXPECT_EQ(aral_used_bytes(ar), live.size() * 48);
    aral_destroy(ar);
}

TEST(Aral, pages_stay_out_of_core_dumps_when_asked)
{
    ARAL *secret = array_of(1000, {.dont_dump = true}), *open = array_of(1000);
    for (char *p : take(secret, 100))
        ASSERT_NE(vm_flags(p).find(" dd"), std::string::npos);
    if (!memory_is_watched()) {
        for (char *p : take(open, 100))
            ASSERT_EQ(vm_flags(p).find(" dd"), std::string::npos);
    }
    aral_destroy(secret), aral_destroy(open);
}

TEST(Aral, the_defragmenter_is_switched_while_running)
{
    ARAL *ar = array_of(64, {.page_bytes = 16 << 10});
    std::vector<char *> all = take(ar, 20000);
    Random random(3);
    for (int round = 0; round < 2; round++) {
        quire_slab_set_defrag(aral_slab(ar), round == 0);
        for (int step = 0; step < 40000; step++) {
            size_t at = random.below(all.size());
            aral_freez(ar, all[at]);
            all[at] = static_cast<char *>(aral_mallocz(ar));
        }
        expect_sound(ar);
    }
    EXPECT_EQ(live_elements_of(ar), all.size());
    aral_destroy(ar);
}

TEST(AralBySize, one_array_for_each_size_is_shared_and_gone_with_its_last_user)
{
    ASSERT_TRUE(is_zero(*aral_by_size_statistics()));
    ARAL *a = aral_by_size_acquire(64), *b = aral_by_size_acquire(64), *c = aral_by_size_acquire(65);
    EXPECT_EQ(a, b);
    EXPECT_NE(a, c);
    EXPECT_EQ(aral_requested_element_size(c), 65u);
    void *p = aral_mallocz(a), *q = aral_callocz(c);
    EXPECT_EQ(aral_by_size_used_bytes(), size_t(64 + 65));
    EXPECT_GT(aral_by_size_free_bytes(), 0u);
    EXPECT_GT(aral_by_size_structures_bytes(), 0u);
    EXPECT_EQ(aral_by_size_padding_bytes(), aral_padding_bytes(a) + aral_padding_bytes(c));
    EXPECT_EQ(aral_by_size_free_bytes(), aral_free_bytes(a) + aral_free_bytes(c));
    EXPECT_EQ(aral_get_statistics(a), aral_by_size_statistics());
    aral_freez(b, p), aral_freez(c, q);
    aral_by_size_release(a);
    EXPECT_NE(p = aral_mallocz(b), nullptr) << "one user is left";
    aral_freez(b, p);
    aral_by_size_release(b), aral_by_size_release(c);
    EXPECT_TRUE(is_zero(*aral_by_size_statistics())) << "all memory is back";
}

TEST(AralBySize, every_size_up_to_1024_is_shared_and_above_private)
{
    for (size_t size : {0, 1, 1023, 1024}) {
        ARAL *a = aral_by_size_acquire(size), *b = aral_by_size_acquire(size);
        EXPECT_EQ(a, b) << size;
        aral_by_size_release(a), aral_by_size_release(b);
    }
    for (size_t size : {1025, 100000}) {
        ARAL *a = aral_by_size_acquire(size), *b = aral_by_size_acquire(size);
        EXPECT_NE(a, b) << size;
        aral_by_size_release(a), aral_by_size_release(b);
    }
    EXPECT_TRUE(is_zero(*aral_by_size_statistics()));
}
