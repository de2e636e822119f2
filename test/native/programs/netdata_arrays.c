// SPDX-License-Identifier: MIT
/*
 * netdata_arrays.c - a program as it is written for netdata's Array Allocator: every call, and only what its headers say.  Ends with status 0
 * and "sound" when all of them do what callers rely on.
 *
 *     netdata_arrays DIRECTORY
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire/compat/netdata.h>

struct node {
    struct node *next;
    char label[20];
};

#define must(truth) ((truth) ? (void)0 : fail(#truth, __LINE__))

static void fail(const char *truth, int line)
{
    fprintf(stderr, "line %d: not true: %s\n", line, truth);
    exit(1);
}

static struct aral_statistics shared;

static void totals_agree(struct aral_statistics *stats)
{
    must(aral_used_bytes_from_stats(stats) == stats->malloc.used_bytes + stats->mmap.used_bytes);
    must(aral_free_bytes_from_stats(stats) + aral_used_bytes_from_stats(stats) == stats->malloc.allocated_bytes + stats->mmap.allocated_bytes);
    must(aral_padding_bytes_from_stats(stats) == stats->malloc.padding_bytes + stats->mmap.padding_bytes);
    must(aral_structures_bytes_from_stats(stats) == stats->structures.allocated_bytes);
}

static void *work(void *data)
{
    ARAL *ar = data;
    struct node *list = NULL;
    for (int i = 0; i < 10000; i++) {
        struct node *n = i % 2 ? aral_callocz(ar) : aral_callocz_marked(ar);
        must(n->label[0] == 0);
        snprintf(n->label, sizeof n->label, "node %d", i);
        n->next = list;
        list = n;
        if (i % 3 == 0) {
            list = n->next;
            aral_unmark_allocation(ar, n);
            aral_freez(ar, n);
        }
    }
    while (list) {
        struct node *n = list;
        list = n->next;
        aral_freez(ar, n);
    }
    return NULL;
}

static void in_threads(void)
{
    pthread_t threads[4];
    ARAL *ar = aral_create("nodes of all threads", sizeof(struct node), 64, 0, &shared, NULL, NULL, false, false, true);
    must(strcmp(aral_name(ar), "nodes of all threads") == 0);
    for (int i = 0; i < 4; i++)
        must(pthread_create(&threads[i], NULL, work, ar) == 0);
    for (int i = 0; i < 4; i++)
        must(pthread_join(threads[i], NULL) == 0);
    must(aral_used_bytes(ar) == 0);
    must(aral_get_statistics(ar) == &shared);
    totals_agree(&shared);
    aral_destroy(ar);
}

static void in_files(const char *directory)
{
    const char *cache_dir = directory;
    ARAL *ar = aral_create("in files", 4096, 0, 0, &shared, "pages", &cache_dir, true, true, false);
    void *all[300];
    for (int i = 0; i < 300; i++)
        memset(all[i] = aral_mallocz(ar), i, 4096);
    must(shared.mmap.used_bytes == sizeof all / sizeof all[0] * 4096);
    totals_agree(&shared);
    for (int i = 0; i < 300; i++)
        aral_freez(ar, all[i]);
    void *marked = aral_mallocz_marked(ar);
    must(aral_used_bytes(ar) == 4096 && aral_free_bytes(ar) + aral_padding_bytes(ar) + aral_structures_bytes(ar) > 0);
    aral_freez(ar, marked);
    aral_destroy(ar);
}

static void by_size(void)
{
    size_t before = aral_optimal_malloc_page_size();
    aral_optimal_malloc_page_size_set(128 * 1024);
    must(aral_optimal_malloc_page_size() == 128 * 1024);
    ARAL *a = aral_by_size_acquire(32), *b = aral_by_size_acquire(32);
    must(a == b && aral_requested_element_size(a) == 32 && aral_actual_element_size(a) >= 32);
    void *p = aral_mallocz(a);
    must(aral_by_size_used_bytes() == 32);
    must(aral_by_size_used_bytes() + aral_by_size_free_bytes() + aral_by_size_padding_bytes() >= 4096);
    must(aral_by_size_structures_bytes() == aral_structures_bytes_from_stats(aral_by_size_statistics()));
    aral_freez(b, p);
    aral_by_size_release(a);
    aral_by_size_release(b);
    must(aral_by_size_statistics()->structures.allocated_bytes == 0);
    aral_optimal_malloc_page_size_set(before);
}

int main(int argc, char **argv)
{
    static const struct aral_statistics none;
    if (argc != 2) {
        fprintf(stderr, "usage: netdata_arrays DIRECTORY\n");
        return 2;
    }
    ONEWAYALLOC *owa = onewayalloc_create(0);
    char *directory = onewayalloc_strdupz(owa, argv[1]);
    in_threads();
    in_files(directory);
    by_size();
    onewayalloc_destroy(owa);
    must(memcmp(&shared, &none, sizeof none) == 0);
    puts("sound");
    return 0;
}
