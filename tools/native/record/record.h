// SPDX-License-Identifier: MIT
/*
 * record.h - what the recorder's parts know of each other.
 *
 *   hooks.c    malloc and friends: call the next allocator, hand one event to thread.c        new.c   C++'s, where they do not go by malloc
 *   pool.c     and for blocks that a program's own pools tell of
 *   thread.c   a thread's live block and the encoding of events
 *   cache.h    the current call stack as a number, fast        stack.c   the same where the cache does not know it
 *   rules.c    how to step over one return address (x86-64)          rules_tables.c  the same elsewhere
 *   meta.c     stacks, modules, thread names into the trace    file.c    the trace file itself
 *   touched.c  how much of a large block was used
 *   own.c      the same for functions of allocators inside of the program; put.h what both share
 *   process.c  start, configuration, the one lock, fork, exit
 *   ../static  all of it without a libc, for static programs
 *   preload.c  loaded with the program          attach.c  into a program that runs: begin and end      slots.c  its GOT slots
 *
 * Locks: rec_lock_try() alone; it is waited for a bounded time, because the program may hold locks of its own
 * (the loader's, a stream's) that some other holder of ours needs.  Whoever does not get it goes on without.
 * Nothing here calls malloc; what libc or libunwind allocates inside is passed through and not recorded (rec_busy).
 */
#ifndef QUIRE_RECORD_RECORD_H
#define QUIRE_RECORD_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "../trace/format.h"
#include "base/compiler.h"

#define REC_LIKELY(x)   __builtin_expect(!!(x), 1)
#define REC_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define REC_INLINE      inline __attribute__((always_inline))
#define REC_EXPORT      __attribute__((visibility("default")))
#define REC_TLS         __thread __attribute__((tls_model("initial-exec")))

#define REC_TICK_SHIFT 3u  // a tick of about 3 ns: finer than any hand-over between threads
#define REC_UNTIMED    7u  // events that may follow a reading of the clock with its tick
#define REC_NEAR_TICKS 128u  // about a third of a microsecond: calls that follow each other faster share a reading

/* Where a call came from: all that walking a stack needs. */
struct rec_frame {
    uintptr_t ip;  // return address
    uintptr_t sp;  // the caller's stack pointer after the return
    uintptr_t bp;  // the caller's frame pointer register
};

/* A return address as it lies on the stack may be signed above its 48 bits, on arm64. */
static REC_INLINE uintptr_t rec_address(uintptr_t word) {
    return CPU_AARCH64 ? word & ((UINT64_C(1) << 48) - 1) : word;
}

struct rec_stack_cache;

/* A block of QTR_LARGE_BYTES or more that lives; a later one may have taken its place. */
struct rec_large {
    uintptr_t address;
    uint64_t bytes;
};
#define REC_LARGE_PLACES 16u

/* One thread that allocates.  Lives in memory that a fork wipes: a child finds flush_at NULL and starts anew. */
struct rec_thread {
    unsigned char *cursor;    // next event's place in the live block
    unsigned char *flush_at;  // from here on an event might not fit
    uint64_t last_tick;
    uint64_t last_word;  // address / 8 of the previous event
    uint32_t untimed_left;  // further events with last_tick
    uint32_t untimed;       // how many they were after the last reading: 0 or REC_UNTIMED
    struct qtr_live *live;
    struct rec_stack_cache *cache;
    uintptr_t stack_low, stack_high;
    uint32_t session;  // the recording that `live` and `number` are of
    uint32_t number;  // in the trace, from 1
    uint32_t tid;
    uint32_t part;
    uint32_t lost;  // events since the last time they were added to the header
    char name[16];
    uint32_t large_ends;
    struct rec_large large[REC_LARGE_PLACES];  // of blocks that this thread allocated
};

static REC_INLINE struct rec_large *rec_large_of(struct rec_thread *thread, uintptr_t address) {
    return &thread->large[(address >> 12 ^ address >> 16) % REC_LARGE_PLACES];
}

struct rec_config {
    const char *path;     // absolute; NULL: do not record
    uint64_t limit_bytes;
};

/* --- process.c --- */
extern const bool rec_attached;  // preload.c, attach.c: loaded into a process that ran already
void *rec_next_symbol(const char *name);  // the same two: what the program would call without us
void rec_look(void);  // attach.c: a hook's thread looks whether recording is over
bool rec_child_begin(void);  // the same two, under the lock: a trace for a forked child, if it is to have one
extern _Atomic uint64_t rec_look_tick;  // from this tick on; never where nobody attached
extern uint32_t rec_session;  // of a process that is attached to again and again
extern struct rec_config rec_config;
extern _Atomic int rec_on;         // 1: events are wanted
extern REC_TLS unsigned rec_busy;  // > 0: this thread is inside the recorder
extern bool rec_clock_is_tsc;
extern _Atomic bool rec_many;  // more than one thread has allocated; who gets another thread's block sees this set
void rec_start(void);
void rec_forks_watch(void);  // once a process
const char *rec_path_set(const char *path);  // of the next trace; why it cannot be that, or NULL
bool rec_trace_open(void);                   // false, and a line on stderr says why
bool rec_lock_try(void);
void rec_unlock(void);
bool rec_unwind_begin(void);  // under the lock; false: a fork is under way, do without
void rec_unwind_end(void);
void rec_forked_child_slow(void);
void rec_stop_locked(enum qtr_stop reason);
char **rec_arguments(void);
void rec_exit_mark(int status, bool status_known);

/* --- hooks.c --- */
void rec_hooks_start(void);

