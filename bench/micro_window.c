// SPDX-License-Identifier: MIT
/*
 * micro_window.c - a window of blocks that is filled again and again; when it is full all but a fifth of it is freed, what stays moves on by a fifth.
 *
 *   window:   [ freed, oldest first | kept, not written over | freed, newest first ]      the kept fifth moves to the right, then to the left end again
 *
 *   window    10,000 places over all threads; sizes up to 1,000 bytes, growing by a half and halved down to 1, 250 of each under 100 bytes and 50 above
 *   bursts    200,000 places; bursts of one size: 5,000 of 16 bytes, 1,000 of 8, of 48, ... one of 168,524; before, each thread frees its share of what main
 *             allocated, 400,000 blocks of 8 bytes
 *
 * The first and the last byte of a block are written.  Known elsewhere as sh6bench and sh8bench; written anew from
 * what those do.
 */
#include "micro_driver.h"

enum { WINDOW_PLACES = 10000, WINDOW_TURNS = 400, WINDOW_BYTES_MAX = 1000, BURST_PLACES = 200000, BURST_COUNT = 6000, LEGACY = 400000, LEGACY_BYTES = 8 };

struct window {
    char **places;
    size_t count, at, kept, kept_end;
};

static void free_places(struct window *w)
{
    w->kept = w->kept_end < w->count ? w->kept_end : 0;
    w->kept_end = w->kept + w->count / 5 < w->count ? w->kept + w->count / 5 : w->count;
    for (size_t i = 0; i < w->kept; i++)
        free(w->places[i]);
    for (size_t i = w->count; i-- > w->kept_end;)
        free(w->places[i]);
    w->at = w->kept ? 0 : w->kept_end;
}

static void put(struct window *w, size_t bytes)
{
    char *block = w->places[w->at++] = micro_block(bytes);
    block[bytes - 1] = 1;
    if (w->at == w->kept)
        w->at = w->kept_end;
    if (w->at >= w->count)
        free_places(w);
}

static struct window window_of(size_t count)
{
    return (struct window){.places = bench_scratch(count, sizeof(char *)), .count = count, .kept = count, .kept_end = count};
}

static void window_end(struct window *w)
{
    for (size_t i = 0; i < w->at; i++)
        if (i < w->kept || i >= w->kept_end)
            free(w->places[i]);
    for (size_t i = w->kept; i < w->kept_end; i++)
        free(w->places[i]);
}

static void *window_thread(void *arg)
{
    const struct micro_part *part = arg;
    struct window w = window_of(WINDOW_PLACES / part->parts);
    for (size_t turn = 0; turn < part->count; turn++)
        for (size_t most = 1; most < WINDOW_BYTES_MAX; most = most * 3 / 2 + 1)
            for (size_t bytes = most; bytes; bytes /= 2)
                for (int i = bytes < 100 ? 250 : 50; i > 0; i--)
                    put(&w, bytes);
    window_end(&w);
    return NULL;
}

void micro_window(const struct micro_config *config)
{
    micro_begin();
    micro_row(config, micro_parts(config, WINDOW_TURNS, window_thread));
}

static void **legacy;

static void *bursts_thread(void *arg)
{
    static const struct {
        int count;
        size_t bytes;
    } bursts[] = {{1000, 8}, {5000, 16}, {1000, 48}, {100, 72}, {100, 148}, {100, 200}, {10, 520}, {5, 1056}, {3, 4096}, {1, 9162}, {1, 34562}, {1, 168524}};
    const struct micro_part *part = arg;
    for (size_t i = part->idx * LEGACY / part->parts; i < (part->idx + 1) * LEGACY / part->parts; i++)
        free(legacy[i]);
    struct window w = window_of(BURST_PLACES / part->parts);
    for (size_t i = 0; i < part->count; i++)
        for (int n = bursts[i % 12].count; n > 0; n--)
            put(&w, bursts[i % 12].bytes);
    window_end(&w);
    return NULL;
}

void micro_bursts(const struct micro_config *config)
{
    legacy = bench_scratch(LEGACY, sizeof *legacy);
    micro_begin();
    for (size_t i = 0; i < LEGACY; i++)
        legacy[i] = micro_block(LEGACY_BYTES);
    micro_row(config, micro_parts(config, BURST_COUNT, bursts_thread));
}
