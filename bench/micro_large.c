// SPDX-License-Identifier: MIT
/*
 * micro_large.c - blocks of 64 KiB to 32 MiB that come and go, and blocks that grow by realloc.
 *
 *   work      one of four buffers of 40,000 to 250,000 bytes is freed, and one as large allocated; the first and the last byte are written
 *   level     50 buffers of 300,000 to 1,000,000 bytes, a random one replaced
 *   together  8 vectors grow in turn, by half, to 1,000,000 bytes; then all are freed; 100 times
 *   larger    buffers of 2 MiB, all alive, each grows by half, once
 *   realloc   400 vectors by half to 64 KiB, at random in turn; then 8 buffers by 16 KiB to 4 MiB; then one by doubling to 64 MiB
 *
 * Every OS page of every block is written once; content of the first and the last word must have moved with it.
 */
#include <string.h>

#include "micro_driver.h"

enum { VECTORS = 400, VECTOR_BYTES_MAX = 65536, VECTOR_PASSES = 12 };
enum { BUFFERS = 8, BUFFER_STEP_BYTES = 16384, BUFFER_BYTES_MAX = 4 << 20, BUFFER_PASSES = 3, DOUBLED_BYTES_MAX = 64 << 20 };
enum { LARGER_COUNT = 100, LARGER_BYTES = 2 << 20 };
enum { LARGE_SLOTS = 12, LARGE_COUNT = 1500, LARGE_LOG2_MIN = 16, LARGE_DOUBLINGS = 9 };
enum { WORK_COUNT = 2000000 };
enum { LEVEL_LIVE = 50, LEVEL_COUNT = 20000, LEVEL_BYTES_MIN = 300000, LEVEL_BYTES_MAX = 1000000 };
enum { TOGETHER = 8, TOGETHER_PASSES = 100, TOGETHER_BYTES_MAX = 1000000 };

/* `old_bytes` long; what is new is touched. */
static char *grown(char *block, size_t old_bytes, size_t bytes)
{
    block = realloc(block, bytes);
    if (!block)
        bench_die("out of memory");
    if (old_bytes && (block[0] != 7 || block[old_bytes - 1] != 7))
        bench_die("realloc lost what the block held");
    for (size_t at = old_bytes; at < bytes; at += 4096)
        block[at] = 1;
    block[0] = block[bytes - 1] = 7;
    return block;
}

static size_t vectors(void)
{
    static struct {
        char *block;
        size_t bytes;
    } vector[VECTORS];
    uint64_t state = 88172645463325252u;
    size_t ops = 0, full = 0;
    memset(vector, 0, sizeof vector);
    while (full < VECTORS) {
        size_t i = bench_random(&state) % VECTORS, bytes = vector[i].bytes;
        if (bytes >= VECTOR_BYTES_MAX)
            continue;
        size_t more = bytes ? bytes + bytes / 2 : 16;
        vector[i].block = grown(vector[i].block, bytes, more);
        vector[i].bytes = more;
        full += more >= VECTOR_BYTES_MAX;
        ops++;
    }
    for (size_t i = 0; i < VECTORS; i++)
        free(vector[i].block);
    return ops;
}

static size_t buffers(void)
{
    char *buffer[BUFFERS] = {0};
    size_t ops = 0;
    for (size_t bytes = 0; bytes < BUFFER_BYTES_MAX; bytes += BUFFER_STEP_BYTES)
        for (size_t i = 0; i < BUFFERS; i++, ops++)
            buffer[i] = grown(buffer[i], bytes, bytes + BUFFER_STEP_BYTES);
    for (size_t i = 0; i < BUFFERS; i++)
        free(buffer[i]);
    return ops;
}

void micro_realloc(const struct micro_config *config)
{
    size_t ops = 0, vector_passes = micro_count(config, VECTOR_PASSES * 100) / 100;
    micro_begin();
    for (size_t i = 0; i <= vector_passes; i++)
        ops += vectors();
    for (size_t i = 0; i < BUFFER_PASSES; i++)
        ops += buffers();
    char *doubled = NULL;
    for (size_t bytes = 64, old_bytes = 0; bytes <= DOUBLED_BYTES_MAX; old_bytes = bytes, bytes *= 2, ops++)
        doubled = grown(doubled, old_bytes, bytes);
    free(doubled);
    micro_row(config, ops);
}

void micro_larger(const struct micro_config *config)
{
    char *buffer[LARGER_COUNT] = {0};
    for (size_t i = 0; i < LARGER_COUNT; i++)
        buffer[i] = grown(buffer[i], 0, LARGER_BYTES);
    micro_begin();
    for (size_t i = 0; i < LARGER_COUNT; i++)
        buffer[i] = grown(buffer[i], LARGER_BYTES, LARGER_BYTES + LARGER_BYTES / 2);
    micro_row(config, LARGER_COUNT);
    for (size_t i = 0; i < LARGER_COUNT; i++)
        free(buffer[i]);
}

void micro_work(const struct micro_config *config)
{
    static const size_t bytes[] = {40000, 65536, 131072, 250000};
    char *work[4] = {0};
    size_t count = micro_count(config, WORK_COUNT);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        char **buffer = &work[i % 4];
        free(*buffer);
        *buffer = malloc(bytes[i % 4]);
        if (!*buffer)
            bench_die("out of memory");
        (*buffer)[0] = (*buffer)[bytes[i % 4] - 1] = 1;
    }
    for (size_t i = 0; i < 4; i++)
        free(work[i]);
    micro_row(config, count);
}

void micro_large(const struct micro_config *config)
{
    void *slots[LARGE_SLOTS] = {0};
    uint64_t state = 88172645463325252u;
    size_t count = micro_count(config, LARGE_COUNT);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        uint64_t random = bench_random(&state);
        void **slot = &slots[random % LARGE_SLOTS];
        size_t base_bytes = (size_t)1 << (LARGE_LOG2_MIN + (random >> 16) % LARGE_DOUBLINGS);
        free(*slot);
        *slot = micro_block(base_bytes + (random >> 32) % base_bytes);
    }
    for (size_t i = 0; i < LARGE_SLOTS; i++)
        free(slots[i]);
    micro_row(config, count);
}

void micro_level(const struct micro_config *config)
{
    void *slots[LEVEL_LIVE] = {0};
    uint64_t state = 88172645463325252u;
    size_t count = micro_count(config, LEVEL_COUNT);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        uint64_t random = bench_random(&state);
        void **slot = &slots[random % LEVEL_LIVE];
        free(*slot);
        *slot = micro_block(LEVEL_BYTES_MIN + (random >> 32) % (LEVEL_BYTES_MAX - LEVEL_BYTES_MIN));
    }
    for (size_t i = 0; i < LEVEL_LIVE; i++)
        free(slots[i]);
    micro_row(config, count);
}

void micro_together(const struct micro_config *config)
{
    size_t ops = 0, passes = micro_count(config, TOGETHER_PASSES);
    micro_begin();
    for (size_t pass = 0; pass < passes; pass++) {
        char *vector[TOGETHER] = {0};
        for (size_t old_bytes = 0, bytes = 16; bytes < TOGETHER_BYTES_MAX; old_bytes = bytes, bytes += bytes / 2)
            for (size_t i = 0; i < TOGETHER; i++, ops++)
                vector[i] = grown(vector[i], old_bytes, bytes);
        for (size_t i = 0; i < TOGETHER; i++)
            free(vector[i]);
    }
    micro_row(config, ops);
}
