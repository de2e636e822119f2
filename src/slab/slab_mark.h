// SPDX-License-Identifier: MIT
/*
 * slab_mark.h - elements with a mark, on pages that hold only marked ones: for the compat layer.
 */
#ifndef QUIRE_SLAB_MARK_H
#define QUIRE_SLAB_MARK_H

#include <quire/slab.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* A slab whose elements can be marked: 8 bytes more of bookkeeping for 64 elements.  Errors as quire_slab_create(). */
struct quire_slab *slab_create_markable(size_t element_bytes, const struct quire_slab_opts *opts);
/* An element from the pages that hold only marked ones.  NULL with errno ENOMEM. */
void *slab_alloc_marked(struct quire_slab *slab);
/* Take the mark off: O(1), nothing moves; when it was its page's last, the page joins the ordinary ones.  False: not a live marked element; NULL too. */
bool slab_unmark(struct quire_slab *slab, void *element);
/* What of the slab's memory is bookkeeping: a load. */
size_t slab_meta_bytes(const struct quire_slab *slab);
/* `told` is called, with the slab's source, after that has changed, and may only count.  Before the first element. */
void slab_meta_tell(struct quire_slab *slab, void (*told)(struct quire_source *source));
/* The largest page from now on; 0: as large as suits the elements. */
void slab_set_page_bytes_max(struct quire_slab *slab, size_t page_bytes_max);

C_DECLARATIONS_END
#endif
