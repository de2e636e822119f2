// SPDX-License-Identifier: MIT
/*
 * call.h - what libquire-record.a says to libquire-record.so, where that is loaded.  Both may be of different releases: it only grows.
 */
#ifndef QUIRE_POOLS_CALL_H
#define QUIRE_POOLS_CALL_H

#include <quire/record.h>

enum quire_record_kind { QUIRE_RECORD_ALLOC = 1, QUIRE_RECORD_FREE = 2, QUIRE_RECORD_REALLOC = 3 };

struct quire_record_call {
    uint32_t bytes_of_this, kind;
    struct quire_record_pool *pool;
    const void *old, *block;
    size_t bytes;
    uintptr_t ip, sp, bp;  // the frame that called, after the return
};

/* The recorder's function; found by this name. */
typedef void quire_record_listener(const struct quire_record_call *call);
#define QUIRE_RECORD_LISTENER "quire_record_listen"

#endif
