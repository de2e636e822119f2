// SPDX-License-Identifier: MIT
/* Children that go on in the middle of something which their parent was at. */
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <quire/percpu.h>
#include <quire/quire.h>
#include <quire/slab.h>
#include <quire/source.h>

#include "base/atomic.h"
#include "os/os.h"
#include "support.h"

extern "C" pid_t _Fork(void) __attribute__((weak));

namespace {
int status_of(pid_t pid)
{
    int status = -1;
    return waitpid(pid, &status, 0) == pid ? status : -1;
}

size_t caches_of(quire_percpu *pool)
{
    struct quire_percpu_stats stats = {};
    stats.struct_bytes = sizeof stats;
    quire_percpu_stats(pool, &stats);
    return stats.caches;
}

int step, steps_left;
bool is_child;
void fork_here(int)
{
    pid_t pid = fork();
    is_child = pid == 0;
    if (is_child)
        alarm(10);
    else
        _exit(status_of(pid) != 0);
}
void at_a_step()
{
    if (step && --steps_left == 0) {
        step = 0;
        raise(SIGUSR1);
    }
}

/* In a child: 0 it is sound, 99 there are not so many steps. */
int newcomer_forks_at(int at)
{
    quire_percpu *pool = quire_percpu_create(nullptr);
    signal(SIGUSR1, fork_here);
    steps_left = at, step = 1;
    atomic_noise_hook = at_a_step;
    quire_percpu_alloc(pool, 40, 0);
    step = 0;
    if (!is_child)
        return 99;
    size_t together = 0;
    std::thread([&] { quire_percpu_alloc(pool, 40, 0), together = caches_of(pool); }).join();
    return together == 2 && caches_of(pool) == 1 && !quire_percpu_check(pool) ? 0 : 1;
}
} // namespace

TEST(Copy, that_no_handler_repaired_uses_its_slabs)
{
    if (!_Fork || BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP();
    quire_source *source = quire_source_default();
    quire_source_set_decay(source, 1000000000); /* still_clock.cc */
    quire_slab *slab = quire_slab_create(1000, nullptr);
    quire_span spans[16];
    for (quire_span &span : spans) {
        ASSERT_EQ(source->verbs->take(source, 1 << 20, os_page_bytes(), &span), 0);
        memset(span.start, 1, span.bytes);
    }
    for (const quire_span &span : spans)
        source->verbs->give(source, &span); /* the clock ticks */
    usleep(20000);
    pid_t pid = _Fork();
    if (pid == 0) {
        alarm(20);
        sleep(1); /* a tick is due, and nobody ticks */
        for (int i = 0; i < 30000; i++)
            if (!quire_slab_alloc(slab))
                _exit(1);
        _exit(quire_slab_check(slab) != nullptr);
    }
    EXPECT_EQ(status_of(pid), 0);
    quire_slab_destroy(slab);
}

TEST(Copy, of_a_panicking_process_ends_by_its_own_panic)
{
    pid_t pid = fork();
    if (pid == 0) {
        quire_on_panic([](const char *, const void *) {
            pid_t child = fork();
            if (child == 0) {
                alarm(5);
                quire_slab_destroy(reinterpret_cast<quire_slab *>(64));
            }
            int status = status_of(child);
            _exit(WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM ? 0 : 1);
        });
        quire_slab_destroy(reinterpret_cast<quire_slab *>(64));
    }
    EXPECT_EQ(status_of(pid), 0);
}

TEST(Copy, of_a_newcomer_to_a_pool_shares_its_record_with_nobody)
{
    if (!QUIRE_CHECK || BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP();
    for (int at = 1, status = 0; at < 500 && WEXITSTATUS(status) != 99; at++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(newcomer_forks_at(at));
        status = status_of(pid);
        ASSERT_TRUE(status == 0 || WEXITSTATUS(status) == 99) << "step " << at;
    }
}
