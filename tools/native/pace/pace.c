// SPDX-License-Identifier: MIT
/*
 * pace.c - quire-pace: how fast a CPU works just now, asked again and again while a program runs on it.
 *
 *     CPU 1   program ~~~~~~|spin|~~~~~~~~~~~~~|spin|~~~~~~~~~~~~~|spin|~~~~~     a spin is the same additions each time
 *                            8 us               8 us               13 us          somebody else uses the core's other half now
 *
 * On a machine that others share a program takes half as long again whenever they use the other hardware thread of its core, and no clock of
 * the system tells so. The spin is slowed by the same neighbours: eight chains of additions that do not wait for each other take all the core
 * gives. A spin counts if its thread had the CPU all the time, that is if its own clock and the wall's agree: one that waited says nothing, nor
 * does one during which the host of a virtual machine ran somebody else, for then the thread's clock is short by what was stolen then or before.
 *
 *     quire-pace PERIOD_US FILE CPU...        until its standard input ends
 *
 * FILE is mapped by both sides: struct told for each CPU. A reader takes `count`, then sum_ns[count % 2], and again until count is as it was.
 * A spin counts for at most OUTLIER times the fastest: an interrupt is no pace.
 *
 * Not here: what is made of it (tools/quire/pace.py).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CPUS_MAX = 64, TURNS = 8000, TURNS_WARM = 1000, OUTLIER = 3, CHAINS = 8, SHARE_AWAY = 8 };

struct told {
    _Atomic uint64_t count;
    _Atomic uint64_t sum_ns[2]; /* by the parity of count */
    uint64_t unused[5];
};

static struct {
    struct told *told;
    uint64_t period_ns;
} shared;

struct seat {
    int cpu;
    struct told *told;
    pthread_t thread;
};

static uint64_t now_ns(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static void spin(unsigned turns)
{
    uint64_t chain[CHAINS] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (unsigned i = 0; i < turns; i++)
        for (unsigned twice = 0; twice < 2; twice++) {
#define ADD(k) chain[k] += (k) + 1; __asm__ volatile("" : "+r"(chain[k]))
            ADD(0);
            ADD(1);
            ADD(2);
            ADD(3);
            ADD(4);
            ADD(5);
            ADD(6);
            ADD(7);
#undef ADD
        }
}

/* On its CPU, and before all others there where that is allowed; false: not on it. */
static bool sit(int cpu)
{
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET((size_t)cpu, &only);
    if (sched_setaffinity(0, sizeof only, &only) != 0) {
        fprintf(stderr, "quire-pace: CPU %d: %s\n", cpu, strerror(errno));
        return false;
    }
    struct sched_param first = {.sched_priority = 1};
    (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
    return true;
}

static void *watch(void *argument)
{
    struct seat *seat = argument;
    struct timespec period = {.tv_nsec = (long)shared.period_ns};
    uint64_t count = 0, sum_ns = 0, fastest_ns = UINT64_MAX;
    if (!sit(seat->cpu))
        return NULL; /* nothing told: the pace of some other CPU would be */
    for (;;) {
        nanosleep(&period, NULL);
        spin(TURNS_WARM);
        uint64_t wall_ns = now_ns(CLOCK_MONOTONIC), took_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
        spin(TURNS);
        took_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - took_ns;
        wall_ns = now_ns(CLOCK_MONOTONIC) - wall_ns;
        if (took_ns == 0 || took_ns > wall_ns || wall_ns - took_ns > wall_ns / SHARE_AWAY)
            continue;
        if (took_ns < fastest_ns)
            fastest_ns = took_ns;
        sum_ns += took_ns < OUTLIER * fastest_ns ? took_ns : OUTLIER * fastest_ns;
        count++;
        atomic_store_explicit(&seat->told->sum_ns[count % 2], sum_ns, memory_order_relaxed);
        atomic_store_explicit(&seat->told->count, count, memory_order_release);
    }
    return NULL;
}

static int refuse(const char *what)
{
    fprintf(stderr, "quire-pace: %s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    static struct seat seats[CPUS_MAX];
    int cpus = argc - 3;
    if (cpus < 1 || cpus > CPUS_MAX) {
        fprintf(stderr, "usage: quire-pace PERIOD_US FILE CPU...\n");
        return 2;
    }
    size_t bytes = (size_t)cpus * sizeof(struct told);
    int fd = open(argv[2], O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return refuse(argv[2]);
    shared.told = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared.told == MAP_FAILED)
        return refuse(argv[2]);
    shared.period_ns = strtoull(argv[1], NULL, 10) % 1000000 * 1000;
    for (int i = 0; i < cpus; i++) {
        seats[i] = (struct seat){.cpu = atoi(argv[3 + i]), .told = &shared.told[i]};
        errno = pthread_create(&seats[i].thread, NULL, watch, &seats[i]);
        if (errno != 0)
            return refuse("a thread");
    }
    ssize_t got = 1;
    for (char byte; got > 0 || (got < 0 && errno == EINTR);)
        got = read(0, &byte, 1);
    return 0;
}
