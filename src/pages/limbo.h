// SPDX-License-Identifier: MIT
/*
 * limbo.h - in the `check` build: a short queue that spans of the default source pass on their way back.
 */
#ifndef QUIRE_PAGES_LIMBO_H
#define QUIRE_PAGES_LIMBO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <quire/source.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* All that may wait. */
enum { LIMBO_BYTES_MAX = 512 << 10 };

/* Put `span` at the end of the queue.  True: `span` is now another one, from the front, to be given back; false: nothing is. */
bool limbo_pass(struct quire_span *span);
/* Give back what waits. */
void limbo_drain(void);
void limbo_sum(size_t *bytes, uint64_t *spans); /* adds what waits */
void limbo_after_fork(void);

C_DECLARATIONS_END

#endif
