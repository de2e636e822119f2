// SPDX-License-Identifier: MIT
/*
 * conf.c - reads QUIRE_CONF="key:value,key:value".
 *
 *     stats:exit=/tmp/%p.txt,limit:2G
 *     |key| |--- value ---|  |key|
 *
 * A key alone is key:1.  Sizes take K M G T (with or without B, iB), times ns us ms s; both are whole numbers.  The last of two equal keys
 * counts.  A mistake costs its own key only: the program runs on with the others.
 *
 * The list KEYS is the one place where a key, its default and its help stand.
 *
 * Locks: none; the caller sees to it that it runs once.  Not here: where the text comes from, what the settings do (start.c).
 */
#include <signal.h>
#include <string.h>

#include "look/live.h"
#include "look/look_out.h"
#include "os/os.h"
#include "pages/pressure.h"
#include "preload/conf.h"
#include "prof/guard.h"

enum kind { KIND_FLAG, KIND_SIZE, KIND_TIME, KIND_COUNT, KIND_WHEN, KIND_FORMAT, KIND_FILE, KIND_EVERY, KIND_MEAN, KIND_SIGNAL, KIND_PART, KIND_LIMIT, KIND_SHARE, KIND_HELP };

/* key, kind, field, what it looks like, default, help */
#define KEYS(X)                                                                                                                            \
    X("stats", KIND_WHEN, stats_at_exit, "exit[=FILE]", "off", "print a report when the program ends")                                     \
    X("stats_file", KIND_FILE, file, "FILE", "standard error", "where the report goes; %p: the process, %h: the host, %t: the time")                        \
    X("stats_format", KIND_FORMAT, format, "text|json|prom", "text", "how the report is written")                                          \
    X("leaks", KIND_FLAG, leaks, "0|1", "0", "report the blocks that are live when the program ends")                                      \
    X("limit", KIND_LIMIT, limit_bytes, "SIZE|N%", "0 (none)", "memory the heap may hold, N% of its cgroup's limit or of RAM; beyond it malloc fails with ENOMEM") \
    X("pressure", KIND_SHARE, pressure_percent, "0|1|N%", "0 (off)", "trim when tasks wait for memory N% of the time; 1: 10%")             \
    X("decay", KIND_TIME, decay_ns, "TIME", "1s", "how long idle memory stays warm; 0: given back at once, and no thread of ours before the program has others")         \
    X("secure", KIND_FLAG, secure, "0|1", "0", "canaries, random order, wiped and verified blocks, quarantine, guards")                            \
    X("tags", KIND_FLAG, tags, "0|1", "0", "with secure: the processor's memory tags (arm64's MTE) keep small blocks and what was freed apart")     \
    X("check", KIND_COUNT, check_every, "N", "0 (off)", "check the whole heap at every Nth call and at exit")    \
    X("passthrough", KIND_FLAG, passthrough, "0|1", "0", "hand everything to libc's allocator, to see whether a fault is Quire's")         \
    X("plan", KIND_FILE, plan, "FILE", "none", "serve each call site as this plan says (quire advise -o)")                                 \
    X("plan_control", KIND_FLAG, plan_control, "0|1", "0", "find each call's site, and serve all by the heap: what finding costs")         \
    X("plan_timed", KIND_FLAG, plan_timed, "0|1", "0", "time one in 64 of the frees that arenas make needless")                           \
    X("top", KIND_EVERY, top_ns, "0|1|TIME", "0 (off)", "show this process to `quire top` and `quire map`, every second or so often")        \
    X("prof", KIND_MEAN, prof_every_bytes, "0|1|SIZE", "0 (off)", "sample live and allocated bytes by call stack, once in so many bytes; 1: in 512K")      \
    X("prof_file", KIND_FILE, prof_file, "FILE", "quire.%p.%n.heap", "where profiles go; %p: the process, %n: the file's number, %h: the host, %t: the time")       \
    X("prof_at", KIND_LIMIT, prof_at_bytes, "SIZE|N%", "0 (never)", "write a profile whenever so many more bytes are live than before, N% as of limit")     \
    X("prof_signal", KIND_SIGNAL, prof_signal, "USR1|USR2|N", "none", "write a profile at this signal")                                    \
    X("prof_exit", KIND_FLAG, prof_exit, "0|1", "1", "write a profile when the program ends, if anything was sampled")                      \
    X("record", KIND_FILE, record, "FILE", "none", "record all calls to this trace; %p: the process, %n: the trace's number, %h: the host, %t: the time") \
    X("record_signal", KIND_SIGNAL, record_signal, "USR1|USR2|N", "none: all of it", "start and stop recording at this signal")                 \
    X("record_limit", KIND_SIZE, record_limit_bytes, "SIZE", "8G", "stop recording when the trace is so large; 0: never")                   \
    X("guard", KIND_PART, guard_every, "0|1|1/N", "0 (off)", "put one in N blocks between pages that cannot be touched; 1: in 5000")       \
    X("help", KIND_HELP, file, "1", "0", "print this list")

