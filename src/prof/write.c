// SPDX-License-Identifier: MIT
/*
 * write.c - the profile as text, in the form of gperftools' heap profiles: pprof reads it as it is, `quire profile` makes one with names of it.
 *
 *     heap profile: 21: 11010048 [ 90: 47185920] @ heapprofile          live blocks: bytes [all blocks: bytes]
 *     # quire.heap/1 period 524288 samples 88 lost 0 pid 4711 ...
 *     3: 1572864 [ 12: 6291456] @ 0x55d0c0a01139 0x7f2a1c0271ca         a stack, return addresses, innermost first
 *     MAPPED_LIBRARIES:
 *     55d0c0a01000-55d0c0a02000 r-xp 00001000 08:01 131 /usr/bin/prog   lines of /proc/self/maps that can be executed
 *     # object slab 7 900 64800 nodes                                  what does not come from malloc: kind, number, live count, live bytes, name
 *
 * Figures are estimates of the whole process, not of the sample; those of objects are exact.  Each stack's are of one moment, all of them of moments that follow one another: no lock
 * is held while anything is written.
 *
 * Locks: LOCK_PROF for each stack's copy.  Not here: to which file (preload/profile.c).
 */
#include <string.h>

#include "heap/heap_internal.h"
#include "look/look.h"
#include "look/look_out.h"
#include "os/os.h"
#include "prof/prof_internal.h"

enum { LINE_BYTES = 64 }; /* up to the letters of a line of maps, and more; paths may have 4 KiB */

/* Half a block is one: a reader takes none for nothing. */
static uint64_t blocks_of(uint64_t blocks16, uint64_t points)
{
    uint64_t blocks = (blocks16 + (1 << 15)) >> 16;
    return points && !blocks ? 1 : blocks;
}

static void figures(struct out *out, uint64_t live_blocks, uint64_t live_bytes, uint64_t all_blocks, uint64_t all_bytes)
{
    out_number(out, live_blocks);
    out_text(out, ": ");
    out_number(out, live_bytes);
    out_text(out, " [ ");
    out_number(out, all_blocks);
    out_text(out, ": ");
    out_number(out, all_bytes);
    out_text(out, "] @");
}

static void word(struct out *out, const char *name, uint64_t n)
{
    out_char(out, ' ');
    out_text(out, name);
    out_char(out, ' ');
    out_number(out, n);
}

static void head(struct out *out)
{
    struct prof_stats stats;
    prof_stats(&stats);
    out_text(out, "heap profile: ");
    figures(out, stats.live_blocks, stats.live_bytes, stats.all_blocks, stats.all_bytes);
    out_text(out, " heapprofile\n# quire.heap/1");
    word(out, "period", stats.every_bytes);
    word(out, "samples", stats.samples);
    word(out, "lost", stats.lost);
    word(out, "stacks", stats.stacks);
    word(out, "held_bytes", stats.held_bytes);
    word(out, "pid", os_process_id());
    word(out, "monotonic_ns", os_time_ns());
    out_char(out, '\n');
}

static void stack(struct out *out, uint32_t number)
{
    uintptr_t ips[PROF_FRAMES_MAX];
    lock_take(&prof_lock);
    struct prof_site site = *prof_site_at(number);
    lock_drop(&prof_lock);
    if (site.all_points == 0) /* nothing was ever had there */
        return;
    unsigned count = prof_site_ips(&site, ips);
    figures(out, blocks_of(site.live_blocks16, site.live_points), site.live_points * prof_opts.every_bytes,
        blocks_of(site.all_blocks16, site.all_points), site.all_points * prof_opts.every_bytes);
    for (unsigned i = 0; i < count; i++) {
        out_char(out, ' ');
        out_hex(out, ips[i]);
    }
    out_char(out, '\n');
}

/* The value of one of these fields; 0: the kind has none. */
static uint64_t value_of(const struct look_kind *kind, const struct look_object *object, const char *const names[], size_t count)
{
    for (unsigned i = 0; i < kind->field_count; i++)
        for (size_t n = 0; n < count; n++)
            if (strcmp(kind->fields[i].name, names[n]) == 0)
                return object->values[i];
    return 0;
}

