// SPDX-License-Identifier: MIT
/*
 * os_probe.h - places where bpftrace, perf, gdb and SystemTap may look into a program that runs: a nop in the code, and a note in the file.
 *
 *     code     ... mov; nop; mov ...            .note.stapsdt   "stapsdt", 3: where the nop is, provider, name, "8@%rdi 8@%rsi"
 *
 * The note is no part of the loaded program.  A tool that is told to look puts a breakpoint in the nop's place; else it costs what a nop costs, and
 * the arguments being in registers or memory, where they are anyhow.  The form is SystemTap's (version 3); its <sys/sdt.h> is not needed.
 *
 * Arguments are words.  A probe's names and arguments are promised in doc/observing.md.
 */
#ifndef QUIRE_OS_PROBE_H
#define QUIRE_OS_PROBE_H

#include <stdint.h>

#if defined(__x86_64__) || defined(__aarch64__)
#define PROBE_NOTE(name, arguments)                                                                                                        \
    "990: nop\n"                                                                                                                           \
    ".pushsection .note.stapsdt,\"\",%%note\n"                                                                                              \
    ".balign 4\n"                                                                                                                          \
    ".4byte 992f-991f, 994f-993f, 3\n"                                                                                                     \
    "991: .asciz \"stapsdt\"\n"                                                                                                            \
    "992: .balign 4\n"                                                                                                                     \
    "993: .8byte 990b\n"                                                                                                                   \
    ".8byte _.stapsdt.base\n"                                                                                                              \
    ".8byte 0\n"                                                                                                                           \
    ".asciz \"quire\"\n"                                                                                                                   \
    ".asciz \"" #name "\"\n"                                                                                                               \
    ".asciz \"" arguments "\"\n"                                                                                                           \
    "994: .balign 4\n"                                                                                                                     \
    ".popsection\n"                                                                                                                        \
    ".ifndef _.stapsdt.base\n"                                                                                                             \
    ".pushsection .stapsdt.base,\"aG\",%%progbits,.stapsdt.base,comdat\n"                                                                   \
    ".weak _.stapsdt.base\n"                                                                                                               \
    ".hidden _.stapsdt.base\n"                                                                                                             \
    "_.stapsdt.base: .space 1\n"                                                                                                           \
    ".size _.stapsdt.base, 1\n"                                                                                                            \
    ".popsection\n"                                                                                                                        \
    ".endif\n"
#define PROBE2(name, a, b) __asm__ volatile(PROBE_NOTE(name, "8@%0 8@%1")::"nor"((uint64_t)(a)), "nor"((uint64_t)(b)))
#define PROBE3(name, a, b, c)                                                                                                              \
    __asm__ volatile(PROBE_NOTE(name, "8@%0 8@%1 8@%2")::"nor"((uint64_t)(a)), "nor"((uint64_t)(b)), "nor"((uint64_t)(c)))
#else
#define PROBE2(name, a, b) ((void)(a), (void)(b))
#define PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#endif

#endif
