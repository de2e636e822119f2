// SPDX-License-Identifier: MIT
/*
 * program_write.h - makes a replay program (../trace/program.h) from a stream of events.
 */
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "../trace/program.h"
#include "../trace/reader.h"

namespace quire {

class ProgramWriter {
  public:
    explicit ProgramWriter(const std::string &path) : path_(path) {}
    ~ProgramWriter();
    ProgramWriter(const ProgramWriter &) = delete;
    ProgramWriter &operator=(const ProgramWriter &) = delete;
    bool open(std::string &error);

    uint32_t fill(const qtr_event &event, uint32_t site);  // a new object's slot
    void resize(const qtr_event &event, uint32_t site, uint32_t slot, bool crossed);
    /* flags: 1 the slot was touched last by another thread; 2 two threads ever touched it */
    void empty(uint32_t thread, uint32_t site, uint32_t slot, unsigned flags);

    struct End {
        uint32_t sites;
        uint64_t peak_live_bytes;
        const std::vector<uint32_t> *tids;  // by thread number
        std::vector<uint8_t> untouched;     // by site: so many 256ths of a large object are never touched
    };
    bool finish(const End &end, std::string &error);

  private:
    struct Thread {
        std::vector<qrp_op> open;      // not yet spilled
        std::vector<uint64_t> blocks;  // where its full blocks lie in the spill file
        std::vector<uint32_t> free_slots;
        uint64_t ops = 0;
    };
    Thread &thread(uint32_t number);
    uint32_t slot_take(Thread &of);
    void put(uint32_t number, const qrp_op &op);
    void note_order(uint32_t number);
    void put_sized(uint32_t number, qrp_op op, uint64_t size);
    bool copy_ops(const Thread &thread, const std::vector<uint8_t> &untouched, FILE *to);

    std::string path_;
    FILE *spill_ = nullptr;
    uint64_t spilled_ = 0;
    bool failed_ = false;
    std::vector<Thread> threads_;
    uint64_t ops_ = 0;
    uint32_t slots_ = 0;
    std::deque<uint32_t> shared_free_;  // that two threads touched, longest empty first
    std::vector<qrp_run> runs_;  // the global order; given up, and left out of the file, past RUNS_MAX
    bool runs_given_up_ = false;
};

}  // namespace quire
