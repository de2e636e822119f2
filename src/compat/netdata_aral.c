// SPDX-License-Identifier: MIT
/*
 * netdata_aral.c - the Array Allocator's names over a slab.
 *
 *     aral_mallocz  -->  quire_slab_alloc  -->  the array's own source  -->  the default source, or files
 *                  \-->  used_bytes += ...          counts pages (netdata_aral_source.c, _stats.c)
 *                        only when somebody reads it
 *
 * Invariants:
 *   1  used_bytes never exceeds what lives: added after an allocation, taken off before a free
 *   2  structures + used + free + padding is what the array holds of the system's memory
 *
 * Failure is fatal here and only here: aral_fatal() reports like every panic, naming the array.  Misuse is found by the slab.
 *
 * Locks: none; the slab of all structs is made once, by whoever comes first.
 * Not here: the list of all arrays and those by size (netdata_aral_registry.c).
 */
#include <errno.h>
#include <string.h>

#include "base/panic.h"
#include "compat/netdata_aral_internal.h"
#include "slab/slab_mark.h"

enum { INITIAL_ELEMENTS_MIN = 2, FILE_PAGE_BYTES_MAX = 1 << 30 };

static atomic_addr structs; /* struct quire_slab *: of every struct aral */

void aral_fatal(const char *name, const char *what, const void *address)
{
    panic("aral", name && *name ? name : NULL, what, address);
}

static COLD __attribute__((noreturn)) void out_of_memory(const char *name, const ARAL *ar)
{
    aral_fatal(name, "N1 out of memory", ar);
}

/* ---- structs ---- */

static struct quire_slab *structs_slab(void)
{
    struct quire_slab *slab = (struct quire_slab *)addr_load_acquire(&structs); /* acquire [aral-structs] */
    if (likely(slab != NULL))
        return slab;
    struct quire_slab_opts opts = {.name = "aral", .align_bytes = CACHE_LINE_BYTES};
    struct quire_slab *fresh = quire_slab_create(sizeof(struct aral), &opts);
    uintptr_t expected = 0;
    if (!fresh || addr_cas_release(&structs, &expected, (uintptr_t)fresh)) /* release [aral-structs] */
        return fresh;
    quire_slab_destroy(fresh);
    return (struct quire_slab *)addr_load_acquire(&structs); /* acquire [aral-structs] */
}

ARAL *aral_struct_new(void)
{
    struct quire_slab *slab = structs_slab();
    return slab ? quire_slab_alloc_zero(slab) : NULL;
}

void aral_struct_delete(ARAL *ar)
{
    quire_slab_free(structs_slab(), ar);
}

bool aral_is_live(const ARAL *ar)
{
    struct quire_slab *slab = (struct quire_slab *)addr_load_acquire(&structs); /* acquire [aral-structs] */
    return slab && quire_slab_owns(slab, ar) && (uintptr_t)ar % CACHE_LINE_BYTES == 0 && aral_source_is_of(ar);
}

/* ---- an array's life ---- */

static void copy_name(ARAL *ar, const char *name)
{
    strncpy(ar->name, name ? name : "", ARAL_MAX_NAME);
}

/* Bytes of the largest page, 0: as aral_optimal_malloc_page_size() says. */
static size_t page_bytes_of(const ARAL *ar, size_t asked)
{
    return asked || !ar->files ? asked : FILE_PAGE_BYTES_MAX;
}

static struct quire_slab *slab_for(ARAL *ar, size_t initial_elements, size_t page_bytes, uint32_t flags)
{
    struct quire_slab_opts opts = {
        .name = *ar->name ? ar->name : NULL,
        .source = &ar->source,
        .page_bytes_max = page_bytes,
        .initial_elements = initial_elements > INITIAL_ELEMENTS_MIN ? initial_elements : INITIAL_ELEMENTS_MIN,
        .flags = flags | QUIRE_SLAB_KEEP_NOTHING,
    };
    return slab_create_markable(ar->requested_bytes, &opts);
}

