// SPDX-License-Identifier: MIT
/* trap_flag.h - one instruction at a time: each is a SIGTRAP of the calling thread, from trap_begin() to trap_end(). */
#pragma once

#include "os/os.h"

#if QUIRE_CPU_X86_64
inline constexpr long TRAP_FLAG = 0x100; /* of the flags, in a handler's context too */

/* Past the red zone, in which the caller may have something. */
inline __attribute__((always_inline)) void trap_begin()
{
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" ::: "memory", "cc");
}
inline __attribute__((always_inline)) void trap_end()
{
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" ::: "memory", "cc");
}
#endif
