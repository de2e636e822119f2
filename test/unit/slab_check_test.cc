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

/* A slab of one thread with a page in each state: full, partial, current, empty. */
class SlabCheck : public testing::Test {
protected:
    SlabCheck() : slab(1000)
    {
        Elements elements = slab.alloc(400);
        local = slab_locals(slab);
        while (local->pages < 4 && local->next)
            local = local->next;
        void *of_partial = nullptr;
        struct slab_page *emptied = nullptr;
        for (void *p : elements) {
            struct slab_page *page = page_of(p);
            if (page->home || page->state == PAGE_CURRENT)
                continue;
            if (!emptied)
                emptied = page;
            if (page == emptied)
                quire_slab_free(slab, p);
            else if (!of_partial)
                quire_slab_free(slab, of_partial = p);
        }
        EXPECT_EQ(quire_slab_check(slab), nullptr);
    }
    struct slab_page *page_of(void *p) const
    {
        for (struct slab_page *page = local->all; page; page = page->all_next)
            if (static_cast<char *>(p) >= page->slots && static_cast<char *>(p) < page->slots + page->slot_count * 1000)
                return page;
        return local->all;
    }
    struct slab_page *page_in(uint8_t state) const
    {
        for (struct slab_page *page = local->all; page; page = page->all_next)
            if (page->state == state && !page->home)
                return page;
        ADD_FAILURE() << "no page in state " << int(state);
        return local->all;
    }
    std::string verdict() const
    {
        const char *error = quire_slab_check(slab);
        return error ? std::string(error).substr(0, 7) : "";
    }
    Slab slab;
    struct slab_local *local;
};

} // namespace

TEST_F(SlabCheck, sees_a_page_that_belongs_to_another_set)
{
    struct slab_page *page = page_in(PAGE_PARTIAL);
    struct slab_local stranger = {};
    addr_store_relaxed(&page->owner, uintptr_t(&stranger));
    EXPECT_EQ(verdict(), "slab P1");
    addr_store_relaxed(&page->owner, uintptr_t(local));
}

TEST_F(SlabCheck, sees_a_wrong_number_of_used_slots)
{
    for (uint8_t state : {PAGE_FULL, PAGE_PARTIAL, PAGE_CURRENT}) {
        struct slab_page *page = page_in(state);
        Changed<uint32_t> more(page->beside, page->beside + 1);
        EXPECT_EQ(verdict(), "slab P2");
    }
}

TEST_F(SlabCheck, sees_a_page_whose_change_of_state_would_go_unnoticed)
{
    for (uint8_t state : {PAGE_FULL, PAGE_PARTIAL, PAGE_CURRENT}) {
        struct slab_page *page = page_in(state);
        Changed<uint32_t> later(page->due, page->due + 5000);
        Changed<uint32_t> as_many_used(page->beside, page->beside - 5000);
        EXPECT_EQ(verdict(), "slab P7");
    }
}

TEST_F(SlabCheck, sees_a_page_that_is_called_full_and_has_room)
{
    struct slab_page *page = page_in(PAGE_PARTIAL);
    Changed<uint8_t> full(page->state, PAGE_FULL);
    EXPECT_EQ(verdict(), "slab P3");
}

TEST_F(SlabCheck, sees_a_page_that_is_called_empty_and_is_used)
{
    struct slab_page *page = page_in(PAGE_FULL);
    Changed<uint8_t> empty(page->state, PAGE_EMPTY);
    EXPECT_EQ(verdict(), "slab P3");
}

TEST_F(SlabCheck, sees_a_slot_that_is_free_and_freed_by_another)
{
    struct slab_page *page = page_in(PAGE_EMPTY);
    u64_or_seq_cst(&page->pair[0].remote, 1);
    EXPECT_EQ(verdict(), "slab P4");
    u64_and_acq_rel(&page->pair[0].remote, ~UINT64_C(1));
}

TEST_F(SlabCheck, sees_slots_behind_the_last)
{
    struct slab_page *page = page_in(PAGE_PARTIAL);
    uint64_t last = UINT64_C(1) << 63;
    if (page->slot_count % 64 == 0)
        GTEST_SKIP() << "there are none";
    u64_or_seq_cst(&page->pair[page->words - 1].remote, last);
    EXPECT_EQ(verdict(), "slab P4");
    u64_and_acq_rel(&page->pair[page->words - 1].remote, ~last);
}

TEST_F(SlabCheck, sees_a_page_on_no_list)
{
    struct slab_page *page = page_in(PAGE_EMPTY);
    {
        Changed<slab_page *> gone(local->empty.first, page->next);
        EXPECT_EQ(verdict(), "slab P5");
    }
    Changed<uint32_t> none(local->lane[LANE_ORDINARY].filled, 0);
    EXPECT_EQ(verdict(), "slab P5");
}

TEST_F(SlabCheck, sees_a_set_that_counts_its_pages_wrongly)
{
    {
        Changed<uint32_t> more(local->pages, local->pages + 1);
        EXPECT_EQ(verdict(), "slab P5");
    }
    {
        Changed<uint32_t> fewer(local->empties, 0);
        EXPECT_EQ(verdict(), "slab P5");
    }
    Changed<size_t> bytes(local->held_bytes, local->held_bytes - 1);
    EXPECT_EQ(verdict(), "slab P5");
}

TEST_F(SlabCheck, sees_more_than_the_limit)
{
    quire_slab *raw = slab;
    Changed<size_t> limit(raw->limit_bytes, 4096);
    EXPECT_EQ(verdict(), "slab P6");
}