/* Texts, not pointers to them: these would be relocated, and written to, in every process. */
struct key {
    enum kind kind;
    size_t offset;
    char name[16], look[24], start[40], help[160];
};
#define KEY_FITS(text, kind, field, values, begin, words)                                                                                             \
    STATIC_ASSERT(sizeof text <= sizeof((struct key *)0)->name && sizeof values <= sizeof((struct key *)0)->look, "with the zero at its end");        \
    STATIC_ASSERT(sizeof begin <= sizeof((struct key *)0)->start && sizeof words <= sizeof((struct key *)0)->help, "with the zero at its end");
KEYS(KEY_FITS)
#undef KEY_FITS
static const struct key keys[] = {
#define KEY_ROW(name, kind, field, look, start, help) {kind, offsetof(struct conf, field), name, look, start, help},
    KEYS(KEY_ROW)
#undef KEY_ROW
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0], NAME_BYTES_MAX = 16, SHOWN_BYTES_MAX = 64, SIGNAL_MAX = 64 };

/* A part of the text that is being read; it has no end mark of its own. */
struct piece {
    const char *at;
    size_t bytes;
};

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool piece_is(struct piece piece, const char *word)
{
    size_t i = 0;
    for (; i < piece.bytes && word[i]; i++)
        if (lower(piece.at[i]) != word[i])
            return false;
    return i == piece.bytes && !word[i];
}

static struct piece piece_cut(struct piece *rest, char separator)
{
    struct piece first = *rest;
    const char *found = rest->bytes ? memchr(rest->at, separator, rest->bytes) : NULL;
    first.bytes = found ? (size_t)(found - rest->at) : rest->bytes;
    rest->at += first.bytes + (found != NULL);
    rest->bytes -= first.bytes + (found != NULL);
    return first;
}

static void out_piece(struct out *out, struct piece piece)
{
    out_text(out, "\"");
    for (size_t i = 0; i < piece.bytes && i < SHOWN_BYTES_MAX; i++)
        out_char(out, piece.at[i] >= ' ' && piece.at[i] != 127 ? piece.at[i] : '?');
    out_text(out, piece.bytes > SHOWN_BYTES_MAX ? "...\"" : "\"");
}

/* How many letters are to be put in, left out or exchanged to make one of the other. */
static unsigned edit_distance(struct piece a, const char *b)
{
    unsigned row[NAME_BYTES_MAX + 1], b_bytes = (unsigned)strlen(b);
    for (unsigned j = 0; j <= b_bytes; j++)
        row[j] = j;
    for (size_t i = 0; i < a.bytes; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (unsigned j = 1; j <= b_bytes; j++) {
            unsigned exchanged = diagonal + (lower(a.at[i]) != b[j - 1]), shorter = row[j] + 1, longer = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = exchanged < shorter ? exchanged : shorter;
            row[j] = row[j] < longer ? row[j] : longer;
        }
    }
    return row[b_bytes];
}

static const char *nearest_key(struct piece name)
{
    unsigned least = 3 + (name.bytes > 6); /* more than two or three slips are another word */
    const char *nearest = NULL;
    for (size_t i = 0; i < KEY_COUNT && name.bytes <= 2 * NAME_BYTES_MAX; i++) {
        unsigned distance = edit_distance(name, keys[i].name);
        if (distance < least && distance < name.bytes) {
            least = distance;
            nearest = keys[i].name;
        }
    }
    return nearest;
}

static void complain_key(struct piece name, int fd)
{
    struct out out;
    out_begin(&out, fd);
    out_text(&out, "quire: QUIRE_CONF: there is no key ");
    out_piece(&out, name);
    const char *near = nearest_key(name);
    if (near) {
        out_text(&out, "; did you mean \"");
        out_text(&out, near);
        out_text(&out, "\"?");
    }
    out_text(&out, "; QUIRE_CONF=help prints all keys\n");
    (void)out_end(&out);
}

static const char *example_of(enum kind kind)
{
    switch (kind) {
    case KIND_SIZE:
        return ", such as 64K or 2G";
    case KIND_MEAN:
        return ", from 1K to 1T";
    case KIND_LIMIT:
        return ", such as 64K, 2G or 80%";
    case KIND_TIME:
    case KIND_EVERY:
        return ", such as 100ms or 2s";
    default:
        return "";
    }
}

