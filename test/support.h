// SPDX-License-Identifier: MIT
/*
 * support.h - what the tests share: a random sequence, the process's maps and memory, a fault armed for a scope.
 */
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <string>
#include <unistd.h>

#include <quire/source.h>

#include "base/atomic.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "turn.h"

/* xorshift64*: the same sequence everywhere for the same seed. */
class Random {
public:
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next()
    {
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        return state * 0x2545f4914f6cdd1du;
    }
    uint64_t below(uint64_t n) { return next() % n; }

private:
    uint64_t state;
};

/*
 * The process's own memory.  Pages of programs and libraries are none of it: they are mapped when they are first executed, as many at a time as the
 * page cache happens to have.
 */
inline size_t rss_bytes()
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    size_t kib = 0;
    while (file && fgets(line, sizeof line, file))
        for (const char *part : {"Anonymous:", "Pss_Shmem:", "Swap:"})
            if (strncmp(line, part, strlen(part)) == 0)
                kib += strtoull(line + strlen(part), nullptr, 10);
    if (file)
        fclose(file);
    return kib * 1024;
}

inline size_t count_lines(const char *path)
{
    FILE *file = fopen(path, "re");
    size_t lines = 0;
    for (int c; file && (c = getc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

/* A decay that no test is long enough for: the default source's clock stands still (still_clock.cc). */
constexpr uint64_t DECAY_STILL_NS = UINT64_C(3600) * 1000000000;

/* The nth system call of one kind fails while this lives. */
class Fault {
public:
    Fault(os_call kind_, uint64_t nth, bool onwards = false) : kind(kind_) { os_fault_set(kind, nth, onwards); }
    ~Fault() { os_fault_set(kind, 0, false); }

private:
    os_call kind;
};

/* Yield and sleep at atomic steps from now on; nullptr: no more.  Only the `check` builds have the steps. */
inline void set_noise(void (*hook)()) { __atomic_store_n(&atomic_noise_hook, hook, __ATOMIC_RELAXED); }

/*
 * Another thread runs now: one of ours, as a rule.  Where other programs want the CPU they have their turns first, some milliseconds, and a test
 * that yields a million times would never end: what a yield took too long is made up for by steps without one.
 */
inline void yield_sparingly()
{
    constexpr uint64_t LONG_NS = 1000000, EACH_NS = 20000;
    static thread_local uint64_t left_out = 0;
    if (left_out > 0) {
        left_out--;
        return;
    }
    uint64_t start_ns = os_time_ns();
    sched_yield();
    uint64_t took_ns = os_time_ns() - start_ns;
    left_out = took_ns > LONG_NS ? took_ns / EACH_NS : 0;
}

/* Shadow memory is resident memory too: bounds on RSS and faults hold where nobody watches. */
inline bool memory_is_watched() { return BUILT_WITH_TSAN || sanitize_watched(); }
/*
 * After how many objects a thread gets chunks of a pool's for itself.  Most tests want them at once: what threads do to each other's is what they look at.  (Not there:
 * the library was built without pools.)
 */
extern "C" uint32_t percpu_few __attribute__((weak));
inline const bool percpu_few_is_none = &percpu_few && (percpu_few = 0, true);
class PercpuFew {
public:
    explicit PercpuFew(uint32_t objects) { percpu_few = objects; }
    PercpuFew(const PercpuFew &) = delete;
    PercpuFew &operator=(const PercpuFew &) = delete;
    ~PercpuFew() { percpu_few = 0; }
};

/*
 * Whether the library that is tested was built with AddressSanitizer.  The tests' own objects may serve a build with it and one without
 * (QUIRE_TEST_FILES_OF in CMakeLists.txt), so they ask the program.
 */
extern "C" void __asan_init() __attribute__((weak));
inline bool under_asan() { return &__asan_init != nullptr; }

/*
 * What a source's takers hold, once it is the figure expected, or after 5 s whatever it is: the default source's figure is the difference of two
 * sums, and while its reaper moves a span from one to the other it is too high or too low.
 */
inline size_t taken_settled(quire_source *source, size_t expected)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    for (int tries = 0; quire_source_stats(source, &stats), stats.taken_bytes != expected && tries < 5000; tries++)
        usleep(1000);
    return stats.taken_bytes;
}

/* The same where none is expected: what twenty readings in 20 ms agree on. */
inline size_t taken_at_rest(quire_source *source)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    size_t taken = stats.taken_bytes;
    for (int same = 0, tries = 0; same < 20 && tries < 5000; tries++) {
        usleep(1000);
        quire_source_stats(source, &stats);
        same = stats.taken_bytes == taken ? same + 1 : 0;
        taken = stats.taken_bytes;
    }
    return taken;
}

/* Linux 6.13 and later. */
inline bool system_has_marks()
{
    void *probe = nullptr;
    bool has = os_map(os_page_bytes(), os_page_bytes(), &probe) == 0 && os_mark(probe, os_page_bytes(), true) == 0;
    if (probe)
        (void)os_unmap(probe, os_page_bytes());
    return has;
}

inline void sleep_ms(unsigned ms) { usleep(ms * 1000); }
