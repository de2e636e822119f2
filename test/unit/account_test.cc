// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "base/account.h"

TEST(Account, what_was_refused_is_neither_held_nor_the_peak)
{
    struct account account = {};
    account.limit_bytes = 100;
    account_set(&account, 10);
    EXPECT_FALSE(account_charge(&account, 91, nullptr));
    EXPECT_TRUE(account_charge(&account, 90, nullptr));
    account_discharge(&account, 90); /* there was no memory */
    EXPECT_EQ(size_load_relaxed(&account.mapped_bytes), 10u);
    EXPECT_EQ(size_load_relaxed(&account.peak_bytes), 10u);
    EXPECT_TRUE(account_charge(&account, 30, nullptr));
    account_charged(&account);
    account_discharge(&account, 30);
    EXPECT_EQ(size_load_relaxed(&account.peak_bytes), 40u);
}

TEST(Account, has_room_up_to_its_limit_and_no_sum_overflows)
{
    struct account account = {};
    EXPECT_TRUE(account_has_room(&account, SIZE_MAX)) << "no limit";
    account_set(&account, 10);
    EXPECT_FALSE(account_charge(&account, SIZE_MAX - 5, nullptr));
    account.limit_bytes = 100;
    EXPECT_TRUE(account_has_room(&account, 90));
    EXPECT_FALSE(account_has_room(&account, 91));
    EXPECT_FALSE(account_has_room(&account, SIZE_MAX - 5));
}
