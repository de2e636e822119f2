// SPDX-License-Identifier: MIT
/*
 * carry.c - one switch over step kinds.
 *
 * Compiled twice, with an allocator and without: the difference is what allocation costs.
 *
 * Invariant: Y1  nothing is mapped, started or printed here but what the steps ask for
 *
 * Locks: gates only (gate.h).
 * Not here: what an object is used for (touch.h), who runs which steps (play.c).
 */
#include "replay/carry.h"
#include "replay/touch.h"

#include <quire/arena.h>
#include <quire/heap.h>
#include <quire/slab.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE unsigned char *null_address(struct lane *lane, uint64_t bytes) {
    if (bytes > RING_BYTES / 2)
        return lane->player->region + (size_t)(lane->idx % REGION_SHIFTS) * LINE_BYTES;
    if (lane->ring_cursor + bytes > RING_BYTES)
        lane->ring_cursor = 0;
    unsigned char *at = lane->ring + lane->ring_cursor;
    lane->ring_cursor += ((uint32_t)bytes + 15) & ~15u;
    return at;
}

ALWAYS_INLINE bool is_aligned(uint8_t kind) {
    return kind == STEP_ALIGNED || kind == STEP_ARENA_ALIGNED || kind == STEP_HEAP_ALIGNED;
}

/* What a program does with memory that it asked for: an object, or what it grew by. */
ALWAYS_INLINE void use(struct lane *lane, const struct step *step, uint64_t from_bytes,
                       uint64_t to_bytes) {
    unsigned char *object = lane->player->objects[step->slot];
    unsigned untouched = is_aligned(step->kind) ? 0 : step->untouched;
    touch_each(object, touch_part(from_bytes, untouched), touch_part(to_bytes, untouched), TOUCH_PAGE_BYTES);
    if (lane->player->opts->verify) {
        touch_each(object, from_bytes, to_bytes, TOUCH_LINE_BYTES);
        touch_sign_end(object, to_bytes, step->slot);
    }
    touch_sign(object, to_bytes, step->slot);
}

ALWAYS_INLINE void born(struct lane *lane, const struct step *step, uint64_t bytes, void *object) {
    lane->player->objects[step->slot] = object;
    if (__builtin_expect(object == NULL, 0)) {
        lane->failures++;
        return;
    }
    use(lane, step, 0, bytes);
}

ALWAYS_INLINE void step_birth(struct lane *lane, const struct step *step, uint64_t bytes,
                              bool null) {
    struct player *player = lane->player;
    void *object = NULL;
    if (null) {
        bytes = bytes < REGION_BYTES_MAX ? bytes : REGION_BYTES_MAX;
        born(lane, step, bytes, null_address(lane, bytes));
        return;
    }
    switch (step->kind) {
    case STEP_ALLOC:
        object = malloc((size_t)bytes);
        break;
    case STEP_CALLOC:
        object = calloc(1, (size_t)bytes);
        break;
    case STEP_ALIGNED:
        if (posix_memalign(&object, step->align_log2 > 3 ? (size_t)1 << step->align_log2 : 8,
                           (size_t)bytes) != 0)
            object = NULL;
        break;
    case STEP_ARENA_ALLOC:
        object = quire_arena_alloc(player->arenas[step->old], bytes ? (size_t)bytes : 1);
        break;
    case STEP_SLAB_ALLOC:
        object = quire_slab_alloc(player->slabs[step->slab]);
        break;
    case STEP_SLAB_CALLOC:
        object = quire_slab_alloc_zero(player->slabs[step->slab]);
        break;
    case STEP_HEAP_ALLOC:
        object = quire_heap_alloc(quire_heap_default(), (size_t)bytes);
        break;
    case STEP_HEAP_CALLOC:
        object = quire_heap_alloc_zero(quire_heap_default(), 1, (size_t)bytes);
        break;
    case STEP_HEAP_ALIGNED:
        object = quire_heap_alloc_aligned(quire_heap_default(), (size_t)bytes,
                                          (size_t)1 << step->align_log2);
        break;
    case STEP_ARENA_CALLOC:
        object = quire_arena_alloc_zero(player->arenas[step->old], 1, bytes ? (size_t)bytes : 1);
        break;
    default:
        object = quire_arena_alloc_aligned(player->arenas[step->old], bytes ? (size_t)bytes : 1,
                                           (size_t)1 << step->align_log2);
        break;
    }
    born(lane, step, bytes, object);
}

/* The element's contents go to a block of libc's, and the element back to its slab. */
static void *leave_slab(struct quire_slab *slab, const struct step *step, void *element,
                        uint64_t bytes) {
    void *moved = malloc((size_t)bytes);
    if (moved)
        memcpy(moved, element, step->old);
    quire_slab_free(slab, element);
    return moved;
}

ALWAYS_INLINE void *resized(struct player *player, const struct step *step, uint64_t bytes,
                            uint64_t old_bytes) {
    void *object = player->objects[step->slot];
    switch (step->kind) {
    case STEP_REALLOC:
        return realloc(object, bytes ? (size_t)bytes : 1);
    case STEP_HEAP_REALLOC:
        return quire_heap_realloc(quire_heap_default(), object, (size_t)bytes);
    case STEP_SLAB_KEEP:
        return object;
    case STEP_SLAB_LEAVE:
        return leave_slab(player->slabs[step->slab], step, object, bytes);
    default:
        return quire_arena_resize(player->arenas[step->old], object, (size_t)old_bytes,
                                  bytes ? (size_t)bytes : 1);
    }
}

