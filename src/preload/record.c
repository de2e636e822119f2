// SPDX-License-Identifier: MIT
/*
 * record.c - QUIRE_CONF=record: the tool's recorder, without the tool and without the right to trace.
 *
 *     before main (before_main.c) --> libquire-attach.so, where the tool's helpers are --> no record_signal: begins now, and ends with the process
 *                                                                                     '-> else:  signal --> a count --> the thread that shows
 *                                                                                         the process (look/live.c), at its next tick: begins, or ends
 *
 * The recorder changes the slots through which the process calls malloc's family and C++'s, so that calls pass through it on their way to us, and puts
 * them back at the end.  Between two recordings nothing is slower.  A handler does no more than count: what it has interrupted may hold any lock.
 *
 * A child of fork() goes on with a trace of its own, where its parent is recorded; in any case a signal is its own.
 *
 * Locks: none.  Not here: what a trace holds, how slots are changed (tools/native/record).
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "look/live.h"
#include "look/look_out.h"
#include "os/os.h"
#include "preload/preload.h"

/* How often a process shows itself that only a recording was asked of. */
#define SHOWN_EVERY_NS (UINT64_C(10) * 1000000000u)
enum { PATH_BYTES = 4096, PLACES = 3 };

/* What the recorder exports (tools/native/record/attach.c). */
static struct {
    /* `cpu_ns_before`: that the process has used up to now; 0: it begins now.  0 or -errno: EBUSY somebody else records, ENXIO there is no slot, EAGAIN try again, else of the file. */
    int (*begin)(bool (*name)(char *path, size_t bytes), uint64_t limit_bytes, uint64_t cpu_ns_before);
    int (*end)(void); /* 0 or -errno: ESRCH nothing of ours is recorded, EAGAIN try again */
} recorder;

static atomic_u32 asked; /* signals that nobody has acted on */
static atomic_u64 named;
static char path_now[REPORT_PATH_BYTES];

static void say(const char *what, const char *name, const char *why)
{
    struct out out;
    out_begin(&out, report_stderr());
    out_text(&out, "quire: QUIRE_CONF: record");
    out_text(&out, what);
    out_name_text(&out, name);
    out_text(&out, why[0] ? ": " : "");
    out_text(&out, why);
    out_text(&out, "; nothing is recorded\n");
    (void)out_end(&out);
}

/* The next trace's; also in a child that goes on. */
static bool name_next(char *path, size_t bytes)
{
    if (!report_path(preload_conf.record, u64_add_relaxed(&named, 1), path_now) || strlen(path_now) >= bytes)
        return false;
    memcpy(path, path_now, strlen(path_now) + 1);
    return true;
}

static void complain(int error)
{
    if (error == -EBUSY)
        say(": quire record --pid records this process now", "", "");
    else if (error == -ENXIO)
        say(": nothing here calls malloc through the loader's slots", "", "");
    else
        say(": the trace cannot be written to ", path_now, os_error_text(-error));
}

/* False: not now. */
static bool toggle(void)
{
    int error = recorder.end();
    if (error == -ESRCH)
        error = recorder.begin(name_next, preload_conf.record_limit_bytes, preload_conf.record_signal ? os_cpu_time_ns() : 0);
    if (error && error != -EAGAIN)
        complain(error);
    return error != -EAGAIN;
}

static void on_signal(int number)
{
    (void)number;
    u32_add_relaxed(&asked, 1);
}

static void turn(void)
{
    uint32_t left = u32_exchange_acquire(&asked, 0); /* each signal counts, also two within a tick */
    while (left > 0 && toggle())
        left--;
    if (left > 0)
        u32_add_relaxed(&asked, left);
}

static void after_fork(void)
{
    u32_store_relaxed(&asked, 0);
    if (!os_is_copy())
        u64_store_relaxed(&named, 0);
}

/* ---- the recorder ---- */

/* Beside the library, as built and as installed. */
static bool path_of(char path[PATH_BYTES], const char *ours, unsigned place)
{
    static const char *const folders[PLACES] = {"tools/", "../libexec/quire/", "../../libexec/quire/"};
    static const char file[] = "libquire-attach.so";
    const char *slash = strrchr(ours, '/');
    size_t used = slash ? (size_t)(slash - ours) + 1 : 0, folder_bytes = strlen(folders[place]);
    if (used + folder_bytes + sizeof file > PATH_BYTES)
        return false;
    memcpy(path, ours, used);
    memcpy(path + used, folders[place], folder_bytes);
    memcpy(path + used + folder_bytes, file, sizeof file);
    return true;
}

static void *recorder_open(void)
{
    struct os_object ours;
    char path[PATH_BYTES], magic[5];
    if (!os_object_of((uintptr_t)recorder_open, &ours))
        return NULL;
    for (unsigned place = 0; place < PLACES; place++)
        if (path_of(path, ours.name, place) && os_read_text(path, magic, sizeof magic) > 0)
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return NULL;
}

static bool recorder_find(void)
{
    (void)dlerror();
    void *library = recorder_open();
    if (!library) {
        const char *why = dlerror();
        say(": libquire-attach.so, a part of the quire command, cannot be loaded", "", why ? why : "it is not where libquire-malloc.so has it");
        return false;
    }
    recorder.begin = (int (*)(bool (*)(char *, size_t), uint64_t, uint64_t))(uintptr_t)dlsym(library, "quire_record_begin");
    recorder.end = (int (*)(void))(uintptr_t)dlsym(library, "quire_record_end");
    if (!recorder.begin || !recorder.end)
        say(": libquire-attach.so is another version's", "", "");
    return recorder.begin && recorder.end;
}

static void begin(void)
{
    if (!recorder_find())
        return;
    (void)os_after_fork_in_child(after_fork);
    if (preload_conf.record_signal && os_on_signal((int)preload_conf.record_signal, on_signal) != 0)
        say("_signal: this signal cannot be caught", "", "");
    else if (preload_conf.record_signal == 0 && !toggle())
        complain(-EAGAIN);
}

void record_begin(void)
{
    static struct live_guest guest = {.turn = turn};
    bool is_late = environ != NULL; /* opened by a program that runs: libc is ready */
    if (!preload_conf.record[0]) {
        if (preload_conf.record_signal)
            say("_signal: there is no record:FILE", "", "");
        return;
    }
    if (preload_conf.plan[0]) { /* a call's site would be the recorder */
        say(" does not go with plan", "", "");
        return;
    }
    if (preload_conf.record_signal) {
        live_guest_add(&guest);
        if (preload_conf.top_ns == 0)
            preload_conf.top_ns = SHOWN_EVERY_NS;
    }
    if (is_late)
        begin();
    else if (!before_main(begin))
        say(": where this program begins is not known", "", "");
}
