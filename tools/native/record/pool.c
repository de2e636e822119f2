// SPDX-License-Identifier: MIT
/*
 * pool.c - blocks of a program's own pools, told by libquire-record.a: events as malloc's, at addresses of their own.
 *
 *   address of an event:   pool's number | block         a pool's first block lies where the chunk lies that it is cut from
 *                          63         48 | 47        0
 *
 * Invariants:
 *   P1  each stack that a pool's event has is in the trace with the pool's name before that event
 *
 * Locks: the recorder's, for a stack's first event.  Not here: the calls (../pools).
 */
#include "../pools/call.h"
#include "put.h"

#define NUMBERS_MAX 0x7fffu  // pools beyond that share the last number
#define STACKS_MAX  (1u << 19)

static _Atomic uint32_t numbers;
static struct {
    uint32_t pid;
    _Atomic uint8_t bit[STACKS_MAX / 8];
} named;

static uint64_t address_of(struct quire_record_pool *pool, const void *block) {
    uint32_t number = __atomic_load_n(&pool->number, __ATOMIC_RELAXED);
    if (number == 0) {
        uint32_t fresh = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
        fresh = fresh < NUMBERS_MAX ? fresh : NUMBERS_MAX;
        bool first = __atomic_compare_exchange_n(&pool->number, &number, fresh, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        number = first ? fresh : number;
    }
    return (uint64_t)number << 48 | (uintptr_t)block;
}

static __attribute__((noinline)) void stack_name(uint32_t stack, const char *name) {
    if (!rec_lock_try()) {
        return;
    }
    if (rec_header != NULL && named.pid != rec_header->pid) {  // a forked child's trace is a new one
        memset(&named, 0, sizeof named);
        named.pid = rec_header->pid;
    }
    rec_meta_pool(stack, name);
    atomic_fetch_or_explicit(&named.bit[stack / 8], (uint8_t)(1u << stack % 8), memory_order_relaxed);
    rec_unlock();
}

static void put(struct rec_event event, const struct rec_frame frame, const char *name) {
    struct rec_thread *thread = rec_thread_get();
    if (thread == NULL) {
        return;
    }
    event.stack = rec_stack(thread, frame);
    bool known = event.stack >= STACKS_MAX || (rec_header != NULL && named.pid == rec_header->pid &&
                 (atomic_load_explicit(&named.bit[event.stack / 8], memory_order_relaxed) >> event.stack % 8 & 1) != 0);
    if (!known && event.stack != 0) {
        stack_name(event.stack, name);
    }
    event.tick = rec_tick_of(thread);
    rec_event_put(thread, event);
}

REC_EXPORT void quire_record_listen(const struct quire_record_call *call);
REC_EXPORT void quire_record_listen(const struct quire_record_call *call) {
    if (rec_busy != 0 || !atomic_load_explicit(&rec_on, memory_order_relaxed)) {
        return;  // a pool inside of an allocator that is recorded itself
    }
    rec_busy++;
    struct rec_event event = {.kind = QTR_MALLOC, .address = address_of(call->pool, call->block), .size = call->bytes};
    if (call->kind == QUIRE_RECORD_FREE) {
        put_release(QTR_FREE, (const void *)event.address, 0);
    } else {
        if (call->kind == QUIRE_RECORD_REALLOC) {
            put_release(QTR_REALLOC_BEGIN, (const void *)address_of(call->pool, call->old), 0);
            event.kind = QTR_REALLOC_END;
        }
        put(event, (struct rec_frame){.ip = call->ip, .sp = call->sp, .bp = call->bp}, call->pool->name);
    }
    rec_busy--;
}
