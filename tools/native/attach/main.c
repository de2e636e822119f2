// SPDX-License-Identifier: MIT
/*
 * main.c - quire-attach: records a process that runs, for a while.
 *
 *   quire-attach PID LIBRARY TRACE DURATION_MS LIMIT_BYTES
 *
 *   stop all threads, borrow a safe one --> begin --> "attached N"    beats, until time is over, standard input ends, or the target does
 *                                                        '--> stop; where no hook sees it: borrow a thread again --> end --> "ended"
 *
 * What it says, a line each on standard output: "attached SLOTS", then "ended" or "gone"; or "refused", what, why and a fix, exit status 3.
 * SIGINT and its like are the tool's to handle: it closes our standard input.
 * QUIRE_ATTACH_HALT=STEP[:N] makes it say "at STEP" on standard error and wait there for ever, the N-th time: tests kill it then.
 * Not here: which processes can be attached to at all (tools/quire/attaching.py).
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"

#define SAFE_MS      5000u  // how long a safe place is waited for
#define SAFE_EACH_MS 3u
#define LATE_MAX     3u     // tries in which a thread does not stop
#define LATE_EACH_MS 300u   // between them the process goes on
#define AGAIN_MS     500u   // after so long what is mapped is read again
#define END_MS       150u   // how long a hook is waited for
#define OWNER_MS     1000u  // without a beat in so long a recording has no owner
#define REFUSED      3

static const char *phase = "";

_Noreturn void refuse(const char *what, const char *why, const char *fix) {
    printf("refused\n%s\n%s\n%s\n", what, why, fix);
    fflush(stdout);
    exit(REFUSED);
}

void step(const char *name) {
    static unsigned passed;
    const char *wanted = getenv("QUIRE_ATTACH_HALT");
    char full[64];
    size_t bytes = (size_t)snprintf(full, sizeof full, "%s%s", phase, name);
    if (wanted == NULL || strncmp(wanted, full, bytes) != 0 || (wanted[bytes] != '\0' && wanted[bytes] != ':')) {
        return;
    }
    passed++;
    if (wanted[bytes] == ':' && passed < strtoul(wanted + bytes + 1, NULL, 10)) {
        return;
    }
    fprintf(stderr, "at %s\n", wanted);
    for (;;) {
        pause();
    }
}

uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static void sleep_ms(unsigned ms) {
    nanosleep(&(struct timespec){.tv_nsec = (long)ms * 1000000}, NULL);
}

static bool area_read(const struct target *target, struct attach_area *area) {
    return target->area != 0 && target_get(target, target->area, area, sizeof *area) && area->magic == ATTACH_MAGIC;
}

static bool is_recording(const struct target *target, const struct attach_area *area) {
    return area->state == ATTACH_RECORDING && area->pid == (uint32_t)target->own_pid;
}

/* Also a zombie, and a process that executes another program now. */
static bool is_gone(const struct target *target) {
    unsigned char byte;
    return !target_get(target, target->libc_base, &byte, 1);
}

/* Whether somebody else's recording is under way that nobody looks after any more. */
static bool is_orphaned(const struct target *target) {
    struct attach_area first, second;
    if (!area_read(target, &first) || !is_recording(target, &first)) {
        return false;
    }
    if (first.is_own != 0) {
        refuse("it is being recorded already", "by itself, as its QUIRE_CONF=record says", "end that by its record_signal, or wait for its end");
    }
    for (uint64_t until = now_ms() + OWNER_MS; now_ms() < until; sleep_ms(20)) {
        if (!area_read(target, &second) || !is_recording(target, &second)) {
            return false;
        }
        if (second.beats != first.beats) {
            refuse("it is being recorded already", "another quire record --pid holds it", "wait for that one, or end it by Ctrl-C");
        }
    }
    return true;
}

static void forbidden(int code) {
    if (code == EPERM || code == EACCES) {
        refuse("forbidden", strerror(code), "");  // the tool knows whose process it is, and what forbids it
    }
    refuse("its threads cannot be stopped", strerror(code), "start it under quire record");
}

/* A thread that may be borrowed, all of them stopped; NULL: none came to a safe place, all go on. */
static struct thread *borrow(struct target *target, struct threads *threads, const char *library) {
    uint64_t began = now_ms(), read_at = began;
    unsigned late = 0;
    safe_start(target);
    struct thread *thread = NULL;
    while (thread == NULL && now_ms() - began < SAFE_MS) {
        if (now_ms() - read_at > AGAIN_MS) {
            safe_end();
            target_read_maps(target, library);
            safe_start(target);
            read_at = now_ms();
        }
        bool stopped = threads_stop(threads, target->pid);
        int code = errno;
        step("stopped");
        if (threads->count == 0) {
            if (is_gone(target)) {
                break;
            }
            forbidden(code);
        }
        thread = stopped ? safe_thread(target, threads) : NULL;
        if (thread == NULL) {
            threads_release(threads, NULL);
            late += !stopped;
            if (late == LATE_MAX) {
                refuse("one of its threads does not stop", "it waits in the kernel, for a disk or a child", "try again");
            }
            sleep_ms(stopped ? SAFE_EACH_MS : LATE_EACH_MS);
        }
    }
    safe_end();
    step("safe");
    return thread;
}

