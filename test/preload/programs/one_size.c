// SPDX-License-Identifier: MIT
/*
 * one_size.c - a program of one thread fills 40 MiB with blocks of one size, frees all, and calls nothing any more: `one_size BYTES`.  It goes back.
 */
#include <fcntl.h>
#include <string.h>

#include "churn.h"

/* As resident_kib(), without a call of malloc. */
static long in_memory_kib(void)
{
    char text[100] = "";
    int file = open("/proc/self/statm", O_RDONLY);
    MUST(file >= 0 && read(file, text, sizeof text - 1) > 0, "statm");
    close(file);
    return atol(strchr(text, ' ')) * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 5000, count = (40u << 20) / bytes;
    char **blocks = calloc(count, sizeof *blocks);
    long before = in_memory_kib();
    for (size_t i = 0; i < count; i++)
        if ((blocks[i] = malloc(bytes)) != NULL)
            memset(blocks[i], 1, bytes);
    long full = in_memory_kib(), left = full;
    for (size_t i = 0; i < count; i++)
        free(blocks[i]);
    for (int i = 0; i < 300 && left > before + (4 << 10); i++, left = in_memory_kib())
        sleep_ms(20);
    MUST(full > before + (38 << 10) && left <= before + (4 << 10), "%ld KiB before, %ld with the blocks, %ld at the end", before, full, left);
    return must_end();
}
