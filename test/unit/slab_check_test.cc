// SPDX-License-Identifier: MIT
/* quire_slab_check() sees each of its invariants broken: here by hand, and put back. */
#include <gtest/gtest.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wextra" /* an enum and an unsigned in one ?:, which C does not mind */
#include "slab/slab_internal.h"
#pragma GCC diagnostic pop
#include "unit/slab_scope.h"

namespace {

/* One value is another until the end of the scope. */
template <typename T> class Changed {
public:
    Changed(T &place_, T value) : place(place_), was(place_) { place = value; }
    ~Changed() { place = was; }

private:
    T &place, was;
};

/* A slab of one thread with a page in each state: full, partial, held for a cache, empty; and with slots in magazines. */
class SlabCheck : public testing::Test {
protected:
    SlabCheck() : slab(1000)
    {
        slab.free(slab.alloc(400)), slab.free(slab.alloc(400)); /* so that it has magazines and keeps empty pages */
        quire_slab_set_defrag(slab, 0);                          /* which empties the magazines */
        raw = slab;
        Elements elements = slab.alloc(400);
        void *of_partial = nullptr;
        struct slab_page *emptied = nullptr;
        for (void *p : elements) {
            struct slab_page *page = page_of(p);
            if (slab_is_home(page) || page->state == PAGE_HELD)
                continue;
            if (!emptied)
                emptied = page;
            if (page == emptied)
                slab_put_one(slab, p);
            else if (!of_partial)
                slab_put_one(slab, of_partial = p);
        }
        EXPECT_EQ(quire_slab_check(slab), nullptr);
    }
    struct slab_page *page_of(void *p) const
    {
        for (struct slab_page *page = nullptr; (page = slab_page_after(raw, page)) != nullptr;)
            if (static_cast<char *>(p) >= slab_slots(page) && static_cast<char *>(p) < slab_slots(page) + slab_slots_bytes(page))
                return page;
        return raw->home;
    }
    struct slab_page *page_in(uint8_t state) const
    {
        for (struct slab_page *page = nullptr; (page = slab_page_after(raw, page)) != nullptr;)
            if (page->state == state && !slab_is_home(page))
                return page;
        ADD_FAILURE() << "no page in state " << int(state);
        return raw->home;
    }
    std::string verdict() const
    {
        const char *error = quire_slab_check(slab);
        return error ? std::string(error).substr(0, 7) : "";
    }
    Slab slab;
    quire_slab *raw;
};

} // namespace

TEST_F(SlabCheck, sees_a_page_that_the_page_map_gives_to_another)
{
    struct slab_page *page = page_in(PAGE_PARTIAL);
    static struct slab_page stranger = {};
    ASSERT_EQ(pagemap_set(slab_slots(page), slab_span_bytes(page), owner_make(&stranger, OWNER_SLAB)), 0);
    EXPECT_EQ(verdict(), "slab P1");
    ASSERT_EQ(pagemap_set(slab_slots(page), slab_span_bytes(page), owner_make(page, OWNER_SLAB)), 0);
}

TEST_F(SlabCheck, sees_a_wrong_number_of_free_slots)
{
    for (uint8_t state : {PAGE_FULL, PAGE_PARTIAL, PAGE_EMPTY}) {
        struct slab_page *page = page_in(state);
        Changed<uint16_t> more(page->free_count, page->free_count + 1);
        EXPECT_EQ(verdict(), "slab P2");
    }
}

TEST_F(SlabCheck, sees_a_page_that_is_called_full_and_has_room)
{
    struct slab_page *page = page_in(PAGE_PARTIAL);
    slab_page called = *page;
    called.state = PAGE_FULL;
    Changed<slab_page> full(*page, called);
    EXPECT_EQ(verdict(), "slab P3");
}

TEST_F(SlabCheck, sees_a_page_that_is_called_empty_and_is_used)
{
    struct slab_page *page = page_in(PAGE_FULL);
    slab_page called = *page;
    called.state = PAGE_EMPTY;
    Changed<slab_page> empty(*page, called);
    EXPECT_EQ(verdict(), "slab P3");
}

TEST_F(SlabCheck, sees_slots_behind_the_last)
{
    struct slab_page *page = page_in(PAGE_PARTIAL);
    if (page->slot_count % 64 == 0)
        GTEST_SKIP() << "there are none";
    Changed<uint64_t> word(page->free[slab_words(page) - 1], page->free[slab_words(page) - 1] | UINT64_C(1) << 63);
    Changed<uint16_t> counted(page->free_count, page->free_count + 1);
    EXPECT_EQ(verdict(), "slab P2");
}

TEST_F(SlabCheck, sees_a_cached_slot_that_was_written_to_and_one_that_is_free_in_its_page_too)
{
    if (raw->straight)
        GTEST_SKIP() << "nothing is cached where somebody watches";
    void *p = quire_slab_alloc(slab);
    quire_slab_free(slab, p);
    {
        Changed<uint64_t> written(*static_cast<uint64_t *>(p), 7);
        EXPECT_EQ(verdict(), "slab P4");
    }
    struct slab_page *page = page_of(p);
    size_t slot = slab_slot_of(raw, page, p);
    Changed<uint64_t> word(page->free[slot / 64], page->free[slot / 64] | UINT64_C(1) << slot % 64);
    Changed<uint16_t> counted(page->free_count, page->free_count + 1);
    Changed<size_t> counted_in_all(raw->free_slots, raw->free_slots + 1);
    EXPECT_EQ(verdict(), "slab P4");
}

TEST_F(SlabCheck, sees_a_page_on_no_list)
{
    struct slab_page *page = page_in(PAGE_EMPTY);
    {
        Changed<slab_page *> gone(raw->empty, page->next);
        EXPECT_EQ(verdict(), "slab P5");
    }
    Changed<uint32_t> none(raw->lane[LANE_ORDINARY].filled, 0);
    EXPECT_EQ(verdict(), "slab P5");
}

TEST_F(SlabCheck, sees_a_slab_that_counts_its_pages_wrongly)
{
    {
        Changed<uint32_t> more(raw->pages, raw->pages + 1);
        EXPECT_EQ(verdict(), "slab P5");
    }
    {
        Changed<uint32_t> fewer(raw->empties, 0);
        EXPECT_EQ(verdict(), "slab P5");
    }
    Changed<size_t> bytes(raw->held_bytes, raw->held_bytes - 1);
    EXPECT_EQ(verdict(), "slab P5");
}

TEST_F(SlabCheck, sees_bytes_that_are_counted_wrongly)
{
    size_t counted = size_load_relaxed(&raw->account.mapped_bytes);
    size_store_relaxed(&raw->account.mapped_bytes, counted + 1);
    EXPECT_EQ(verdict(), "slab P6");
    size_store_relaxed(&raw->account.mapped_bytes, counted);
}

TEST_F(SlabCheck, sees_more_than_the_limit)
{
    Changed<size_t> limit(raw->account.limit_bytes, 4096);
    EXPECT_EQ(verdict(), "slab P6");
}