static void room_check(const struct target *target) {
    if (target->place_end - target->place < target->wanted) {
        refuse("there is no room in it for the code that loads the recorder", "no object has that many zeros behind its code", "give the trace a shorter name, or start it under quire record");
    }
}

static void begin_result(const struct call *call) {
    char why[320];
    if (call->result == ATTACH_NOT_LOADED) {
        snprintf(why, sizeof why, "its loader says: %s", call->why[0] != '\0' ? call->why : "nothing");
        refuse("the recorder cannot be loaded into it", why, "start it under quire record");
    }
    if (call->result == -EBUSY) {
        refuse("it is being recorded already", "another quire record --pid holds it", "wait for that one");
    }
    if (call->result == -ENXIO) {
        refuse("nothing in it calls malloc through the loader's slots", "its malloc is linked into it, or it never calls one", "build it with libc's malloc");
    }
    if (call->result < 0) {
        snprintf(why, sizeof why, "%s", strerror((int)-call->result));
        if (call->result == -ENOMEM) {
            refuse("it has no memory for the recorder", why, "raise its limit of address space (ulimit -v)");
        }
        refuse("it cannot write the trace", why, "give a place that its user may write: -o /tmp/program.qtr");
    }
}

static void begin_once(struct target *target, struct call *call) {
    struct threads threads = {0};
    struct thread *thread = borrow(target, &threads, call->library);
    if (thread == NULL) {
        if (is_gone(target)) {
            refuse("it has ended", "while a safe place was waited for", "quire record -- PROGRAM");
        }
        refuse("none of its threads came to a safe place within 5 s", "each was inside libc, the loader or an allocator, or its stack cannot be walked",
               "try again, or start it under quire record");
    }
    if (!call_make(target, &threads, thread, call)) {
        if (is_gone(target)) {
            refuse("it ended meanwhile", "while the recorder was loaded", "quire record -- PROGRAM");
        }
        refuse("the thread that loads the recorder does not come back", "it waits for a lock of the loader, and goes on by itself", "try again later");
    }
    target_read_maps(target, call->library);
}

/* As often as the one who recorded turns out to be dead: its thread may have come home only after we looked. */
static void begin(struct target *target, struct call *call, struct attach_order *order) {
    for (unsigned tries = 0; tries < 3; tries++) {
        order->takes_over = is_orphaned(target);
        begin_once(target, call);
        if (call->result != -EBUSY) {
            break;
        }
    }
    begin_result(call);
}

/* Until time is over or we are told; beats meanwhile. */
static void watch(const struct target *target, uint64_t duration_ms) {
    uint64_t until = duration_ms == 0 ? UINT64_MAX : now_ms() + duration_ms;
    struct attach_area area;
    uint32_t beats = 0;
    while (area_read(target, &area) && is_recording(target, &area) && now_ms() < until) {
        beats = area.beats + 1;
        target_put(target, target->area + offsetof(struct attach_area, beats), &beats, sizeof beats);
        step("recording");
        uint64_t left = until - now_ms();
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&in, 1, left < ATTACH_BEAT_MS ? (int)left : (int)ATTACH_BEAT_MS) > 0) {
            break;
        }
    }
}

static bool has_ended(const struct target *target) {
    struct attach_area area;
    return !area_read(target, &area) || !is_recording(target, &area);
}

static bool wait_for_hook(const struct target *target) {
    for (uint64_t until = now_ms() + END_MS; now_ms() < until; sleep_ms(2)) {
        if (has_ended(target)) {
            return true;
        }
    }
    return false;
}

/* False: it could not be told; then its lease ends it. */
static bool end(struct target *target, struct call *call) {
    uint32_t stop = 1;
    phase = "end-";
    target_put(target, target->area + offsetof(struct attach_area, stop), &stop, sizeof stop);
    step("told");
    struct threads threads = {0};
    for (unsigned tries = 0; tries < 3 && !wait_for_hook(target); tries++) {
        target_read_maps(target, call->library);
        struct thread *thread = borrow(target, &threads, call->library);
        if (thread != NULL && !call_make(target, &threads, thread, call)) {
            break;
        }
    }
    return has_ended(target);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fputs("quire-attach: a helper of quire record --pid\n", stderr);
        return 2;
    }
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    for (unsigned i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        signal(ignored[i], SIG_IGN);
    }
    struct target target = {.pid = (pid_t)strtol(argv[1], NULL, 10)};
    size_t bytes = sizeof(struct attach_order) + strlen(argv[3]) + 1;
    struct attach_order *order = calloc(1, bytes);
    if (order == NULL) {
        return 1;
    }
    order->duration_ms = strtoull(argv[4], NULL, 10);
    order->limit_bytes = strtoull(argv[5], NULL, 10);
    strcpy(order->path, argv[3]);
    struct call call = {.library = argv[2], .function = ATTACH_BEGIN, .order = order, .order_bytes = bytes};
    target.wanted = call_room(&call);
    target_read(&target, argv[2]);
    room_check(&target);
    begin(&target, &call, order);
    struct attach_area area;
    printf("attached %u\n", area_read(&target, &area) ? area.slots : 0);
    fflush(stdout);
    watch(&target, order->duration_ms);
    call.function = ATTACH_END;
    bool ended = !is_gone(&target) && end(&target, &call);
    puts(ended && !is_gone(&target) ? "ended" : is_gone(&target) ? "gone" : "left");
    return 0;
}
