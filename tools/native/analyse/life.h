// SPDX-License-Identifier: MIT
/*
 * life.h - the trace played through a table of live objects: what each site's objects lived through.
 */
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../trace/reader.h"
#include "program_write.h"
#include "sites.h"
#include "spread.h"

namespace quire {

struct SizeCount {
    uint64_t bytes, count;
};

/* The time from a site's first live object until none is live is one generation. */
struct Generations {
    uint64_t count = 0;  // with the one that is open at the end
    uint64_t allocated_bytes_sum = 0, allocated_bytes_max = 0;
    uint64_t peak_live_bytes_sum = 0, peak_live_bytes_max = 0;
    uint64_t objects_max = 0;
    uint64_t allocated_bytes = 0, peak_live_bytes = 0, objects = 0;  // of the open one
};

struct SiteLife {
    uint64_t count = 0, bytes = 0, frees = 0, reallocs = 0, realloc_bytes = 0;
    uint64_t size_min = UINT64_MAX, size_max = 0;
    uint64_t live = 0, live_bytes = 0, peak_live = 0, peak_live_bytes = 0;
    uint64_t bytes_at_peak = 0;  // of the site when the whole program had its peak
    uint64_t peak_seen = 0;      // number of the program's peak that bytes_at_peak belongs to
    uint64_t cross_thread_frees = 0, zeroed = 0, aligned = 0;
    uint64_t looked_bytes = 0, touched_bytes = 0;  // of large blocks that were looked at before their free
    Spread life_allocations, life_ns;
    Generations generations;
    std::unordered_map<uint64_t, uint64_t> sizes;
    std::vector<uint32_t> allocating, freeing;  // thread numbers

    std::vector<SizeCount> top_sizes(size_t count) const;
    uint8_t untouched_256th() const;  // of a large block
};

struct LifeTotals {
    uint64_t events = 0, allocations = 0, frees = 0, reallocs = 0;
    uint64_t unknown_frees = 0;  // of blocks the trace does not know: dropped
    uint64_t missed_frees = 0;   // an address was handed out again without a free between
    uint64_t live = 0, live_bytes = 0, peak_live_bytes = 0, peak_live = 0;
    uint64_t peak_event = 0;  // number of the event after which peak_live_bytes were live first
    uint64_t threads = 0;
    uint64_t events_outside = 0;  // of the time that was asked for
};

struct LiveObject {
    uint64_t address, size, birth_tick, birth_number;
    uint32_t site, slot, thread, birth_thread, stack;
    bool shared;  // touched by two threads
};

/* Who else wants to know: told after Life's own figures are up to date. */
class LifeWatcher {
  public:
    virtual ~LifeWatcher() = default;
    virtual void born(const LiveObject &object) = 0;
    virtual void resized(const LiveObject &object, uint64_t size_before) = 0;
    virtual void died(const LiveObject &object, uint64_t tick) = 0;
    virtual void after(const qtr_event &event) = 0;
};

class Life {
  public:
    Life(Sites &sites, ProgramWriter *program, double tick_ns);
    void event(const qtr_event &event);
    void left_out() { totals_.events_outside++; }
    void settle();  // after the last event
    void watch(LifeWatcher *watcher) { watcher_ = watcher; }
    const LifeTotals &totals() const { return totals_; }
    const std::vector<SiteLife> &sites() const { return lives_; }
    const std::vector<uint64_t> &stack_uses() const { return stack_uses_; }
    template <typename Visit> void each_live(Visit visit) const {
        for (const Place &place : table_) {
            if (place.address != 0) {
                visit(objects_[place.object]);
            }
        }
    }

  private:
    using Object = LiveObject;
    struct Place {
        uint64_t address;  // 0: free
        uint32_t object;
    };
    static constexpr uint32_t none = UINT32_MAX;

    void allocate(const qtr_event &event);
    void release(const qtr_event &event);
    void touched(const qtr_event &event);
    void realloc_begin(const qtr_event &event);
    void realloc_end(const qtr_event &event);
    void die(uint32_t index, const qtr_event &event);
    void grow_live(SiteLife &site, uint64_t bytes);
    void shrink_live(SiteLife &site, uint64_t bytes);
    bool touch(Object &object, uint32_t thread);
    void generation_end(SiteLife &site);

    size_t place_of(uint64_t address) const;
    uint32_t take(uint64_t address);
    void put(uint64_t address, uint32_t index);
    void table_grow();

    Sites &sites_;
    ProgramWriter *program_;
    LifeWatcher *watcher_ = nullptr;
    double tick_ns_;
    LifeTotals totals_;
    uint64_t peaks_ = 1;
    std::vector<SiteLife> lives_;
    std::vector<Object> objects_;
    std::vector<uint32_t> free_objects_;
    std::vector<Place> table_;
    size_t table_used_ = 0;
    std::vector<uint32_t> in_realloc_;  // by thread: the object whose new address comes next
    std::vector<uint64_t> stack_uses_;
    uint32_t threads_seen_ = 0;
};

}  // namespace quire
