// SPDX-License-Identifier: MIT
/*
 * thread.c - the threads that allocate: each has a live block of the trace file to itself.
 *
 *   rec_self --> rec_thread { cursor ... flush_at } --> live block [ part | used ][ base tick | event | event |  ]
 *                 in a table that fork wipes             in the file                              ^cursor  ^flush_at
 *
 * Invariants:
 *   H1  cursor <= flush_at means that two more events fit (a realloc is two)
 *   H2  used is stored after the event's bytes, so a killed process leaves whole events
 *   H3  a block's used is 0 while it passes from one part or thread to the next
 *
 * Locks: the owner thread alone writes its block; making, packing and taking over a state needs the recorder's lock.
 * A thread that ended leaves its state as it is; the next new thread packs it and takes it over (thread ids
 * are asked from the kernel), so frees in the last destructors of a thread are recorded too.
 * Of a forked child's table nothing is left but zeros; rec_is_forked_child() tells by a word in it.
 * Not here: events' content (hooks.c), the file (file.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "record.h"

#define THREADS_MAX    8000  // alive at once; further ones are not recorded
#define PROBES_MAX     32    // states looked at for a dead owner when a thread is new
#define MAPS_BYTES     2048
#define MAIN_STACK_BYTES ((uintptr_t)64 << 20)  // the kernel maps nothing else that near below it
#define ROOM_BYTES     (2 * QTR_EVENT_BYTES_MAX)

REC_TLS struct rec_thread *rec_self;

static struct {
    struct rec_thread *states;  // wiped by fork
    uint32_t used;
    uint32_t probe;
    uint32_t numbers;  // threads numbered so far
} table;

static void stream_begin(struct rec_thread *thread, uint32_t part) {
    struct qtr_live *live = thread->live;
    unsigned char *data = (unsigned char *)(live + 1);
    uint64_t base = rec_tick();
    if (base < thread->last_tick) {
        base = thread->last_tick;
    }
    live->part_and_used = 0;
    atomic_signal_fence(memory_order_seq_cst);
    live->block.thread = thread->number;
    live->block.first_tick = base;
    memcpy(data, &base, sizeof base);
    thread->part = part;
    thread->untimed = thread->untimed_left = 0;
    thread->last_tick = base;
    thread->last_word = 0;
    thread->cursor = data + sizeof base;
    thread->flush_at = data + QTR_STREAM_BYTES_MAX - ROOM_BYTES;
    atomic_signal_fence(memory_order_seq_cst);
    live->part_and_used = (uint64_t)part << 32 | sizeof base;
}

static void name_refresh(struct rec_thread *thread) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (memcmp(name, thread->name, sizeof name) != 0) {
        memcpy(thread->name, name, sizeof name);
        rec_meta_thread(thread);
    }
}

static void lost_add(struct rec_thread *thread) {
    rec_header->lost_events += thread->lost;
    thread->lost = 0;
}

/* A live block in this recording's file, at the place of that in an ended one's. */
static bool live_anew(struct rec_thread *state) {
    struct qtr_live *live = rec_file_live_block(state->live);
    if (live != NULL) {
        state->live = live;
    }
    return live != NULL;
}

/* A state for the calling thread: a dead thread's, else a new one; NULL: no room. */
static struct rec_thread *state_find_locked(uint32_t tid) {
    unsigned probes = table.used < PROBES_MAX ? table.used : PROBES_MAX;
    for (unsigned i = 0; i < probes; i++) {
        struct rec_thread *state = &table.states[table.probe++ % table.used];
        bool dead = state->tid == tid ||
                    (syscall(SYS_tgkill, getpid(), (pid_t)state->tid, 0) != 0 && errno == ESRCH);
        if (state->live != NULL && dead) {
            bool is_of_now = state->session == rec_session;
            if (is_of_now && (uint32_t)state->live->part_and_used > sizeof(uint64_t) && !rec_file_pack(state->live)) {
                return NULL;
            }
            rec_stack_cache_clear(state->cache);
            return is_of_now || live_anew(state) ? state : NULL;
        }
    }
    if (table.used == THREADS_MAX) {
        return NULL;
    }
    struct rec_thread *state = &table.states[table.used];
    state->live = rec_file_live_block(NULL);
    state->cache = rec_stack_cache_create();
    if (state->live == NULL || state->cache == NULL) {
        return NULL;
    }
    table.used++;
    return state;
}

extern void *__libc_stack_end;

/*
 * The mapping that holds an address, from /proc/self/maps; false when it cannot be told. Not by pthread_getattr_np(): it allocates while it
 * holds the thread's own lock, and a thread whose first allocation is that one, as each of a JVM's, would wait for itself. By system calls
 * alone: a cancelled thread would end in open(). `path`: its file, or NULL where nobody asks; cut to the room.
 */
