// SPDX-License-Identifier: MIT
/*
 * percpu_storm.h - threads that are moved to another CPU every few microseconds and interrupted by signals up to 20,000 times a second, each on its own.
 *
 *     one thread that moves:   worker 0 -> CPU a, worker 1 -> CPU b, ...     all, every 10 us, as far as the machine keeps up
 *     a timer for each worker: SIGRTMIN + 1 to that very thread              50 us after the worker asked for the next
 *
 * A worker asks between its steps, so it has taken one between two signals however slow the machine is, and comes to its end.
 * What the handler does is a function of the test's; it counts for itself how often it did it, so nothing here depends on how often that is.
 */
#pragma once

#include "race/percpu_race.h"

#include <sys/prctl.h>

class Storm {
public:
    /* What the handler calls, on each thread that is in a storm; nullptr: nothing. */
    using Body = void (*)();

    Storm(unsigned workers, Body body_) : tids(workers)
    {
        body = body_;
        signals = 0;
        struct sigaction action = {};
        action.sa_handler = handle;
        action.sa_flags = SA_RESTART;
        EXPECT_EQ(sigaction(SIGRTMIN + 1, &action, nullptr), 0);
        if (cpus.count() > 1)
            mover = std::thread([this] { move(); });
    }
    ~Storm()
    {
        stop = true;
        if (mover.joinable())
            mover.join();
        signal(SIGRTMIN + 1, SIG_IGN);
    }
    /* So much has happened that the storm was one; ThreadSanitizer hands signals over when it likes. */
    bool is_over(uint64_t times) const { return (cpus.count() == 1 || moved >= times) && (BUILT_WITH_TSAN || signals >= times); }

    /* Around the work of worker `i`, on its thread. */
    class Inside {
    public:
        Inside(Storm &storm_, unsigned i) : storm(storm_), idx(i)
        {
            storm.tids[idx] = thread_id();
            struct sigevent event = {};
            event.sigev_notify = SIGEV_THREAD_ID;
            event.sigev_signo = SIGRTMIN + 1;
            event._sigev_un._tid = thread_id(); /* older libcs have no name for it */
            EXPECT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
            handled = true;
            again();
        }
        ~Inside()
        {
            sigset_t set;
            sigemptyset(&set), sigaddset(&set, SIGRTMIN + 1);
            pthread_sigmask(SIG_BLOCK, &set, nullptr); /* what the handler counted is final now */
            timer_delete(timer);
            storm.tids[idx] = 0;
        }

        /* Between steps: the next signal, where the last one has come. */
        void again()
        {
            static constexpr struct itimerspec ONCE = {{0, 0}, {0, SIGNAL_NS}};
            if (!handled)
                return;
            handled = false;
            EXPECT_EQ(timer_settime(timer, 0, &ONCE, nullptr), 0);
        }

    private:
        Storm &storm;
        unsigned idx;
        timer_t timer;
    };

private:
    static constexpr long SIGNAL_NS = 50000, MOVE_NS = 10000;

    static void handle(int)
    {
        signals.fetch_add(1, std::memory_order_relaxed);
        if (body)
            body();
        handled = true;
    }
    void move()
    {
        prctl(PR_SET_TIMERSLACK, 1);
        Random random(1);
        while (!stop) {
            for (auto &worker : tids)
                if (pid_t tid = worker; tid && cpus.bind(tid, random.next()))
                    moved++;
            struct timespec nap = {0, MOVE_NS};
            nanosleep(&nap, nullptr);
        }
    }

    static inline Body body;
    static inline thread_local volatile bool handled; /* this worker's last signal */
    static inline std::atomic<uint64_t> signals{0};
    Cpus cpus;
    std::vector<std::atomic<pid_t>> tids;
    std::atomic<uint64_t> moved{0};
    std::atomic<bool> stop{false};
    std::thread mover;
};
