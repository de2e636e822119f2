// SPDX-License-Identifier: MIT
/*
 * program_write.cc - ops thread after thread, from events that come in one order for all.
 *
 *   thread 1: [4096 ops] [4096 ops] open      full blocks go to a nameless file as they fill;
 *   thread 2: [4096 ops] open                 at the end they are copied out, one thread after the other
 *
 * Invariants: Q1 to Q7 of program.h.  A slot is reused by the thread that filled and emptied it, newest first.  One that a
 * second thread touched is reused by anyone, but only after SHARED_REST others of its kind were emptied (Q4): whoever waits
 * for the old object's end then never waits in earnest, and slots are as many as live objects, not as objects.
 * Memory: 64 KiB a thread, the free slots, and 8 bytes for each turn of the threads, up to RUNS_MAX turns.
 */
#include "program_write.h"

#include <cerrno>
#include <cstring>

namespace quire {

namespace {
constexpr size_t BLOCK_OPS = 4096;
constexpr size_t SHARED_REST = 256u << 10;
constexpr size_t RUNS_MAX = 32u << 20;  // 256 MiB: threads that take turns at every call, for 32 M turns
}

ProgramWriter::~ProgramWriter() {
    if (spill_ != nullptr) {
        std::fclose(spill_);
    }
}

bool ProgramWriter::open(std::string &error) {
    std::string name = path_ + ".part";
    spill_ = std::fopen(name.c_str(), "w+be");
    if (spill_ == nullptr) {
        error = name + ": " + std::strerror(errno);
        return false;
    }
    std::remove(name.c_str());
    return true;
}

ProgramWriter::Thread &ProgramWriter::thread(uint32_t number) {
    if (number >= threads_.size()) {
        threads_.resize(number + 1u);
    }
    return threads_[number];
}

void ProgramWriter::note_order(uint32_t number) {
    if (runs_given_up_) {
        return;
    }
    if (runs_.empty() || runs_.back().thread != number || runs_.back().ops == UINT32_MAX) {
        if (runs_.size() == RUNS_MAX) {
            runs_given_up_ = true;
            std::vector<qrp_run>().swap(runs_);
            return;
        }
        runs_.push_back({number, 0});
    }
    runs_.back().ops++;
}

void ProgramWriter::put(uint32_t number, const qrp_op &op) {
    Thread &of = thread(number);
    note_order(number);
    of.open.push_back(op);
    of.ops++;
    ops_++;
    if (of.open.size() == BLOCK_OPS) {
        failed_ = failed_ || std::fwrite(of.open.data(), sizeof op, BLOCK_OPS, spill_) != BLOCK_OPS;
        of.blocks.push_back(spilled_);
        spilled_ += BLOCK_OPS * sizeof op;
        of.open.clear();
    }
}

void ProgramWriter::put_sized(uint32_t number, qrp_op op, uint64_t size) {
    if (size > UINT32_MAX) {
        qrp_op high = op;
        high.kind = QRP_SIZE_HI;
        high.flags = 0;
        high.size = static_cast<uint32_t>(size >> 32);
        put(number, high);
    }
    op.size = static_cast<uint32_t>(size);
    put(number, op);
}

uint32_t ProgramWriter::slot_take(Thread &of) {
    if (of.free_slots.empty() && shared_free_.size() > SHARED_REST) {
        uint32_t slot = shared_free_.front();
        shared_free_.pop_front();
        return slot;
    }
    if (of.free_slots.empty()) {
        slots_ += QRP_SLOTS_SIDE_BY_SIDE;
        for (uint32_t i = 1; i <= QRP_SLOTS_SIDE_BY_SIDE; i++) {
            of.free_slots.push_back(slots_ - i);
        }
    }
    uint32_t slot = of.free_slots.back();
    of.free_slots.pop_back();
    return slot;
}

uint32_t ProgramWriter::fill(const qtr_event &event, uint32_t site) {
    Thread &of = thread(event.thread);
    qrp_op op;
    std::memset(&op, 0, sizeof op);
    op.kind = event.kind == QTR_CALLOC ? QRP_CALLOC : event.kind == QTR_ALIGNED ? QRP_ALLOC_ALIGNED : QRP_ALLOC;
    op.align_log2 = static_cast<uint8_t>(event.align_log2);
    op.site = site;
    op.slot = slot_take(of);
    put_sized(event.thread, op, event.size);
    return op.slot;
}

void ProgramWriter::resize(const qtr_event &event, uint32_t site, uint32_t slot, bool crossed) {
    qrp_op op;
    std::memset(&op, 0, sizeof op);
    op.kind = QRP_REALLOC;
    op.flags = crossed ? QRP_CROSS_THREAD : 0;
    op.site = site;
    op.slot = slot;
    put_sized(event.thread, op, event.size);
}

void ProgramWriter::empty(uint32_t number, uint32_t site, uint32_t slot, unsigned flags) {
    qrp_op op;
    std::memset(&op, 0, sizeof op);
    op.kind = QRP_FREE;
    op.flags = (flags & 1) != 0 ? QRP_CROSS_THREAD : 0;
    op.site = site;
    op.slot = slot;
    put(number, op);
    if ((flags & 2) == 0) {
        thread(number).free_slots.push_back(slot);
    } else {
        shared_free_.push_back(slot);
    }
}

/* What was not known before the last event: how much of its large objects a site touches.  `is_wide`: the op before was a QRP_SIZE_HI. */
static void mark_untouched(std::vector<qrp_op> &ops, const std::vector<uint8_t> &untouched, bool &is_wide) {
    for (qrp_op &op : ops) {
        bool fills = op.kind == QRP_ALLOC || op.kind == QRP_CALLOC || op.kind == QRP_REALLOC;
        if (fills && (is_wide || op.size >= QTR_LARGE_BYTES) && op.site < untouched.size()) {
            op.flags = static_cast<uint16_t>(op.flags | untouched[op.site] << QRP_UNTOUCHED_SHIFT);
        }
        is_wide = op.kind == QRP_SIZE_HI;
    }
}

bool ProgramWriter::copy_ops(const Thread &of, const std::vector<uint8_t> &untouched, FILE *to) {
    std::vector<qrp_op> block(BLOCK_OPS);
    bool is_wide = false;
    for (uint64_t at : of.blocks) {
        if (fseeko(spill_, static_cast<off_t>(at), SEEK_SET) != 0 || std::fread(block.data(), sizeof(qrp_op), BLOCK_OPS, spill_) != BLOCK_OPS) {
            return false;
        }
        mark_untouched(block, untouched, is_wide);
        if (std::fwrite(block.data(), sizeof(qrp_op), BLOCK_OPS, to) != BLOCK_OPS) {
            return false;
        }
    }
    block = of.open;
    mark_untouched(block, untouched, is_wide);
    return block.empty() || std::fwrite(block.data(), sizeof(qrp_op), block.size(), to) == block.size();
}

bool ProgramWriter::finish(const End &end, std::string &error) {
    FILE *to = std::fopen(path_.c_str(), "wbe");
    bool ok = to != nullptr && !failed_ && std::fflush(spill_) == 0;
    qrp_header header;
    std::memset(&header, 0, sizeof header);
    std::memcpy(header.magic, QRP_MAGIC, sizeof header.magic);
    header.version = QRP_VERSION;
    header.ops = ops_;
    header.slots = slots_;
    header.sites = end.sites;
    header.peak_live_bytes = end.peak_live_bytes;
    std::vector<qrp_thread> directory;
    uint64_t first = 0;
    std::vector<uint32_t> index_of(threads_.size());
    for (size_t number = 0; number < threads_.size(); number++) {
        if (threads_[number].ops > 0) {
            uint32_t tid = number < end.tids->size() ? (*end.tids)[number] : 0;
            index_of[number] = static_cast<uint32_t>(directory.size());
            directory.push_back({first, threads_[number].ops, tid, 0});
            first += threads_[number].ops;
        }
    }
    header.threads = static_cast<uint32_t>(directory.size());
    header.runs = runs_.size();
    for (qrp_run &run : runs_) {
        run.thread = index_of[run.thread];
    }
    ok = ok && std::fwrite(&header, sizeof header, 1, to) == 1 &&
         (directory.empty() || std::fwrite(directory.data(), sizeof directory[0], directory.size(), to) == directory.size());
    for (const Thread &of : threads_) {
        ok = ok && (of.ops == 0 || copy_ops(of, end.untouched, to));
    }
    ok = ok && (runs_.empty() || std::fwrite(runs_.data(), sizeof runs_[0], runs_.size(), to) == runs_.size());
    int code = errno;
    ok = to != nullptr && std::fclose(to) == 0 && ok;
    if (!ok) {
        error = path_ + ": " + std::strerror(code != 0 ? code : EIO);
    }
    return ok;
}

}  // namespace quire
