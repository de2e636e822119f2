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

#include <stdint.h>

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

#endif
