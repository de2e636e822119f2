// SPDX-License-Identifier: MIT
/*
 * os_frame.h - where this code runs: the registers that a walk of the call stack begins with.
 *
 *     ip   the code          sp   its stack pointer          fp   rbp, x29: of a frame, or anything          lr   x30, where there is one
 *
 * Not here: the walk (prof/walk.c).
 */
#ifndef QUIRE_OS_FRAME_H
#define QUIRE_OS_FRAME_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

struct os_frame {
    uintptr_t ip, sp, fp, lr;
};

/* Of the function in which this stands.  All zero on a processor that is not known: there is no walk then. */
static inline __attribute__((always_inline)) struct os_frame os_frame_here(void)
{
    struct os_frame frame = {0, 0, 0, 0};
#if defined(__x86_64__)
    __asm__ volatile("leaq 0(%%rip), %0\n\tmovq %%rsp, %1\n\tmovq %%rbp, %2" : "=r"(frame.ip), "=r"(frame.sp), "=r"(frame.fp));
#elif defined(__aarch64__)
    __asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29\n\tmov %3, x30" : "=&r"(frame.ip), "=&r"(frame.sp), "=&r"(frame.fp), "=&r"(frame.lr));
#endif
    return frame;
}

/* How many bytes from a signal's frame (at the handler's return, sp) hold what was interrupted; 0: not known. */
static inline size_t os_frame_signal_bytes(void)
{
#if defined(__x86_64__)
    return sizeof(ucontext_t);
#elif defined(__aarch64__)
    return sizeof(siginfo_t) + offsetof(ucontext_t, uc_mcontext.__reserved);
#else
    return 0;
#endif
}

/* The registers of what a signal has interrupted: the kernel's frame has ucontext_t, on arm64 behind siginfo_t. */
static inline __attribute__((no_sanitize("address", "thread"))) struct os_frame os_frame_interrupted(uintptr_t sp)
{
#if defined(__x86_64__)
    const greg_t *regs = ((const ucontext_t *)sp)->uc_mcontext.gregs;
    return (struct os_frame){(uintptr_t)regs[REG_RIP], (uintptr_t)regs[REG_RSP], (uintptr_t)regs[REG_RBP], 0};
#elif defined(__aarch64__)
    const mcontext_t *regs = &((const ucontext_t *)(sp + sizeof(siginfo_t)))->uc_mcontext;
    return (struct os_frame){(uintptr_t)regs->pc, (uintptr_t)regs->sp, (uintptr_t)regs->regs[29], (uintptr_t)regs->regs[30]};
#else
    (void)sp;
    return (struct os_frame){0, 0, 0, 0};
#endif
}

#endif
