// SPDX-License-Identifier: MIT
/*
 * start.c - the first call of malloc: QUIRE_CONF is read and the default heap set up, before any block is handed out.
 *
 *     ld.so ---> our constructor ---> libc's, all others' ---> main ... exit handlers -> destructors -> the report
 *       ^ first malloc, perhaps  ^ at_load(): is the process's malloc ours?
 *
 * `environ` is still empty then: the loader's list is read, or, for a call out of ld.so itself, the kernel's copy.  The exit handler is registered
 * by our constructor, before libc registers the one that runs the destructors, so it runs after all of them.  And our repairs in the child of
 * a fork come before the handlers of libraries that allocate there.
 *
 * Invariants:
 *   preload_conf is written once, by the thread that leaves PRELOAD_UNASKED; all others read it after an acquire of the mode.
 *
 * Locks: none that a fork could leave held: `starter` is a thread's id, and a child of a fork in the middle starts anew.
 * Not here: what the settings look like (conf.c).
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <quire/heap.h>
#include <quire/source.h>

#include "heap/heap_internal.h"
#include "look/live.h"
#include "look/look_out.h"
#include "os/os.h"
#include "pages/pressure.h"
#include "pages/source_internal.h"
#include "preload/preload.h"
#include "prof/guard.h"

atomic_u32 preload_mode;
struct conf preload_conf = CONF_START;
static atomic_u64 starter; /* the thread that sets things up; 0: nobody */
static uint64_t start_ns;
static char **environ_of_loader;

enum { ENVIRON_BYTES = 8 << 20 /* more than the kernel hands to any program */ };
static const char variable[] = "QUIRE_CONF=";

uint64_t preload_start_ns(void)
{
    return start_ns;
}

static const char *value_from_list(char **list)
{
    for (; *list; list++)
        if (strncmp(*list, variable, sizeof variable - 1) == 0)
            return *list + sizeof variable - 1;
    return NULL;
}

/* The value in the kernel's copy of the environment, read into `memory`. */
static const char *value_from_kernel(char *memory)
{
    int used = os_read_text("/proc/self/environ", memory, ENVIRON_BYTES);
    for (int at = 0; at < used; at += (int)strlen(memory + at) + 1)
        if (strncmp(memory + at, variable, sizeof variable - 1) == 0)
            return memory + at + sizeof variable - 1;
    return NULL;
}

/* A program that runs with more rights than its user must not be told by him what to do. */
static void conf_read(void)
{
    if (os_is_privileged())
        return;
    char **list = environ ? environ : environ_of_loader;
    const char *text = list ? value_from_list(list) : NULL;
    void *memory = NULL;
    if (!list && os_map(ENVIRON_BYTES, os_page_bytes(), &memory) == 0)
        text = value_from_kernel(memory);
    if (text)
        conf_parse(&preload_conf, text, 2);
    if (memory)
        os_unmap(memory, ENVIRON_BYTES);
}

static void say(const char *line)
{
    os_write_stderr(line, strlen(line));
}

/* What does nothing without another key. */
static void useless_say(void)
{
    if (preload_conf.file[0] && !preload_conf.stats_at_exit && !preload_conf.leaks)
        say("quire: QUIRE_CONF: stats_file goes with stats:exit and leaks:1; there is no report\n");
    if (preload_conf.prof_every_bytes == 0 && (preload_conf.prof_at_bytes || preload_conf.prof_signal))
        say("quire: QUIRE_CONF: prof_at and prof_signal go with prof:1; there is no profile\n");
    if (!preload_conf.plan[0] && (preload_conf.plan_control || preload_conf.plan_timed))
        say("quire: QUIRE_CONF: plan_control and plan_timed go with plan:FILE; there is no plan\n");
    if (preload_conf.prof_signal && preload_conf.prof_signal == preload_conf.record_signal)
        say("quire: QUIRE_CONF: prof_signal and record_signal are one: it is the recording's alone; take USR1 for one and USR2 for the other\n");
}

/* ---- a plan ---- */

static char plan_refused[STEER_WHY_BYTES];

const char *preload_plan_refused(void)
{
    return plan_refused;
}

