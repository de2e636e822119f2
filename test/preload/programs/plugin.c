// SPDX-License-Identifier: MIT
/*
 * plugin - a library for dlopen: it allocates in its constructor, hands blocks out, takes blocks, and has thread-local blocks that its key frees.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static char *mine;
static pthread_key_t key;

static __attribute__((constructor)) void at_load(void)
{
    mine = malloc(5000);
    memset(mine, 3, 5000);
    pthread_key_create(&key, free);
}

static __attribute__((destructor)) void at_close(void)
{
    free(mine);
    pthread_key_delete(key);
}

char *plugin_block(size_t bytes);
char *plugin_block(size_t bytes)
{
    char *p = malloc(bytes);
    memset(p, 4, bytes);
    pthread_setspecific(key, realloc(pthread_getspecific(key), bytes));
    return p;
}

void plugin_take(char *p);
void plugin_take(char *p)
{
    free(p);
}
