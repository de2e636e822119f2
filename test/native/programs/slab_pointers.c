// SPDX-License-Identifier: MIT
/*
 * slab_pointers.c - blocks of malloc's that only elements of slabs point to: none of them is a leak as long as its element lives.
 *
 *     slab_pointers [--lose]     frees the elements and not the blocks
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire/slab.h>

struct node {
    struct node *next;
    char *text;
};

static struct quire_slab *slabs[2];
static int lose;

static void *fill(void *unused)
{
    (void)unused;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3000; i++) {
            struct node *node = quire_slab_alloc_zero(slabs[k]);
            node->text = malloc(50);
            strcpy(node->text, "only this element points here");
            if (lose && i % 3 == 0)
                quire_slab_free(slabs[k], node);
        }
    return NULL;
}

int main(int argc, char **argv)
{
    lose = argc > 1 && strcmp(argv[1], "--lose") == 0;
    slabs[0] = quire_slab_create(sizeof(struct node), NULL);
    slabs[1] = quire_slab_create(sizeof(struct node), &(struct quire_slab_opts){.source = quire_source_anon()});
    pthread_t thread;
    pthread_create(&thread, NULL, fill, NULL);
    pthread_join(thread, NULL);
    fill(NULL);
    puts("done");
    return 0;
}
