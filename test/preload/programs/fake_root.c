// SPDX-License-Identifier: MIT
/* Preloaded behind the library: what it reads of /proc and /sys about memory comes from below FAKE_ROOT, a directory known when this is compiled. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int open(const char *path, int flags, ...)
{
    static const char *const of_memory[] = {"/proc/self/cgroup", "/proc/meminfo", "/proc/pressure/", "/sys/fs/cgroup"};
    char below[1024];
    va_list more;
    va_start(more, flags);
    int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    for (int i = 0; i < 4; i++)
        if (strncmp(path, of_memory[i], strlen(of_memory[i])) == 0) {
            strcpy(below, FAKE_ROOT);
            strncat(below, path, sizeof below - sizeof FAKE_ROOT - 1);
            return (int)syscall(SYS_openat, AT_FDCWD, below, flags, mode);
        }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