bool rec_mapping_of(uintptr_t address, uintptr_t bounds[2], char *path, size_t path_bytes) {
    char text[MAPS_BYTES];
    size_t used = 0;
    unsigned field = 0;  // 0: the start, 1: the end, 2: the rest of the line
    bool is_found = false, is_done = false;
    bounds[0] = bounds[1] = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (long got; fd >= 0 && !is_done && (got = syscall(SYS_read, fd, text, sizeof text)) > 0;) {
        for (long i = 0; i < got && !is_done; i++) {
            char c = text[i];
            if (c == '\n' && is_found) {
                is_done = true;
            } else if (c == '\n') {
                bounds[0] = bounds[1] = field = 0;
            } else if (field < 2 && (c == '-' || c == ' ')) {
                is_found = ++field == 2 && address >= bounds[0] && address < bounds[1];
                is_done = is_found && path == NULL;
            } else if (field < 2) {
                bounds[field] = bounds[field] << 4 | (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
            } else if (is_found && (used > 0 || c == '/') && used + 1 < path_bytes) {
                path[used++] = c;
            }
        }
    }
    if (fd >= 0) {
        syscall(SYS_close, fd);
    }
    if (path != NULL) {
        path[used] = '\0';
    }
    return is_found;
}

/* Where this thread's stack lies; 0, 0 when unknown. What is mapped with it in one piece can be read as it can. */
static void stack_bounds(struct rec_thread *thread) {
    thread->stack_low = thread->stack_high = 0;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), high = (uintptr_t)__libc_stack_end;
    if (here < high && here > high - MAIN_STACK_BYTES) {
        thread->stack_low = high - MAIN_STACK_BYTES;
        thread->stack_high = high;
        return;
    }
    uintptr_t bounds[2];
    if (rec_mapping_of(here, bounds, NULL, 0)) {
        thread->stack_low = bounds[0];
        thread->stack_high = bounds[1];
    }
}

bool rec_threads_start(void) {
    size_t bytes = (THREADS_MAX + 1) * sizeof(struct rec_thread);
    if (table.states == NULL || rec_is_forked_child()) {  // the wiped table may still hold the state of the thread that forked
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || madvise(memory, bytes, MADV_WIPEONFORK) != 0) {
            return false;
        }
        table.states = memory;
        table.used = table.probe = table.numbers = 0;
    }
    table.states[THREADS_MAX].number = 1;  // what rec_is_forked_child() looks at
    return true;
}

/* In a child of fork(), where the kernel has not wiped them: emulators say that they will, and do not. */
void rec_threads_wipe(void) {
    if (table.states != NULL && table.states[THREADS_MAX].number != 0) {
        memset(table.states, 0, table.used * sizeof(struct rec_thread));
        table.states[THREADS_MAX].number = 0;
    }
}

bool rec_is_forked_child(void) {
    return table.states != NULL && table.states[THREADS_MAX].number == 0;
}

static struct rec_thread *thread_join_locked(struct rec_thread *thread, uint32_t tid) {
    thread->tid = tid;
    thread->session = rec_session;
    thread->lost = 0;
    thread->number = ++table.numbers;
    rec_header->threads = table.numbers;
    atomic_store_explicit(&rec_many, table.numbers > 1, memory_order_relaxed);
    stack_bounds(thread);
    memset(thread->name, 0, sizeof thread->name);
    stream_begin(thread, 0);
    name_refresh(thread);
    rec_meta_thread(thread);
    rec_self = thread;
    return thread;
}

static struct rec_thread *thread_create_locked(void) {
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    struct rec_thread *thread = state_find_locked(tid);
    return thread == NULL ? NULL : thread_join_locked(thread, tid);
}

/* This thread has a state of a recording that ended. */
static struct rec_thread *thread_again_locked(struct rec_thread *thread) {
    if (!live_anew(thread)) {
        return NULL;
    }
    rec_stack_cache_clear(thread->cache);
    return thread_join_locked(thread, (uint32_t)syscall(SYS_gettid));
}

/* New thread, full block, or first event in a forked child. */
static struct rec_thread *slow_locked(void) {
    if (rec_header->stop != QTR_STOP_NONE) {
        return NULL;
    }
    struct rec_thread *thread = rec_self;
    if (thread == NULL || thread->cache == NULL) {  // or a fork has wiped it
        return thread_create_locked();
    }
    if (thread->session != rec_session) {
        return thread_again_locked(thread);
    }
    lost_add(thread);
    name_refresh(thread);
    if (!rec_file_pack(thread->live)) {
        return NULL;
    }
    stream_begin(thread, thread->part + 1);
    return thread;
}

__attribute__((noinline)) struct rec_thread *rec_thread_slow(void) {
    int saved_errno = errno;
    struct rec_thread *result = NULL;
    if (rec_is_forked_child()) {
        rec_forked_child_slow();
    }
    if (rec_header != NULL && rec_lock_try()) {
        result = rec_header == NULL ? NULL : slow_locked();
        if (result == NULL && rec_header != NULL) {
            rec_header->lost_events++;
        }
        rec_unlock();
    } else if (rec_self != NULL) {
        rec_self->lost++;
    }
    errno = saved_errno;
    return result;
}

/* The owner alone takes its state over into the next recording: nobody is disturbed in the middle of an event. */
void rec_threads_end(void) {
    for (uint32_t i = 0; i < table.used; i++) {
        table.states[i].flush_at = NULL;
    }
    table.numbers = 0;
}

void rec_thread_forget_all(void) {
    table.used = table.probe = table.numbers = 0;
    rec_self = NULL;
}

void rec_thread_named(uint32_t tid, const char *name) {
    for (uint32_t i = 0; i < table.used; i++) {
        if (table.states[i].tid == tid) {
            strncpy(table.states[i].name, name, sizeof table.states[i].name - 1);
            rec_meta_thread(&table.states[i]);
        }
    }
}
