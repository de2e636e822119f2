// SPDX-License-Identifier: MIT
/*
 * stub.h - the data in front of the stub's code: where it comes from, and whom it calls.  stub.c knows the offsets.
 */
#ifndef QUIRE_ATTACH_STUB_H
#define QUIRE_ATTACH_STUB_H

#define ATTACH_STACK_BYTES 262144
#define ATTACH_REPORT      0x5155495245525054  // first argument of the call that reports
#define ATTACH_NOT_LOADED  -10000              // reported result: the library is not there, and why in the third argument

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define STUB_MAGIC UINT64_C(0x4255545345524955)

struct attach_stub_data {
    uint64_t magic;  // the place was ours before
    uint64_t rip;
    uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
    uint64_t rsp, flags;
    uint64_t mask, mask_all;  // signals blocked at home, and meanwhile
    uint64_t xsave_bytes;
    uint64_t errno_location, dlopen, dlopen_flags, dlsym, dlerror;
    uint64_t path, name, argument;
};

static_assert(sizeof(struct attach_stub_data) == 240 && offsetof(struct attach_stub_data, rsp) == 136 &&
              offsetof(struct attach_stub_data, mask_all) == 160 && offsetof(struct attach_stub_data, argument) == 232,
              "stub.c has the offsets as numbers");

extern const unsigned char attach_stub_begin[], attach_stub_code[], attach_stub_end[];
#endif
