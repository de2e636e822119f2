// SPDX-License-Identifier: MIT
/* quire/export.h - the visibility of the library's names; included by every other header. */
#ifndef QUIRE_EXPORT_H
#define QUIRE_EXPORT_H

#define QUIRE_API __attribute__((visibility("default")))

/* 1: the usual case of quire_arena_alloc() is compiled into its callers.  Define it as 0 before including anything of quire's to have only calls. */
#ifndef QUIRE_ARENA_INLINE
#ifdef __OPTIMIZE__
#define QUIRE_ARENA_INLINE 1
#else
#define QUIRE_ARENA_INLINE 0
#endif
#endif

#endif
