// SPDX-License-Identifier: MIT
/*
 * spread.h - how a quantity is spread: a histogram of eight steps a power of two, so percentiles are right to 7 %.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quire {

class Spread {
  public:
    void add(uint64_t value) {
        size_t at = bucket(value);
        if (at >= counts_.size()) {
            counts_.resize(at + 1);
        }
        counts_[at]++;
        total_++;
        max_ = std::max(max_, value);
    }
    uint64_t max() const { return max_; }
    /* The value that `percent` of all do not exceed; 0 when there are none. */
    uint64_t percentile(unsigned percent) const {
        uint64_t wanted = (total_ * percent + 99) / 100, seen = 0;
        for (size_t i = 0; i < counts_.size(); i++) {
            seen += counts_[i];
            if (seen >= wanted && wanted > 0) {
                return std::min(middle(i), max_);
            }
        }
        return max_;
    }

  private:
    static size_t bucket(uint64_t value) {
        if (value < 8) {
            return static_cast<size_t>(value);
        }
        unsigned high = 63u - static_cast<unsigned>(__builtin_clzll(value));
        return (high - 2u) * 8u + static_cast<size_t>(value >> (high - 3u) & 7u);
    }
    static uint64_t middle(size_t at) {
        if (at < 8) {
            return at;
        }
        unsigned high = static_cast<unsigned>(at / 8) + 2u;
        uint64_t low = (8u + at % 8) << (high - 3u);
        return low + ((uint64_t{1} << (high - 3u)) - 1) / 2;
    }
    std::vector<uint32_t> counts_;
    uint64_t total_ = 0, max_ = 0;
};

}  // namespace quire
