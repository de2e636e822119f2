// SPDX-License-Identifier: MIT
/*
 * steps.c - appends steps to lists, chunk after chunk.  The picture and P1, P2 stand in steps.h.
 *
 * Locks: none.  Not here: when a window of steps is full (compile.c).
 */
#include "replay/steps.h"

#include "replay/stream.h"

#include <assert.h>

void step_pool_begin(struct step_pool *pool, uint32_t chunks) {
    *pool = (struct step_pool){.chunks = chunks};
    pool->at = stream_memory((size_t)chunks * CHUNK_STEPS, sizeof *pool->at);
}

static void take_chunk(struct step_pool *pool, struct step_list *list) {
    assert(pool->used < pool->chunks);
    struct step *chunk = pool->at + (uint64_t)pool->used * CHUNK_STEPS;
    if (list->first == NULL)
        list->first = chunk;
    else
        *list->next = (struct step){.kind = STEP_JUMP, .slot = pool->used};
    list->next = chunk;
    list->end = chunk + CHUNK_STEPS - 1;
    pool->used++;
}

void step_append(struct step_pool *pool, struct step_list *list, struct step step) {
    // P2: the first of two is placed only where both fit.
    if (list->first == NULL || list->end - list->next < 1 + (step.kind == STEP_WIDE))
        take_chunk(pool, list);
    *list->next++ = step;
}

void step_close(struct step_list *list) {
    if (list->first)
        *list->next = (struct step){.kind = STEP_END};
}
