// SPDX-License-Identifier: MIT
/* A program that allocates nothing: says where its memory is. */
#include <fcntl.h>
#include <unistd.h>

int main(void)
{
    static char part[1 << 16];
    int fd = open("/proc/self/smaps", O_RDONLY);
    for (ssize_t got; fd >= 0 && (got = read(fd, part, sizeof part)) > 0;)
        if (write(STDOUT_FILENO, part, (size_t)got) != got)
            return 1;
    return fd < 0;
}
