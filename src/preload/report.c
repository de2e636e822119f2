// SPDX-License-Identifier: MIT
/*
 * report.c - the report when the program ends: where it goes, and as what.
 *
 *     atexit, after all destructors --> the whole heap checked, if asked --> file or standard error --> text | JSON | Prometheus
 *
 *     SIGTERM, where the program leaves it alone --> the same from a copy of the process (os_in_copy()), then its default
 *
 * A handler interrupts whatever holds a lock, so it may not look at the heap: in a copy of the process the locks are repaired as in any fork's child, and no
 * thread has to stand ready for it.  Sums may be out by the call that was interrupted.
 *
 * Programs close their standard error before they end (coreutils do), and the number may be another file's by then.  So the descriptor is kept
 * under a high number from the start, and whichever of the two is used must still be the same file.  Where the report has a file of its own nothing is
 * kept (who waits for the end of a daemon's standard error would wait for the daemon's), and a line about it is said where number 2 is still the same.
 *
 * Locks: none.  Not here: what is said (report_text.c, report_json.c).
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include <quire/heap.h>
#include <quire/stats.h>

#include "base/lock.h"
#include "base/panic.h"
#include "heap/heap_secure.h"
#include "look/live.h"
#include "os/os.h"
#include "preload/preload.h"
#include "preload/report.h"

enum { STDERR = 2, KEPT_FD = 900, TERM_SECONDS_MAX = 10 };

static struct {
    int fd; /* 0: none */
    struct os_identity file;
} kept_stderr;

void report_know_stderr(bool keeps)
{
    if (!os_fd_identity(STDERR, &kept_stderr.file) || !keeps)
        return;
    int fd = os_fd_keep(STDERR, KEPT_FD);
    kept_stderr.fd = fd > 0 ? fd : STDERR;
}

static bool is_kept(int fd)
{
    struct os_identity now;
    return os_fd_identity(fd, &now) && now.device == kept_stderr.file.device && now.inode == kept_stderr.file.inode;
}

int report_stderr(void)
{
    return kept_stderr.fd && is_kept(kept_stderr.fd) ? kept_stderr.fd : is_kept(STDERR) ? STDERR : -1;
}

static size_t digits_of(uint64_t n, char *text)
{
    char digits[24];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    memcpy(text, digits + at, sizeof digits - at);
    return sizeof digits - at;
}

/* The host's name as a part of a file's. */
static size_t host_of(char *text)
{
    os_host_name(text, REPORT_HOST_BYTES);
    for (char *at = text; *at; at++)
        if (*at == '/')
            *at = '_';
    return strlen(text);
}

/* What a letter behind % stands for; 0: nothing. */
static size_t expand(char letter, uint64_t number, char *text)
{
    switch (letter) {
    case 'p':
        return digits_of(os_process_id(), text);
    case 't':
        return digits_of(os_clock_s(), text);
    case 'h':
        return host_of(text);
    case 'n':
        return number == UINT64_MAX ? 0 : digits_of(number, text);
    default:
        return 0;
    }
}

bool report_path(const char *file, uint64_t number, char path[REPORT_PATH_BYTES])
{
    size_t used = 0;
    for (; *file && used < REPORT_PATH_BYTES - REPORT_HOST_BYTES; file++) {
        size_t put = file[0] == '%' ? expand(file[1], number, path + used) : 0;
        if (put == 0)
            path[used++] = *file;
        used += put;
        file += put != 0 || (file[0] == '%' && file[1] == '%');
    }
    path[used] = 0;
    return *file == 0;
}

static void say_unwritten(const char *end, int error)
{
    struct out out;
    out_begin(&out, report_stderr());
    out_text(&out, "quire: ");
    out_text(&out, end);
    out_text(&out, ": there is no report: ");
    out_text(&out, error == -EIO ? "it took too long, or the heap is not sound" : os_error_text(-error));
    out_char(&out, '\n');
    (void)out_end(&out);
}

static void say_lost(const struct conf *conf, int error)
{
    struct out out;
    out_begin(&out, report_stderr());
    out_text(&out, "quire: the report cannot be written to ");
    out_name_text(&out, conf->file);
    out_text(&out, ": ");
    out_text(&out, os_error_text(-error));
    out_text(&out, "; set stats_file in QUIRE_CONF to a file that can\n");
    (void)out_end(&out);
}

static int report_open(const struct conf *conf)
{
    char path[REPORT_PATH_BYTES];
    if (!conf->file[0])
        return report_stderr();
    return report_path(conf->file, UINT64_MAX, path) ? os_report_open(path) : -ENAMETOOLONG;
}

static uint64_t term_cpu_ns; /* what the process had used when it was copied */

