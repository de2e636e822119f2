// SPDX-License-Identifier: MIT
/*
 * pools.c - libquire-record.a: calls that go to the recorder where it is loaded, and nowhere else.
 *
 *   quire_record_alloc() -> listener?  no: return      yes: libquire-record.so's quire_record_listen()
 *
 * The listener is looked for once, before main; blocks of constructors that run before that are not seen.
 * Compiled with frame pointers, by which it tells who called.  Not here: what becomes of it (../record/pool.c).
 */
#include <dlfcn.h>
#include <string.h>

#include "call.h"

static quire_record_listener *listener;

__attribute__((constructor(101))) static void look_for_it(void) {
    void *found = dlsym(RTLD_DEFAULT, QUIRE_RECORD_LISTENER);
    memcpy(&listener, &found, sizeof found);
}

/* The caller of the function in which this stands. */
#define CALL(what)                                                                                                     \
    (struct quire_record_call) {                                                                                       \
        .bytes_of_this = sizeof(struct quire_record_call), .kind = (what), .pool = pool,                               \
        .ip = (uintptr_t)__builtin_return_address(0), .sp = (uintptr_t)__builtin_frame_address(0) + 16,                \
        .bp = *(const uintptr_t *)__builtin_frame_address(0)                                                           \
    }

int quire_record_on(void) {
    return listener != NULL;
}

void quire_record_alloc(struct quire_record_pool *pool, const void *block, size_t bytes) {
    if (__builtin_expect(listener != NULL, 0) && block != NULL) {
        struct quire_record_call call = CALL(QUIRE_RECORD_ALLOC);
        call.block = block;
        call.bytes = bytes;
        listener(&call);
    }
}

void quire_record_free(struct quire_record_pool *pool, const void *block) {
    if (__builtin_expect(listener != NULL, 0) && block != NULL) {
        struct quire_record_call call = CALL(QUIRE_RECORD_FREE);
        call.block = block;
        listener(&call);
    }
}

void quire_record_realloc(struct quire_record_pool *pool, const void *old, const void *block, size_t bytes) {
    if (__builtin_expect(listener != NULL, 0) && block != NULL) {
        struct quire_record_call call = CALL(old == NULL ? QUIRE_RECORD_ALLOC : QUIRE_RECORD_REALLOC);
        call.old = old;
        call.block = block;
        call.bytes = bytes;
        listener(&call);
    }
}
