// SPDX-License-Identifier: MIT
/* percpu.c - one struct of counts for each CPU: threads write to the copy of the CPU they run on, who reads adds the copies up. */
#include <pthread.h>
#include <quire/percpu.h>
#include <stdio.h>

struct traffic {
    intptr_t requests, bytes;
};
static struct quire_percpu *pool;
static struct quire_percpu_ref traffic;

static struct quire_percpu_ref member(size_t offset)
{
    return (struct quire_percpu_ref){traffic.bits + offset};
}

static void *serve(void *nothing)
{
    for (int i = 0; i < 250000; i++) {
        quire_percpu_add(pool, member(offsetof(struct traffic, requests)), 1);
        quire_percpu_add(pool, member(offsetof(struct traffic, bytes)), 40 + i % 20);
    }
    return nothing;
}

int main(void)
{
    pool = quire_percpu_create(NULL);
    if (!pool || !(traffic = quire_percpu_alloc(pool, sizeof(struct traffic), 0)).bits) /* zero on every CPU */
        return perror("percpu"), 1;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, serve, NULL) != 0)
            return fprintf(stderr, "percpu: no thread\n"), 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%ld requests, %ld bytes\n", (long)quire_percpu_sum(pool, traffic), (long)quire_percpu_sum(pool, member(offsetof(struct traffic, bytes))));
    quire_percpu_destroy(pool);
}
