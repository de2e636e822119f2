// SPDX-License-Identifier: MIT
/*
 * look_fields.h - what is shown of each kind of object: the one list that all printers, doc/stats.md and its test read.
 *
 *     X(field, role, column, what)
 *       field    of the kind's struct of statistics, in its order: the name in every format
 *       role     what may be done with it (below)
 *       column   1: the text's tables show it; JSON and Prometheus always do
 *       what     Prometheus' HELP, and the words of doc/stats.md
 *
 * A field that a struct gains and this list does not is an error of compilation (look_slab.c and its like count the words).
 *
 * Locks: none.  Not here: how a format looks (stats_*.c).
 */
#ifndef QUIRE_LOOK_FIELDS_H
#define QUIRE_LOOK_FIELDS_H

/*
 *   WHOLE    memory, the sum of the parts; Prometheus has the parts alone, which it adds itself
 *   PART     one of them: together they are quire_KIND_bytes{state="..."}
 *   COUNT    may be added up over objects
 *   LEVEL    may not: a size, a limit, a peak
 *   EVENTS   only rises; may be added up
 *   KEY      tells this line from others of the same object: a label in Prometheus
 */
enum look_role { LOOK_WHOLE, LOOK_PART, LOOK_COUNT, LOOK_LEVEL, LOOK_EVENTS, LOOK_KEY };

#define LOOK_SOURCE_FIELDS(X)                                                                      \
    X(taken_bytes, LOOK_PART, 1, "spans in use")                                                   \
    X(idle_bytes, LOOK_PART, 1, "in memory and nobody's: given back to the source, or brought ahead of its use") \
    X(meta_bytes, LOOK_PART, 1, "the source's own bookkeeping")                                    \
    X(reserved_bytes, LOOK_COUNT, 1, "address space reserved, committed or not")                   \
    X(peak_bytes, LOOK_LEVEL, 1, "the most that taken_bytes has been")                             \
    X(limit_bytes, LOOK_LEVEL, 0, "the most it may hold; 0: no limit")                             \
    X(takes, LOOK_EVENTS, 1, "spans handed out")                                                   \
    X(gives, LOOK_EVENTS, 0, "spans given back")                                                   \
    X(failures, LOOK_EVENTS, 1, "spans refused")

#define LOOK_ARENA_FIELDS(X)                                                                       \
    X(mapped_bytes, LOOK_WHOLE, 1, "held from the source: live and rest")                          \
    X(live_bytes, LOOK_PART, 1, "handed out since the last reset, rounded up to 16 bytes")         \
    X(rest_bytes, LOOK_PART, 1, "free, lost and meta together")                                    \
    X(peak_bytes, LOOK_LEVEL, 1, "the most that mapped_bytes has been")                            \
    X(limit_bytes, LOOK_LEVEL, 0, "the most it may hold; 0: no limit")                             \
    X(large_blocks, LOOK_COUNT, 1, "blocks with a span of their own")

#define LOOK_SLAB_FIELDS(X)                                                                        \
    X(mapped_bytes, LOOK_WHOLE, 1, "held from the source and for bookkeeping: live, free and meta") \
    X(live_bytes, LOOK_PART, 1, "slots of live elements")                                          \
    X(free_bytes, LOOK_PART, 1, "ready to be handed out, ends of pages, and what threads have cached") \
    X(meta_bytes, LOOK_PART, 1, "bookkeeping")                                                     \
    X(live_elements, LOOK_COUNT, 1, "elements handed out and not freed")                           \
    X(element_bytes, LOOK_LEVEL, 0, "the size of an element, as asked for")                        \
    X(slot_bytes, LOOK_LEVEL, 1, "the size of an element, rounded up to its alignment")            \
    X(peak_bytes, LOOK_LEVEL, 1, "the most that mapped_bytes has been")                            \
    X(limit_bytes, LOOK_LEVEL, 0, "the most it may hold; 0: no limit")                             \
    X(pages, LOOK_COUNT, 1, "pages held")                                                          \
    X(empty_pages, LOOK_COUNT, 0, "of these, pages without a live element")                        \
    X(caches, LOOK_COUNT, 0, "sets of free elements: one for each thread that is using it")

