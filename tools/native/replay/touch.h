// SPDX-License-Identifier: MIT
/*
 * touch.h - uses an object as a program would: writes it at birth, looks at it at death.
 *
 *   0      8         64        128                4096        8192                  size
 *   +------+---------+---------+------- - - ------+-----------+-------- - - ------+-+
 *   |stamp |         |x        |x                 |x          |x                  |s|
 *   +------+---------+---------+------- - - ------+-----------+-------- - - ------+-+
 *     word             one byte each 64 bytes       one byte each 4096 bytes       last byte
 *
 * The stamp is a function of the slot: two live objects that overlap spoil each other's.  Small
 * objects are written line by line because programs fill them; beyond the first 4 KiB once a page,
 * so that the page becomes resident and no more.
 *
 * Not here: timing (play.c).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TOUCH_DENSE_BYTES 4096u
#define TOUCH_LINE_BYTES  64u
#define TOUCH_PAGE_BYTES  4096u
// Beyond that an object is hardly ever filled, and filling it could exhaust the machine.
#define TOUCH_BYTES_MAX (1ull << 30)

static inline uint64_t touch_stamp(uint32_t slot) {
    return ((uint64_t)slot + 1) * 0x9E3779B97F4A7C15ull;
}

/* Writes the part from `from` (0: a new object) to `to`, without the stamp. */
static inline void touch_span(unsigned char *object, uint64_t from_bytes, uint64_t to_bytes) {
    volatile unsigned char *at = object;
    uint64_t end = to_bytes < TOUCH_BYTES_MAX ? to_bytes : TOUCH_BYTES_MAX;
    uint64_t dense_end = end < TOUCH_DENSE_BYTES ? end : TOUCH_DENSE_BYTES;
    uint64_t i = (from_bytes + TOUCH_LINE_BYTES) & ~(uint64_t)(TOUCH_LINE_BYTES - 1);
    for (; i < dense_end; i += TOUCH_LINE_BYTES)
        at[i] = 1;
    for (i = (i + TOUCH_PAGE_BYTES - 1) & ~(uint64_t)(TOUCH_PAGE_BYTES - 1); i < end;
         i += TOUCH_PAGE_BYTES)
        at[i] = 1;
}

static inline void touch_sign(unsigned char *object, uint64_t bytes, uint32_t slot) {
    uint64_t stamp = touch_stamp(slot);
    if (bytes >= sizeof stamp)
        memcpy(object, &stamp, sizeof stamp);
    else if (bytes > 0)
        object[0] = (unsigned char)stamp;
    if (bytes > sizeof stamp)
        ((volatile unsigned char *)object)[bytes - 1] = (unsigned char)(stamp >> 8);
}

/* Whether the beginning of the object is still as it was signed. */
static inline bool touch_start_intact(const unsigned char *object, uint64_t bytes, uint32_t slot) {
    uint64_t stamp = touch_stamp(slot), found;
    if (bytes < sizeof stamp)
        return bytes == 0 || *(const volatile unsigned char *)object == (unsigned char)stamp;
    memcpy(&found, object, sizeof found);
    __asm__ volatile("" : "+r"(found)); // the load happens, also where nobody looks at the answer
    return found == stamp;
}

static inline bool touch_end_intact(const unsigned char *object, uint64_t bytes, uint32_t slot) {
    return bytes <= sizeof(uint64_t) ||
           object[bytes - 1] == (unsigned char)(touch_stamp(slot) >> 8);
}
