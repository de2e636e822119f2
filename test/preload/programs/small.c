// SPDX-License-Identifier: MIT
/* A program that allocates nothing, or with an argument blocks, which it frees, or with another grows and clears, too: says where its memory is. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int churn(int grows)
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
            continue;
        }
        if (!grows)
            free(*block);
        *block = !grows ? malloc(bytes) : *block ? realloc(*block, bytes) : random & 64 ? calloc(1, bytes) : malloc(bytes);
        if (!*block)
            return 0;
        (*block)[bytes - 1] = 1;
    }
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !churn(argv[1][0] == 'g'))
        return 2;
    static char part[1 << 16];
    int fd = open("/proc/self/smaps", O_RDONLY);
    for (ssize_t got; fd >= 0 && (got = read(fd, part, sizeof part)) > 0;)
        if (write(STDOUT_FILENO, part, (size_t)got) != got)
            return 1;
    return fd < 0;
}
