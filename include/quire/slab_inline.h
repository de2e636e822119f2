// SPDX-License-Identifier: MIT
/*
 * quire/slab_inline.h - the usual cases of quire_slab_alloc() and quire_slab_free(), as they are compiled into their callers; included by quire/slab.h.
 *
 *     slab->gate + thread pointer ---> gate of this thread ---> its magazine of free elements, or one that has nothing and takes nothing
 *     slab->table ---> header of the page of an address, or of one that has no slots
 *
 * An alloc takes the top of the magazine, if its first word says that it is free and in that magazine.  A free asks the page's header whether an element
 * begins there and was ever handed out, and its first word whether it is free already; then it is the new top.  What is not so, or not here, is the
 * library's to see to.  The library closes the gate when it wants to see every call.
 *
 * What stands here is read by programs that were compiled with it: it changes with the SONAME only.  Do not use it otherwise.
 */
#ifndef QUIRE_SLAB_INLINE_H
#define QUIRE_SLAB_INLINE_H

#include <quire/export.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An element's first word, whatever the program keeps there. */
typedef uint64_t __attribute__((__may_alias__)) quire_slab_word;

/* The header of a page. */
struct quire_slab_page_window {
    uintptr_t slots;  /* the first */
    const void *slab;
    size_t carved;    /* bytes of slots that may be freed this way */
};

/* By the upper bits of an address; what has no page here has one without slots. */
struct quire_slab_table_window {
    uintptr_t mask; /* of the byte offsets of the entries, which are behind it */
};

/* Free elements; each one's first word is its address under the key. */
struct quire_slab_magazine_window {
    quire_slab_word **top; /* behind the last */
    uint64_t key;
    quire_slab_word **end; /* frees go no further */
};

/* In each thread's storage. */
struct quire_slab_gate_window {
    struct quire_slab_magazine_window *magazine;
    uint32_t active; /* the thread is inside */
};

/* What every slab begins with. */
struct quire_slab_window {
    uintptr_t gate;  /* its distance from the thread pointer */
    uint64_t divide; /* 2^64 / the slots' bytes, rounded up */
    const struct quire_slab_table_window *table;
    uint32_t shift; /* of an address to its entry's byte offset.  A guess, as the entry is: the page's header says whether it is right */
};

/* Enter and leave: nothing of an operation moves out of it.  Who wants to be alone with the thread has a barrier for all threads instead. */
#if QUIRE_CPU_X86_64
extern inline __attribute__((__gnu_inline__, __always_inline__)) struct quire_slab_magazine_window *quire_slab_enter(uintptr_t gate)
{
    struct quire_slab_magazine_window *magazine;
    __asm__ volatile("movl $1, %%fs:8(%1)\n\tmovq %%fs:(%1), %0" : "=&r"(magazine) : "r"(gate) : "memory");
    return magazine;
}

extern inline __attribute__((__gnu_inline__, __always_inline__)) void quire_slab_leave(uintptr_t gate)
{
    __asm__ volatile("movl $0, %%fs:8(%0)" : : "r"(gate) : "memory");
}
#else
extern inline __attribute__((__gnu_inline__, __always_inline__)) struct quire_slab_magazine_window *quire_slab_enter(uintptr_t gate)
{
    struct quire_slab_gate_window *mine = (struct quire_slab_gate_window *)(void *)((char *)__builtin_thread_pointer() + gate);
    __atomic_store_n(&mine->active, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return __atomic_load_n(&mine->magazine, __ATOMIC_RELAXED);
}

extern inline __attribute__((__gnu_inline__, __always_inline__)) void quire_slab_leave(uintptr_t gate)
{
    struct quire_slab_gate_window *mine = (struct quire_slab_gate_window *)(void *)((char *)__builtin_thread_pointer() + gate);
    __atomic_store_n(&mine->active, 0, __ATOMIC_RELEASE);
}
#endif

/* NULL: not this way; nothing has changed. */
extern inline __attribute__((__gnu_inline__, __always_inline__)) void *quire_slab_alloc_try(const struct quire_slab_window *slab)
{
    uintptr_t gate = __atomic_load_n(&slab->gate, __ATOMIC_RELAXED);
    struct quire_slab_magazine_window *magazine = quire_slab_enter(gate);
    quire_slab_word **top = __atomic_load_n(&magazine->top, __ATOMIC_RELAXED) - 1, *slot = __atomic_load_n(top, __ATOMIC_RELAXED);
    if (__builtin_expect(__atomic_load_n(slot, __ATOMIC_RELAXED) != ((uintptr_t)slot ^ magazine->key), 0)) {
        quire_slab_leave(gate);
        return NULL;
    }
    __atomic_store_n(&magazine->top, top, __ATOMIC_RELAXED);
    __atomic_store_n(slot, 0, __ATOMIC_RELAXED);
    quire_slab_leave(gate);
    if (!slot)
        __builtin_unreachable(); /* it was read: who asks need not compare */
    return slot;
}

/* False: the same. */
extern inline __attribute__((__gnu_inline__, __always_inline__)) bool quire_slab_free_try(const struct quire_slab_window *slab, void *element)
{
    uintptr_t gate = __atomic_load_n(&slab->gate, __ATOMIC_RELAXED);
    struct quire_slab_magazine_window *magazine = quire_slab_enter(gate);
    const struct quire_slab_table_window *table = __atomic_load_n(&slab->table, __ATOMIC_ACQUIRE);
    const void *entry = (const char *)(table + 1) + ((uintptr_t)element >> (__atomic_load_n(&slab->shift, __ATOMIC_RELAXED) & 63) & table->mask);
    const struct quire_slab_page_window *page = __atomic_load_n((const struct quire_slab_page_window *const *)entry, __ATOMIC_RELAXED);
    size_t offset = (uintptr_t)element - __atomic_load_n(&page->slots, __ATOMIC_RELAXED);
    quire_slab_word *slot = (quire_slab_word *)element, mark = (uintptr_t)element ^ magazine->key, **top = __atomic_load_n(&magazine->top, __ATOMIC_RELAXED);
    bool done = __builtin_expect(offset < __atomic_load_n(&page->carved, __ATOMIC_RELAXED), 1) && __builtin_expect(offset * slab->divide < slab->divide, 1) &&
                __builtin_expect((uint32_t)__atomic_load_n(slot, __ATOMIC_RELAXED) != (uint32_t)mark, 1) && __builtin_expect(top < magazine->end, 1);
    if (__builtin_expect(done, 1)) {
        __atomic_store_n(slot, mark, __ATOMIC_RELAXED);
        __atomic_store_n(top, slot, __ATOMIC_RELAXED);
        __atomic_store_n(&magazine->top, top + 1, __ATOMIC_RELAXED);
    }
    quire_slab_leave(gate);
    return done;
}

#ifdef __cplusplus
}
#endif
#endif
