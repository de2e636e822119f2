// SPDX-License-Identifier: MIT
/*
 * event.h - one event into a thread's live block; format.h has the layout.
 *
 * Every field is stored as eight bytes and the cursor advanced by fewer: no loop, no branch on the value
 * but the choice of a length.
 */
#ifndef QUIRE_RECORD_EVENT_H
#define QUIRE_RECORD_EVENT_H

#include "record.h"

struct rec_event {
    unsigned kind;
    unsigned align_log2;
    uint64_t tick;
    uintptr_t address;
    uint64_t size;
    uint32_t stack;
};

static inline unsigned rec_length_code(uint64_t value) {
    return value < 1u << 8 ? 0u : value < 1u << 16 ? 1u : value < 1u << 24 ? 2u : 3u;
}

static inline unsigned char *rec_field_put(unsigned char *to, uint64_t value, unsigned code) {
    memcpy(to, &value, sizeof value);
    return to + (0x8321u >> (4 * code) & 15u);
}

/* The caller got `thread` from rec_thread_get(): there is room. */
static inline void rec_event_put(struct rec_thread *thread, const struct rec_event *event) {
    uint64_t tick = event->tick > thread->last_tick ? event->tick : thread->last_tick;
    uint64_t delta = tick - thread->last_tick;
    uint64_t word = event->address >> 3;
    int64_t moved = (int64_t)(word - thread->last_word);
    uint64_t zigzag = ((uint64_t)moved << 1) ^ (uint64_t)(moved >> 63);
    unsigned tick_code = rec_length_code(delta), word_code = rec_length_code(zigzag);
    unsigned control = event->kind | tick_code << 3 | word_code << 5 | event->align_log2 << 11;
    unsigned char *to = thread->cursor + 2;
    to = rec_field_put(to, delta, tick_code);
    to = rec_field_put(to, zigzag, word_code);
    if (event->kind != QTR_FREE && event->kind != QTR_REALLOC_BEGIN) {
        unsigned size_code = rec_length_code(event->size), stack_code = rec_length_code(event->stack);
        control |= size_code << 7 | stack_code << 9;
        to = rec_field_put(to, event->size, size_code);
        to = rec_field_put(to, event->stack, stack_code);
    }
    uint16_t head = (uint16_t)control;
    memcpy(thread->cursor, &head, sizeof head);
    thread->last_tick = tick;
    thread->last_word = word;
    thread->cursor = to;
    unsigned char *data = (unsigned char *)(thread->live + 1);
    atomic_signal_fence(memory_order_seq_cst);
    thread->live->part_and_used = (uint64_t)thread->part << 32 | (uint32_t)(to - data);
}

#endif
