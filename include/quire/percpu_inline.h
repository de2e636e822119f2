// SPDX-License-Identifier: MIT
/*
 * quire/percpu_inline.h - one restartable sequence, as it is compiled into the callers of quire_percpu_add(); included by quire/percpu.h.
 *
 *     1   area.rseq_cs = descriptor        from here on the kernel restarts us at 1 if it moves, interrupts or preempts the thread
 *     2   cpu = area.cpu_id                too large: not registered, or a CPU without a copy: the long way
 *         unit[cpu].written == 0 ?         the first write there: the long way
 *         word[cpu] += value               the commit: the last instruction
 *     3
 *
 * The kernel wants the signature 0x53053053 (x86-64), 0xd428bc00 (aarch64) before the place where it restarts.  Source of the idea: Paul Turner
 * and Andrew Hunter's restartable sequences; layout of the descriptor: Linux, rseq(2).
 */
#ifndef QUIRE_PERCPU_INLINE_H
#define QUIRE_PERCPU_INLINE_H

#include <quire/export.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What every pool begins with; public so that the sequence can be inlined.  Do not use it otherwise. */
struct quire_percpu_window {
    ptrdiff_t rseq_offset; /* of the thread's rseq area from its thread pointer; where there is none, of one that says "no CPU" */
    uintptr_t unit_mask;   /* ref & mask: the unit's first byte */
    uint32_t unit_shift;   /* the copy of the next CPU is 1 << shift further on */
    uint32_t cpus;         /* ids from here on have no copy */
};

/*
 * The descriptor of the sequence between labels 2 and 3, restarted at 4, which goes back to 1.  QUIRE_RSEQ_UNIT on x86-64 leaves the word's address in rax:
 * processors forward what was stored last to the next load at once where both have a register for an address, and no index (1.0 ns for 2.2).
 */
#if QUIRE_CPU_X86_64
#define QUIRE_RSEQ_DESCRIPTOR                                                                                                                       \
    ".pushsection __rseq_cs, \"aw?\"\n\t.balign 32\n7:\t.long 0, 0\n\t.quad 2b, 3b - 2b, 4f\n\t.popsection\n\t"                                      \
    ".pushsection .text.quire_rseq, \"ax?\"\n\t.byte 0x0f, 0xb9, 0x3d\n\t.long 0x53053053\n4:\tjmp 1b\n\t.popsection\n\t"
#define QUIRE_RSEQ_BEGIN "1:\tleaq 7f(%%rip), %%rax\n\tmovq %%rax, %%fs:8(%[area])\n2:\tmovl %%fs:4(%[area]), %%eax\n\t"
#define QUIRE_RSEQ_UNIT "cmpl %[cpus], %%eax\n\tjae %l[away]\n\tshlq %%cl, %%rax\n\tcmpb $0, (%[unit], %%rax)\n\tje %l[away]\n\taddq %[word], %%rax\n\t"
#define QUIRE_RSEQ_INPUTS [area] "r"(window->rseq_offset), [cpus] "m"(window->cpus), "c"(window->unit_shift), [unit] "r"(bits & window->unit_mask), [word] "r"(bits)
#define QUIRE_RSEQ_CLOBBERS "rax", "memory", "cc"
#endif
#if QUIRE_CPU_AARCH64
#define QUIRE_RSEQ_DESCRIPTOR                                                                                                                       \
    ".pushsection __rseq_cs, \"aw?\"\n\t.balign 32\n7:\t.long 0, 0\n\t.quad 2b, 3b - 2b, 4f\n\t.popsection\n\t"                                      \
    ".pushsection .text.quire_rseq, \"ax?\"\n\t.inst 0xd428bc00\n4:\tb 1b\n\t.popsection\n\t"
#define QUIRE_RSEQ_BEGIN "1:\tadrp x9, 7f\n\tadd x9, x9, :lo12:7f\n\tstr x9, [%[area], #8]\n2:\tldr w9, [%[area], #4]\n\t"
#define QUIRE_RSEQ_UNIT "cmp w9, %w[cpus]\n\tb.hs %l[away]\n\tlsl x9, x9, %x[shift]\n\tadd x10, %[unit], x9\n\tldarb w10, [x10]\n\tcbz w10, %l[away]\n\t"
#define QUIRE_RSEQ_INPUTS                                                                                                                           \
    [area] "r"((char *)__builtin_thread_pointer() + window->rseq_offset), [cpus] "r"(window->cpus), [shift] "r"((uint64_t)window->unit_shift),      \
        [unit] "r"(bits & window->unit_mask), [word] "r"(bits)
#define QUIRE_RSEQ_CLOBBERS "x9", "x10", "x11", "memory", "cc"
#endif

#if QUIRE_CPU_X86_64 || QUIRE_CPU_AARCH64
/* True: added.  False: the long way must see to it first. */
extern inline __attribute__((__gnu_inline__, __always_inline__)) bool quire_percpu_add_try(const struct quire_percpu_window *window, uintptr_t bits, intptr_t value)
{
#if QUIRE_CPU_X86_64
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT "addq %[value], (%%rax)\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [value] "er"(value)
                 : QUIRE_RSEQ_CLOBBERS
                 : away);
#else
    __asm__ goto(QUIRE_RSEQ_BEGIN QUIRE_RSEQ_UNIT
                 "ldr x10, [%[word], x9]\n\tadd x10, x10, %x[value]\n\tstr x10, [%[word], x9]\n3:\n\t" QUIRE_RSEQ_DESCRIPTOR
                 :
                 : QUIRE_RSEQ_INPUTS, [value] "r"(value)
                 : QUIRE_RSEQ_CLOBBERS
                 : away);
#endif
    return true;
away:
    return false;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
