// SPDX-License-Identifier: MIT
/* slab.c - connections come and go one by one; another thread closes some, and a walk finds those that are left. */
#include <pthread.h>
#include <quire/slab.h>
#include <stdio.h>

struct connection {
    int fd;
    char buffer[500];
};
static struct quire_slab *connections;
static struct connection *opened[900];

static void *close_every_third(void *nothing)
{
    for (int i = 0; i < 900; i += 3)
        quire_slab_free(connections, opened[i]); /* allocated by another thread */
    return nothing;
}

static int count_one(void *connection, void *count)
{
    *(int *)count += ((struct connection *)connection)->fd > 0;
    return 0; /* go on */
}

int main(void)
{
    connections = quire_slab_create(sizeof(struct connection), &(struct quire_slab_opts){.name = "connections"});
    for (int i = 0; connections && i < 900 && (opened[i] = quire_slab_alloc(connections)); i++)
        opened[i]->fd = 3 + i;
    pthread_t closer;
    if (!opened[899] || pthread_create(&closer, NULL, close_every_third, NULL) != 0)
        return perror("slab"), 1;
    pthread_join(closer, NULL);
    int count = 0;
    quire_slab_walk(connections, count_one, &count);
    printf("%d of 900 connections are open\n", count);
    quire_slab_destroy(connections); /* and all of them */
}