#define LOOK_PERCPU_FIELDS(X)                                                                      \
    X(mapped_bytes, LOOK_WHOLE, 1, "address space of all copies, and bookkeeping: live, free and meta") \
    X(live_bytes, LOOK_PART, 1, "live objects, times copies")                                      \
    X(free_bytes, LOOK_PART, 1, "what is free of the copies")                                      \
    X(meta_bytes, LOOK_PART, 1, "bookkeeping")                                                     \
    X(live_objects, LOOK_COUNT, 1, "objects handed out and not freed")                             \
    X(live_objects_peak, LOOK_LEVEL, 0, "the most that live_objects has been, or more")            \
    X(limit_bytes, LOOK_LEVEL, 0, "the most it may hold; 0: no limit")                             \
    X(peak_bytes, LOOK_LEVEL, 1, "the most that mapped_bytes has been")                            \
    X(unit_bytes, LOOK_LEVEL, 0, "the largest object")                                             \
    X(cpus, LOOK_LEVEL, 1, "copies, without the shared one")                                       \
    X(chunks, LOOK_COUNT, 1, "chunks held")                                                        \
    X(chunks_peak, LOOK_LEVEL, 0, "the most that chunks has been")                                 \
    X(empty_chunks, LOOK_COUNT, 0, "of these, chunks without a live object")                       \
    X(copies_written, LOOK_COUNT, 1, "units in which something was written or may have been")      \
    X(allocs, LOOK_EVENTS, 0, "objects handed out, ever")                                          \
    X(frees, LOOK_EVENTS, 0, "objects freed, ever")                                                \
    X(unit_free_bytes, LOOK_COUNT, 0, "free in the units of one CPU")                              \
    X(longest_free_bytes, LOOK_LEVEL, 0, "the largest object that fits without a new chunk")       \
    X(fragments, LOOK_COUNT, 0, "free runs before the end of a chunk's last object")               \
    X(fragments_bytes, LOOK_COUNT, 0, "their sum")                                                 \
    X(fragment_bytes_max, LOOK_LEVEL, 0, "the largest of them")                                    \
    X(object_bytes_min, LOOK_LEVEL, 0, "the smallest live object; 0: there is none")               \
    X(object_bytes_median, LOOK_LEVEL, 0, "the live object in the middle, by size")                \
    X(object_bytes_max, LOOK_LEVEL, 0, "the largest live object")                                  \
    X(reserve_bytes, LOOK_LEVEL, 0, "the largest object kept for allocation without waiting")      \
    X(caches, LOOK_COUNT, 0, "sets of chunks: one for each thread that allocates here")

#define LOOK_HEAP_FIELDS(X)                                                                        \
    X(mapped_bytes, LOOK_WHOLE, 1, "held from the source and for bookkeeping: live, free and meta") \
    X(live_bytes, LOOK_PART, 1, "slots of live blocks, rounding included, and live large blocks")  \
    X(free_bytes, LOOK_PART, 1, "slots ready to be handed out, ends of pages, guards")             \
    X(meta_bytes, LOOK_PART, 1, "bookkeeping")                                                     \
    X(rounding_bytes, LOOK_COUNT, 0, "of live_bytes, what nobody asked for: an estimate")          \
    X(live_blocks, LOOK_COUNT, 1, "blocks handed out and not freed")                               \
    X(large_bytes, LOOK_COUNT, 1, "of live_bytes, blocks with a span of their own")                \
    X(large_blocks, LOOK_COUNT, 0, "blocks with a span of their own")                              \
    X(peak_bytes, LOOK_LEVEL, 1, "the most that mapped_bytes has been")                            \
    X(limit_bytes, LOOK_LEVEL, 0, "the most it may hold; 0: no limit")                             \
    X(pages, LOOK_COUNT, 1, "pages of small blocks")                                               \
    X(caches, LOOK_COUNT, 0, "sets of pages: one for each thread that uses the heap or one that has ended")

/* One line for each size of which the heap has ever had a page. */
#define LOOK_HEAP_CLASS_FIELDS(X)                                                                  \
    X(slot_bytes, LOOK_KEY, 1, "the size of the blocks")                                           \
    X(live_blocks, LOOK_COUNT, 1, "blocks handed out and not freed")                               \
    X(page_bytes, LOOK_COUNT, 1, "what the pages of this size hold")                               \
    X(peak_bytes, LOOK_LEVEL, 1, "the most that page_bytes has been")                              \
    X(rounding_bytes, LOOK_COUNT, 1, "of the live blocks, what nobody asked for: an estimate")

#endif
