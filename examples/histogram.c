// SPDX-License-Identifier: MIT
/* histogram.c - how many steps numbers take to 1 by n/2 and 3n+1: four threads record, one says what is usual and what is rare. */
#include <pthread.h>
#include <quire/histogram.h>
#include <stdio.h>

static struct quire_histogram steps;

static void *walk(void *first)
{
    for (unsigned long n = *(unsigned long *)first; n <= 100000; n += 4) {
        uint64_t taken = 0;
        for (unsigned long at = n; at != 1; taken++)
            at = at % 2 ? 3 * at + 1 : at / 2;
        quire_histogram_record(&steps, taken);
    }
    return NULL;
}

int main(void)
{
    struct quire_percpu *pool = quire_percpu_create(NULL);
    struct quire_histogram_snapshot *seen = quire_histogram_snapshot_create(7); /* 7: within 0.8 % */
    if (!pool || !seen || quire_histogram_init(&steps, pool, 7) != 0)
        return perror("histogram"), 1;
    pthread_t threads[4];
    unsigned long firsts[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, walk, &firsts[i]) != 0)
            return fprintf(stderr, "histogram: no thread\n"), 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    quire_histogram_snapshot_take(seen, &steps);
    static const double percents[] = {50, 90, 99, 99.9, 100};
    for (int i = 0; i < 5; i++)
        printf("%5.1f %% take at most %3lu steps\n", percents[i], (unsigned long)quire_histogram_snapshot_percentile(seen, percents[i]));
    quire_histogram_snapshot_destroy(seen);
    quire_percpu_destroy(pool); /* and the histogram's memory */
}
