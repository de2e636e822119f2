// SPDX-License-Identifier: MIT
/*
 * profile.h - what a picture of a trace needs: live bytes over time, size x lifetime, stacks, where live blocks lie.
 *
 *   first pass (life.h)  -> which sites matter, when the peak was      ProfileWanted
 *   second pass, watched -> Profile                                    -> profile_write: schema "quire.profile/1"
 */
#pragma once

#include <cstdint>
#include <cstdio>
#include <unordered_map>
#include <vector>

#include "life.h"

namespace quire {

constexpr uint32_t PROFILE_SAMPLES = 240;
constexpr uint32_t PROFILE_SITES = 12;
constexpr uint32_t PROFILE_LOG2S = 65;  // powers of two, and the lifetime "until the end"

/* What the first pass tells the second. */
struct ProfileWanted {
    std::vector<uint32_t> sites;  // most important first
    uint64_t events = 0, peak_event = 0, start_tick = 0;
    double tick_ns = 1;
};

struct ProfileSample {
    uint64_t ops, ns, live_bytes, live_bytes_max, live_objects;  // ops: allocations, frees and reallocs so far
    std::vector<uint64_t> site_bytes;                            // as in ProfileWanted::sites
};

struct StackUse {
    uint64_t allocations = 0, bytes = 0, grown_bytes = 0;
    uint64_t live = 0, live_bytes = 0, peak_live = 0, peak_live_bytes = 0;  // peak_: when the program had its peak
};

/* Sizes by row, lifetimes by column. */
struct SizeLifetime {
    struct Cell {
        uint64_t count = 0, bytes = 0;
    };
    std::vector<Cell> cells = std::vector<Cell>(size_t{PROFILE_LOG2S} * PROFILE_LOG2S);
};

constexpr unsigned GRAINS = 256;  // of a page: 16 bytes each

/* Where live blocks lie: runs of blocks, each of so many OS pages; the same runs by pages, many more than blocks. */
struct Occupancy {
    struct Block {
        uint64_t bytes = 0, weight = 0;
        uint32_t site = 0;  // whose bytes are most, by majority vote
    };
    struct Page : Block {
        uint64_t grains[GRAINS / 64] = {};  // which of its 16 bytes hold live ones: bit i is grain i
    };
    struct Region {
        uint64_t first_page;
        std::vector<Block> blocks;
        std::vector<Page> pages;
    };
    uint64_t block_pages = 1;
    uint64_t page_pages = 1;      // OS pages in one of `pages`: 1, but in a large map; grains are known where it is 1
    uint64_t left_out_bytes = 0;  // live, but in none of the regions
    std::vector<Region> regions;
};

class Profile : public LifeWatcher {
  public:
    Profile(const Life &life, const ProfileWanted &wanted);
    void born(const LiveObject &object) override;
    void resized(const LiveObject &object, uint64_t size_before) override;
    void died(const LiveObject &object, uint64_t tick) override;
    void after(const qtr_event &event) override;
    void settle();  // after the last event

    const ProfileWanted &wanted() const { return wanted_; }
    const std::vector<ProfileSample> &samples() const { return samples_; }
    const std::vector<StackUse> &stacks() const { return stacks_; }
    const SizeLifetime &whole() const { return whole_; }
    const std::vector<SizeLifetime> &of_sites() const { return of_sites_; }
    const Occupancy &at_peak() const { return at_peak_; }
    const Occupancy &at_end() const { return at_end_; }

  private:
    StackUse &use(uint32_t stack);
    size_t place_of(uint32_t site) const;
    void lived(const LiveObject &object, unsigned life_log2);
    void sample(uint64_t tick);
    uint64_t ns_since(uint64_t from_tick, uint64_t tick) const;

    const Life &life_;
    ProfileWanted wanted_;
    uint64_t stride_, last_tick_ = 0, live_bytes_max_ = 0;
    std::vector<uint8_t> places_;  // by site: its place in wanted_.sites, or none
    std::vector<ProfileSample> samples_;
    std::vector<uint64_t> site_bytes_;
    std::vector<StackUse> stacks_;
    SizeLifetime whole_;
    std::vector<SizeLifetime> of_sites_;
    Occupancy at_peak_, at_end_;
};

ProfileWanted profile_wanted(const Life &life, const qtr_reader *reader);
bool profile_write(const Profile &profile, Sites &sites, Symbols &symbols, FILE *to);

}  // namespace quire
