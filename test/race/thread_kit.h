// SPDX-License-Identifier: MIT
/* What the tests of threads that come and go share: threads in turn, what they leave to others, and memory that stays flat. */
#ifndef QUIRE_TEST_RACE_THREAD_KIT_H
#define QUIRE_TEST_RACE_THREAD_KIT_H

#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support.h"

/* What ended threads left for others to free. */
template <class Object> class Left {
public:
    void add(Object object)
    {
        std::lock_guard<std::mutex> guard(mutex);
        list.push_back(object);
    }
    std::vector<Object> take_all()
    {
        std::lock_guard<std::mutex> guard(mutex);
        return std::move(list);
    }

private:
    std::mutex mutex;
    std::vector<Object> list;
};

/* `count` threads, `at_once` of them at a time. */
template <class Body> void threads_in_turn(unsigned count, unsigned at_once, const Body &body)
{
    for (unsigned done = 0; done < count; done += at_once) {
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < at_once; t++)
            threads.emplace_back(body, done + t);
        for (auto &thread : threads)
            thread.join();
    }
}

inline void expect_flat(size_t rss_before, size_t growth_max)
{
    if (!memory_is_watched()) {
        EXPECT_LT(rss_bytes(), rss_before + growth_max);
    }
}

#endif
