// SPDX-License-Identifier: MIT
/*
 * entry.h - a function's entry patched so that calls go elsewhere first, and put back.
 *
 *   before   f:  push rbp          after   f:  jmp hook         hook:   mov r11, arg; jmp [to]            24 bytes
 *                mov rbp, rsp              ...                  moved:  push rbp; mov rbp, rsp; ...; jmp f+n
 *                ...                   f+n: ...
 *
 * entry_look() decides by the code alone, so it can be asked of a file as well as of a process.
 */
#ifndef QUIRE_OWN_ENTRY_H
#define QUIRE_OWN_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENTRY_JUMP_BYTES 5u
#define ENTRY_SKIP_BYTES 4u    // an endbr64 stays where it is
#define ENTRY_MOVED_MAX  24u   // bytes of a function that may have to be moved
#define ENTRY_STUB_BYTES 128u  // of the hook and the moved instructions of one function

/* What is to be patched in one function. */
struct entry_plan {
    unsigned skip;   // bytes before the jump
    unsigned moved;  // whole instructions after them, at least ENTRY_JUMP_BYTES
};

/*
 * NULL and the plan, or why this function cannot be patched. `bytes`: of the function; `room`: those and what lies unused between it and the next.
 * All of it is decoded: no branch may lead to where the jump will be.
 */
const char *entry_look(const unsigned char *code, size_t bytes, size_t room, struct entry_plan *plan);

struct entry {
    unsigned char *function;
    struct entry_plan plan;
    unsigned char *stub;  // ENTRY_STUB_BYTES within reach of a jump from the function
    void *argument, *to;  // `to` is jumped to with `argument` in r11 and all other registers as the caller left them
    unsigned char original[ENTRY_JUMP_BYTES];
};

/* Writes the stub: false when something in it is out of reach.  The function is as it was. */
bool entry_prepare(struct entry *entry);

/* Where the moved instructions begin: calling this is calling the function as it was. */
void *entry_original(const struct entry *entry);

/*
 * Five bytes of code, written by the only thread that runs; entry_patch() keeps what was there for entry_unpatch().
 * The caller has made the page writable.
 */
void entry_patch(struct entry *entry);
void entry_unpatch(struct entry *entry);

/* Pages within reach of [low, high), writable, not executable; NULL when there are none. Never where a heap would grow to. */
void *entry_pages_near(uintptr_t low, uintptr_t high, size_t bytes);

#endif
