// SPDX-License-Identifier: MIT
/* A program that allocates nothing, or with an argument much: says where its memory is. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int churn(void)
{
    enum { BLOCKS = 2000 };
    static char *blocks[BLOCKS];
    unsigned random = 1;
    for (int i = 0; i < 100000; i++) {
        char **block = &blocks[(random = random * 1664525 + 1013904223) % BLOCKS];
        size_t bytes = 1 + (random >> 8) % (random >> 30 ? 200 : 5000);
        if (*block && random >> 31) {
            free(*block);
            *block = NULL;
        } else if (!(*block = *block ? realloc(*block, bytes) : random & 64 ? calloc(1, bytes) : malloc(bytes)))
            return 0;
        else
            (*block)[bytes - 1] = 1;
    }
    return 1;
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1 && !churn())
        return 2;
    static char part[1 << 16];
    int fd = open("/proc/self/smaps", O_RDONLY);
    for (ssize_t got; fd >= 0 && (got = read(fd, part, sizeof part)) > 0;)
        if (write(STDOUT_FILENO, part, (size_t)got) != got)
            return 1;
    return fd < 0;
}
