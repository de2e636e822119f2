// SPDX-License-Identifier: MIT
/*
 * say.h - numbers as people read them, on top of look_out.h.
 */
#ifndef QUIRE_PRELOAD_SAY_H
#define QUIRE_PRELOAD_SAY_H

#include <stddef.h>
#include <stdint.h>

#include "look/look_out.h"

/* 24.3 MiB, the number right-aligned in `width` columns (0: as wide as it is). */
void say_size(struct out *out, uint64_t bytes, unsigned width);
/* 1.2 s, 12.3 ms. */
void say_time(struct out *out, uint64_t ns);

#endif
