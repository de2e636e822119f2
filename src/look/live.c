// SPDX-License-Identifier: MIT
/*
 * live.c - the thread that shows this process to others, and its end.
 *
 *     load: QUIRE_CONF has top?   no: nothing more, for ever: no thread, no file, no system call
 *                                 yes: arenas are listed, and a thread begins
 *           prof alone?           arenas are listed; WAITING, because libc is slower in all it does once there is a second thread
 *
 *     WAITING --live_start_due(): it is wanted, or there are threads anyhow, after a second--> ON
 *        |  asked by a signal: live_copy_ahead(), then live_show_from_copy() in a copy of the process; and the thread is wanted
 *
 *     thread:  [page]..tick..tick..[asked? answer]..tick..[page]..        a tick is the interval, or 50 ms where that is longer
 *     fork:    the child has a thread of its own, which waits for a tick first: most children are another program by then
 *     exit:    no page any more; after kill -9 and _exit it stays, and `quire top` removes it
 *
 * Invariants:
 *   the page is written by the process that it is of: in the child of a fork the name is another before anything is written
 *   after the end nothing is written: busy is set before the state is read, and the end reads it after it has set the state
 *
 * Locks: none is held while anything is written (stats.c).  Not here: files (live_place.c), what is shown (stats_json.c, live_map.c).
 */
#include <string.h>

#include <quire/quire.h>

#include "arena/arena_internal.h"
#include "base/atomic.h"
#include "base/lock.h"
#include "look/live.h"
#include "look/look.h"
#include "look/look_out.h"
#include "os/os.h"

#define TICK_NS_MAX UINT64_C(50000000)
/* A program of threads that ends sooner is not shown unless somebody asks: its page would cost milliseconds. */
#define WAIT_NS UINT64_C(1000000000)
enum { STAT_BYTES = 1024, PROGRAM_BYTES = 1024, PATH_BYTES = 64, END_WAITS_MAX = 1000, START_TIME_FIELD = 22 };

enum live_state { LIVE_OFF, LIVE_WAITING, LIVE_ON, LIVE_ENDED };

static struct {
    atomic_u32 state, busy, wanted;
    uint64_t interval_ns; /* fixed before the thread begins */
    uint64_t started_ticks; /* of this process, which its copy could not find */
    uint64_t waits_from_ns;
    bool has_loaded, has_complained, waits;
    int (*lines_to)(void); /* NULL: standard error */
    struct live_place place;
    struct live_guest *guests;
} live;

/* ---- the page ---- */

/*
 * When the process began, in the kernel's ticks: with its number it is no other's.  Its first thread's file says the same, and is the kernel's where an
 * emulator makes up the process's own; where /proc is another namespace's that thread is not found.
 */
static uint64_t started_ticks(void)
{
    char text[STAT_BYTES], path[PATH_BYTES] = "/proc/self/task/";
    (void)live_append_number(path, PATH_BYTES - sizeof "/stat", os_process_id());
    memcpy(path + strlen(path), "/stat", sizeof "/stat");
    if (os_read_text(path, text, sizeof text) < 0 && os_read_text("/proc/self/stat", text, sizeof text) < 0)
        return 0;
    return os_stat_field(text, START_TIME_FIELD, 0);
}

static void page(struct out *out, const void *unused)
{
    char program[PROGRAM_BYTES];
    struct look_roll roll;
    (void)unused;
    os_program_path(program, sizeof program);
    out_text(out, "{\"schema\": \"quire.live/1\", \"program\": ");
    out_name_json(out, program);
    out_member(out, "process", os_process_id());
    out_member(out, "started_ticks", live.started_ticks);
    out_member(out, "interval_ns", live.interval_ns);
    out_member(out, "written_ns", os_time_ns());
    if (os_is_copy())
        out_member(out, "answers_by_signal", 1);
    out_text(out, ",\n\"stats\": ");
    stats_json(out, &roll);
    out_text(out, "}\n");
}

static void prometheus(struct out *out, const void *unused)
{
    struct look_roll roll;
    (void)unused;
    stats_prometheus(out, &roll);
}

static void complain(int error)
{
    struct out out;
    if (live.has_complained)
        return;
    live.has_complained = true;
    out_begin(&out, live.lines_to ? live.lines_to() : 2);
    out_text(&out, "quire: top: this process cannot show itself in ");
    out_name_text(&out, live.place.dir[0] ? live.place.dir : "/dev/shm, $TMPDIR or /tmp");
    out_text(&out, ": ");
    out_text(&out, os_error_text(-error));
    if (live_place_is_for_now(error))
        out_text(&out, "; it does so again when it can open files; to mend it, raise ulimit -n\n");
    else
        out_text(&out, "; it goes on without; to mend it, set TMPDIR to a directory with room\n");
    (void)out_end(&out);
}

static live_writer *writer_of(const char *kind)
{
    static const struct {
        const char *kind;
        live_writer *fn;
    } known[] = {{"stats", page}, {"prom", prometheus}, {"map", live_map}};
    for (size_t i = 0; i < LOOK_COUNT_OF(known); i++)
        if (strcmp(kind, known[i].kind) == 0)
            return known[i].fn;
    for (const struct live_guest *guest = live.guests; guest; guest = guest->next)
        if (guest->kind && strcmp(kind, guest->kind) == 0)
            return guest->answer;
    return NULL;
}

static void answer(const struct live_question *question)
{
    live_writer *fn = writer_of(question->kind);
    int error = fn ? live_place_write(&live.place, question->token, fn, NULL) : 0;
    if (error)
        complain(error);
}

/* ---- the thread ---- */

