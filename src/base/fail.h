// SPDX-License-Identifier: MIT
/*
 * fail.h - how a public function ends that cannot do what it was asked for: errno, and NULL or -1.
 */
#ifndef QUIRE_BASE_FAIL_H
#define QUIRE_BASE_FAIL_H

#include <errno.h>
#include <stddef.h>

static inline void *fail_null(int error)
{
    errno = error;
    return NULL;
}

static inline int fail_int(int error)
{
    errno = error;
    return -1;
}

#endif