static void complain_value(const struct key *key, struct piece value, int fd)
{
    struct out out;
    out_begin(&out, fd);
    out_text(&out, "quire: QUIRE_CONF: ");
    out_text(&out, key->name);
    out_text(&out, " cannot be ");
    out_piece(&out, value);
    out_text(&out, "; write ");
    out_text(&out, key->name);
    out_text(&out, ":");
    out_text(&out, key->look);
    out_text(&out, example_of(key->kind));
    out_text(&out, "\n");
    (void)out_end(&out);
}

static void print_help(int fd)
{
    struct out out;
    out_begin(&out, fd);
    out_text(&out, "quire: QUIRE_CONF=\"key:value,key:value\"; sizes take K M G T, times ns us ms s\n");
    for (size_t i = 0; i < KEY_COUNT; i++) {
        size_t width = strlen(keys[i].name) + 1 + strlen(keys[i].look);
        out_text(&out, "  ");
        out_text(&out, keys[i].name);
        out_text(&out, ":");
        out_text(&out, keys[i].look);
        for (; width < 28; width++)
            out_text(&out, " ");
        out_text(&out, keys[i].help);
        out_text(&out, " (default: ");
        out_text(&out, keys[i].start);
        out_text(&out, ")\n");
    }
    (void)out_end(&out);
}

struct unit {
    const char *name;
    uint64_t factor;
};
static const struct unit size_units[] = {{"", 1}, {"b", 1}, {"k", 1u << 10}, {"m", 1u << 20}, {"g", 1u << 30}, {"t", UINT64_C(1) << 40},
    {"kb", 1u << 10}, {"mb", 1u << 20}, {"gb", 1u << 30}, {"tb", UINT64_C(1) << 40},
    {"kib", 1u << 10}, {"mib", 1u << 20}, {"gib", 1u << 30}, {"tib", UINT64_C(1) << 40}, {NULL, 0}};
static const struct unit time_units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000u}, {NULL, 0}};
static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

static bool parse_number(struct piece value, const struct unit *units, uint64_t *out)
{
    uint64_t n = 0;
    size_t i = 0;
    for (; i < value.bytes && value.at[i] >= '0' && value.at[i] <= '9'; i++)
        if (__builtin_mul_overflow(n, (uint64_t)10, &n) || __builtin_add_overflow(n, (uint64_t)(value.at[i] - '0'), &n))
            return false;
    if (i == 0)
        return false;
    struct piece unit = {value.at + i, value.bytes - i};
    *out = n;
    if (n == 0 && unit.bytes == 0)
        return true; /* 0 is 0 in any unit */
    for (; units->name; units++)
        if (piece_is(unit, units->name))
            return !__builtin_mul_overflow(n, units->factor, out);
    return false;
}

static bool parse_flag(struct piece value, bool *out)
{
    static const char on[][5] = {"1", "on", "yes", "true"}, off[][6] = {"0", "off", "no", "false"};
    for (size_t i = 0; i < 4; i++) {
        if (piece_is(value, on[i]) || piece_is(value, off[i])) {
            *out = piece_is(value, on[i]);
            return true;
        }
    }
    return false;
}

/* "80%": 1 to 100. */
static bool parse_percent(struct piece value, uint64_t *out)
{
    static const struct unit percent[] = {{"%", 1}, {NULL, 0}};
    return parse_number(value, percent, out) && *out >= 1 && *out <= 100;
}

/* A part of what there is now; a system that does not say how much that is has a line of its own. */
static bool parse_limit(const struct key *key, struct piece value, uint64_t *out, int fd)
{
    uint64_t percent = 0;
    if (!parse_percent(value, &percent))
        return parse_number(value, size_units, out);
    uint64_t all_bytes = os_memory_bytes();
    *out = all_bytes / 100 * percent;
    if (*out == 0) {
        struct out line;
        out_begin(&line, fd);
        out_text(&line, "quire: QUIRE_CONF: ");
        out_text(&line, key->name);
        out_text(&line, ": this system does not say how much memory there is; it is not set\n");
        (void)out_end(&line);
    }
    return true;
}

static bool parse_share(struct piece value, uint64_t *out)
{
    bool flag = false;
    if (!parse_flag(value, &flag))
        return parse_percent(value, out);
    *out = flag ? PRESSURE_PERCENT_DEFAULT : 0;
    return true;
}

static bool parse_file(struct piece value, char file[CONF_FILE_BYTES])
{
    if (value.bytes == 0 || value.bytes >= CONF_FILE_BYTES)
        return false;
    memcpy(file, value.at, value.bytes);
    file[value.bytes] = 0;
    return true;
}

static bool parse_when(struct piece value, struct conf *conf)
{
    struct piece word = piece_cut(&value, '=');
    bool flag = false;
    if (value.bytes != 0 && (!piece_is(word, "exit") || !parse_file(value, conf->file)))
        return false;
    if (!piece_is(word, "exit") && !parse_flag(word, &flag))
        return false;
    conf->stats_at_exit = flag || piece_is(word, "exit");
    return true;
}

