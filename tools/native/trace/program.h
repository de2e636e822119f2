// SPDX-License-Identifier: MIT
/*
 * program.h - the replay program (.qrp): what a trace boils down to for the replayer.
 *
 *   0            72                72+24*threads                      +16*ops
 *   +------------+-----------------+----------------------------------+-------------+
 *   | qrp_header | qrp_thread x T  | qrp_op x N, thread after thread  | qrp_run x R |
 *   +------------+-----------------+----------------------------------+-------------+
 *
 * Little endian, no padding: the file can be mapped and used as it stands.
 *
 * Invariants, kept by the analyser and checked by the replayer when it loads a program:
 *   Q1  the threads' op ranges are adjacent, in order, and cover [0, ops)
 *   Q2  slot < slots and site < sites in every op
 *   Q3  in the recorded order a slot is filled by kind 1, 2 or 3, then resized by any number of kind 4, then
 *       emptied by kind 5; kind 6 belongs to the op that follows it in the same thread and carries its slot and site
 *   Q4  a slot that two threads touched is reused only after many others of its kind were emptied: a filler that waits
 *       for the emptying of the object before hardly ever waits long
 *   Q5  an op that fills a slot never has QRP_CROSS_THREAD
 *   Q6  the runs, if there are any, tell the global order: each is the next `ops` ops of a thread; together they are all ops
 *   Q7  a thread's first slots come QRP_SLOTS_SIDE_BY_SIDE at once: the replayer's addresses of 16 slots are two cache lines, and threads that write
 *       to one line take it from each other at every step, which is no cost of the program's
 *
 * Objects alive at the end have no free: the replayer frees or drops them as it likes, outside its clock.
 * Not here: how a program is made (analyse/program_write.cc), how a trace looks (format.h).
 */
#ifndef QUIRE_TRACE_PROGRAM_H
#define QUIRE_TRACE_PROGRAM_H

#include <assert.h>
#include <stdint.h>

#define QRP_MAGIC   "QRP1\0\0\0"  // eight bytes with the terminator
#define QRP_VERSION 1u
#define QRP_SLOTS_SIDE_BY_SIDE 16u

struct qrp_header {
    char magic[8];
    uint32_t version;
    uint32_t threads;
    uint64_t ops;
    uint64_t slots;
    uint32_t sites;
    uint32_t flags;  // none defined: 0
    uint64_t peak_live_bytes;
    uint64_t runs;  // 0: the order between threads is not known
    uint64_t reserved[2];
};

struct qrp_thread {
    uint64_t first_op;
    uint64_t ops;
    uint32_t recorded_tid;
    uint32_t reserved;
};

struct qrp_run {
    uint32_t thread;  // its place among the qrp_threads
    uint32_t ops;     // a QRP_SIZE_HI is never parted from its op
};

enum qrp_kind {
    QRP_ALLOC = 1,
    QRP_CALLOC = 2,
    QRP_ALLOC_ALIGNED = 3,  // at 1 << align_log2
    QRP_REALLOC = 4,        // the slot keeps its object; size is the new size
    QRP_FREE = 5,
    QRP_SIZE_HI = 6,        // the next op's size gets this op's `size` as its high 32 bits
};

enum qrp_flag {
    QRP_CROSS_THREAD = 1,  // the slot was last touched by another thread: wait until it is filled
};

#define QRP_UNTOUCHED_SHIFT 8  // above it, in kinds 1, 2 and 4: so many 256ths of the object, at its end, the program never touches

struct qrp_op {
    uint8_t kind;
    uint8_t align_log2;
    uint16_t flags;
    uint32_t site;  // of the object's allocation, also for realloc and free
    uint32_t slot;
    uint32_t size;
};

static_assert(sizeof(struct qrp_header) == 72, "the header's size is the format");
static_assert(sizeof(struct qrp_thread) == 24, "a thread's size is the format");
static_assert(sizeof(struct qrp_run) == 8, "a run's size is the format");
static_assert(sizeof(struct qrp_op) == 16, "an op's size is the format");

#endif
