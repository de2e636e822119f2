// SPDX-License-Identifier: MIT
/*
 * order.h - what the launcher (../launch/inject.c) and the recorder inside of a static program say to each other.
 *
 *   launcher: maps the recorder, sets rdi = &order, jumps to its entry  -->  static_begin(order)  -->  STATIC_REPORT: home again
 */
#ifndef QUIRE_STATIC_ORDER_H
#define QUIRE_STATIC_ORDER_H

#include <stdint.h>

#define STATIC_REPORT 0x51554952u  // first argument of a getppid() that tells: done

struct static_order {
    uint64_t stack;    // where the program's own begins: argc
    uint64_t bias;     // of its addresses
    uint64_t headers;  // its segments, in its memory
    uint64_t headers_count;
};

#endif
