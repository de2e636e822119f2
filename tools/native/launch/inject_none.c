// SPDX-License-Identifier: MIT
/*
 * inject_none.c - instead of inject.c, where nothing can be brought into a static program: another machine than x86-64, or no libzstd.a.
 */
#include "inject.h"

#include <errno.h>

int inject(pid_t pid, const char *library)
{
    (void)pid;
    (void)library;
    return -ENOSYS;
}