/* --- own.c: allocators that the program brought along --- */
void rec_own_start(void);
bool rec_own_left(void);  // rec_busy > 0, but by a call that an exception or longjmp ended: it is 0 now

/* --- file.c: the trace file; all but rec_file_open under the lock --- */
extern struct qtr_header *rec_header;  // NULL: no trace
int rec_file_open(void);               // 0 or -errno, with a line on stderr
int rec_file_moved_up(int fd);         // needs no lock
void rec_file_forget(void);            // in a forked child: unmap the parent's
void rec_file_end(void);               // what was mapped of the file becomes memory that nobody reads
struct qtr_live *rec_file_live_block(struct qtr_live *at);  // NULL: anywhere; else where an ended recording had one
bool rec_file_pack(struct qtr_live *live);  // append the used part compressed, then start the next part
void rec_file_touch(bool thoroughly);       // clocks into the header; thoroughly: CPU time and memory too

/* --- thread.c --- */
bool rec_threads_start(void);
void rec_threads_wipe(void);
bool rec_is_forked_child(void);  // by any way of forking, also without libc
struct rec_thread *rec_thread_slow(void);  // NULL: this event is lost
void rec_thread_forget_all(void);
void rec_threads_end(void);  // each thread begins anew at its next event
void rec_thread_named(uint32_t tid, const char *name);
bool rec_mapping_of(uintptr_t address, uintptr_t bounds[2], char *path, size_t path_bytes);
extern REC_TLS struct rec_thread *rec_self;

/* --- touched.c --- */
void rec_large_look(struct rec_thread *thread, struct rec_large *block);  // it goes, or gets another size; there is room for two events

/* --- stack.c --- */
uint32_t rec_stack_slow(struct rec_thread *thread, const struct rec_frame *frame);  // not in the cache (cache.h)
bool rec_stack_start(void);
void rec_stack_forget(bool forked);
struct rec_stack_cache *rec_stack_cache_create(void);
void rec_stack_cache_clear(struct rec_stack_cache *cache);

/* --- unwinder.c --- */
void rec_unwinder_start(void);  // before libunwind is asked for the first time

/* --- rules.c --- */
enum rec_step { REC_STEP_OK, REC_STEP_END, REC_STEP_BUSY };
bool rec_rules_start(void);
void rec_rules_forget(void);
void rec_rules_end(void);  // the same, and the memory goes back
struct rec_bounds {
    uintptr_t high;                      // of the stack that is walked now
    uintptr_t thread_low, thread_high;  // where a walk may come to from a signal's own stack
    // of the frame that was stepped to last, for rules_tables.c
    bool sp_is_low;       // its sp is this or above (prof_cfa())
    bool is_interrupted;  // by a signal: ip is no return address, and `link` its x30
    uintptr_t link;
};
enum rec_step rec_rules_step(struct rec_frame *frame, struct rec_bounds *bounds, uintptr_t *slot);
uintptr_t rec_bounds_high(const struct rec_bounds *bounds, uintptr_t sp);

/* --- meta.c: under the lock --- */
bool rec_meta_start(void);
void rec_meta_forget(void);
void rec_meta_stack(uint32_t id, const uintptr_t *ips, unsigned count);
void rec_meta_slots(uint32_t id, const uint16_t words[QTR_SLOTS_MAX]);
void rec_meta_pool(uint32_t id, const char *name);  // that stack's blocks are of this pool
void rec_meta_thread(const struct rec_thread *thread);
bool rec_meta_module_known(uintptr_t ip);  // is ip in a loaded file?  Then that file is in the trace
bool rec_meta_unloaded(void);  // since it was asked last
void rec_meta_modules_changed(void);

static inline uint64_t rec_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/*
 * The time of an event.  With more than one thread the fence keeps the order that analysis relies on: an
 * allocation's tick is read after its block exists and before the block can be handed on, a free's after the
 * pointer was received.
 */
static inline uint64_t rec_tick(void) {
    if (REC_UNLIKELY(!rec_clock_is_tsc)) {
        return rec_clock_ns(CLOCK_MONOTONIC) >> REC_TICK_SHIFT;
    }
#if CPU_X86_64
    if (atomic_load_explicit(&rec_many, memory_order_relaxed)) {
        __builtin_ia32_lfence();
    }
    return __builtin_ia32_rdtsc() >> REC_TICK_SHIFT;
#else
    __builtin_unreachable();  // process.c
#endif
}

/*
 * The tick of this thread's next event. While one thread alone allocates the order of events is that of its stream, and only their age is
 * read from ticks: where calls follow each other fast one reading serves eight, and the age of the other seven is off by what these took.
 */
static REC_INLINE uint64_t rec_tick_of(struct rec_thread *thread) {
    bool is_alone = !atomic_load_explicit(&rec_many, memory_order_relaxed);
    if (REC_LIKELY(thread->untimed_left > 0 && is_alone)) {
        thread->untimed_left--;
        return thread->last_tick;
    }
    uint64_t tick = rec_tick();
    bool is_near = tick - thread->last_tick < (uint64_t)REC_NEAR_TICKS * (thread->untimed + 1);
    thread->untimed = thread->untimed_left = is_near && is_alone ? REC_UNTIMED : 0;
    return tick;
}

/* This thread's state with room for two events, or NULL. */
static inline struct rec_thread *rec_thread_get(void) {
    struct rec_thread *thread = rec_self;
    if (REC_LIKELY(thread != NULL && thread->cursor < thread->flush_at)) {
        return thread;
    }
    return rec_thread_slow();
}

#endif
