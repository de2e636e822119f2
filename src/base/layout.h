// SPDX-License-Identifier: MIT
/*
 * layout.h - where things lie in the library, told to a debugger in sections that stay when debug information and symbols are stripped.
 *
 *     .quire.layout     "slab_page.slots"    offset, bytes       of a field; of a whole struct the offset is 0
 *     .quire.anchors    "registry.slabs"     address             of a variable that no other file sees
 *
 * Rows of one size, so that sections of several files are one table.  The program never reads them: `layout` is never paged in, `anchors` is data, for
 * the loader writes addresses into it.  Read by tools/gdb/quire_gdb.py; what that asks for is listed at the end of the file that owns it.
 */
#ifndef QUIRE_BASE_LAYOUT_H
#define QUIRE_BASE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

enum { LAYOUT_NAME_BYTES = 56, LAYOUT_ROW_BYTES = 64 };

struct layout_row {
    char name[LAYOUT_NAME_BYTES];
    uint32_t offset, bytes;
};

struct layout_anchor {
    char name[LAYOUT_NAME_BYTES];
    const volatile void *address;
};

STATIC_ASSERT(sizeof(struct layout_row) == LAYOUT_ROW_BYTES && sizeof(struct layout_anchor) == LAYOUT_ROW_BYTES, "the script steps by it");

/* Aligned as long as a row is, or a linker would leave gaps of other sizes. */
#define LAYOUT __attribute__((section(".quire.layout"), aligned(LAYOUT_ROW_BYTES))) RETAINED
#define ANCHORS __attribute__((section(".quire.anchors"), aligned(LAYOUT_ROW_BYTES))) RETAINED

#define LAYOUT_STRUCT(type) {#type, 0, sizeof(struct type)}
#define LAYOUT_FIELD(type, field) {#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)}
#define LAYOUT_BEHIND(type, field) {#type "." #field, offsetof(struct type, field), 0} /* an array of no fixed length */

#endif
