// SPDX-License-Identifier: MIT
/*
 * insn.h - the length of one x86-64 instruction, and whether it may be moved elsewhere.
 *
 *   48 8b 05 11 22 33 44    mov rax, [rip + 0x44332211]     length 7, PLAIN, its field at 3: an address relative to the instruction's end
 *
 * Lengths follow from a table of opcodes: which of them have a ModRM byte, and how long their constants are.  What is in no row of it,
 * or is not to be found in programs for Linux, is INSN_UNKNOWN; whoever asks leaves such code alone.
 * Not here: what an instruction does.
 */
#ifndef QUIRE_OWN_INSN_H
#define QUIRE_OWN_INSN_H

#include <stddef.h>
#include <stdint.h>

enum insn_kind {
    INSN_UNKNOWN,
    INSN_PLAIN,   // the next one follows
    INSN_JUMP,    // direct
    INSN_BRANCH,  // direct, on a condition
    INSN_CALL,    // direct
    INSN_LOOP,    // direct, and has no longer form: LOOP, JRCXZ
    INSN_END,     // nothing follows: return, indirect jump, trap
};

struct insn {
    enum insn_kind kind;
    unsigned length;
    unsigned field;        // where what is relative to its end lies in it; 0: there is none
    unsigned field_bytes;  // 1 or 4
    int32_t relative;      // what stands there
    unsigned condition;    // of a branch: 0 to 15
};

/* The instruction that `code` begins with, of which `bytes` may be read. */
struct insn insn_decode(const unsigned char *code, size_t bytes);

#endif