static void plan_say(void)
{
    struct out out;
    out_begin(&out, 2);
    out_text(&out, "quire: QUIRE_CONF: the plan ");
    out_name_text(&out, preload_conf.plan);
    out_text(&out, " is not used: ");
    out_text(&out, plan_refused);
    out_text(&out, "; the heap serves every call\n");
    (void)out_end(&out);
}

/* What the heap promises besides holds for blocks of the heap. */
static bool plan_in_force(void)
{
    const struct steer_opts opts = {.control = preload_conf.plan_control, .counts = preload_conf.stats_at_exit};
    if (preload_conf.limit_bytes || preload_conf.leaks || preload_conf.secure || preload_conf.check_every)
        strcpy(plan_refused, "limit, leaks, secure and check are for the heap alone");
    else if (steer_start(preload_conf.plan, &opts, plan_refused))
        return true;
    if (strcmp(plan_refused, STEER_OTHER_PROGRAM) != 0) /* one that the program has started, perhaps */
        plan_say();
    return false;
}

/* Blocks are sampled on the way to the heap; who goes another way has none. */
static void samples_refuse(const char *why)
{
    struct out out;
    out_begin(&out, 2);
    out_text(&out, preload_conf.prof_every_bytes ? "quire: QUIRE_CONF: prof" : "quire: QUIRE_CONF: guard");
    out_text(&out, preload_conf.prof_every_bytes && preload_conf.guard_every ? " and guard do not go with " : " does not go with ");
    out_text(&out, why);
    out_text(&out, preload_conf.prof_every_bytes ? "; there is no profile\n" : "; no block is guarded\n");
    (void)out_end(&out);
    preload_conf.prof_every_bytes = preload_conf.guard_every = 0;
}

/* False: nothing is sampled.  `other`: whose way calls go instead; NULL: nobody's. */
static bool samples_go(const char *other)
{
    if (preload_conf.prof_every_bytes == 0 && preload_conf.guard_every == 0)
        return false;
    if (other) {
        samples_refuse(other);
        return false;
    }
    if (preload_conf.guard_every && guard_start() != 0) {
        say("quire: QUIRE_CONF: guard: there is no memory for it; no block is guarded\n");
        preload_conf.guard_every = 0;
    }
    struct prof_opts opts = {.every_bytes = preload_conf.prof_every_bytes, .guard_every = preload_conf.guard_every, .at_bytes = preload_conf.prof_at_bytes, .sees_all = preload_conf.check_every != 0};
    if (opts.at_bytes == 0 && opts.every_bytes && preload_conf.pressure_percent)
        opts.at_bytes = os_memory_bytes() / 4; /* who fills a cgroup with memory of his own is killed before its counts say that it is short */
    prof_start(&opts);
    profile_strangers(NULL);
    return preload_conf.prof_every_bytes || preload_conf.guard_every;
}

static enum preload_mode mode_from_conf(void)
{
    if (preload_conf.passthrough && libc_is_there()) {
        if (preload_conf.limit_bytes || preload_conf.leaks || preload_conf.secure || preload_conf.check_every || preload_conf.plan[0])
            say("quire: QUIRE_CONF: limit, leaks, secure, check and plan do not go with passthrough: libc's malloc knows none of them\n");
        (void)samples_go("passthrough");
        return PRELOAD_PASSES;
    }
    if (preload_conf.passthrough)
        say("quire: QUIRE_CONF: passthrough needs glibc, whose allocator has a second name; this libc has none: going on with Quire\n");
    if (preload_conf.plan[0] && plan_in_force() && steer_has_sites()) {
        (void)samples_go("plan");
        return preload_conf.plan_timed ? PRELOAD_TIMES : PRELOAD_STEERS;
    }
    if (samples_go(NULL))
        return preload_conf.check_every ? PRELOAD_DOUBTS : PRELOAD_SAMPLES;
    return preload_conf.check_every ? PRELOAD_CAREFUL : preload_conf.secure ? PRELOAD_SECURED : PRELOAD_SERVES;
}

static void tags_set_up(void)
{
    if (!preload_conf.secure)
        say("quire: QUIRE_CONF: tags go with secure:1; no block has one\n");
    else if (os_tags_start() != 0)
        say("quire: QUIRE_CONF: tags: this processor or its system has no memory tagging; no block has one\n");
}

