// SPDX-License-Identifier: MIT
/*
 * os_rseq.h - the restartable sequences of the library itself, and the thread's area that they need.
 *
 * Each looks at one word of this CPU's copy and changes it with its last instruction; false: the CPU has no copy, or nothing was written there yet.
 * What they begin with, and their descriptors, stand in quire/percpu_inline.h.
 */
#ifndef QUIRE_OS_OS_RSEQ_H
#define QUIRE_OS_OS_RSEQ_H

#include <quire/percpu_inline.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For tests, before a pool is made: sequences where they work; never; at an area of the test's own, which the kernel does not know. */
enum os_rseq_mode { OS_RSEQ_AUTO, OS_RSEQ_OFF, OS_RSEQ_FAKE };
void os_rseq_force(enum os_rseq_mode mode);
/* For tests: os_cpu_id() of this thread, and the CPU of its fake area; -1: the real one. */
void os_cpu_fake_set(int id);

/* Where a thread's area lies, from its thread pointer; without rseq one that says that there is no CPU. */
ptrdiff_t os_rseq_offset(void);
/* Do sequences work in this process, by the mode that is set now? */
bool os_rseq_works(void);

#if QUIRE_CPU_X86_64
/* *seen = word; word = change[1], if it was change[0]; else *differs is true. */
static inline bool os_rseq_cmpxchg(const struct quire_percpu_window *window, uintptr_t bits, const intptr_t change[2], intptr_t *seen, bool *differs)
{
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT
                 "movq (%%rax), %%rdx\n\tmovq %%rdx, (%[out])\n\tcmpq %[expected], %%rdx\n\tjne %l[other]\n\tmovq %[desired], (%%rax)\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [expected] "r"(change[0]), [out] "r"(seen), [desired] "r"(change[1])
                 : QUIRE_RSEQ_CLOBBERS, "rdx"
                 : away, other);
    return true;
other:
    *differs = true;
    return true;
away:
    return false;
}

static inline bool os_rseq_push(const struct quire_percpu_window *window, uintptr_t bits, void *node)
{
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT "movq (%%rax), %%rdx\n\tmovq %%rdx, (%[node])\n\tmovq %[node], (%%rax)\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [node] "r"(node)
                 : QUIRE_RSEQ_CLOBBERS, "rdx"
                 : away);
    return true;
away:
    return false;
}

static inline bool os_rseq_pop(const struct quire_percpu_window *window, uintptr_t bits, void **out)
{
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT
                 "movq (%%rax), %%rdx\n\tmovq %%rdx, (%[out])\n\ttestq %%rdx, %%rdx\n\tje %l[empty]\n\tmovq (%%rdx), %%rdx\n\tmovq %%rdx, (%%rax)\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [out] "r"(out) /* by memory: gcc 12 mistakes labels of an asm that has results */
                 : QUIRE_RSEQ_CLOBBERS, "rdx"
                 : away, empty);
empty:
    return true;
away:
    return false;
}
#endif
#if QUIRE_CPU_AARCH64
static inline bool os_rseq_cmpxchg(const struct quire_percpu_window *window, uintptr_t bits, const intptr_t change[2], intptr_t *seen, bool *differs)
{
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT
                 "ldr x10, [%[word], x9]\n\tstr x10, [%[out]]\n\tcmp x10, %[expected]\n\tb.ne %l[other]\n\tstr %[desired], [%[word], x9]\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [expected] "r"(change[0]), [out] "r"(seen), [desired] "r"(change[1])
                 : QUIRE_RSEQ_CLOBBERS
                 : away, other);
    return true;
other:
    *differs = true;
    return true;
away:
    return false;
}

static inline bool os_rseq_push(const struct quire_percpu_window *window, uintptr_t bits, void *node)
{
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT "ldr x10, [%[word], x9]\n\tstr x10, [%[node]]\n\tstr %[node], [%[word], x9]\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [node] "r"(node)
                 : QUIRE_RSEQ_CLOBBERS
                 : away);
    return true;
away:
    return false;
}

static inline bool os_rseq_pop(const struct quire_percpu_window *window, uintptr_t bits, void **out)
{
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT
                 "ldr x10, [%[word], x9]\n\tstr x10, [%[out]]\n\tcbz x10, %l[empty]\n\tldr x10, [x10]\n\tstr x10, [%[word], x9]\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [out] "r"(out)
                 : QUIRE_RSEQ_CLOBBERS
                 : away, empty);
empty:
    return true;
away:
    return false;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
