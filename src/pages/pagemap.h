// SPDX-License-Identifier: MIT
/*
 * pagemap.h - whose is this address?  For any address, also a wild one, without touching it.
 */
#ifndef QUIRE_PAGES_PAGEMAP_H
#define QUIRE_PAGES_PAGEMAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * An owner is a pointer to one of the library's objects with its kind in the low bits.
 */
enum owner_kind { OWNER_NONE, OWNER_ARENA, OWNER_SLAB, OWNER_PERCPU, OWNER_HEAP };
typedef uintptr_t owner_t;
static inline owner_t owner_make(const void *object, enum owner_kind kind) { return (uintptr_t)object | kind; }
static inline enum owner_kind owner_kind(owner_t owner) { return (enum owner_kind)(owner & 7); }
static inline void *owner_object(owner_t owner) { return (void *)(owner & ~(uintptr_t)7); }

/* Whole OS pages belong to `owner` from now on; -ENOMEM (nothing has changed then).  The pages must be the caller's. */
int pagemap_set(const void *start, size_t bytes, owner_t owner);
/* They belong to nobody; only for pages that pagemap_set() took. */
void pagemap_clear(const void *start, size_t bytes);
/* The owner of this address, 0 when nobody's.  Three dependent loads. */
owner_t pagemap_find(const void *address);
/* Bytes of memory that the table may hold. */
size_t pagemap_meta_bytes(void);
void pagemap_after_fork(void);

#ifdef __cplusplus
}
#endif
#endif