static bool parse_format(struct piece value, uint32_t *out)
{
    static const char names[][11] = {"text", "json", "prom"};
    for (uint32_t i = 0; i < 3; i++) {
        if (piece_is(value, names[i])) {
            *out = i;
            return true;
        }
    }
    return false;
}

static bool parse_mean(struct piece value, uint64_t *out)
{
    bool flag = false;
    if (parse_flag(value, &flag)) {
        *out = flag ? PROF_EVERY_DEFAULT : 0;
        return true;
    }
    return parse_number(value, size_units, out) && *out >= PROF_EVERY_MIN && *out <= PROF_EVERY_MAX;
}

static bool parse_signal(struct piece value, uint64_t *out)
{
    static const struct unit signals[] = {{"usr1", SIGUSR1}, {"usr2", SIGUSR2}, {"sigusr1", SIGUSR1}, {"sigusr2", SIGUSR2}, {NULL, 0}};
    for (const struct unit *signal = signals; signal->name; signal++) {
        if (piece_is(value, signal->name)) {
            *out = signal->factor;
            return true;
        }
    }
    static const int faults[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGABRT}; /* cannot be caught, or come again for ever */
    bool is_sound = parse_number(value, no_units, out) && *out <= SIGNAL_MAX;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        is_sound &= *out != (uint64_t)faults[i];
    return is_sound;
}

/* 1/5000 */
static bool parse_part(struct piece value, uint64_t *out)
{
    bool flag = false;
    if (parse_flag(value, &flag)) {
        *out = flag ? GUARD_EVERY_DEFAULT : 0;
        return true;
    }
    struct piece one = piece_cut(&value, '/');
    return piece_is(one, "1") && parse_number(value, no_units, out) && *out >= 1 && *out <= GUARD_EVERY_MAX;
}

static bool parse_value(const struct key *key, struct piece value, struct conf *conf, int fd)
{
    void *field = (char *)conf + key->offset;
    bool flag = false;
    switch (key->kind) {
    case KIND_FLAG:
        return parse_flag(value, field);
    case KIND_SIZE:
        return parse_number(value, size_units, field);
    case KIND_LIMIT:
        return parse_limit(key, value, field, fd);
    case KIND_SHARE:
        return parse_share(value, field);
    case KIND_TIME:
        return parse_number(value, time_units, field) && (conf->decay_is_set = true);
    case KIND_COUNT:
        return parse_number(value, no_units, field);
    case KIND_WHEN:
        return parse_when(value, conf);
    case KIND_FORMAT:
        return parse_format(value, field);
    case KIND_FILE:
        return parse_file(value, field);
    case KIND_EVERY:
        return live_conf_value(value.at, value.bytes, field);
    case KIND_MEAN:
        return parse_mean(value, field);
    case KIND_PART:
        return parse_part(value, field);
    case KIND_SIGNAL:
        return parse_signal(value, field);
    case KIND_HELP:
        if (parse_flag(value, &flag) && flag)
            print_help(fd);
        return true;
    }
    return false;
}

/* A key without a value is switched on, where that means something. */
static bool parse_bare(const struct key *key, struct conf *conf, int fd)
{
    bool has_switch = key->kind == KIND_FLAG || key->kind == KIND_WHEN || key->kind == KIND_COUNT || key->kind == KIND_EVERY || key->kind == KIND_MEAN ||
        key->kind == KIND_PART || key->kind == KIND_SHARE || key->kind == KIND_HELP;
    return has_switch && parse_value(key, (struct piece){"1", 1}, conf, fd);
}

static const struct key *key_find(struct piece name)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (piece_is(name, keys[i].name))
            return &keys[i];
    return NULL;
}

static struct piece trimmed(struct piece piece)
{
    while (piece.bytes && (piece.at[0] == ' ' || piece.at[0] == '\n'))
        piece = (struct piece){piece.at + 1, piece.bytes - 1};
    while (piece.bytes && (piece.at[piece.bytes - 1] == ' ' || piece.at[piece.bytes - 1] == '\n'))
        piece.bytes--;
    return piece;
}

void conf_parse(struct conf *conf, const char *text, int fd)
{
    struct piece rest = {text, strlen(text)};
    while (rest.bytes) {
        struct piece value = trimmed(piece_cut(&rest, ','));
        if (value.bytes == 0)
            continue;
        bool is_bare = memchr(value.at, ':', value.bytes) == NULL;
        struct piece name = trimmed(piece_cut(&value, ':'));
        const struct key *key = key_find(name);
        struct conf before = *conf;
        if (!key) {
            complain_key(name, fd);
        } else if (!(is_bare ? parse_bare(key, conf, fd) : parse_value(key, trimmed(value), conf, fd))) {
            *conf = before;
            complain_value(key, trimmed(value), fd);
        }
    }
}
