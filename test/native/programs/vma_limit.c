// SPDX-License-Identifier: MIT
/*
 * vma_limit.c - 90,000 spans of 192 KiB with a touched page each; every second one given back, then all: what stays resident, in bytes.
 * The kernel's limit of mappings (65,530) is passed on the way where every span is a mapping of its own.
 *
 *     vma_limit default|anon [SPANS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire/source.h>

enum { SPANS = 90000, SPAN_BYTES = 192 << 10 };

static size_t rss_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    size_t size = 0, resident = 0;
    if (!file || fscanf(file, "%zu %zu", &size, &resident) != 2)
        exit(2);
    fclose(file);
    return resident * 4096;
}

int main(int argc, char **argv)
{
    struct quire_source *source = argc > 1 && strcmp(argv[1], "anon") == 0 ? quire_source_anon() : quire_source_default();
    size_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : SPANS;
    struct quire_span *spans = calloc(count, sizeof *spans);
    size_t taken = 0;
    for (; taken < count; taken++) {
        if (source->verbs->take(source, SPAN_BYTES, 4096, &spans[taken]) != 0)
            break;
        *(char *)spans[taken].start = 1;
    }
    for (size_t i = 0; i < taken; i += 2)
        source->verbs->give(source, &spans[i]);
    for (size_t i = 1; i < taken; i += 2)
        source->verbs->give(source, &spans[i]);
    quire_source_trim(source);
    printf("%zu taken, %zu resident\n", taken, rss_bytes() - count * sizeof *spans);
    return 0;
}