/* What lies in arenas and slabs of the plan is malloc's, too. */
static void plan_add(struct report *report)
{
    const struct steer_stats *plan = &report->plan;
    report->heap.live_blocks += plan->live_blocks;
    report->heap.live_bytes += plan->live_bytes;
    report->heap.free_bytes += plan->held_bytes > plan->live_bytes ? plan->held_bytes - plan->live_bytes : 0;
    report->heap.mapped_bytes += plan->held_bytes;
    if (report->heap.peak_bytes < report->heap.mapped_bytes)
        report->heap.peak_bytes = report->heap.mapped_bytes;
}

void report_collect(struct report *report)
{
    memset(report, 0, sizeof *report);
    report->time_wall_ns = os_time_ns() - preload_start_ns();
    report->time_cpu_ns = os_is_copy() ? term_cpu_ns : os_cpu_time_ns();
    os_program_path(report->program, sizeof report->program);
    report->pid = os_process_id();
    report->passes = preload_ready() == PRELOAD_PASSES;
    if (preload_conf.plan[0])
        steer_stats(&report->plan);
    rss_explain(&report->rss, &report->plan);
    if (report->passes)
        return;
    report->heap.struct_bytes = sizeof report->heap;
    report->source.struct_bytes = sizeof report->source;
    quire_heap_stats(quire_heap_default(), &report->heap);
    quire_source_stats(quire_source_default(), &report->source);
    if (preload_conf.leaks)
        leaks_collect(&report->leaks);
    plan_add(report);
}

int report_text(int fd)
{
    struct report report;
    report_collect(&report);
    int error = report_print(&report, fd);
    return error || report.passes ? error : look_write(fd, QUIRE_STATS_TEXT, false);
}

static int write_to(int fd)
{
    struct report report;
    if (preload_conf.format == CONF_TEXT)
        return report_text(fd);
    report_collect(&report);
    return preload_conf.format == CONF_JSON ? report_print_json(&report, fd) : report_print_prometheus(&report, fd);
}

static void report_write(void)
{
    int fd = report_open(&preload_conf), error = fd < 0 ? fd : write_to(fd);
    if (fd >= 0 && preload_conf.file[0])
        os_close(fd);
    if (error && preload_conf.file[0])
        say_lost(&preload_conf, error);
}

/* What was asked for at the end of the program. */
static void write_all(void)
{
    profile_at_exit();
    if (preload_conf.stats_at_exit)
        report_write();
}

/* Any thread may end the program, also one with 16 KiB of stack, or a coroutine with less: there a thread of ours writes. */
static atomic_u32 written;

static void write_on_own_stack(void *unused)
{
    (void)unused;
    write_all();
    u32_store_release(&written, 1); /* release [report-written] */
    os_futex_wake(&written.word, 1);
}

/* ---- at SIGTERM ---- */

void report_repair_copy(void)
{
    live_forget();
    lock_forget_all();
    heap_thread_leave_for_good();
    os_repair();
}

/* In the copy. */
static void write_of_copy(void)
{
    report_repair_copy();
    write_all();
}

static void on_term(int number)
{
    term_cpu_ns = os_cpu_time_ns();
    int error = os_in_copy(write_of_copy, TERM_SECONDS_MAX);
    if (error == -EBUSY) /* another thread is at it, and ends the process */
        return;
    if (error)
        say_unwritten("SIGTERM", error);
    os_signal_by_default(number);
}

void report_begin(void)
{
    if (preload_conf.stats_at_exit)
        (void)os_on_signal_if_default(SIGTERM, on_term);
}

/* A handler calls exit() in the middle of one of our calls: what is looked at would wait for what this thread holds. */
static bool is_in_our_call(void)
{
    return lock_holds_any() || heap_is_in_local() || heap_is_inside();
}

/* With secure:1 what is kept back was not looked at yet. */
static void check_at_exit(void)
{
    if (preload_ready() == PRELOAD_PASSES)
        return;
    if (preload_conf.secure)
        heap_late_verify_all(quire_heap_default());
    const char *broken = preload_conf.check_every ? quire_heap_check(quire_heap_default()) : NULL;
    if (broken)
        panic("malloc", NULL, broken, quire_heap_default());
}

static void end_in_copy(void)
{
    term_cpu_ns = os_cpu_time_ns();
    int error = os_in_copy(write_of_copy, TERM_SECONDS_MAX);
    if (error && error != -EBUSY)
        say_unwritten("exit", error);
}

/* What a thread holds is known but for a few instructions around a lock; so whoever blocks a signal, as handlers do, is taken for one. */
void report_at_exit(void)
{
    bool is_asked = preload_conf.stats_at_exit || preload_conf.prof_every_bytes, is_inside = is_in_our_call();
    if (!is_inside)
        check_at_exit();
    if (is_asked && (is_inside || os_blocks_signals())) {
        end_in_copy();
        return;
    }
    if (!is_asked)
        return;
    int kept = errno;
    if (os_is_first_stack(&kept) || os_thread_start(write_on_own_stack, NULL) != 0)
        write_all();
    else
        while (u32_load_acquire(&written) == 0) /* acquire [report-written] */
            os_futex_wait(&written.word, 0, 0);
    errno = kept;
}
