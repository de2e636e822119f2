// SPDX-License-Identifier: MIT
/*
 * still_clock.cc - the default source's clock stands still in every test, but for those that set it (Decay): idle memory stays where it is
 * until the test asks for it, however long the machine may stop the test in the middle.
 */
#include "support.h"

#include <gtest/gtest.h>

namespace {
class StillClock : public ::testing::Environment {
    void SetUp() override { quire_source_set_decay(quire_source_default(), DECAY_STILL_NS); }
};
const ::testing::Environment *const still_clock = ::testing::AddGlobalTestEnvironment(new StillClock);
} // namespace
