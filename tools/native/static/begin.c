// SPDX-License-Identifier: MIT
/*
 * begin.c - the recorder's first steps in a static program, before the program's own.
 *
 *   launcher --> static_enter --> static_begin: what the program is, its unwind table, trace opened, entries patched --> STATIC_REPORT
 *
 * The parts of the recorder are those of the preloaded one (../record, ../own). What differs: no loader and no libc are there (libc.c), so stacks
 * are walked by the unwind tables (../record/rules_tables.c), and calls are seen by patched entries alone.
 *
 * Invariants:
 *   B1  nothing here is called by a thread whose thread pointer is not set: the launcher lends one for the first steps, afterwards calls of
 *       malloc's family come from code that has one
 *
 * Locks: the recorder's.  Not here: how this came into the process (../launch/inject.c).
 */
#include <dlfcn.h>
#include <string.h>

#include "../record/record.h"
#include "order.h"
#include "static.h"

const bool rec_attached = false;

extern void *__libc_stack_end;

static ElfW(Phdr) segments[STATIC_SEGMENTS_MAX + 1];

void *rec_next_symbol(const char *name) {
    (void)name;
    return NULL;
}

void rec_look(void) {
}

bool rec_child_begin(void) {
    return rec_trace_open();
}

void rec_hooks_start(void) {
    static bool is_started;
    if (!is_started) {
        is_started = true;
        rec_start();
    }
}

/* The program's segments, and one more where its unwind entries have no table. */
static void program_describe(const struct static_order *order) {
    const ElfW(Phdr) *theirs = (const void *)order->headers;
    size_t count = order->headers_count < STATIC_SEGMENTS_MAX ? order->headers_count : STATIC_SEGMENTS_MAX;
    uintptr_t low = UINTPTR_MAX, high = 0;
    bool has_table = false;
    memcpy(segments, theirs, count * sizeof segments[0]);
    for (size_t i = 0; i < count; i++) {
        uintptr_t start = order->bias + segments[i].p_vaddr;
        has_table |= segments[i].p_type == PT_GNU_EH_FRAME;
        if (segments[i].p_type == PT_LOAD) {
            low = start < low ? start : low;
            high = start + segments[i].p_memsz > high ? start + segments[i].p_memsz : high;
        }
    }
    uintptr_t table = has_table ? 0 : static_frames_table(order->bias, low, high);
    if (table != 0) {
        segments[count++] = (ElfW(Phdr)){.p_type = PT_GNU_EH_FRAME, .p_vaddr = table - order->bias};
    }
    static_program = (struct dl_phdr_info){.dlpi_addr = order->bias, .dlpi_name = "", .dlpi_phdr = segments,
                                           .dlpi_phnum = (ElfW(Half))count, .dlpi_adds = 1};
}

__attribute__((used)) void static_begin(const struct static_order *order) {
    rec_busy++;
    __libc_stack_end = (void *)order->stack;
    program_describe(order);
    rec_hooks_start();
    if (atomic_load(&rec_on)) {
        rec_own_start();
    }
    rec_busy--;
}

__asm__(".text\n"
        ".globl static_enter\n"
        ".hidden static_enter\n"
        ".type static_enter, @function\n"
        "static_enter:\n"
        "call static_begin\n"
        "movl $110, %eax\n"  // getppid
        "movl $0x51554952, %edi\n"  // STATIC_REPORT
        "syscall\n"
        "hlt\n"
        ".size static_enter, . - static_enter\n");

static_assert(STATIC_REPORT == 0x51554952u, "the assembly says so");
