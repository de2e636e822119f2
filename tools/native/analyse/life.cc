// SPDX-License-Identifier: MIT
/*
 * life.cc - one event after the other into the live objects, the sites' figures and the replay program.
 *
 *   address -> table (open addressing, no tombstones) -> object { site, slot, birth } -> site's figures
 *
 * Invariants:
 *   L1  an address is in the table exactly while its block is live; between the two halves of a realloc it is in none
 *   L2  the sum of the sites' live bytes is the program's live bytes
 *   L3  a site's bytes_at_peak is of the peak numbered peak_seen; it is brought up to date before the site changes
 *
 * Memory: the live objects, and per site a few hundred bytes and its different sizes (at most SIZES_MAX).
 * Locks: none.  Not here: order of events (../trace/merge.c), slots (program_write.cc).
 */
#include "life.h"

namespace quire {

namespace {

constexpr size_t SIZES_MAX = 4096;

void remember(std::vector<uint32_t> &threads, uint32_t thread) {
    if (threads.empty() || threads.back() != thread) {
        auto found = std::find(threads.begin(), threads.end(), thread);
        if (found != threads.end()) {
            std::swap(*found, threads.back());
        } else {
            threads.push_back(thread);
        }
    }
}

/* The rarer half of the sizes goes, so that one that comes late and often finds room. */
void forget_rare(std::unordered_map<uint64_t, uint64_t> &sizes, uint64_t newest) {
    std::vector<uint64_t> counts;
    for (const auto &size : sizes) {
        counts.push_back(size.second);
    }
    std::nth_element(counts.begin(), counts.begin() + SIZES_MAX / 2, counts.end());
    uint64_t middle = counts[SIZES_MAX / 2];
    for (auto at = sizes.begin(); at != sizes.end();) {
        at = at->second <= middle && at->first != newest ? sizes.erase(at) : std::next(at);
    }
}

uint64_t scattered(uint64_t address) {
    return (address >> 3) * 0x9e3779b97f4a7c15u;
}

}  // namespace

std::vector<SizeCount> SiteLife::top_sizes(size_t wanted) const {
    std::vector<SizeCount> result;
    for (const auto &size : sizes) {
        result.push_back({size.first, size.second});
    }
    std::sort(result.begin(), result.end(), [](const SizeCount &a, const SizeCount &b) {
        return a.count != b.count ? a.count > b.count : a.bytes < b.bytes;
    });
    result.resize(std::min(result.size(), wanted));
    return result;
}

uint8_t SiteLife::untouched_256th() const {
    uint64_t untouched = looked_bytes - touched_bytes;
    return looked_bytes == 0 ? 0 : static_cast<uint8_t>(std::min(255.0, 256.0 * static_cast<double>(untouched) / static_cast<double>(looked_bytes)));
}

Life::Life(Sites &sites, ProgramWriter *program, double tick_ns) : sites_(sites), program_(program), tick_ns_(tick_ns) {
    lives_.resize(sites.all().size());
    table_.resize(1u << 16);
}

size_t Life::place_of(uint64_t address) const {
    size_t mask = table_.size() - 1;
    size_t at = static_cast<size_t>(scattered(address) >> 20) & mask;
    while (table_[at].address != 0 && table_[at].address != address) {
        at = (at + 1) & mask;
    }
    return at;
}

void Life::table_grow() {
    std::vector<Place> old(table_.size() * 2);
    old.swap(table_);
    for (const Place &place : old) {
        if (place.address != 0) {
            table_[place_of(place.address)] = place;
        }
    }
}

void Life::put(uint64_t address, uint32_t index) {
    if (++table_used_ * 2 > table_.size()) {
        table_grow();
    }
    table_[place_of(address)] = {address, index};
}

/* Out of the table; `none` when the address is not there. */
uint32_t Life::take(uint64_t address) {
    size_t mask = table_.size() - 1, hole = place_of(address);
    if (address == 0 || table_[hole].address == 0) {
        return none;
    }
    uint32_t index = table_[hole].object;
    for (size_t at = (hole + 1) & mask; table_[at].address != 0; at = (at + 1) & mask) {
        size_t home = static_cast<size_t>(scattered(table_[at].address) >> 20) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            table_[hole] = table_[at];
            hole = at;
        }
    }
    table_[hole].address = 0;
    table_used_--;
    return index;
}

