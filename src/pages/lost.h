// SPDX-License-Identifier: MIT
/*
 * lost.h - unmapping that the kernel may refuse: nothing is lost, all is tried again.
 */
#ifndef QUIRE_PAGES_LOST_H
#define QUIRE_PAGES_LOST_H

#include <stddef.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* Unmap whole pages of a private anonymous mapping; where the kernel has no VMA left for the split, free their memory and keep the addresses. */
void lost_unmap(void *start, size_t bytes);
/* Once more for all that were kept. */
void lost_retry(void);
/* Addresses kept, without memory but for one page each. */
size_t lost_bytes(void);
void lost_after_fork(void);

C_DECLARATIONS_END
#endif
