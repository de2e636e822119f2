// SPDX-License-Identifier: MIT
/*
 * micro_mixed.c - one thread that replaces blocks: of one size, or of sizes and lives as recorded of real programs.
 *
 *   row of the table --> its ring of blocks --> a random one is freed, a new one takes its place
 *
 * A ring is as long as blocks of its row live on average; blocks that live for ever are only freed after the last operation of a pass.  The memory that is
 * live is the recorded program's, scaled to MIXED_COUNT allocations a pass.
 */
#include "micro_driver.h"

#include <string.h>

#include "micro_tables.h"

enum { ONE_LIVE = 50000, ONE_BYTES = 64, ONE_COUNT = 20000000, MIXED_COUNT = 1000000, MIXED_PASSES = 6, SHORT_PASSES = 24, ROWS_MAX = 64 };

struct ring {
    void **blocks;
    size_t count, next, size_bytes;
    bool forever;
};

static struct ring rings[ROWS_MAX];
static uint8_t row_of_share[MICRO_SHARES];

void micro_one(const struct micro_config *config)
{
    void **blocks = bench_scratch(ONE_LIVE, sizeof *blocks);
    size_t count = micro_count(config, ONE_COUNT);
    uint64_t state = 88172645463325252u;
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        void **block = &blocks[bench_below(bench_random(&state), ONE_LIVE)];
        free(*block);
        *block = micro_block(ONE_BYTES);
    }
    for (size_t i = 0; i < ONE_LIVE; i++)
        free(blocks[i]);
    micro_row(config, count);
}

/* Rings for the rows; returns how many shares there are. */
static size_t load(const struct micro_row *rows, size_t count, size_t allocations)
{
    size_t shares = 0;
    for (size_t i = 0; i < count; i++) {
        struct ring *ring = &rings[i];
        for (size_t s = 0; s < rows[i].shares && shares < MICRO_SHARES; s++)
            row_of_share[shares++] = (uint8_t)i;
        ring->size_bytes = rows[i].size_bytes;
        ring->forever = rows[i].life_log2 == MICRO_FOREVER_LOG2;
        size_t life = ring->forever ? allocations : (size_t)1 << (rows[i].life_log2 - 1);
        ring->count = life * rows[i].shares / MICRO_SHARES + 1;
        ring->blocks = bench_scratch(ring->count, sizeof(void *));
    }
    return shares;
}

static void pass(size_t rows, size_t shares, size_t allocations)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < allocations; i++) {
        uint64_t random = bench_random(&state);
        struct ring *ring = &rings[row_of_share[bench_below(random << 32, shares)]];
        size_t at = ring->forever ? ring->next : bench_below(random, ring->count);
        if (ring->forever)
            ring->next = ring->next + 1 < ring->count ? ring->next + 1 : 0;
        free(ring->blocks[at]);
        ring->blocks[at] = micro_block(ring->size_bytes);
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < rings[i].count; j++) {
            free(rings[i].blocks[j]);
            rings[i].blocks[j] = NULL;
        }
}

void micro_mixed(const struct micro_config *config)
{
    const struct micro_row *table = micro_jq;
    size_t rows = sizeof micro_jq / sizeof *micro_jq;
    int passes = MIXED_PASSES;
    if (strcmp(config->workload, "python3") == 0) {
        table = micro_python3;
        rows = sizeof micro_python3 / sizeof *micro_python3;
    } else if (strcmp(config->workload, "cc1") == 0) {
        table = micro_cc1;
        rows = sizeof micro_cc1 / sizeof *micro_cc1;
        passes = SHORT_PASSES; /* hardly anything of it lives long: an operation is short */
    }
    size_t allocations = micro_count(config, MIXED_COUNT), shares = load(table, rows, allocations);
    micro_begin();
    for (int i = 0; i < passes; i++)
        pass(rows, shares, allocations);
    micro_row(config, allocations * (size_t)passes);
}