static void heap_set_up(void)
{
    struct quire_heap_opts opts = {.limit_bytes = (size_t)preload_conf.limit_bytes, .flags = preload_conf.secure ? QUIRE_HEAP_SECURE : HEAP_SAMPLES};
    source_default_serve_malloc();
    pressure_watch((uint32_t)preload_conf.pressure_percent);
    if (preload_conf.tags && !preload_conf.passthrough)
        tags_set_up();
    heap_default_configure(&opts);
    if (preload_conf.decay_is_set && quire_source_set_decay(quire_source_default(), preload_conf.decay_ns) != 0)
        say("quire: QUIRE_CONF: decay can be an hour at most; it stays at 1s\n");
}

static COLD enum preload_mode preload_start(void)
{
    int kept = errno;
    uint64_t nobody = 0, self = os_thread_id();
    if (u64_cas_acquire(&starter, &nobody, self)) {
        conf_read();
        useless_say();
        enum preload_mode mode = mode_from_conf();
        heap_set_up();
        if (preload_conf.leaks)
            preload_conf.stats_at_exit = true;
        start_ns = os_time_ns(); /* malloc_stats() says how long, too */
        report_know_stderr(preload_conf.stats_at_exit && !preload_conf.file[0]);
        live_lines_go_to(report_stderr);
        u32_store_release(&preload_mode, mode); /* release [preload-mode] */
    } else if (nobody == self) {
        return PRELOAD_SERVES; /* a call from inside the setting up: the heap as it is */
    }
    while (u32_load_acquire(&preload_mode) == PRELOAD_UNASKED) /* acquire [preload-mode] */
        os_yield();
    errno = kept;
    return (enum preload_mode)u32_load_relaxed(&preload_mode);
}

enum preload_mode preload_ready(void)
{
    uint32_t mode = u32_load_acquire(&preload_mode); /* acquire [preload-mode] */
    return likely(mode != PRELOAD_UNASKED) ? (enum preload_mode)mode : preload_start();
}

int quire_malloc_serving(void)
{
    enum preload_mode mode = preload_ready();
    return mode == PRELOAD_CAREFUL || mode == PRELOAD_DOUBTS || mode == PRELOAD_SECURED || mode >= PRELOAD_SERVES;
}

static void at_exit(void *unused)
{
    (void)unused;
    report_at_exit();
}

extern int __cxa_atexit(void (*fn)(void *), void *arg, void *dso);

/*
 * Loaded by dlopen, or behind a program that brings its own malloc, we see blocks of others.  The address alone does not tell: a program that
 * is not position-independent shows its own way station for malloc, behind which we are.  So a block is asked for.
 */
static bool is_process_malloc(void)
{
    void *(*first_malloc)(size_t) = (void *(*)(size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "malloc");
    void (*first_free)(void *) = (void (*)(void *))(uintptr_t)dlsym(RTLD_DEFAULT, "free");
    if (!first_malloc || !first_free || first_malloc == malloc)
        return true;
    void *block = first_malloc(1);
    bool is_ours = !block || quire_heap_of(block) != NULL;
    first_free(block);
    return is_ours;
}

/* Before all other constructors, libc's too (-z initfirst): glibc hands them what main will get. */
static __attribute__((constructor)) void at_load(int count, char **words, char **list)
{
    (void)count;
    (void)words;
    environ_of_loader = libc_is_there() ? list : NULL;
    uint32_t mode = preload_ready();
    if (mode != PRELOAD_PASSES && !is_process_malloc()) {
        libc_is_not_the_malloc();
        u32_store_release(&preload_mode, PRELOAD_BESIDE); /* release [preload-mode] */
        heap_tls.quick_bytes = -1;
        heap_tls.quick_free = HEAP_LOCAL_CLOSED;
        preload_conf.prof_every_bytes = preload_conf.guard_every = 0;
    }
    libc_takes_its_own();
    new_begin();
    record_begin();
    bool waits = profile_begin();
    report_begin();
    if (preload_conf.stats_at_exit || preload_conf.check_every || preload_conf.prof_every_bytes || preload_conf.secure)
        (void)__cxa_atexit(at_exit, NULL, NULL); /* not this library's: those run when it is closed */
    live_ask(preload_conf.top_ns, waits);
}
