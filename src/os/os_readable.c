// SPDX-License-Identifier: MIT
/*
 * os_readable.c - whether an address can be read, without reading it here.
 *
 *     rt_sigprocmask(no such thing, address)      EFAULT: it cannot be read          EINVAL: it was read, and then there is no such thing to do
 *
 * A call that is allowed wherever a program with signals runs: process_vm_readv() is not, in containers of old kernels and under emulators.
 *
 * Locks: none.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/os.h"

enum { NO_SUCH_HOW = -1, MASK_BYTES = 8 };

bool os_is_readable(const void *address)
{
    int kept = errno;
    bool is_read = address && syscall(SYS_rt_sigprocmask, NO_SUCH_HOW, address, NULL, MASK_BYTES) != 0 && errno == EINVAL;
    errno = kept;
    return is_read;
}
