// SPDX-License-Identifier: MIT
/*
 * profile.cc - the second pass over a trace, for pictures.
 *
 *   events  |----stride----|----stride----|---- ... ----|      a sample at the end of each stride: PROFILE_SAMPLES of them
 *                              ^ the peak's event: stacks' live bytes and the pages' occupancy are taken here, and at the end
 *
 * Invariants:
 *   F1  the stacks' allocations and bytes are the sites' counts and bytes
 *   F2  the cells' counts, with those that live to the end, are the program's allocations
 *   F3  the last sample's live bytes are what is live at the end
 *   F4  a block's live bytes are those of its pages
 *
 * Memory: 56 bytes a stack, a sample or a matrix of fixed size, and for a moment about 96 bytes a page
 * that holds live bytes, of at most PAGES_MAX pages.
 * Locks: none.  Not here: the objects (life.cc), JSON (profile_write.cc).
 */
#include "profile.h"

#include <algorithm>

namespace quire {

namespace {

constexpr uint8_t none = 255;
constexpr unsigned PAGE_LOG2 = 12;
constexpr uint64_t OBJECT_PAGES_MAX = 1u << 16;  // of one object: a terabyte may be asked for and never be touched
constexpr size_t PAGES_MAX = 1u << 20;           // of all: 4 GiB
constexpr uint64_t BLOCKS_WANTED = 2048;  // seen at once
constexpr uint64_t PAGES_WANTED = 32768;  // seen by zooming in: 128 MiB by single pages
constexpr unsigned GRAIN_LOG2 = 4;
static_assert(GRAINS << GRAIN_LOG2 == 1u << PAGE_LOG2, "grains are a page");
constexpr uint64_t GAP_PAGES_MAX = 16;  // more empty pages than that part two regions
constexpr size_t REGIONS_MAX = 64;
constexpr unsigned UNTIL_END = PROFILE_LOG2S - 1;

unsigned log2_of(uint64_t value) {
    return value == 0 ? 0 : 63u - static_cast<unsigned>(__builtin_clzll(value));
}

using Pages = std::unordered_map<uint64_t, Occupancy::Page>;

/* Majority vote: what is left of the heaviest site after every other took its weight away. */
void weigh(Occupancy::Block &into, uint32_t site, uint64_t weight) {
    if (into.site == site) {
        into.weight += weight;
    } else if (into.weight >= weight) {
        into.weight -= weight;
    } else {
        into.site = site;
        into.weight = weight - into.weight;
    }
}

/* Marks the grains that `bytes` bytes from offset `from` lie in. */
void mark(Occupancy::Page &page, uint64_t from, uint64_t bytes) {
    uint64_t first = from >> GRAIN_LOG2, last = (from + bytes - 1) >> GRAIN_LOG2;
    for (uint64_t word = first / 64; word <= last / 64; word++) {
        uint64_t low = std::max(first, word * 64), high = std::min(last, word * 64 + 63);
        page.grains[word] |= ~uint64_t{0} >> (63 - (high - low)) << (low % 64);
    }
}

/* How many of the object's bytes found no place. */
uint64_t page_add(Pages &pages, const LiveObject &object) {
    uint64_t left = std::min(object.size, OBJECT_PAGES_MAX << PAGE_LOG2), missed = object.size - left;
    for (uint64_t from = object.address; left > 0;) {
        uint64_t page = from >> PAGE_LOG2, offset = from & ((uint64_t{1} << PAGE_LOG2) - 1);
        uint64_t bytes = std::min(left, (uint64_t{1} << PAGE_LOG2) - offset);
        if (pages.size() < PAGES_MAX || pages.count(page) != 0) {
            Occupancy::Page &into = pages[page];
            into.bytes += bytes;
            weigh(into, object.site, bytes);
            mark(into, offset, bytes);
        } else {
            missed += bytes;
        }
        from += bytes;  // modulo 2^64 in a damaged trace
        left -= bytes;
    }
    return missed;
}

struct Run {
    size_t first, end;  // of the sorted page numbers
    uint64_t pages;
};

std::vector<Run> runs_of(const std::vector<uint64_t> &numbers) {
    std::vector<Run> runs;
    for (size_t i = 0; i < numbers.size(); i++) {
        if (i == 0 || numbers[i] - numbers[i - 1] > GAP_PAGES_MAX) {
            runs.push_back({i, i, 0});
        }
        runs.back().end = i + 1;
        runs.back().pages = numbers[i] - numbers[runs.back().first] + 1;
    }
    return runs;
}

void merge(Occupancy::Block &into, const Occupancy::Block &page) {
    into.bytes += page.bytes;
    weigh(into, page.site, page.weight);
}

/* The least power of two that puts `total` together to no more than `wanted`. */
uint64_t together(uint64_t total, uint64_t wanted) {
    uint64_t pages = 1;
    while (total / pages > wanted) {
        pages *= 2;
    }
    return pages;
}

/* One run's blocks and pages. */
Occupancy::Region region_of(const Run &run, const std::vector<uint64_t> &numbers, const Pages &pages,
                            const Occupancy &map) {
    Occupancy::Region region = {numbers[run.first], {}, {}};
    region.blocks.resize((run.pages + map.block_pages - 1) / map.block_pages);
    region.pages.resize((run.pages + map.page_pages - 1) / map.page_pages);
    for (size_t i = run.first; i < run.end; i++) {
        uint64_t at = numbers[i] - region.first_page;
        const Occupancy::Page &page = pages.at(numbers[i]);
        merge(region.blocks[at / map.block_pages], page);
        if (map.page_pages == 1) {
            region.pages[at] = page;
        } else {
            merge(region.pages[at / map.page_pages], page);
        }
    }
    return region;
}

Occupancy occupancy(const Life &life) {
    Pages pages;
    Occupancy result;
    life.each_live([&](const LiveObject &object) { result.left_out_bytes += page_add(pages, object); });
    std::vector<uint64_t> numbers;
    numbers.reserve(pages.size());
    for (const auto &page : pages) {
        numbers.push_back(page.first);
    }
    std::sort(numbers.begin(), numbers.end());
    std::vector<Run> runs = runs_of(numbers);
    std::sort(runs.begin(), runs.end(), [](const Run &a, const Run &b) {
        return a.pages != b.pages ? a.pages > b.pages : a.first < b.first;
    });
    uint64_t total = 0;
    for (size_t i = 0; i < runs.size(); i++) {
        total += i < REGIONS_MAX ? runs[i].pages : 0;
        for (size_t at = runs[i].first; i >= REGIONS_MAX && at < runs[i].end; at++) {
            result.left_out_bytes += pages[numbers[at]].bytes;
        }
    }
    result.block_pages = together(total, BLOCKS_WANTED);
    result.page_pages = together(total, PAGES_WANTED);
    runs.resize(std::min(runs.size(), REGIONS_MAX));
    for (const Run &run : runs) {
        result.regions.push_back(region_of(run, numbers, pages, result));
    }
    return result;
}

/* The first `count` sites by a figure, after those that are in already. */
template <typename Figure> void most(std::vector<uint32_t> &into, const Life &life, size_t count, Figure figure) {
    const std::vector<SiteLife> &lives = life.sites();
    std::vector<uint32_t> order;
    for (uint32_t id = 0; id < lives.size(); id++) {
        if (lives[id].count > 0 && std::find(into.begin(), into.end(), id) == into.end()) {
            order.push_back(id);
        }
    }
    count = std::min(count, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                      [&](uint32_t a, uint32_t b) {
                          uint64_t of_a = figure(lives[a]), of_b = figure(lives[b]);
                          return of_a != of_b ? of_a > of_b : a < b;
                      });
    into.insert(into.end(), order.begin(), order.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace

ProfileWanted profile_wanted(const Life &life, const qtr_reader *reader) {
    ProfileWanted wanted;
    most(wanted.sites, life, PROFILE_SITES / 2, [](const SiteLife &site) { return site.bytes_at_peak; });
    most(wanted.sites, life, PROFILE_SITES - wanted.sites.size(), [](const SiteLife &site) { return site.count; });
    wanted.events = life.totals().events;
    wanted.peak_event = life.totals().peak_event;
    wanted.start_tick = qtr_reader_header(reader)->start_tick;
    wanted.tick_ns = qtr_tick_ns(reader);
    return wanted;
}

Profile::Profile(const Life &life, const ProfileWanted &wanted)
    : life_(life), wanted_(wanted), stride_((wanted.events + PROFILE_SAMPLES - 1) / PROFILE_SAMPLES) {
    stride_ = std::max<uint64_t>(stride_, 1);
    last_tick_ = wanted.start_tick;
    places_.assign(life.sites().size(), none);
    for (size_t i = 0; i < wanted.sites.size(); i++) {
        places_[wanted.sites[i]] = static_cast<uint8_t>(i);
    }
    site_bytes_.resize(wanted.sites.size());
    of_sites_.resize(wanted.sites.size());
}

StackUse &Profile::use(uint32_t stack) {
    size_t at = stack < STACKS_MAX ? stack : 0;
    if (at >= stacks_.size()) {
        stacks_.resize(at + 1024);
    }
    return stacks_[at];
}

size_t Profile::place_of(uint32_t site) const {
    return site < places_.size() ? places_[site] : none;
}

uint64_t Profile::ns_since(uint64_t from_tick, uint64_t tick) const {
    return tick > from_tick ? static_cast<uint64_t>(static_cast<double>(tick - from_tick) * wanted_.tick_ns) : 0;
}

void Profile::born(const LiveObject &object) {
    StackUse &stack = use(object.stack);
    stack.allocations++;
    stack.bytes += object.size;
    stack.live++;
    stack.live_bytes += object.size;
    size_t place = place_of(object.site);
    if (place != none) {
        site_bytes_[place] += object.size;
    }
}

void Profile::resized(const LiveObject &object, uint64_t size_before) {
    StackUse &stack = use(object.stack);
    stack.grown_bytes += object.size > size_before ? object.size - size_before : 0;
    stack.live_bytes += object.size - size_before;  // modulo 2^64 when it shrinks
    size_t place = place_of(object.site);
    if (place != none) {
        site_bytes_[place] += object.size - size_before;
    }
}

void Profile::lived(const LiveObject &object, unsigned life_log2) {
    size_t at = size_t{log2_of(object.size)} * PROFILE_LOG2S + life_log2;
    whole_.cells[at].count++;
    whole_.cells[at].bytes += object.size;
    size_t place = place_of(object.site);
    if (place != none) {
        of_sites_[place].cells[at].count++;
        of_sites_[place].cells[at].bytes += object.size;
    }
}

void Profile::died(const LiveObject &object, uint64_t tick) {
    StackUse &stack = use(object.stack);
    stack.live--;
    stack.live_bytes -= object.size;
    size_t place = place_of(object.site);
    if (place != none) {
        site_bytes_[place] -= object.size;
    }
    lived(object, log2_of(ns_since(object.birth_tick, tick)));
}

void Profile::sample(uint64_t tick) {
    const LifeTotals &totals = life_.totals();
    uint64_t ops = totals.allocations + totals.frees + totals.reallocs;
    samples_.push_back({ops, ns_since(wanted_.start_tick, tick), totals.live_bytes, live_bytes_max_, totals.live,
                        site_bytes_});
    live_bytes_max_ = totals.live_bytes;
}

void Profile::after(const qtr_event &event) {
    const LifeTotals &totals = life_.totals();
    last_tick_ = event.tick;
    live_bytes_max_ = std::max(live_bytes_max_, totals.live_bytes);
    if (totals.events == wanted_.peak_event) {
        for (StackUse &stack : stacks_) {
            stack.peak_live = stack.live;
            stack.peak_live_bytes = stack.live_bytes;
        }
        at_peak_ = occupancy(life_);
    }
    if (totals.events % stride_ == 0) {
        sample(event.tick);
    }
}

void Profile::settle() {
    if (life_.totals().events % stride_ != 0 || samples_.empty()) {
        sample(last_tick_);
    }
    life_.each_live([&](const LiveObject &object) { lived(object, UNTIL_END); });
    at_end_ = occupancy(life_);
}

}  // namespace quire
