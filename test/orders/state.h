// SPDX-License-Identifier: MIT
/*
 * state.h - where an execution has come to: each word's stores, each thread's views and results; and what a state is known again by.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/atomic.h"

namespace orders {

enum { WORDS_MAX = 8, THREADS_MAX = 4, STORES_MAX = 14, STEPS_MAX = 40, NOTES_MAX = 4 };

/* How far each word, and each other thread's steps, are seen. */
struct View {
    uint8_t at[WORDS_MAX], clock[THREADS_MAX];
    void join(const View &b)
    {
        for (int w = 0; w < WORDS_MAX; w++)
            at[w] = std::max(at[w], b.at[w]);
        for (int t = 0; t < THREADS_MAX; t++)
            clock[t] = std::max(clock[t], b.clock[t]);
    }
};

struct Store {
    uint64_t value;
    View view;
    bool is_bound; /* by an RMW: nothing comes between it and the one before */
};

/* The stores of an atomic word; of a plain one the last, and who touched it when. */
struct Memory {
    Store store[STORES_MAX];
    uint8_t count, writer, written, read[THREADS_MAX];
};

struct Step {
    orders_kind kind;
    orders_order order;
    int word; /* -1: none */
    uint64_t value, expected;
};

struct Thread {
    View now, acquired, released;
    uint8_t at_least[WORDS_MAX]; /* after a pause: what it read is not read again */
    uint64_t result[STEPS_MAX], note[NOTES_MAX];
    uint8_t steps, notes, last_word;
    bool has_ended, sleeps;
    Step next;
};

struct State {
    Memory memory[WORDS_MAX];
    Thread thread[THREADS_MAX];
    View all; /* what fences of sequential consistency pass on */
};

inline uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}
inline uint64_t mix_view(uint64_t hash, const View &view)
{
    uint64_t part[2];
    part[1] = 0;
    memcpy(part, &view, sizeof view);
    return mix(mix(hash, part[0]), part[1]);
}
/* Of the first so many words and threads. */
inline uint64_t hash_of(const State &state, int words, int threads)
{
    uint64_t hash = 1;
    for (int w = 0; w < words; w++) {
        const Memory &memory = state.memory[w];
        uint64_t touched = 0;
        memcpy(&touched, &memory.count, sizeof touched - 1);
        hash = mix(hash, touched);
        for (int i = 0; i < memory.count; i++)
            hash = mix_view(mix(hash, memory.store[i].value * 2 + memory.store[i].is_bound), memory.store[i].view);
    }
    for (int t = 0; t < threads; t++) {
        const Thread &thread = state.thread[t];
        hash = mix_view(mix_view(mix_view(hash, thread.now), thread.acquired), thread.released);
        for (int i = 0; i < thread.steps; i++)
            hash = mix(hash, thread.result[i]);
        for (int w = 0; w < words; w++)
            hash = mix(hash, thread.at_least[w]);
        hash = mix(hash, uint64_t(thread.steps) * 4 + thread.sleeps * 2u + thread.has_ended);
    }
    return mix_view(hash, state.all);
}

} // namespace orders
