// SPDX-License-Identifier: MIT
/* counter.c - four threads count the words of a text they all read; nothing is lost, and nobody waits. */
#include <pthread.h>
#include <quire/counter.h>
#include <stdio.h>
#include <string.h>

static struct quire_counter words, letters;
static const char text[] = "memory only where it is written and a sum that is exact when nobody adds";

static void *count(void *rounds)
{
    for (long i = 0; i < *(long *)rounds; i++)
        for (const char *word = text; *word; word += strspn(word, " ")) {
            size_t length = strcspn(word, " ");
            quire_counter_add(&words, 1);
            quire_counter_add(&letters, (intptr_t)length);
            word += length;
        }
    return NULL;
}

int main(void)
{
    struct quire_percpu *pool = quire_percpu_create(NULL); /* one for all counters */
    if (!pool || quire_counter_init(&words, pool) != 0 || quire_counter_init(&letters, pool) != 0)
        return perror("counter"), 1;
    pthread_t threads[4];
    long rounds = 100000;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, count, &rounds) != 0)
            return fprintf(stderr, "counter: no thread\n"), 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%ld words, %ld letters\n", (long)quire_counter_sum(&words), (long)quire_counter_sum(&letters));
    quire_counter_fini(&letters);
    quire_counter_fini(&words);
    quire_percpu_destroy(pool);
    return 0;
}
