// SPDX-License-Identifier: MIT
/*
 * touch.h - uses an object as little as a program must: its first word is written at birth.
 *
 *   0      8           64          128               4096        8192                size
 *   +------+-----------+-----------+------ - - ------+-----------+------- - - ------+-+
 *   |stamp |           |v          |v                |x          |x                 |v|
 *   +------+-----------+-----------+------ - - ------+-----------+------- - - ------+-+
 *     word                                             one byte a page      v: only when verifying
 *
 * The stamp is a function of the slot: two live objects that overlap spoil each other's.  It is
 * looked at only when verifying, and more is not written under the clock: each further access is a
 * cache miss that the program may never have had, and would be booked to the allocator.  (A load of
 * the stamp at death alone doubled the time of one that never reads what it frees.)  A byte a page
 * makes the memory resident.
 *
 * Not here: timing (play.c).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TOUCH_LINE_BYTES 64u
#define TOUCH_PAGE_BYTES 4096u
// Beyond that an object is hardly ever filled, and filling it could exhaust the machine.
#define TOUCH_BYTES_MAX (1ull << 30)

/* So much of an object is touched of which so many 256ths never are. */
static inline uint64_t touch_part(uint64_t bytes, unsigned untouched) {
    return bytes - (bytes >> 8) * untouched;
}

static inline uint64_t touch_stamp(uint32_t slot) {
    return ((uint64_t)slot + 1) * 0x9E3779B97F4A7C15ull;
}

/* Writes a byte at each `step_bytes` beyond `from_bytes` (0: a new object), but not the stamp. */
static inline void touch_each(unsigned char *object, uint64_t from_bytes, uint64_t to_bytes,
                              uint64_t step_bytes) {
    volatile unsigned char *at = object;
    uint64_t end = to_bytes < TOUCH_BYTES_MAX ? to_bytes : TOUCH_BYTES_MAX;
    for (uint64_t i = (from_bytes / step_bytes + 1) * step_bytes; i < end; i += step_bytes)
        at[i] = 1;
    if (end > from_bytes && end > step_bytes)
        at[end - 1] = 1; // the last page too: an object seldom begins with a page
}

static inline void touch_sign(unsigned char *object, uint64_t bytes, uint32_t slot) {
    uint64_t stamp = touch_stamp(slot);
    if (bytes >= sizeof stamp)
        memcpy(object, &stamp, sizeof stamp);
    else if (bytes > 0)
        object[0] = (unsigned char)stamp;
}

static inline void touch_sign_end(unsigned char *object, uint64_t bytes, uint32_t slot) {
    if (bytes > sizeof(uint64_t))
        ((volatile unsigned char *)object)[bytes - 1] = (unsigned char)(touch_stamp(slot) >> 8);
}

/* Whether the beginning of the object is still as it was signed. */
static inline bool touch_start_intact(const unsigned char *object, uint64_t bytes, uint32_t slot) {
    uint64_t stamp = touch_stamp(slot), found;
    if (bytes < sizeof stamp)
        return bytes == 0 || *(const volatile unsigned char *)object == (unsigned char)stamp;
    memcpy(&found, object, sizeof found);
    return found == stamp;
}

static inline bool touch_end_intact(const unsigned char *object, uint64_t bytes, uint32_t slot) {
    return bytes <= sizeof(uint64_t) ||
           object[bytes - 1] == (unsigned char)(touch_stamp(slot) >> 8);
}
