// SPDX-License-Identifier: MIT
/*
 * panic.h - a bug stops the process: one line, the hook, a trap.
 */
#ifndef QUIRE_BASE_PANIC_H
#define QUIRE_BASE_PANIC_H

#include <stddef.h>

/*
 * "quire: arena \"query\": A4 mark is stale: address 0x7f..." to standard error, then the hook of quire_on_panic(), then a trap.
 * kind: "arena"; name: the object's, or NULL; what: the invariant's number and words.  Allocates nothing, takes no lock.
 */
__attribute__((noreturn, cold)) void panic(const char *kind, const char *name, const char *what, const void *address);

#endif
