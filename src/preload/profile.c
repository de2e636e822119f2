// SPDX-License-Identifier: MIT
/*
 * profile.c - the files that a profile is written to.
 *
 *     signal, threshold --> a flag --> the thread that shows the process to others (look/live.c), at its next tick --> FILE
 *     quire profile --pid --> the same thread --> the answer
 *     exit -------------------------------------------------------------------------------------------------------> FILE
 *
 * In a program of one thread that thread is not there until the threshold is reached or somebody has asked: then a signal's handler makes a copy of the
 * process (os_in_copy()), which does it.  Who asks sends SIGURG: it is ignored where nobody handles it, and whoever does has to expect it at any time.
 * Where its place is taken when the library is loaded, or pressure is to be looked at, the thread is there from the start.
 *
 * FILE is prof_file with %p and %n, the number of the file in this process.  A handler itself writes nothing: what it has interrupted may hold any lock.
 * Where QUIRE_CONF has pressure, too, that thread looks once a second whether memory is short, also while the reaper is asleep: an OOM kill leaves no time.
 * Tasks that wait for memory are a reason, a cgroup at its limit is another; either makes a file when it begins.
 * A process that no other can see (no place for its page) has the file at its exit only.  At the exit of a process of which nothing was sampled there is none:
 * shells and their like, which a program starts by the dozen, would write nothing but their names.
 *
 * And the way of guarded blocks back to their pool: their addresses are no heap's.
 *
 * Locks: none.  Not here: what is in the file (prof/write.c).
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "look/live.h"
#include "look/look_out.h"
#include "os/os.h"
#include "pages/pressure.h"
#include "preload/preload.h"
#include "prof/guard.h"

/* How often a process shows itself that only a profile was asked of. */
#define SHOWN_EVERY_NS (UINT64_C(10) * 1000000000u)
/* At most one file in so long because memory is short. */
#define SHORT_EVERY_NS (UINT64_C(60) * 1000000000u)
enum { COPY_SECONDS_MAX = 5 };

static atomic_u32 asked; /* by a signal */
static atomic_u64 written;

static void complain(const char *path, int error)
{
    struct out out;
    out_begin(&out, report_stderr());
    out_text(&out, "quire: the profile cannot be written to ");
    out_name_text(&out, path);
    out_text(&out, ": ");
    out_text(&out, os_error_text(-error));
    out_text(&out, "; set prof_file in QUIRE_CONF to a file that can\n");
    (void)out_end(&out);
}

static void write_file(void)
{
    char path[REPORT_PATH_BYTES];
    struct out out;
    int error = 0, fd = report_path(preload_conf.prof_file, u64_add_relaxed(&written, 1), path) ? os_report_open(path) : -ENAMETOOLONG;
    if (fd >= 0) {
        out_begin(&out, fd);
        prof_write(&out);
        error = out_end(&out);
        os_close(fd);
    }
    if (fd < 0 || error)
        complain(path, fd < 0 ? fd : error);
}

/* ---- signals ---- */

static void write_in_copy(void)
{
    report_repair_copy();
    write_file();
}

static void on_signal(int number)
{
    (void)number;
    if (live_is_waiting() && os_in_copy(write_in_copy, COPY_SECONDS_MAX) == 0) {
        u64_add_relaxed(&written, 1);
        return;
    }
    u32_store_relaxed(&asked, 1);
    live_want();
}

static void answer_in_copy(void)
{
    report_repair_copy();
    live_show_from_copy();
}

/* Whoever has asked once asks again: by then there is a thread, if the program allocates. */
static void on_urgent(int number)
{
    (void)number;
    if (!live_is_waiting())
        return;
    live_copy_ahead();
    (void)os_in_copy(answer_in_copy, COPY_SECONDS_MAX);
    live_want();
}

/* ---- the thread ---- */

/* Memory has become short, by waiting tasks or at a cgroup's limit, for another reason than at the last look.  For the one thread that shows the process. */
static bool memory_falls_short(void)
{
    enum { BY_STALLS = 1, BY_LIMIT = 2 };
    static struct {
        struct pressure_seen pressure;
        uint64_t looked_ns, written_ns; /* 0: not yet */
        unsigned reasons, untold;
    } seen;
    uint64_t now = os_time_ns();
    if (preload_conf.pressure_percent == 0 || now - seen.looked_ns < PRESSURE_LOOK_NS)
        return false;
    seen.looked_ns = now;
    unsigned reasons = pressure_stalls(&seen.pressure, now, (uint32_t)preload_conf.pressure_percent) ? BY_STALLS : 0;
    reasons |= pressure_hits_limit(&seen.pressure) ? BY_LIMIT : 0;
    seen.untold = (seen.untold | (reasons & ~seen.reasons)) & reasons;
    seen.reasons = reasons;
    if (seen.untold == 0 || (seen.written_ns && now - seen.written_ns < SHORT_EVERY_NS))
        return false;
    seen.written_ns = now;
    seen.untold = 0;
    return true;
}

static void turn(void)
{
    bool is_asked = u32_load_relaxed(&asked) != 0 && u32_exchange_acquire(&asked, 0) != 0;
    bool is_short = memory_falls_short();
    if (prof_due() || is_asked || is_short)
        write_file();
}

static void answer(struct out *out, const void *unused)
{
    (void)unused;
    prof_write(out);
}

static void after_fork(void)
{
    prof_after_fork();
    if (!os_is_copy() && u64_load_relaxed(&written) != 0) /* what a child does not write it need not copy */
        u64_store_relaxed(&written, 0);
    if (u32_load_relaxed(&asked) != 0)
        u32_store_relaxed(&asked, 0);
}

/* ---- guarded blocks ---- */

static const struct heap_strangers *others; /* libc's blocks */

static bool has(const void *p)
{
    return guard_has(p) || (others && others->has(p));
}

static void free_one(void *p)
{
    if (guard_has(p))
        guard_free(p, PROF_CALLER);
    else
        others->free(p);
}

static void *realloc_one(void *p, size_t bytes)
{
    return guard_has(p) ? prof_realloc(p, bytes, PROF_CALLER) : others->realloc(p, bytes);
}

void profile_strangers(const struct heap_strangers *next)
{
    static const struct heap_strangers both = {has, free_one, realloc_one};
    if (next)
        others = next;
    heap_strangers = preload_conf.guard_every ? &both : others;
}

bool profile_begin(void)
{
    static struct live_guest guest = {.kind = "profile", .answer = answer, .turn = turn};
    if (preload_conf.prof_every_bytes || preload_conf.guard_every)
        (void)os_after_fork_in_child(after_fork);
    if (preload_conf.prof_every_bytes == 0)
        return false;
    live_guest_add(&guest);
    if (preload_conf.prof_signal && os_on_signal((int)preload_conf.prof_signal, on_signal) != 0)
        os_write_stderr("quire: QUIRE_CONF: prof_signal: this signal cannot be caught; there is none\n", 76);
    if (preload_conf.top_ns)
        return false;
    preload_conf.top_ns = SHOWN_EVERY_NS;
    return preload_conf.pressure_percent == 0 && os_on_signal_if_default(SIGURG, on_urgent);
}

void profile_at_exit(void)
{
    if (preload_conf.prof_every_bytes && preload_conf.prof_exit && !prof_is_empty())
        write_file();
}
