// SPDX-License-Identifier: MIT
/*
 * slab_worker.h - a thread that does one piece of work after the other while the caller waits: what threads do, in an order that repeats.
 *
 *     caller:  run(work) ........... waits ........... goes on, throws what the work threw
 *     worker:              works
 */
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

class Worker {
public:
    Worker() : thread([this] { loop(); }) {}
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;
    ~Worker()
    {
        hand(nullptr);
        thread.join();
    }

    void run(const std::function<void()> &work)
    {
        hand(work);
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [this] { return !handed; });
        if (thrown)
            std::rethrow_exception(std::exchange(thrown, nullptr));
    }

private:
    void hand(const std::function<void()> &work)
    {
        std::lock_guard<std::mutex> hold(lock);
        next = work;
        handed = true;
        changed.notify_all();
    }

    void loop()
    {
        std::unique_lock<std::mutex> hold(lock);
        for (;;) {
            changed.wait(hold, [this] { return handed; });
            if (!next)
                return;
            try {
                next();
            } catch (...) {
                thrown = std::current_exception();
            }
            handed = false;
            changed.notify_all();
        }
    }

    std::mutex lock;
    std::condition_variable changed;
    std::function<void()> next; /* none: the end */
    bool handed = false;
    std::exception_ptr thrown;
    std::thread thread; /* last: it starts when the rest is there */
};