/* One turn, unless the end has come. */
static bool turn(bool is_due)
{
    struct live_question question;
    (void)u32_add_seq_cst(&live.busy, 1); /* the end writes the state, then reads this */
    bool goes_on = u32_load_seq_cst(&live.state) == LIVE_ON;
    int error = goes_on && is_due ? live_place_write(&live.place, "json", page, NULL) : 0;
    if (error)
        complain(error);
    if (goes_on && live_place_asked(&live.place, &question))
        answer(&question);
    for (const struct live_guest *guest = live.guests; goes_on && guest; guest = guest->next)
        guest->turn();
    (void)u32_sub_release(&live.busy, 1); /* release [live-busy] */
    return goes_on;
}

static void publish(bool is_child)
{
    uint64_t tick_ns = live.interval_ns < TICK_NS_MAX ? live.interval_ns : TICK_NS_MAX;
    if (is_child)
        os_sleep_ns(tick_ns);
    live.started_ticks = started_ticks();
    for (uint64_t due_ns = os_time_ns();;) {
        uint64_t now_ns = os_time_ns();
        bool is_due = now_ns >= due_ns;
        if (!turn(is_due) || os_is_deserted())
            return;
        due_ns = is_due ? now_ns + live.interval_ns : due_ns;
        os_sleep_ns(tick_ns);
    }
}

static void thread_main(void *unused)
{
    (void)unused;
    publish(false);
}

static void child_main(void *unused)
{
    (void)unused;
    publish(true);
}

/* ---- begin, fork, end ---- */

static void after_fork(void)
{
    if (u32_load_relaxed(&live.busy) != 0) /* the thread that was is not in the child, which need not copy what it does not write */
        u32_store_relaxed(&live.busy, 0);
    if (u32_load_relaxed(&live.wanted) != 0)
        u32_store_relaxed(&live.wanted, 0);
    if (os_is_copy())
        return;
    if (u32_load_relaxed(&live.state) == LIVE_WAITING && live.place.dir[0])
        live.place.dir[0] = 0; /* nothing there is the child's */
    if (BUILT_WITH_TSAN || lock_watched) {
        live_forget(); /* ThreadSanitizer ends a fork's child that starts a thread */
        return;
    }
    if (u32_load_relaxed(&live.state) == LIVE_ON)
        (void)os_thread_start(child_main, NULL);
}

static void start(void)
{
    int error = os_thread_start(thread_main, NULL);
    if (error)
        complain(error);
}

/* Behind all other repairs of a fork's child (they are registered by constructors that come before): starting a thread allocates. */
static void begin(void)
{
    if (u32_load_relaxed(&live.state) != LIVE_OFF)
        return;
    u32_store_relaxed(&live.state, live.waits ? LIVE_WAITING : LIVE_ON);
#if WITH_ARENA
    arena_list_begin();
#endif
    (void)os_after_fork_in_child(after_fork);
    live.waits_from_ns = os_time_ns();
    if (!live.waits)
        start();
}

static bool has_threads_for_long(void)
{
    return !os_is_single_threaded() && os_time_ns() - live.waits_from_ns >= WAIT_NS;
}

void live_start_due(void)
{
    uint32_t waiting = LIVE_WAITING;
    bool is_due = u32_load_relaxed(&live.state) == LIVE_WAITING && (u32_load_relaxed(&live.wanted) != 0 || has_threads_for_long());
    if (unlikely(is_due) && u32_cas_relaxed(&live.state, &waiting, LIVE_ON))
        start();
}

bool live_is_waiting(void)
{
    return u32_load_relaxed(&live.state) == LIVE_WAITING;
}

void live_lines_go_to(int (*fd)(void))
{
    live.lines_to = fd;
}

void live_want(void)
{
    u32_store_relaxed(&live.wanted, 1);
}

void live_copy_ahead(void)
{
    live.started_ticks = started_ticks();
    live_place_find(&live.place);
}

void live_show_from_copy(void)
{
    struct live_question question;
    int error = live_place_write(&live.place, "json", page, NULL);
    if (error)
        complain(error);
    if (live_place_asked(&live.place, &question))
        answer(&question);
}

void live_guest_add(struct live_guest *guest)
{
    guest->next = live.guests;
    live.guests = guest;
}

void live_forget(void)
{
    u32_store_relaxed(&live.state, LIVE_OFF);
}

void live_ask(uint64_t interval_ns, bool waits)
{
    live.interval_ns = interval_ns;
    live.waits = waits;
    if (live.has_loaded && interval_ns)
        begin();
}

/* A process has one page: the drop-in malloc's, where that is preloaded and this is another copy of the library. */
static bool another_shows(void)
{
    const char *preloaded = os_setting("LD_PRELOAD");
    return preloaded && strstr(preloaded, "libquire-malloc.so");
}

static __attribute__((constructor)) void live_at_load(void)
{
    const char *conf = live.interval_ns ? NULL : os_setting("QUIRE_CONF");
    live.has_loaded = true;
    if (conf && !another_shows()) /* the drop-in itself: live_ask() */
        live.interval_ns = live_conf_find(conf, 2);
    if (live.interval_ns)
        begin();
}

static __attribute__((destructor)) void live_at_end(void)
{
    uint32_t state = u32_load_relaxed(&live.state);
    if (state == LIVE_OFF || state == LIVE_ENDED)
        return;
    u32_store_relaxed(&live.state, LIVE_ENDED);
    atomic_fence_seq_cst();
    for (int i = 0; i < END_WAITS_MAX && u32_load_acquire(&live.busy) != 0; i++) /* acquire [live-busy] */
        os_sleep_ns(1000000);
    live_place_remove(&live.place, "json");
    live_place_remove(&live.place, "ask");
    live_place_remove(&live.place, "new");
}