void Life::grow_live(SiteLife &site, uint64_t bytes) {
    if (site.peak_seen != peaks_) {
        site.bytes_at_peak = site.live_bytes;
        site.peak_seen = peaks_;
    }
    site.live_bytes += bytes;
    site.peak_live_bytes = std::max(site.peak_live_bytes, site.live_bytes);
    site.generations.peak_live_bytes = std::max(site.generations.peak_live_bytes, site.live_bytes);
    totals_.live_bytes += bytes;
    if (totals_.live_bytes > totals_.peak_live_bytes) {
        totals_.peak_live_bytes = totals_.live_bytes;
        totals_.peak_event = totals_.events;
        peaks_++;
    }
}

void Life::shrink_live(SiteLife &site, uint64_t bytes) {
    if (site.peak_seen != peaks_) {
        site.bytes_at_peak = site.live_bytes;
        site.peak_seen = peaks_;
    }
    site.live_bytes -= bytes;
    totals_.live_bytes -= bytes;
}

/* True when another thread had the object last. */
bool Life::touch(Object &object, uint32_t thread) {
    bool crossed = object.thread != thread;
    object.thread = thread;
    object.shared = object.shared || crossed;
    return crossed;
}

void Life::generation_end(SiteLife &site) {
    Generations &g = site.generations;
    g.count++;
    g.allocated_bytes_sum += g.allocated_bytes;
    g.allocated_bytes_max = std::max(g.allocated_bytes_max, g.allocated_bytes);
    g.peak_live_bytes_sum += g.peak_live_bytes;
    g.peak_live_bytes_max = std::max(g.peak_live_bytes_max, g.peak_live_bytes);
    g.objects_max = std::max(g.objects_max, g.objects);
    g.allocated_bytes = g.peak_live_bytes = g.objects = 0;
}

void Life::allocate(const qtr_event &event) {
    uint32_t missed = take(event.address);
    if (missed != none) {
        totals_.missed_frees++;
        die(missed, event);
    }
    uint32_t number = sites_.of(event.stack), index;
    SiteLife &site = lives_[number];
    if (free_objects_.empty()) {
        index = static_cast<uint32_t>(objects_.size());
        objects_.emplace_back();
    } else {
        index = free_objects_.back();
        free_objects_.pop_back();
    }
    totals_.allocations++;
    site.count++;
    site.bytes += event.size;
    site.size_min = std::min(site.size_min, event.size);
    site.size_max = std::max(site.size_max, event.size);
    site.zeroed += event.kind == QTR_CALLOC;
    site.aligned += event.kind == QTR_ALIGNED;
    site.sizes[event.size]++;
    if (site.sizes.size() > SIZES_MAX) {
        forget_rare(site.sizes, event.size);
    }
    site.live++;
    site.peak_live = std::max(site.peak_live, site.live);
    site.generations.objects++;
    site.generations.allocated_bytes += event.size;
    remember(site.allocating, event.thread);
    totals_.live++;
    totals_.peak_live = std::max(totals_.peak_live, totals_.live);
    grow_live(site, event.size);
    uint32_t slot = program_ != nullptr ? program_->fill(event, number) : 0;
    objects_[index] = {event.address, event.size,   event.tick,   totals_.allocations, number,
                       slot,          event.thread, event.thread, event.stack,         false};
    put(event.address, index);
    if (watcher_ != nullptr) {
        watcher_->born(objects_[index]);
    }
    if (event.stack < STACKS_MAX) {
        if (event.stack >= stack_uses_.size()) {
            stack_uses_.resize(event.stack + 1024u);
        }
        stack_uses_[event.stack]++;
    }
}