static size_t slot_bytes_of(const struct quire_slab *slab)
{
    struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
    quire_slab_stats(slab, &stats);
    return stats.slot_bytes;
}

ARAL *aral_create(const char *name, size_t element_size, size_t initial_page_elements, size_t max_page_size, struct aral_statistics *stats,
                  const char *filename, const char **cache_dir, bool mmap, bool lockless, bool dont_dump)
{
    ARAL *ar = aral_struct_new();
    if (unlikely(!ar))
        out_of_memory(name, NULL);
    copy_name(ar, name);
    ar->requested_bytes = element_size;
    ar->stats = stats ? stats : &ar->own;
    aral_source_init(ar);
    if (mmap)
        aral_source_open_files(ar, filename, cache_dir);
    size_t page_bytes = page_bytes_of(ar, max_page_size);
    ar->follows = page_bytes == 0;
    uint32_t flags = (lockless ? QUIRE_SLAB_SINGLE_THREAD : 0u) | (dont_dump ? QUIRE_SLAB_DONT_DUMP : 0u);
    ar->slab = slab_for(ar, initial_page_elements, page_bytes ? page_bytes : aral_optimal_malloc_page_size(), flags);
    if (unlikely(!ar->slab))
        out_of_memory(ar->name, NULL);
    slab_meta_tell(ar->slab, aral_count_meta);
    ar->slot_bytes = slot_bytes_of(ar->slab);
    aral_count_created(ar);
    aral_registry_add(ar);
    return ar;
}

void aral_destroy(ARAL *ar)
{
    int kept = errno;
    struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
    if (!ar)
        return;
    if (!aral_is_live(ar))
        aral_fatal(NULL, "N4 not a live array", ar);
    if (ar->acquired)
        aral_fatal(ar->name, "N6 acquired by size, to be released", ar);
    aral_registry_remove(ar);
    struct quire_slab *slab = ar->slab;
    quire_slab_stats(slab, &stats);
    ar->slab = NULL; /* its bookkeeping counts no more */
    quire_slab_destroy(slab);
    aral_count_destroyed(ar, stats.live_elements);
    aral_source_fini(ar);
    aral_struct_delete(ar);
    errno = kept;
}

/* ---- elements ---- */

/* Invariant 1: after the allocation. */
static ALWAYS_INLINE void *counted(ARAL *ar, void *element)
{
    if (unlikely(!element))
        out_of_memory(ar->name, ar);
    atomic_size *used = (atomic_size *)addr_load_relaxed(&ar->used);
    if (used)
        size_add_relaxed(used, ar->requested_bytes);
    return element;
}

void *aral_mallocz(ARAL *ar)
{
    return counted(ar, quire_slab_alloc(ar->slab));
}

void *aral_callocz(ARAL *ar)
{
    return counted(ar, quire_slab_alloc_zero(ar->slab));
}

void *aral_mallocz_marked(ARAL *ar)
{
    return counted(ar, slab_alloc_marked(ar->slab));
}

void *aral_callocz_marked(ARAL *ar)
{
    return memset(aral_mallocz_marked(ar), 0, ar->requested_bytes);
}

void aral_unmark_allocation(ARAL *ar, void *ptr)
{
    (void)slab_unmark(ar->slab, ptr);
}

void aral_freez(ARAL *ar, void *ptr)
{
    atomic_size *used = (atomic_size *)addr_load_relaxed(&ar->used);
    if (used && ptr)
        size_sub_relaxed(used, ar->requested_bytes); /* before the free: invariant 1 */
    quire_slab_free(ar->slab, ptr);
}

/* ---- what it is ---- */

const char *aral_name(const ARAL *ar)
{
    return ar->name;
}

size_t aral_requested_element_size(const ARAL *ar)
{
    return ar->requested_bytes;
}

size_t aral_actual_element_size(const ARAL *ar)
{
    return ar->slot_bytes;
}

struct quire_slab *aral_slab(const ARAL *ar)
{
    return ar->slab;
}
