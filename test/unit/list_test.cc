// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "base/list.h"

namespace {

struct Item {
    Item *next, *prev;
};
LIST_OF(items, Item, next, prev);

struct Three {
    Three()
    {
        for (Item &item : item)
            items_push(&first, &item);
    }
    bool is_sound() const
    {
        for (const Item *it = first; it; it = it->next)
            if (!items_is_linked(first, it))
                return false;
        return true;
    }
    Item item[3] = {};
    Item *first = nullptr;
};

} // namespace

TEST(List, the_newest_is_first_and_the_oldest_last)
{
    Three list;
    EXPECT_EQ(list.first, &list.item[2]);
    EXPECT_EQ(items_last(list.first), &list.item[0]);
    EXPECT_EQ(items_last(nullptr), nullptr);
    EXPECT_TRUE(list.is_sound());
}

TEST(List, is_whole_after_any_of_its_three_is_removed_and_empty_after_all)
{
    for (int out = 0; out < 3; out++) {
        Three list;
        items_remove(&list.first, &list.item[out]);
        EXPECT_TRUE(list.is_sound());
        EXPECT_EQ(items_last(list.first), &list.item[out == 0]);
        for (int other = 0; other < 3; other++)
            if (other != out)
                items_remove(&list.first, &list.item[other]);
        EXPECT_EQ(list.first, nullptr);
    }
}

/* Who is beside it sees that it says something else: for the first one that is the last. */
TEST(List, a_wrong_way_back_is_seen_and_mended_from_the_way_forward)
{
    for (int wrong = 0; wrong < 3; wrong++) {
        Three list;
        Item *beside = wrong == 2 ? &list.item[0] : &list.item[wrong + 1];
        list.item[wrong].prev = nullptr;
        EXPECT_FALSE(items_is_linked(list.first, beside));
        items_mend(list.first);
        EXPECT_TRUE(list.is_sound());
    }
}
