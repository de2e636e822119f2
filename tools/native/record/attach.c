// SPDX-License-Identifier: MIT
/*
 * attach.c - recording that begins in a process that runs, and ends before it.
 *
 *   quire_attach_begin (called by quire-attach, through a thread of the target at a safe place)
 *   quire_record_begin (called by the process itself: libquire-malloc.so, as QUIRE_CONF=record says)
 *        `--> trace opened, slots patched --> events ... every LOOK_MS one hook looks:
 *                 told to stop? duration over? beats stay away? --> slots back, file closed.  New objects? --> patched
 *   quire_attach_end, quire_record_end: the same end, called where nobody allocates
 *
 * A recording of its own needs no beats, has no time, and goes on in children of a fork, each with a trace that it names.
 *
 * Invariants:
 *   A1  begin and end leave errno, signals and descriptors as they were; what fails leaves no slot patched
 *   A2  after the end nothing is written to the file, and hooks that are still called (kept addresses) only pass on
 *   A3  the library is never unloaded: a thread may be inside it
 *   A4  memory of a thread's state stays for the next recording, as scratch (thread.c, file.c)
 *
 * Locks: the recorder's.  Not here: whose stack we run on, who calls (../attach).
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "../attach/area.h"
#include "slots.h"

#define TICKS_PER_MS_GUESS 300000u  // before two clocks were read; a wrong one makes the first look early or late

const bool rec_attached = true;

/* The name of the next trace; false: it is too long. */
typedef bool namer(char *path, size_t bytes);

REC_EXPORT struct attach_area quire_attach_area = {.magic = ATTACH_MAGIC};

static struct {
    uint64_t begin_tick, begin_ns;
    uint64_t until_ns;  // 0: no end of its own
    uint64_t beat_ns;   // when the last new beat was seen
    uint32_t beats;
    bool forks_watched;
    namer *name;  // of the process's own recording; NULL: somebody else's
    char path[PATH_MAX];
} now;

void *rec_next_symbol(const char *name) {
    return rec_slots_definition(name);
}

