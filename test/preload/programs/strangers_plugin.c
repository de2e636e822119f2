// SPDX-License-Identifier: MIT
/*
 * strangers_plugin.c - a library that hands out blocks of the malloc that it is bound to.
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

void *plugin_alloc(size_t bytes)
{
    return memset(malloc(bytes), 7, bytes);
}

void *plugin_aligned(size_t bytes)
{
    return memset(memalign(4096, bytes), 7, bytes);
}

void *plugin_malloc(void)
{
    return (void *)malloc;
}
