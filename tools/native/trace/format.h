// SPDX-License-Identifier: MIT
/*
 * format.h - how a trace file (.qtr) looks on disk.  doc/trace-format.md tells it in prose.
 *
 *   0             header_bytes                                                      file_bytes
 *   +-------------+-------+------+-------+------+-------+-----+------+-------+- - --+
 *   | qtr_header  | block | data | block | data | block | pad | live | block | ...  |
 *   +-------------+-------+------+-------+------+-------+-----+------+-------+- - --+
 *     one OS page   every block starts with qtr_block; live blocks start on an OS page
 *
 * The header and the live blocks are shared mappings of the recorder: what it wrote there is in the file
 * at once, so a trace is readable after kill -9.  A live block holds the newest, not yet compressed part of
 * one thread's stream; a packed block holds an older part as one zstd frame with checksum.
 *
 * Invariants, checked by the reader:
 *   T1  blocks are adjacent from header_bytes on, each a multiple of 16 bytes, none crosses file_bytes
 *   T2  the parts of one thread's stream are numbered 0, 1, 2 ... without a gap
 *   T3  a live block's part is void when a packed block with the same thread and number exists
 *   T4  ticks never fall within one thread's stream
 *   T5  a stack is defined before or after its use, but in this file, exactly once
 *
 * Little endian.  Not here: who writes (../record), who reads (reader.h).
 */
#ifndef QUIRE_TRACE_FORMAT_H
#define QUIRE_TRACE_FORMAT_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#define QTR_MAGIC   "QTRACE\r\n"  // eight bytes; the line end shows a transfer that mangled the file
#define QTR_VERSION 1u

#define QTR_BLOCK_MAGIC      0x4b4c4251u  // "QBLK"
#define QTR_LIVE_BLOCK_BYTES (64u * 1024)
#define QTR_STREAM_BYTES_MAX (QTR_LIVE_BLOCK_BYTES - (uint32_t)sizeof(struct qtr_live))
#define QTR_META_THREAD      0u   // the stream of stacks, modules and threads; real threads count from 1
#define QTR_FRAMES_MAX       24u  // innermost frames of a stack that are kept

enum qtr_state {
    QTR_RECORDING = 1,  // no exit mark: still running, or killed, crashed, replaced by exec
    QTR_EXITED = 2,     // exit, _exit or quick_exit was reached
    QTR_DETACHED = 3,   // recording was begun in a running process, and ended before it
};

enum qtr_stop {  // why recording ended before the program did; the first reason stays
    QTR_STOP_NONE = 0,
    QTR_STOP_DISK_FULL = 1,
    QTR_STOP_LIMIT = 2,      // QUIRE_RECORD_LIMIT
    QTR_STOP_FILE_SIZE = 3,  // RLIMIT_FSIZE
    QTR_STOP_FILE_LOST = 4,  // the file was replaced, removed together with its descriptor, or not writable any more
    QTR_STOP_MEMORY = 5,     // no memory for the recorder's own tables
};

struct qtr_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    // fixed when recording starts
    uint32_t pid;
    uint32_t parent_pid;
    uint32_t tick_shift;  // a tick is 1 << tick_shift units of the clock
    uint32_t command_bytes;
    uint64_t start_tick;
    uint64_t start_monotonic_ns;
    uint64_t start_realtime_ns;
    char machine[16];  // "x86_64"
    // kept up to date while recording
    uint64_t file_bytes;  // what lies beyond is not part of the trace
    uint64_t last_tick;
    uint64_t last_monotonic_ns;
    uint64_t cpu_ns;  // of the whole process
    uint64_t peak_rss_bytes;
    uint64_t lost_events;     // not written after a stop, or because the recorder's lock was not to be had
    uint64_t unknown_stacks;  // events with stack 0
    uint32_t state;           // enum qtr_state
    uint32_t stop;            // enum qtr_stop
    uint32_t threads;
    uint32_t stacks;
    uint32_t exit_status;  // valid in QTR_EXITED when exit_known
    uint32_t exit_known;
    char command[1024];  // arguments, each ended by a zero byte; cut at the end
    uint64_t cpu_ns_before;  // of the process before recording began; 0: recorded from its start. Else blocks of before are unknown
};

static_assert(sizeof(struct qtr_header) == 1184, "the header's size is the format");

