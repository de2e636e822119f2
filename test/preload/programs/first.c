// SPDX-License-Identifier: MIT
/*
 * first - a library whose constructor runs before libc's own (-z initfirst), and allocates: `environ` is not there yet.
 */
#include <stdlib.h>
#include <unistd.h>

static __attribute__((constructor)) void at_load(void)
{
    void *p = malloc(10);
    if (environ)
        _exit(77); /* then this shows nothing */
    free(p);
}