/* `old_bytes` is exact up to 4 GiB, and a lower bound beyond. */
ALWAYS_INLINE void step_resize(struct lane *lane, const struct step *step, uint64_t bytes,
                               uint64_t old_bytes, bool null) {
    struct player *player = lane->player;
    unsigned char *object = player->objects[step->slot];
    if (object == NULL)
        return;
    if (null) {
        bytes = bytes < REGION_BYTES_MAX ? bytes : REGION_BYTES_MAX;
        object = null_address(lane, bytes);
    } else {
        void *moved = resized(player, step, bytes, old_bytes);
        if (__builtin_expect(moved == NULL, 0)) {
            lane->failures++;
            if (step->kind == STEP_SLAB_LEAVE) // its element is gone, and libc's free is not to have it
                player->objects[step->slot] = NULL;
            return;
        }
        object = moved;
        uint64_t kept_bytes = old_bytes < bytes ? old_bytes : bytes;
        // A stamp cut short keeps its first byte, which is what short objects carry.
        if (player->opts->verify && !touch_start_intact(object, kept_bytes, step->slot))
            lane->corrupt++;
    }
    player->objects[step->slot] = object;
    use(lane, step, old_bytes, bytes);
}

ALWAYS_INLINE void step_free(struct lane *lane, const struct step *step, bool null) {
    unsigned char *object = lane->player->objects[step->slot];
    if (object == NULL)
        return;
    if (null)
        return;
    if (lane->player->opts->verify &&
        !(touch_start_intact(object, step->old, step->slot) &&
          (step->old == UINT32_MAX || touch_end_intact(object, step->old, step->slot))))
        lane->corrupt++;
    if (step->kind == STEP_SLAB_FREE)
        quire_slab_free(lane->player->slabs[step->slab], object);
    else if (step->kind == STEP_HEAP_FREE)
        quire_heap_free(quire_heap_default(), object);
    else
        free(object);
}

ALWAYS_INLINE void step_arena(struct lane *lane, const struct step *step, bool null) {
    struct quire_arena **arena = &lane->player->arenas[step->slot];
    if (null)
        return;
    if (step->kind == STEP_ARENA_RESET) {
        quire_arena_reset(*arena);
        return;
    }
    if (step->kind == STEP_ARENA_DESTROY) {
        quire_arena_destroy(*arena);
        *arena = NULL;
        return;
    }
    *arena = quire_arena_create(NULL);
    if (*arena == NULL) {
        dprintf(2, "out of memory: an arena could not be created\n");
        exit(1);
    }
}

static void step_order(struct player *player, const struct step *step) {
    switch (step->kind) {
    case STEP_SLOT_AWAIT:
        gate_await(&player->slot_gates[step->slot], step->size);
        break;
    case STEP_SLOT_POST:
        gate_post(&player->slot_gates[step->slot], step->size);
        break;
    case STEP_DEATH_AWAIT:
        gate_await(&player->death_gates[step->slot], step->size);
        break;
    case STEP_DEATH_POST:
        gate_add(&player->death_gates[step->slot]);
        break;
    case STEP_THREAD_START:
        gate_post(&player->start_gates[step->slot], 1);
        break;
    case STEP_SAMPLE:
        timeline_take(player->opts->timeline, step->slot);
        break;
    default:
        gate_await(&player->end_gates[step->slot], 1);
        break;
    }
}

ALWAYS_INLINE void run_steps(struct lane *lane, const struct step *step, bool null) {
    for (;; step++) {
        uint64_t bytes = step->size, old_bytes = step->old;
        if (__builtin_expect(step->kind == STEP_WIDE, 0)) {
            bytes = bytes << 32 | step[1].size;
            step++;
        }
        switch (step->kind) {
        case STEP_ALLOC:
        case STEP_CALLOC:
        case STEP_ALIGNED:
        case STEP_ARENA_ALLOC:
        case STEP_ARENA_CALLOC:
        case STEP_ARENA_ALIGNED:
        case STEP_SLAB_ALLOC:
        case STEP_SLAB_CALLOC:
        case STEP_HEAP_ALLOC:
        case STEP_HEAP_CALLOC:
        case STEP_HEAP_ALIGNED:
            step_birth(lane, step, bytes, null);
            break;
        case STEP_REALLOC:
        case STEP_ARENA_RESIZE:
        case STEP_SLAB_KEEP:
        case STEP_SLAB_LEAVE:
        case STEP_HEAP_REALLOC:
            step_resize(lane, step, bytes, old_bytes, null);
            break;
        case STEP_FREE:
        case STEP_SLAB_FREE:
        case STEP_HEAP_FREE:
            step_free(lane, step, null);
            break;
        case STEP_ARENA_CREATE:
        case STEP_ARENA_DESTROY:
        case STEP_ARENA_RESET:
            step_arena(lane, step, null);
            break;
        case STEP_JUMP:
            step = step_chunk(&lane->player->compiled->pool, step->slot) - 1;
            break;
        case STEP_END:
            return;
        default:
            step_order(lane->player, step);
            break;
        }
    }
}

static __attribute__((noinline)) void run_steps_malloc(struct lane *lane,
                                                       const struct step *first) {
    run_steps(lane, first, false);
}

static __attribute__((noinline)) void run_steps_null(struct lane *lane, const struct step *first) {
    run_steps(lane, first, true);
}

void carry_out(struct lane *lane, const struct step *first) {
    if (lane->player->opts->backend == PLAY_NULL)
        run_steps_null(lane, first);
    else
        run_steps_malloc(lane, first);
}