enum qtr_block_kind {
    QTR_BLOCK_PAD = 1,
    QTR_BLOCK_LIVE = 2,
    QTR_BLOCK_PACKED = 3,
};

struct qtr_block {
    uint32_t magic;
    uint32_t kind;
    uint32_t bytes;   // with this header, a multiple of 16
    uint32_t thread;  // QTR_META_THREAD or a thread's number
    uint32_t part;    // position in the thread's stream
    uint32_t packed_bytes;
    uint32_t raw_bytes;
    uint32_t reserved;
    uint64_t first_tick;
    uint64_t reserved2;
};

static_assert(sizeof(struct qtr_block) == 48, "the block header's size is the format");

struct qtr_live {
    struct qtr_block block;
    uint64_t part_and_used;  // part << 32 | used bytes of data[]: one store publishes both
    uint64_t reserved;
    // stream data follows
};

static_assert(sizeof(struct qtr_live) == 64, "the live block's size is the format");

/*
 * The stream of a thread: each part starts with the u64 tick that its first delta counts from, and with the
 * previous address taken as 0.  Then events:
 *
 *   bit  0-2   3-4       5-6          7-8       9-10       11-15
 *       kind | tick len | address len | size len | stack len | log2 of the alignment     u16
 *   then tick delta, address, size, stack: only those that the kind has, each in the length its code says.
 *
 * Lengths by code 0 to 3: 1, 2, 3, 8 bytes.  address: zigzag of the difference in units of 8 bytes to the previous event's.
 */
enum qtr_kind {
    QTR_MALLOC = 1,         // tick address size stack
    QTR_CALLOC = 2,         // tick address size stack
    QTR_ALIGNED = 3,        // tick address size stack
    QTR_REALLOC_BEGIN = 4,  // tick address: the old block, before the call; only if the call succeeds
    QTR_REALLOC_END = 5,    // tick address size stack: the new block, after the call
    QTR_FREE = 6,           // tick address
    QTR_TOUCHED = 7,        // tick address size stack: so much of a large block has memory now, before its free; stack 0
};

#define QTR_LARGE_BYTES (UINT64_C(64) << 10)

#define QTR_EVENT_BYTES_MAX 34u  // two bytes and four fields of eight

// Records of the meta stream, 8-byte aligned, `bytes` long with this head.
enum qtr_meta_kind {
    QTR_META_STACK = 1,
    QTR_META_MODULE = 2,
    QTR_META_THREAD_NAME = 3,
    QTR_META_SLOTS = 4,
    QTR_META_POOL = 5,
};

#define QTR_SLOTS_MAX 8u  // innermost frames whose places on the stack are kept

struct qtr_meta {
    uint16_t kind;
    uint16_t bytes;
    uint32_t number;  // stack id, build id length or thread number
};

struct qtr_meta_stack {
    struct qtr_meta head;
    uint64_t ip[];  // return addresses, innermost first; (bytes - 8) / 8 of them
};

/* Where the return addresses of a stack lay; once more for the same stack: they lay elsewhere another time. */
struct qtr_meta_slots {
    struct qtr_meta head;  // stack id
    uint16_t words[QTR_SLOTS_MAX];  // of frames 1, 2 ... up from the stack pointer after malloc's return; QTR_SLOT_NONE: not known
};

#define QTR_SLOT_NONE 0xffffu

static_assert(sizeof(struct qtr_meta_slots) == 24, "a slots record's size is the format");

/* Blocks that were allocated by this stack are of a pool of the program's own; their addresses have its number in the top 16 bits. */
struct qtr_meta_pool {
    struct qtr_meta head;  // stack id
    char name[64];
};

static_assert(sizeof(struct qtr_meta_pool) == 72, "a pool record's size is the format");

struct qtr_meta_module {
    struct qtr_meta head;
    uint64_t first_tick;
    uint64_t start, end;  // addresses of the loaded segments
    uint64_t bias;        // address = bias + address in the file's symbol table
    char text[];          // build id bytes, then the path with its zero byte
};

struct qtr_meta_thread {
    struct qtr_meta head;
    uint64_t first_tick;
    uint32_t tid;
    char name[20];
};

static_assert(sizeof(struct qtr_meta_thread) == 40, "a thread record's size is the format");

#endif