/* What lives in arenas, slabs, pools and heaps; the heap of malloc has its stacks. */
static void objects_of(struct out *out, const struct look_kind *kind)
{
    static const char *const counts[] = {"live_blocks", "live_elements", "live_objects"}, *const bytes[] = {"live_bytes"};
    struct look_roll roll;
    look_roll_init(&roll, kind);
    for (bool more = look_roll_first(&roll); more; more = look_roll_next(&roll))
        for (unsigned i = 0; i < roll.count; i++) {
            const struct look_object *object = &roll.objects[i];
            uint64_t live_bytes = value_of(kind, object, bytes, 1);
            if (live_bytes == 0 || (kind == &look_heap_kind && object->id == heap_of_process.serial))
                continue;
            out_text(out, "# object ");
            out_text(out, kind->singular);
            out_char(out, ' ');
            out_number(out, object->id);
            out_char(out, ' ');
            out_number(out, value_of(kind, object, counts, 3));
            out_char(out, ' ');
            out_number(out, live_bytes);
            out_char(out, ' ');
            out_name_text(out, object->name);
            out_char(out, '\n');
        }
}

/* Looking at a heap brings home all that its threads have cached: not at malloc's alone, which is not shown. */
static bool is_asked_for(const struct look_kind *kind)
{
    return kind != &look_source_kind && kind != &look_heap_class_kind && look_is_shown(kind) && (kind != &look_heap_kind || heap_has_others());
}

static void objects(struct out *out)
{
    for (unsigned i = 0; i < LOOK_KINDS; i++)
        if (is_asked_for(look_kinds[i]))
            objects_of(out, look_kinds[i]);
}

static bool has_any(const struct look_kind *kind)
{
    struct look_roll roll;
    look_roll_init(&roll, kind);
    return look_roll_first(&roll);
}

bool prof_is_empty(void)
{
    bool is_empty = !prof_has_samples();
    for (unsigned i = 0; is_empty && i < LOOK_KINDS; i++)
        is_empty = !is_asked_for(look_kinds[i]) || !has_any(look_kinds[i]);
    return is_empty;
}

static void number16(struct out *out, uint64_t n, unsigned least, char behind)
{
    out_digits16(out, n, least);
    out_char(out, behind);
}

/* As the system writes it. */
static void map(const struct os_code *code, void *arg)
{
    enum { ADDRESS_LEAST = 8, DEVICE_LEAST = 2 };
    struct out *out = arg;
    number16(out, code->start, ADDRESS_LEAST, '-');
    number16(out, code->end, ADDRESS_LEAST, ' ');
    out_text(out, code->rights);
    out_char(out, ' ');
    number16(out, code->offset, ADDRESS_LEAST, ' ');
    number16(out, code->major, DEVICE_LEAST, ':');
    number16(out, code->minor, DEVICE_LEAST, ' ');
    out_number(out, code->inode);
    out_char(out, ' ');
    for (const char *at = code->name; *at; at++)
        if (*at == '\n')
            out_text(out, "\\012");
        else
            out_char(out, *at);
    out_char(out, '\n');
}

/* The same of the list of all mappings, where the system cannot be asked for these alone. */
struct maps {
    struct out *out;
    size_t used;  /* of the line; all: what it is is known, and the rest of it follows */
    bool is_code;
    char line[LINE_BYTES];
};

/* "55d0c0a01000-55d0c0a02000 r-xp ...": the third letter behind the first space. */
static bool is_code(const char *line)
{
    size_t i = 0;
    while (line[i] && line[i] != ' ')
        i++;
    return line[i] && line[i + 1] && line[i + 2] && line[i + 3] == 'x';
}

/* The line's beginning is kept until it says what it is. */
static void line_part(struct maps *maps, const char *text, size_t bytes)
{
    size_t room = LINE_BYTES - 1 - maps->used, kept = bytes < room ? bytes : room;
    bool is_end = text[bytes - 1] == '\n';
    if (room != 0) {
        memcpy(maps->line + maps->used, text, kept);
        maps->used += kept;
        if (kept == room || is_end) {
            maps->line[maps->used] = 0;
            maps->is_code = is_code(maps->line);
            if (maps->is_code)
                out_bytes(maps->out, maps->line, maps->used);
            maps->used = LINE_BYTES - 1;
        }
    }
    if (maps->is_code)
        out_bytes(maps->out, text + kept, bytes - kept);
    if (is_end)
        maps->used = 0;
}

static void maps_text(const char *text, size_t bytes, void *arg)
{
    while (bytes != 0) {
        const char *end = memchr(text, '\n', bytes);
        size_t part = end ? (size_t)(end - text) + 1 : bytes;
        line_part(arg, text, part);
        text += part;
        bytes -= part;
    }
}

void prof_write(struct out *out)
{
    head(out);
    for (uint32_t i = 1; i <= prof_sites(); i++)
        stack(out, i);
    out_text(out, "MAPPED_LIBRARIES:\n");
    if (os_code_each(map, out) != 0) {
        struct maps maps = {.out = out};
        (void)os_read_each("/proc/thread-self/maps", maps_text, &maps);
    }
    (void)out_end(out); /* a copy of the process (os_copy.c) may find a list of objects half changed, and end: it has written all else */
    objects(out);
}
