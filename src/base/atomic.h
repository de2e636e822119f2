// SPDX-License-Identifier: MIT
/*
 * atomic.h - shared words, with the memory order in the function's name.
 *
 * A shared word is a struct of one field, so that a plain read or write of it does not compile.  Compiler builtins rather than <stdatomic.h>:
 * the tests include this from C++, and another implementation of the same names can stand here (a model checker's, say).
 *
 * In the `check` build every operation first calls atomic_noise(), through which tests yield or sleep at atomic steps: without that, two cores
 * find almost no races.
 */
#ifndef QUIRE_BASE_ATOMIC_H
#define QUIRE_BASE_ATOMIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* A test's hook, called before every atomic step of the `check` build; NULL (the start value) calls nothing. */
extern void (*atomic_noise_hook)(void);

static ALWAYS_INLINE void atomic_noise(void)
{
#if QUIRE_CHECK
    void (*hook)(void) = __atomic_load_n(&atomic_noise_hook, __ATOMIC_RELAXED);
    if (unlikely(hook))
        hook();
#endif
}

static ALWAYS_INLINE void cpu_pause(void)
{
#if CPU_X86_64
    __builtin_ia32_pause();
#elif CPU_AARCH64
    __asm__ volatile("yield");
#endif
}

/* One instruction that reads and writes, where there is one, and no atomic one: memory that was never touched is had by one fault. */
static ALWAYS_INLINE void word_add_in_place(uint64_t *word, uint64_t n)
{
#if CPU_X86_64
    __asm__ volatile("addq %1, %0" : "+m"(*word) : "r"(n) : "cc");
#else
    *(volatile uint64_t *)word += n;
#endif
}

#define ATOMIC_WORDS(X) X(u32, uint32_t) X(u64, uint64_t) X(size, size_t) X(addr, uintptr_t)

#define ATOMIC_STEP(result, name, parameters, act)                                                                                  \
    static ALWAYS_INLINE result name parameters                                                                                     \
    {                                                                                                                               \
        atomic_noise();                                                                                                             \
        act;                                                                                                                        \
    }

/* A step that reads and writes: the builtin that does it, with the order in its name.  Returns what was there. */
#define ATOMIC_CHANGE(w, type, name, builtin, order)                                                                                \
    ATOMIC_STEP(type, w##_##name, (atomic_##w * p, type value), return builtin(&p->word, value, order))
#define ATOMIC_CAS(w, type, name, order)                                                                                            \
    ATOMIC_STEP(bool, w##_##name, (atomic_##w * p, type * expected, type desired),                                                  \
                return __atomic_compare_exchange_n(&p->word, expected, desired, false, order, __ATOMIC_RELAXED))

#define ATOMIC_WORD(w, type)                                                                                                        \
    typedef struct atomic_##w {                                                                                                     \
        type word;                                                                                                                  \
    } atomic_##w;                                                                                                                   \
    ATOMIC_STEP(type, w##_load_relaxed, (const atomic_##w *p), return __atomic_load_n(&p->word, __ATOMIC_RELAXED))                  \
    ATOMIC_STEP(type, w##_load_acquire, (const atomic_##w *p), return __atomic_load_n(&p->word, __ATOMIC_ACQUIRE))                  \
    ATOMIC_STEP(type, w##_load_seq_cst, (const atomic_##w *p), return __atomic_load_n(&p->word, __ATOMIC_SEQ_CST))                  \
    ATOMIC_STEP(void, w##_store_relaxed, (atomic_##w * p, type value), __atomic_store_n(&p->word, value, __ATOMIC_RELAXED))         \
    ATOMIC_STEP(void, w##_store_release, (atomic_##w * p, type value), __atomic_store_n(&p->word, value, __ATOMIC_RELEASE))         \
    ATOMIC_CHANGE(w, type, exchange_acquire, __atomic_exchange_n, __ATOMIC_ACQUIRE)                                                 \
    ATOMIC_CHANGE(w, type, exchange_release, __atomic_exchange_n, __ATOMIC_RELEASE)                                                 \
    ATOMIC_CHANGE(w, type, add_relaxed, __atomic_fetch_add, __ATOMIC_RELAXED)                                                       \
    ATOMIC_CHANGE(w, type, add_seq_cst, __atomic_fetch_add, __ATOMIC_SEQ_CST)                                                       \
    ATOMIC_CHANGE(w, type, sub_relaxed, __atomic_fetch_sub, __ATOMIC_RELAXED)                                                       \
    ATOMIC_CHANGE(w, type, sub_release, __atomic_fetch_sub, __ATOMIC_RELEASE)                                                       \
    ATOMIC_CHANGE(w, type, or_seq_cst, __atomic_fetch_or, __ATOMIC_SEQ_CST)                                                         \
    ATOMIC_CAS(w, type, cas_relaxed, __ATOMIC_RELAXED)                                                                              \
    ATOMIC_CAS(w, type, cas_acquire, __ATOMIC_ACQUIRE)                                                                              \
    ATOMIC_CAS(w, type, cas_release, __ATOMIC_RELEASE)

ATOMIC_WORDS(ATOMIC_WORD)
#undef ATOMIC_WORD

/* What this thread wrote before is seen by all before what it reads after; only between such fences and atomic instructions. */
static ALWAYS_INLINE void atomic_fence_seq_cst(void)
{
    atomic_noise();
#if BUILT_WITH_TSAN /* it knows no fences */
    static uint32_t anything;
    (void)__atomic_exchange_n(&anything, 0, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* What this thread wrote before is seen before what it writes after. */
static ALWAYS_INLINE void atomic_fence_release(void)
{
#if BUILT_WITH_TSAN
    atomic_fence_seq_cst();
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

/* For the compiler only: the other side of os_barrier(). */
static ALWAYS_INLINE void atomic_fence_signal(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/*
 * An acquire load that is part of the comparison it is for.  On x86-64, where loads are in order, that is one instruction of the two that the compiler makes
 * of it.  A sanitizer is to see it as what it is.
 */
#define IN_COMPARISON (CPU_X86_64 && !BUILT_WITH_TSAN)
static ALWAYS_INLINE bool size_exceeds_acquire(const atomic_size *p, size_t value)
{
    atomic_noise();
    return (IN_COMPARISON ? p->word : __atomic_load_n(&p->word, __ATOMIC_ACQUIRE)) > value;
}

/* Raise `p` to at least `value`. */
static inline void size_max_relaxed(atomic_size *p, size_t value)
{
    size_t seen = size_load_relaxed(p);
    while (seen < value && !size_cas_relaxed(p, &seen, value)) {
    }
}

C_DECLARATIONS_END
#endif
