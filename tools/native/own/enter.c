// SPDX-License-Identifier: MIT
/*
 * enter.c - where all hooks come to: the call with all registers as the caller left them, before and after.
 *
 *   r11 = hook;   busy, and deeper in the stack than the outermost hook?  -> on to the function, nothing was changed
 *   else          frame = registers;  own_before(frame)?  pass -> restored, on to the function
 *                 call -> restored, the function is called;  frame = registers;  own_after(frame);  restored, return
 *                 done -> restored, return
 *
 * All registers are kept, the vectors' low halves too, and the stack is aligned anew: inside one translation unit a compiler knows which
 * registers a function of it leaves alone, and whether it minds a stack that is not aligned, and calls it accordingly.  The unwind table describes this frame, so that exceptions and walks of the stack pass.
 * Invariant: N3  the offsets are those of struct own_frame.
 */
#include "plant.h"

#include <assert.h>

#define OFFSET(field, at) static_assert(offsetof(struct own_frame, field) == (at), "the assembly says so")
OFFSET(argument, 256);
OFFSET(rax, 304);
OFFSET(hook, 320);
OFFSET(way, 328);
OFFSET(caller, 376);
static_assert(sizeof(struct own_frame) == 384, "the assembly makes room for it");
static_assert(OWN_PASS == 0 && OWN_CALL == 1 && OWN_DONE == 2, "the assembly compares with 1");

__thread uintptr_t own_place __attribute__((tls_model("initial-exec"), visibility("hidden")));

#define EACH_VECTOR(op)                                                                                                \
    op("0", "0") op("1", "16") op("2", "32") op("3", "48") op("4", "64") op("5", "80") op("6", "96") op("7", "112")    \
    op("8", "128") op("9", "144") op("10", "160") op("11", "176") op("12", "192") op("13", "208") op("14", "224")      \
    op("15", "240")
#define EACH_REGISTER(op)                                                                                              \
    op("rdi", "256") op("rsi", "264") op("rdx", "272") op("rcx", "280") op("r8", "288") op("r9", "296")                \
    op("rax", "304") op("r10", "312")
#define SAVE_VECTOR(n, at)     "movups %xmm" n ", " at "(%rsp)\n"
#define LOAD_VECTOR(n, at)     "movups " at "(%rsp), %xmm" n "\n"
#define SAVE_REGISTER(n, at)   "movq %" n ", " at "(%rsp)\n"
#define LOAD_REGISTER(n, at)   "movq " at "(%rsp), %" n "\n"

__asm__(".text\n"
        ".p2align 4\n"
        ".globl own_enter\n"
        ".hidden own_enter\n"
        ".type own_enter, @function\n"
        "own_enter:\n"
        ".cfi_startproc\n"
        "pushq %rax\n"
        ".cfi_adjust_cfa_offset 8\n"
        "movq rec_busy@gottpoff(%rip), %rax\n"
        "cmpl $0, %fs:(%rax)\n"
        "je 1f\n"
        "movq own_place@gottpoff(%rip), %rax\n"
        "movq %fs:(%rax), %rax\n"
        "testq %rax, %rax\n"
        "je 2f\n"
        "cmpq %rax, %rsp\n"
        "ja 1f\n"
        "2:\n"
        "popq %rax\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmpq *(%r11)\n"
        "1:\n"
        ".cfi_adjust_cfa_offset 8\n"
        "popq %rax\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pushq %rbp\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_rel_offset %rbp, 0\n"
        "movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "subq $384, %rsp\n"
        "andq $-16, %rsp\n"
        EACH_VECTOR(SAVE_VECTOR) EACH_REGISTER(SAVE_REGISTER)
        "movq %r11, 320(%rsp)\n"
        "movq %rbp, 376(%rsp)\n"
        "movq %rsp, %rdi\n"
        "call own_before\n"
        "movl %eax, %eax\n"
        "movq %rax, 328(%rsp)\n"
        EACH_VECTOR(LOAD_VECTOR) EACH_REGISTER(LOAD_REGISTER)
        "movq 320(%rsp), %r11\n"
        "cmpq $1, 328(%rsp)\n"
        "jb 3f\n"
        "ja 4f\n"
        "call *(%r11)\n"
        EACH_VECTOR(SAVE_VECTOR) EACH_REGISTER(SAVE_REGISTER)
        "movq %rsp, %rdi\n"
        "call own_after\n"
        EACH_VECTOR(LOAD_VECTOR) EACH_REGISTER(LOAD_REGISTER)
        "4:\n"
        "leave\n"
        ".cfi_remember_state\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        "3:\n"
        ".cfi_restore_state\n"
        "leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "jmpq *(%r11)\n"
        ".cfi_endproc\n"
        ".size own_enter, . - own_enter\n");
