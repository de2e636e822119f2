// SPDX-License-Identifier: MIT
/*
 * own.c - allocators that the program brought along, linked into it or as a library with names of its own: their calls become events.
 *
 *   program -> mi_malloc (patched: ../own) -> own_before() -> mi_malloc as it was -> own_after(): one event
 *
 * Invariants: hooks.c's K1 and K2 hold here too: the outermost call counts, whether it is one of these or of libc's.
 *
 * Locks: none.  errno is what the allocator left.
 * Not here: finding and patching them (../own).
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "../own/plant.h"
#include "put.h"

enum { KEPT_BLOCK, KEPT_SIZE, KEPT_ALIGN, KEPT_ZEROED };

static struct rec_frame caller_of(const struct own_frame *frame) {
    return (struct rec_frame){.ip = frame->caller[1], .sp = (uintptr_t)(frame->caller + 2), .bp = frame->caller[0]};
}

/* What own_after() needs of the arguments, which are gone by then. */
static void keep(struct own_frame *frame) {
    struct own_request request = own_request_of(frame);
    frame->kept[KEPT_BLOCK] = request.block;
    frame->kept[KEPT_SIZE] = request.bytes;
    frame->kept[KEPT_ALIGN] = request.align_bytes;
    frame->kept[KEPT_ZEROED] = request.zeroed;
}

bool rec_own_left(void) {
    if (rec_busy != 1 || own_place == 0 || (uintptr_t)__builtin_frame_address(0) < own_place) {
        return false;
    }
    own_place = 0;
    rec_busy = 0;
    return true;
}

enum own_way own_before(struct own_frame *frame) {
    if (frame->hook->kind.call == OWN_EXIT) {
        rec_exit_mark((int)frame->argument[0], true);
        return OWN_PASS;
    }
    if ((rec_busy != 0 && !rec_own_left()) || !atomic_load_explicit(&rec_on, memory_order_relaxed)) {
        return OWN_PASS;
    }
    rec_busy++;
    keep(frame);
    void *block = (void *)frame->kept[KEPT_BLOCK];
    switch (frame->hook->kind.call) {
    case OWN_FREE:
        if (block != NULL) {
            put_free(block);
        }
        break;
    case OWN_RESIZE:
    case OWN_RESIZE_HERE:
        if (rec_self == NULL) {
            rec_thread_slow();  // rec_many has to be set before the block is given back
        }
        put_look(block);
        frame->tick = atomic_load_explicit(&rec_many, memory_order_relaxed) ? rec_tick() : 0;
        break;
    default:
        break;
    }
    own_place = (uintptr_t)frame;
    return OWN_CALL;
}

static void put_block(const struct own_frame *frame, unsigned kind, uint64_t block) {
    uint64_t align_bytes = frame->kept[KEPT_ALIGN], size = frame->kept[KEPT_SIZE];
    if (align_bytes > _Alignof(max_align_t) && kind == QTR_MALLOC) {
        put_aligned((void *)block, align_bytes, size, caller_of(frame));
    } else {
        put_alloc((struct rec_event){.kind = kind, .address = block, .size = size}, caller_of(frame));
    }
}

static void put_resized(const struct own_frame *frame, uint64_t block) {
    void *old = (void *)frame->kept[KEPT_BLOCK];
    if (block != 0 && old != NULL) {
        put_release(QTR_REALLOC_BEGIN, old, frame->tick);
        put_block(frame, QTR_REALLOC_END, block);
    } else if (block != 0) {
        put_block(frame, QTR_MALLOC, block);
    } else if (old != NULL && frame->kept[KEPT_SIZE] == 0) {
        put_release(QTR_FREE, old, frame->tick);
    }
}

void own_after(struct own_frame *frame) {
    uint64_t result = frame->rax;
    rec_busy = 1;
    switch (frame->hook->kind.call) {
    case OWN_ALLOC:
    case OWN_ZEROED:
        if (result != 0) {
            put_block(frame, frame->kept[KEPT_ZEROED] != 0 ? QTR_CALLOC : QTR_MALLOC, result);
        }
        break;
    case OWN_RESIZE:
        put_resized(frame, result);
        break;
    case OWN_RESIZE_HERE:
        if (result >= frame->kept[KEPT_SIZE]) {
            put_resized(frame, frame->kept[KEPT_BLOCK]);
        }
        break;
    case OWN_POSIX:
        if ((int)result == 0) {
            put_block(frame, QTR_MALLOC, *(const uint64_t *)frame->kept[KEPT_BLOCK]);
        }
        break;
    default:
        break;
    }
    own_place = 0;
    rec_busy = 0;
}

static void say(const char *function, const char *path, const char *why) {
    char line[512];
    int n = snprintf(line, sizeof line, "quire record: calls of %s in %s are not seen, nor its others: %s\n", function, path, why);
    if (n > 0) {
        ssize_t ignored = write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
        (void)ignored;
    }
}

void rec_own_start(void) {
    int saved_errno = errno;
    own_plant(&(struct own_options){.say = say});
    errno = saved_errno;
}
