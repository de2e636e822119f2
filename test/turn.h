// SPDX-License-Identifier: MIT
/*
 * turn.h - which of many like tests run now, where all of them would take too long: some in this run, others in the next.
 */
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>

/* The long form of a test: everything, for minutes. */
inline bool test_long() { return getenv("QUIRE_TEST_LONG") != nullptr; }

/* One number for a run, by chance; QUIRE_TEST_TURN=N chooses. */
inline unsigned turn_of_this_run()
{
    static const char *const asked = getenv("QUIRE_TEST_TURN");
    static const uint64_t now_us = uint64_t(std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
    static const unsigned turn = unsigned(asked ? strtoull(asked, nullptr, 10) : now_us) % 1000;
    return turn;
}

/* Of `parts` like cases one, and others in another run.  All in the long form. */
inline bool is_of_this_run(unsigned number, unsigned parts) { return test_long() || (number + turn_of_this_run()) % parts == 0; }
