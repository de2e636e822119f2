// SPDX-License-Identifier: MIT
/*
 * percpu_figures.h - the statistics of a pool as they follow from where its live objects lie, counted one by one.
 *
 *     | first | object | hole | object | object | free to the end |       a chunk's unit: `fragments` are its holes
 */
#pragma once

#include <algorithm>
#include <vector>

#include <quire/percpu.h>

#include "model/must.h"

class PercpuFigures {
public:
    PercpuFigures(size_t unit_bytes_, size_t copies_) : unit_bytes(unit_bytes_), copies(copies_) {}

    /* The live objects, in the order of their addresses. */
    void add(uintptr_t bits, size_t asked_bytes, size_t align)
    {
        uintptr_t unit = bits / unit_bytes * unit_bytes;
        size_t bytes = (asked_bytes + 3) / 4 * 4;
        if (unit != at_unit || chunks == 0) {
            close();
            chunks++;
            at_unit = unit;
            at_end = unit + FIRST_BYTES;
        }
        if (bits > at_end)
            hole(bits - at_end);
        at_end = bits + bytes;
        sizes.push_back(bytes);
        live_bytes += bytes;
        rounded_bytes += (bytes + align - 1) / align * align;
    }

    void agree(const struct quire_percpu_stats &seen, size_t reserve_bytes)
    {
        close();
        std::sort(sizes.begin(), sizes.end());
        MUST(seen.mapped_bytes == seen.live_bytes + seen.free_bytes + seen.meta_bytes);
        MUST(seen.peak_bytes >= seen.mapped_bytes);
        MUST(seen.live_objects == sizes.size() && seen.live_bytes % copies == 0);
        size_t held = seen.live_bytes / copies; /* of what there is many of, rounded up to its alignment: which that is, is the pool's to know */
        MUST(held >= live_bytes && held <= rounded_bytes);
        MUST(seen.chunks >= chunks && seen.empty_chunks == seen.chunks - chunks && seen.chunks_peak >= seen.chunks);
        MUST(seen.mapped_bytes - seen.meta_bytes == seen.chunks * copies * unit_bytes);
        MUST(seen.unit_free_bytes == seen.chunks * unit_bytes - held);
        MUST(seen.free_bytes == seen.unit_free_bytes * copies);
        MUST(seen.copies_written <= seen.chunks * copies);
        if (held != live_bytes)
            return; /* holes and sizes are of what is held, too */
        MUST(seen.fragments == fragments && seen.fragments_bytes == fragments_bytes && seen.fragment_bytes_max == fragment_bytes_max);
        if (reserve_bytes == 0) /* of a page of objects of one size only these can be had */
            MUST(seen.longest_free_bytes <= (seen.empty_chunks ? unit_bytes : longest));
        MUST(seen.object_bytes_min == (sizes.empty() ? 0 : sizes.front()) && seen.object_bytes_max == (sizes.empty() ? 0 : sizes.back()));
        size_t median = sizes.empty() ? 0 : sizes[(sizes.size() - 1) / 2];
        MUST(seen.object_bytes_median <= median && seen.object_bytes_median >= (median <= 1024 ? median : median - median / 5));
    }

private:
    enum { FIRST_BYTES = 64 }; /* of a unit: the pool's own */

    void hole(size_t bytes)
    {
        fragments++;
        fragments_bytes += bytes;
        fragment_bytes_max = std::max(fragment_bytes_max, bytes);
        longest = std::max(longest, bytes);
    }
    void close()
    {
        if (chunks)
            longest = std::max<size_t>(longest, at_unit + unit_bytes - at_end);
    }

    size_t unit_bytes, copies, chunks = 0, live_bytes = 0, rounded_bytes = 0, fragments = 0, fragments_bytes = 0, fragment_bytes_max = 0, longest = 0;
    uintptr_t at_unit = 0, at_end = 0;
    std::vector<size_t> sizes;
};
