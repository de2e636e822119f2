// SPDX-License-Identifier: MIT
/*
 * compiler.h - what the compiler can be told, under one set of names.
 *
 * The only file outside src/os that may ask which compiler or sanitizer it meets.  Every feature is a macro that is always defined, as 0 or 1.
 */
#ifndef QUIRE_BASE_COMPILER_H
#define QUIRE_BASE_COMPILER_H

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define CACHE_LINE_BYTES 64
#define CACHE_ALIGNED __attribute__((aligned(CACHE_LINE_BYTES)))
#define UNUSED __attribute__((unused)) /* of what a macro made */
#define NOINLINE __attribute__((noinline))
#define COLD __attribute__((cold, noinline))
/* For code that looks past an object's end on purpose, inside its page. */
#define NO_SANITIZE __attribute__((no_sanitize("address", "thread")))
/* Stays in the file that is linked, though nothing refers to it; older compilers cannot keep a linker that was told to drop such sections from it. */
#if defined(__has_attribute)
#if __has_attribute(retain)
#define RETAINED __attribute__((used, retain))
#endif
#endif
#ifndef RETAINED
#define RETAINED __attribute__((used))
#endif
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
#define CPU_X86_64 1
#else
#define CPU_X86_64 0
#endif
#if defined(__aarch64__)
#define CPU_AARCH64 1
#else
#define CPU_AARCH64 0
#endif

/* 1 in the `check` build: dearer checks, quarantines, lock ranks, and a hook at every atomic step. */
#ifndef QUIRE_CHECK
#define QUIRE_CHECK 0
#endif

/* The parts of the library: all of them; but the two files that scripts/amalgamate.py makes, whose user may leave some out, say it for themselves. */
#ifndef WITH_ARENA
#define WITH_ARENA 1
#define WITH_SLAB 1
#define WITH_HEAP 1
#define WITH_PERCPU 1
#endif

/* gcc says what it builds with by macros, clang by this. */
#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define BUILT_WITH_ASAN 1
#else
#define BUILT_WITH_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define BUILT_WITH_TSAN 1
#else
#define BUILT_WITH_TSAN 0
#endif
#include <limits.h> /* any header of libc's says whose it is */
#ifdef __GLIBC__
#define BUILT_WITH_GLIBC 1
#else
#define BUILT_WITH_GLIBC 0
#endif

#include "os/os_thread.h"

/* What lies so many bytes from the thread pointer: the same thread-local in every thread, found without asking where it is.
 * A relaxed load or store. */
#if defined(__SEG_FS) && !defined(__STRICT_ANSI__) && CPU_X86_64 && !defined(__cplusplus) && !BUILT_WITH_ASAN && !BUILT_WITH_TSAN /* which take it for an address */
#define THREAD_AT(type, offset) (*(volatile __seg_fs type *)(offset))
#else
#define THREAD_AT(type, offset) (*(volatile type *)(void *)(os_thread_pointer() + (ptrdiff_t)(offset)))
#endif

/* _Thread_local, in C++ too where a constant initialises it. */
#define THREAD_LOCAL __thread

/* A header's functions are C's also where the tests, in C++, include it. */
#ifdef __cplusplus
#define C_DECLARATIONS_BEGIN extern "C" {
#define C_DECLARATIONS_END }
#define STATIC_ASSERT(x, why) static_assert(x, why)
#else
#define C_DECLARATIONS_BEGIN
#define C_DECLARATIONS_END
#define STATIC_ASSERT(x, why) _Static_assert(x, why)
#endif

#endif
