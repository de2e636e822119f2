// SPDX-License-Identifier: MIT
/* quire/export.h - the visibility of the library's names; included by every other header. */
#ifndef QUIRE_EXPORT_H
#define QUIRE_EXPORT_H

#ifndef __LP64__
#error "Quire needs a 64-bit system: addresses and counters have 64 bits"
#endif

/* How the library's names are seen outside.  Whoever compiles it into a library of his own (quire.c) may define it as hidden. */
#ifndef QUIRE_API
#define QUIRE_API __attribute__((__visibility__("default")))
#endif

/* 1: the usual case of quire_arena_alloc() is compiled into its callers.  Define it as 0 before including anything of quire's to have only calls. */
#ifndef QUIRE_ARENA_INLINE
#ifdef __OPTIMIZE__
#define QUIRE_ARENA_INLINE 1
#else
#define QUIRE_ARENA_INLINE 0
#endif
#endif

#if defined(__x86_64__)
#define QUIRE_CPU_X86_64 1
#else
#define QUIRE_CPU_X86_64 0
#endif
#if defined(__aarch64__)
#define QUIRE_CPU_AARCH64 1
#else
#define QUIRE_CPU_AARCH64 0
#endif
#if defined(__OPTIMIZE__) && (QUIRE_CPU_X86_64 || QUIRE_CPU_AARCH64)
#define QUIRE_CPU_INLINE 1
#else
#define QUIRE_CPU_INLINE 0
#endif

/* 1: the usual cases of quire_slab_alloc() and quire_slab_free() are compiled into their callers.  Define it as 0 to have only calls. */
#ifndef QUIRE_SLAB_INLINE
#define QUIRE_SLAB_INLINE QUIRE_CPU_INLINE
#endif

/* 1: quire_percpu_add() is compiled into its callers.  Define it as 0 to have only calls. */
#ifndef QUIRE_PERCPU_INLINE
#define QUIRE_PERCPU_INLINE QUIRE_CPU_INLINE
#endif

/* For quire.hpp.  1: the program is compiled with exceptions. */
#if defined(__cpp_exceptions)
#define QUIRE_EXCEPTIONS 1
#else
#define QUIRE_EXCEPTIONS 0
#endif

/*
 * 1: quire::slab_allocator keeps a few free nodes of each type for each thread.  Define it as 0 to have each free looked at by the slab; so it is
 * where AddressSanitizer wants to see them.
 */
#if defined(__has_feature)
#define QUIRE_HAS_FEATURE(what) __has_feature(what)
#else
#define QUIRE_HAS_FEATURE(what) 0
#endif
#ifndef QUIRE_NODE_CACHE
#if defined(__SANITIZE_ADDRESS__) || QUIRE_HAS_FEATURE(address_sanitizer) || QUIRE_HAS_FEATURE(memory_sanitizer)
#define QUIRE_NODE_CACHE 0
#else
#define QUIRE_NODE_CACHE 1
#endif
#endif

#endif