void Life::die(uint32_t index, const qtr_event &event) {
    Object &object = objects_[index];
    SiteLife &site = lives_[object.site];
    bool crossed = touch(object, event.thread);
    site.frees++;
    site.cross_thread_frees += event.thread != object.birth_thread;
    remember(site.freeing, event.thread);
    site.life_allocations.add(totals_.allocations - object.birth_number);
    uint64_t ticks = event.tick > object.birth_tick ? event.tick - object.birth_tick : 0;
    site.life_ns.add(static_cast<uint64_t>(static_cast<double>(ticks) * tick_ns_));
    shrink_live(site, object.size);
    totals_.live--;
    if (--site.live == 0) {
        generation_end(site);
    }
    if (program_ != nullptr) {
        program_->empty(event.thread, object.site, object.slot, (crossed ? 1u : 0u) | (object.shared ? 2u : 0u));
    }
    if (watcher_ != nullptr) {
        watcher_->died(object, event.tick);
    }
    free_objects_.push_back(index);
}

void Life::release(const qtr_event &event) {
    uint32_t index = take(event.address);
    if (index == none) {
        totals_.unknown_frees++;
        return;
    }
    totals_.frees++;
    die(index, event);
}

void Life::touched(const qtr_event &event) {
    const Place &place = table_[place_of(event.address)];
    if (event.address == 0 || place.address == 0 || objects_[place.object].size < QTR_LARGE_BYTES) {
        return;  // a block of before, whose address another has
    }
    const Object &object = objects_[place.object];
    lives_[object.site].looked_bytes += object.size;
    lives_[object.site].touched_bytes += std::min(object.size, event.size);
}

void Life::realloc_begin(const qtr_event &event) {
    if (event.thread >= in_realloc_.size()) {
        in_realloc_.resize(event.thread + 64u, none);
    }
    in_realloc_[event.thread] = take(event.address);
}

void Life::realloc_end(const qtr_event &event) {
    uint32_t index = none;
    if (event.thread < in_realloc_.size()) {
        std::swap(index, in_realloc_[event.thread]);
    }
    if (index == none) {  // of a block that the trace does not know: born here
        totals_.unknown_frees++;
        allocate(event);
        return;
    }
    uint32_t missed = take(event.address);
    if (missed != none) {
        totals_.missed_frees++;
        die(missed, event);
    }
    Object &object = objects_[index];
    SiteLife &site = lives_[object.site];
    bool crossed = touch(object, event.thread);
    totals_.reallocs++;
    site.reallocs++;
    site.realloc_bytes += event.size;
    site.size_max = std::max(site.size_max, event.size);
    site.generations.allocated_bytes += event.size;
    if (event.size >= object.size) {
        grow_live(site, event.size - object.size);
    } else {
        shrink_live(site, object.size - event.size);
    }
    uint64_t size_before = object.size;
    object.size = event.size;
    object.address = event.address;
    put(event.address, index);
    if (watcher_ != nullptr) {
        watcher_->resized(object, size_before);
    }
    if (program_ != nullptr) {
        program_->resize(event, object.site, object.slot, crossed);
    }
}

void Life::event(const qtr_event &event) {
    if (event.kind == QTR_TOUCHED) {  // no call of the program's
        touched(event);
        return;
    }
    totals_.events++;
    if (event.thread > threads_seen_) {
        threads_seen_ = event.thread;
    }
    switch (event.kind) {
    case QTR_MALLOC:
    case QTR_CALLOC:
    case QTR_ALIGNED:
        allocate(event);
        break;
    case QTR_REALLOC_BEGIN:
        realloc_begin(event);
        break;
    case QTR_REALLOC_END:
        realloc_end(event);
        break;
    default:
        release(event);
    }
    if (watcher_ != nullptr) {
        watcher_->after(event);
    }
}

void Life::settle() {
    totals_.threads = threads_seen_;
    for (SiteLife &site : lives_) {
        if (site.peak_seen != peaks_) {
            site.bytes_at_peak = site.live_bytes;
            site.peak_seen = peaks_;
        }
        if (site.live > 0) {
            generation_end(site);
        }
    }
    for (size_t stack = 1; stack < stack_uses_.size(); stack++) {
        if (stack_uses_[stack] > 0) {
            sites_.used(static_cast<uint32_t>(stack), stack_uses_[stack]);
        }
    }
}

}  // namespace quire
