// SPDX-License-Identifier: MIT
/* histogram.c - how long a call takes: four threads time it, one prints what is usual and what is rare. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <quire/histogram.h>
#include <stdio.h>
#include <time.h>

static struct quire_histogram times_ns;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static void *time_calls(void *calls)
{
    for (long i = 0; i < *(long *)calls; i++) {
        uint64_t begin_ns = now_ns();
        quire_histogram_record(&times_ns, now_ns() - begin_ns); /* what is timed here is reading the clock */
    }
    return NULL;
}

int main(void)
{
    struct quire_percpu *pool = quire_percpu_create(NULL);
    struct quire_histogram_snapshot *seen = quire_histogram_snapshot_create(7); /* 7: within 0.8 % */
    if (!pool || !seen || quire_histogram_init(&times_ns, pool, 7) != 0)
        return perror("histogram"), 1;
    pthread_t threads[4];
    long calls = 100000;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, time_calls, &calls) != 0)
            return fprintf(stderr, "histogram: no thread\n"), 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    quire_histogram_snapshot_take(seen, &times_ns);
    struct quire_histogram_stats stats;
    quire_histogram_snapshot_stats(seen, &stats);
    printf("%llu calls of %.0f ns on average\n", (unsigned long long)stats.count, stats.sum / (double)stats.count);
    const double percents[] = {50, 90, 99, 99.9, 100};
    for (int i = 0; i < 5; i++)
        printf("%5.1f %% took at most %llu ns\n", percents[i], (unsigned long long)quire_histogram_snapshot_percentile(seen, percents[i]));
    quire_histogram_snapshot_destroy(seen);
    quire_histogram_fini(&times_ns);
    quire_percpu_destroy(pool);
    return 0;
}