/* Of the area another process writes parts. */
static uint32_t area_get(const uint32_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void area_set(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static bool is_recording(void) {
    return area_get(&quire_attach_area.state) == ATTACH_RECORDING && quire_attach_area.pid == (uint32_t)getpid();
}

static void next_look(uint64_t now_ns) {
    uint64_t tick = rec_tick(), spent_ns = now_ns - now.begin_ns;
    uint64_t per_ms = spent_ns < 1000000 ? TICKS_PER_MS_GUESS : (tick - now.begin_tick) / (spent_ns / 1000000);
    atomic_store_explicit(&rec_look_tick, tick + per_ms * ATTACH_LOOK_MS, memory_order_relaxed);
}

static void end_locked(void) {
    atomic_store(&rec_on, 0);
    atomic_store(&rec_look_tick, UINT64_MAX);
    rec_slots_restore();
    rec_file_touch(true);
    rec_header->state = QTR_DETACHED;
    rec_threads_end();
    rec_file_end();
    rec_stack_forget(true);
    rec_rules_end();
    quire_attach_area.slots = 0;
    area_set(&quire_attach_area.state, ATTACH_ENDED);
}

static bool is_over(uint64_t now_ns) {
    uint32_t beats = area_get(&quire_attach_area.beats);
    if (beats != now.beats) {
        now.beats = beats;
        now.beat_ns = now_ns;
    }
    bool is_left = now.name == NULL && now_ns - now.beat_ns > (uint64_t)ATTACH_LEASE_MS * 1000000;
    return area_get(&quire_attach_area.stop) != 0 || (now.until_ns != 0 && now_ns > now.until_ns) || is_left ||
           rec_header->stop != QTR_STOP_NONE;
}

/* The lock, and no fork meanwhile: the loader's own locks, which slots are looked at under, would stay taken in a child. */
static bool lock_try(void) {
    if (!rec_lock_try()) {
        return false;
    }
    if (rec_unwind_begin()) {
        return true;
    }
    rec_unlock();
    return false;
}

static void unlock(void) {
    rec_unwind_end();
    rec_unlock();
}

__attribute__((noinline)) void rec_look(void) {
    int saved_errno = errno;
    atomic_store(&rec_look_tick, UINT64_MAX);  // one is enough
    if (lock_try()) {
        uint64_t now_ns = rec_clock_ns(CLOCK_MONOTONIC);
        if (!is_recording()) {
            unlock();
            errno = saved_errno;
            return;
        }
        if (is_over(now_ns)) {
            end_locked();
        } else {
            if (rec_slots_stale()) {
                rec_slots_patch();
                quire_attach_area.slots = rec_slots_patched();
            }
            next_look(now_ns);
        }
        unlock();
    } else {
        next_look(rec_clock_ns(CLOCK_MONOTONIC));
    }
    errno = saved_errno;
}

static int trace_begin(uint64_t cpu_ns_before) {
    if (!rec_stack_start() || !rec_rules_start() || !rec_slots_start()) {
        return -ENOMEM;
    }
    int rc = rec_file_open();
    if (rc != 0) {
        return rc;
    }
    rec_header->cpu_ns_before = cpu_ns_before;
    if (!rec_threads_start() || !rec_meta_start()) {
        rc = rec_header->stop == QTR_STOP_DISK_FULL ? -ENOSPC : -ENOMEM;
        rec_file_end();
    }
    return rc;
}

/* The trace is open: from now on events are wanted. */
static void begun(uint64_t duration_ms) {
    now.begin_tick = rec_tick();
    now.begin_ns = now.beat_ns = rec_clock_ns(CLOCK_MONOTONIC);
    now.until_ns = duration_ms == 0 ? 0 : now.begin_ns + (duration_ms + ATTACH_LEASE_MS) * 1000000;
    now.beats = area_get(&quire_attach_area.beats);
    area_set(&quire_attach_area.stop, 0);
    quire_attach_area.pid = (uint32_t)getpid();
    quire_attach_area.is_own = now.name != NULL;
    quire_attach_area.sessions++;
    area_set(&quire_attach_area.state, ATTACH_RECORDING);
    atomic_store(&rec_on, 1);
}

static const char *path_of_own(void) {
    return now.name(now.path, sizeof now.path) ? now.path : NULL;
}

bool rec_child_begin(void) {
    const char *path = now.name != NULL ? path_of_own() : NULL;
    if (path == NULL || rec_path_set(path) != NULL || !rec_trace_open()) {
        return false;
    }
    begun(0);
    next_look(now.begin_ns);
    return true;
}

/* What is to be done, by whomever. */
struct order {
    uint64_t limit_bytes, duration_ms;
    uint64_t cpu_ns_before;  // that the process has used up to now; 0: it begins now
    bool takes_over;
    const char *path;  // NULL: as `name` says
    namer *name;
};

static int begin_locked(const struct order *order) {
    bool is_child = rec_is_forked_child();
    if (is_recording() && !is_child && order->takes_over) {
        end_locked();
    }
    if (is_recording() && !is_child) {
        return -EBUSY;
    }
    if (is_child) {
        rec_file_forget();
        rec_meta_forget();
    }
    now.name = order->name;
    const char *path = order->path != NULL ? order->path : path_of_own();
    if (path == NULL || rec_path_set(path) != NULL) {
        return -ENAMETOOLONG;
    }
    rec_config.limit_bytes = order->limit_bytes;
    rec_hooks_start();
    rec_session++;
    int rc = trace_begin(order->cpu_ns_before);
    if (rc != 0) {
        return rc;
    }
    if (!now.forks_watched) {
        rec_forks_watch();
        now.forks_watched = true;
    }
    begun(order->duration_ms);
    rec_slots_patch();
    quire_attach_area.slots = rec_slots_patched();
    next_look(now.begin_ns);
    if (quire_attach_area.slots == 0) {
        end_locked();
        return -ENXIO;
    }
    return 0;
}

static int begin(const struct order *order) {
    int cancel_state = 0, rc = -EAGAIN;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    rec_busy++;
    if (lock_try()) {
        rc = begin_locked(order);
        unlock();
    }
    rec_busy--;
    pthread_setcancelstate(cancel_state, NULL);
    return rc;
}

static int end(bool is_own) {
    int rc = -EAGAIN;
    rec_busy++;
    if (lock_try()) {
        rc = is_recording() && (now.name != NULL) == is_own ? 0 : -ESRCH;
        if (rc == 0) {
            end_locked();
        }
        unlock();
    }
    rec_busy--;
    return rc;
}

/* 0 or -errno: EBUSY somebody records, ENXIO no slot was found, EAGAIN the recorder's lock was not to be had, else of the file. */
REC_EXPORT int quire_attach_begin(const struct attach_order *order) {
    uint64_t cpu_ns = rec_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    return begin(&(struct order){order->limit_bytes, order->duration_ms, cpu_ns, order->takes_over != 0, order->path, NULL});
}

REC_EXPORT int quire_attach_end(const struct attach_order *order) {
    (void)order;
    int rc = end(false);
    return rc == -ESRCH ? 0 : rc;
}

/* The same, by the process itself; whoever changes these changes src/preload/record.c. */
int quire_record_begin(namer *name, uint64_t limit_bytes, uint64_t cpu_ns_before);
int quire_record_end(void);

REC_EXPORT int quire_record_begin(namer *name, uint64_t limit_bytes, uint64_t cpu_ns_before) {
    return begin(&(struct order){limit_bytes, 0, cpu_ns_before, false, NULL, name});
}

/* 0 or -errno: ESRCH there is no recording of its own, EAGAIN. */
REC_EXPORT int quire_record_end(void) {
    return end(true);
}
