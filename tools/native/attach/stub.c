// SPDX-License-Identifier: MIT
/*
 * stub.c - the code that a thread of the target is led through: it calls the recorder and comes home by itself.
 *
 *   interrupted here ---> stub: signals blocked, a stack of its own, registers and vector state kept
 *        ^                      dlopen(path), dlsym(name), function(argument)
 *        |                      a system call without effect, whose arguments tell the tracer the result
 *        '-------------------- vector state back, stack unmapped, signals and registers back, jump
 *
 * Whoever traces may die at any instruction: nothing here waits for it, and there is no breakpoint.  All that is needed to come
 * home lies in `attach_stub_data` before the code, which the tracer has filled in before the first instruction runs.
 *
 * Invariants:
 *   B1  the interrupted stack is not written but below its red zone, where any signal would write
 *   B2  rbx is the address of the data from the first instruction to the last but one
 *   B3  errno is what it was
 */
#include "stub.h"

#define TEXT(x)  TEXT2(x)
#define TEXT2(x) #x

__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".globl attach_stub_begin\n"
    "attach_stub_begin:\n"
    "    .space 240\n"
    ".globl attach_stub_code\n"
    "attach_stub_code:\n"
    "    mov $14, %eax\n"  // rt_sigprocmask(SIG_SETMASK, all)
    "    mov $2, %edi\n"
    "    lea 160(%rbx), %rsi\n"
    "    xor %edx, %edx\n"
    "    mov $8, %r10d\n"
    "    syscall\n"
    "    mov $9, %eax\n"  // mmap: a stack
    "    xor %edi, %edi\n"
    "    mov $" TEXT(ATTACH_STACK_BYTES) ", %esi\n"
    "    mov $3, %edx\n"
    "    mov $0x22, %r10d\n"
    "    mov $-1, %r8\n"
    "    xor %r9d, %r9d\n"
    "    syscall\n"
    "    cmp $-4096, %rax\n"
    "    ja 9f\n"
    "    mov %rax, %r12\n"
    "    lea " TEXT(ATTACH_STACK_BYTES) "(%rax), %rsp\n"
    "    sub 168(%rbx), %rsp\n"
    "    and $-64, %rsp\n"
    "    mov %rsp, %r13\n"
    "    mov $-1, %eax\n"
    "    mov $-1, %edx\n"
    "    xsave64 (%r13)\n"
    "    fninit\n"
    "    pushq $0x1f80\n"
    "    ldmxcsr (%rsp)\n"
    "    pop %rax\n"
    "    cld\n"
    "    xor %ebp, %ebp\n"
    "    call *176(%rbx)\n"  // &errno
    "    mov %rax, %r14\n"
    "    mov (%rax), %r15d\n"
    "    mov 216(%rbx), %rdi\n"
    "    mov 192(%rbx), %esi\n"
    "    call *184(%rbx)\n"  // dlopen
    "    test %rax, %rax\n"
    "    jz 3f\n"
    "    mov %rax, %rdi\n"
    "    mov 224(%rbx), %rsi\n"
    "    call *200(%rbx)\n"  // dlsym
    "    test %rax, %rax\n"
    "    jz 3f\n"
    "    mov 232(%rbx), %rdi\n"
    "    call *%rax\n"
    "    movslq %eax, %rsi\n"
    "    xor %edx, %edx\n"
    "    jmp 5f\n"
    "3:  xor %edx, %edx\n"
    "    mov 208(%rbx), %rax\n"
    "    test %rax, %rax\n"
    "    jz 4f\n"
    "    call *%rax\n"  // dlerror
    "    mov %rax, %rdx\n"
    "4:  mov $" TEXT(ATTACH_NOT_LOADED) ", %rsi\n"
    "5:  mov %r15d, (%r14)\n"
    "    movabs $" TEXT(ATTACH_REPORT) ", %rdi\n"
    "    mov $110, %eax\n"  // getppid: says nothing to the kernel
    "    syscall\n"
    "    mov $-1, %eax\n"
    "    mov $-1, %edx\n"
    "    xrstor64 (%r13)\n"
    "    mov $11, %eax\n"  // munmap
    "    mov %r12, %rdi\n"
    "    mov $" TEXT(ATTACH_STACK_BYTES) ", %esi\n"
    "    syscall\n"
    "9:  mov 136(%rbx), %rsp\n"
    "    mov $14, %eax\n"
    "    mov $2, %edi\n"
    "    lea 152(%rbx), %rsi\n"
    "    xor %edx, %edx\n"
    "    mov $8, %r10d\n"
    "    syscall\n"
    "    lea -128(%rsp), %rsp\n"
    "    pushq 144(%rbx)\n"
    "    popfq\n"
    "    lea 128(%rsp), %rsp\n"
    "    mov 16(%rbx), %r15\n"
    "    mov 24(%rbx), %r14\n"
    "    mov 32(%rbx), %r13\n"
    "    mov 40(%rbx), %r12\n"
    "    mov 48(%rbx), %rbp\n"
    "    mov 64(%rbx), %r11\n"
    "    mov 72(%rbx), %r10\n"
    "    mov 80(%rbx), %r9\n"
    "    mov 88(%rbx), %r8\n"
    "    mov 96(%rbx), %rax\n"
    "    mov 104(%rbx), %rcx\n"
    "    mov 112(%rbx), %rdx\n"
    "    mov 120(%rbx), %rsi\n"
    "    mov 128(%rbx), %rdi\n"
    "    mov 56(%rbx), %rbx\n"
    "    jmp *attach_stub_begin+8(%rip)\n"
    ".globl attach_stub_end\n"
    "attach_stub_end:\n"
    ".text\n");
