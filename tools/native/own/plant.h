// SPDX-License-Identifier: MIT
/*
 * plant.h - hooks in front of the functions of allocators that a process has brought along.
 *
 *   caller -> function (its entry patched) -> own_before() -> function as it was -> own_after() -> caller
 *                                                       \-> caller, with a result of its own
 *
 * Whoever links this provides own_before() and own_after().  Calls that an allocator makes inside of one of its functions go on unseen.
 * C++ exceptions may pass: own_after() is not called then, and the next call finds out by its place on the stack.
 */
#ifndef QUIRE_OWN_PLANT_H
#define QUIRE_OWN_PLANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "find.h"

/* What the hook knows of a call; on the stack of the caller's thread. */
struct own_frame {
    uint64_t vectors[32];   // xmm0 to xmm15: the caller may rely on what the function would not have changed
    uint64_t argument[6];   // rdi, rsi, rdx, rcx, r8, r9
    uint64_t rax, r10;
    const struct own_hook *hook;
    uint64_t way;           // what own_before() said
    uint64_t kept[4];       // for own_before() to keep things in until own_after()
    uint64_t tick;
    const uint64_t *caller; // its frame pointer and return address, where they were pushed; the stack above is its own
};

struct own_hook {
    void *original;  // first: the assembly jumps there
    struct entry entry;
    struct own_kind kind;
};

enum own_way {
    OWN_PASS,  // on to the function, own_after() is not wanted
    OWN_CALL,  // the function, then own_after()
    OWN_DONE,  // back to the caller with the result in `rax`
};

/* Before the call. */
enum own_way own_before(struct own_frame *frame);
/* After it, its result in `rax`. */
void own_after(struct own_frame *frame);

/* > 0: this thread is in an allocator, or in whoever looks at it; the second is where on the stack the outermost hook stands, 0: in none. */
extern __thread unsigned rec_busy __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern __thread uintptr_t own_place __attribute__((tls_model("initial-exec"), visibility("hidden")));

struct own_options {
    void (*say)(const char *function, const char *path, const char *why);
    bool reads;          // also calls that only ask about a block
    const void *spared;  // the library in which this lies is left alone
};

/*
 * Hooks everything that is loaded; `say` gets a line for each allocator that cannot be hooked, with the function that is the reason: it is
 * then left as it is, as a whole.  Only one thread may run.  The number of hooks.
 */
unsigned own_plant(const struct own_options *options);

/* What a call asks for, whichever function it is: bytes, their alignment or 0, whether zeroed. */
struct own_request {
    uint64_t block, bytes, align_bytes;
    bool zeroed;
};
struct own_request own_request_of(const struct own_frame *frame);

/* All functions as they were; calls that are under way end in the hooks. */
void own_uproot(void);

#endif
