// SPDX-License-Identifier: MIT
/*
 * malloc_opt.c - mallopt and malloc_info: glibc's ways to tune its heap and to look at it, answered for ours.
 *
 *     M_TRIM_THRESHOLD   0: idle memory goes back at once; -1: it stays an hour; else nothing changes, the clock gives it back
 *     M_PERTURB          0: nothing changes; else: no freed block is filled, QUIRE_CONF=secure:1 zeroes them
 *     all others         glibc's arenas, its top and its thresholds, of which there are none here
 *
 * What has no meaning is accepted, as glibc accepts it, and said once in a process: a program that depends on it is not silently served otherwise.
 *
 * Locks: none.  Not here: mallinfo, malloc_trim (malloc_look.c).
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <quire/heap.h>
#include <quire/source.h>

#include "look/look_out.h"
#include "preload/preload.h"

#define EXPORT __attribute__((visibility("default")))
#define HOUR_NS UINT64_C(3600000000000)

/* By their numbers in glibc's ABI: other libcs have no names for them. */
enum { MXFAST = 1, TRIM_THRESHOLD = -1, TOP_PAD = -2, MMAP_THRESHOLD = -3, MMAP_MAX = -4, CHECK_ACTION = -5, PERTURB = -6, ARENA_TEST = -7, ARENA_MAX = -8 };
static const struct {
    int parameter;
    const char *name;
} parameters[] = {{MXFAST, "M_MXFAST"}, {TRIM_THRESHOLD, "M_TRIM_THRESHOLD"}, {TOP_PAD, "M_TOP_PAD"}, {MMAP_THRESHOLD, "M_MMAP_THRESHOLD"},
    {MMAP_MAX, "M_MMAP_MAX"}, {CHECK_ACTION, "M_CHECK_ACTION"}, {PERTURB, "M_PERTURB"}, {ARENA_TEST, "M_ARENA_TEST"}, {ARENA_MAX, "M_ARENA_MAX"}};

static const char *name_of(int parameter)
{
    for (size_t i = 0; i < sizeof parameters / sizeof parameters[0]; i++)
        if (parameters[i].parameter == parameter)
            return parameters[i].name;
    return NULL;
}

static void say_once(const char *name)
{
    static atomic_u32 said;
    uint32_t no = 0;
    struct out out;
    if (!u32_cas_relaxed(&said, &no, 1))
        return;
    out_begin(&out, report_stderr());
    out_text(&out, "quire: mallopt: ");
    out_text(&out, name);
    out_text(&out, " has no meaning for Quire's heap; it and others like it are left alone\n");
    (void)out_end(&out);
}

EXPORT int mallopt(int parameter, int value);
EXPORT int mallopt(int parameter, int value)
{
    const char *name = name_of(parameter);
    void *libcs = preload_passed("mallopt");
    if (libcs)
        return ((int (*)(int, int))(uintptr_t)libcs)(parameter, value);
    if (!name)
        return 0;
    if (parameter == TRIM_THRESHOLD && (value == 0 || value == -1))
        return quire_source_set_decay(quire_source_default(), value ? HOUR_NS : 0) == 0;
    if (!(parameter == PERTURB && (value == 0 || preload_conf.secure)) && parameter != TRIM_THRESHOLD)
        say_once(name);
    return 1;
}

/* Free blocks of each size that has pages, as glibc lists free chunks. */
static void sizes_write(FILE *file, size_t *count, size_t *bytes)
{
    struct quire_heap_class_stats class = {.struct_bytes = sizeof class};
    size_t below = 0;
    fputs("<sizes>\n", file);
    for (unsigned i = 0; quire_heap_class_stats(quire_heap_default(), i, &class) == 0; below = class.slot_bytes, i++) {
        size_t slots = class.page_bytes / class.slot_bytes, free_slots = slots > class.live_blocks ? slots - class.live_blocks : 0;
        if (free_slots == 0)
            continue;
        fprintf(file, "  <size from=\"%zu\" to=\"%zu\" total=\"%zu\" count=\"%zu\"/>\n", below + 1, class.slot_bytes, free_slots * class.slot_bytes, free_slots);
        *count += free_slots;
        *bytes += free_slots * class.slot_bytes;
    }
    fputs("</sizes>\n", file);
}

static void totals_write(FILE *file, const struct quire_heap_stats *heap, size_t count, size_t bytes)
{
    fprintf(file, "<total type=\"fast\" count=\"0\" size=\"0\"/>\n<total type=\"rest\" count=\"%zu\" size=\"%zu\"/>\n", count, bytes);
    fprintf(file, "<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n", heap->large_blocks, heap->large_bytes);
    fprintf(file, "<system type=\"current\" size=\"%zu\"/>\n<system type=\"max\" size=\"%zu\"/>\n", heap->mapped_bytes, heap->peak_bytes);
    fprintf(file, "<aspace type=\"total\" size=\"%zu\"/>\n<aspace type=\"mprotect\" size=\"%zu\"/>\n", heap->mapped_bytes, heap->mapped_bytes);
}

/* No lock is held while it is written: the file may allocate.  So the sums are of one moment, the sizes of some. */
EXPORT int malloc_info(int options, FILE *stream);
EXPORT int malloc_info(int options, FILE *file)
{
    struct quire_heap_stats heap = {.struct_bytes = sizeof heap};
    size_t count = 0, bytes = 0;
    void *libcs = preload_passed("malloc_info");
    if (libcs)
        return ((int (*)(int, FILE *))(uintptr_t)libcs)(options, file);
    if (options != 0)
        return EINVAL;
    quire_heap_stats(quire_heap_default(), &heap);
    fputs("<malloc version=\"1\">\n<heap nr=\"0\">\n", file);
    sizes_write(file, &count, &bytes);
    totals_write(file, &heap, count, bytes);
    fputs("</heap>\n", file);
    totals_write(file, &heap, count, bytes);
    fputs("</malloc>\n", file);
    return 0;
}
