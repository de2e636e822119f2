// SPDX-License-Identifier: MIT
/*
 * quire/quire.h - version, and what happens when the program has a bug.
 *
 * Misuse that Quire can see (freeing twice, a pointer from elsewhere, a broken invariant) is never passed over in silence: one line on
 * standard error names the object, the invariant and the address, then the function given here runs, then the process traps (SIGILL or SIGTRAP).
 *
 * Structs that may grow in later versions begin with struct_bytes, so that a program and a library of different versions understand each other.
 * Options and a source's verbs: sizeof, or 0 for the fields that 0.2 had; what the library does not know must be 0, else E2BIG.  Statistics: set it to
 * sizeof before the call (0: the fields that 0.2 had).  The library fills in no more than that, zeros where it knows nothing, and leaves in struct_bytes
 * how much is valid; what is no size of the struct, as on a stack where it was never set, stops the process ("statistics E1").  More: doc/abi.md.
 *
 *     static void note(const char *message, const void *address) { syslog(LOG_CRIT, "%s", message); (void)address; }
 *     ...
 *     quire_on_panic(note);
 *
 * Stack: no call of any header takes more than 2 KiB of it, but quire_slab_create() (4 KiB), quire_stats_write() (20) and what prints text (what libc takes);
 * the one of a process that starts the thread which gives memory back takes 4 KiB more where the loader has to find libc's functions first.
 *
 * Threads: every function here may be called from any thread.  Signals and fork: all may be called from a handler; a child keeps the hook.
 */
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

#include <quire/export.h>

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 2
#define QUIRE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Call `fn` with the message (without its newline) and the address before the process traps; NULL: call nothing.  `fn` may end the process by
 * _exit; it must not leave by longjmp.  It may call what looks (stats, check, owns), of other objects than
 * the one named.  A panic inside `fn` traps at once.  MT-Safe.
 */
QUIRE_API void quire_on_panic(void (*fn)(const char *message, const void *address));

/* "0.2.0": the version of the library that is running, which may differ from the headers' numbers.  MT-Safe. */
QUIRE_API const char *quire_version(void);

#ifdef __cplusplus
}
#endif
#endif
