// SPDX-License-Identifier: MIT
/*
 * steer_plan.c - reads a plan file.  The whole is read, or nothing is.
 *
 *     quire-steer 1
 *     # whatever people are to know
 *     module 0 6a09e667f3bcc908b2fb1366ea957d3e /usr/lib/libjq.so.1
 *     program 0                                                 the module that is the program itself
 *     memory 34600000                                           bytes that lived at the peak of the recorded run
 *     frame 0 module 0 offset 1c307 jv_string_sized+0x17        a return address: in which file, how far from its start
 *     frame 1 module 0 offset 9bdd parse_token+0x5d
 *     pool 1 arena peak 32900000
 *     pool 2 slab peak 4096
 *     site 17 pool 1 allocs 260010 bytes 5720220 ...            what people are to know stands behind
 *     path 0 +5 1                                               frame 0 called malloc, and 5 words up lies frame 1
 *     site 4 heap ...                                           no path: the heap serves it
 *     end 9                                                     lines that count, so that a file that was cut is known
 *
 * Paths make a tree: a return address that has others behind it is a node, one without leads to a site.
 *
 * Locks: none; one thread.  Not here: who writes it (tools/quire/steering.py).
 */
#include <string.h>

#include "os/os.h"
#include "steer/steer_internal.h"

enum { FILE_BYTES_MAX = 16 << 20, FRAMES_MAX = 1 << 15, FIRST_EDGES_LOG2 = 8, EDGES_LOG2_MAX = 16 };

struct steer_plan steer_plan;

struct frame {
    uint64_t offset;
    uint32_t module; /* of the plan, and 1 more; 0: there is no such frame */
};

struct reading {
    const char *at; /* the rest of the line */
    uint32_t line, counted, edges;
    const char *wrong;
    uint32_t pool; /* of the site whose paths come now; 0: none may come */
    struct frame *frame;
};

/* ---- words of a line ---- */

static bool fail(struct reading *r, const char *wrong)
{
    if (!r->wrong)
        r->wrong = wrong;
    return false;
}

static void skip_blanks(struct reading *r)
{
    while (*r->at == ' ')
        r->at++;
}

static bool take_word(struct reading *r, const char *word)
{
    size_t bytes = strlen(word);
    skip_blanks(r);
    if (strncmp(r->at, word, bytes) != 0 || (r->at[bytes] != ' ' && r->at[bytes] != '\n'))
        return false;
    r->at += bytes;
    return true;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

static bool take_number(struct reading *r, int base, uint64_t most, uint64_t *out)
{
    skip_blanks(r);
    uint64_t n = 0;
    const char *start = r->at;
    for (; digit(*r->at) < base; r->at++)
        if (__builtin_mul_overflow(n, (uint64_t)base, &n) || __builtin_add_overflow(n, (uint64_t)digit(*r->at), &n) || n > most)
            return fail(r, "a number is too large");
    *out = n;
    return r->at != start || fail(r, "a number is missing");
}

static bool need_number(struct reading *r, const char *word, uint64_t most, uint64_t *out)
{
    if (!take_word(r, word))
        return fail(r, "a word is missing");
    return take_number(r, 10, most, out);
}

static bool at_end(struct reading *r)
{
    skip_blanks(r);
    return *r->at == '\n';
}

/* ---- the tree ---- */

static struct steer_edge *edge_place(unsigned parent, unsigned module, uint64_t offset)
{
    uint64_t hash = (offset + parent * UINT64_C(0x9e3779b97f4a7c15) + module * UINT64_C(0xc2b2ae3d27d4eb4f)) * UINT64_C(0x9fb21c651e98df25);
    size_t mask = ((size_t)1 << steer_plan.edges_log2) - 1;
    for (size_t at = hash >> 40 & mask;; at = (at + 1) & mask) {
        struct steer_edge *edge = &steer_plan.edge[at];
        if (!edge->is_used || (edge->parent == parent && edge->module == module && edge->offset == offset))
            return edge;
    }
}

unsigned steer_edge_find(unsigned parent, unsigned module, uint64_t offset)
{
    const struct steer_edge *edge = edge_place(parent, module, offset);
    return edge->is_used ? edge->target : TARGET_HEAP;
}

static struct steer_edge *edge_make(struct reading *r, unsigned parent, const struct frame *frame)
{
    if (r->edges >= (UINT32_C(1) << steer_plan.edges_log2) / 2) {
        fail(r, "there are more return addresses than can be");
        return NULL;
    }
    struct steer_edge *edge = edge_place(parent, frame->module - 1, frame->offset);
    if (!edge->is_used) {
        *edge = (struct steer_edge){.parent = (uint16_t)parent, .module = (uint16_t)(frame->module - 1), .offset = frame->offset, .is_used = 1};
        r->edges++;
    }
    return edge;
}

/* The node that a wrapper's edge leads to, from which the next return address is `words` away. */
static bool edge_node(struct reading *r, struct steer_edge *edge, uint64_t words, unsigned *node)
{
    if (edge->target == TARGET_UNKNOWN) {
        if (steer_plan.nodes + 1 >= STEER_NODES_MAX)
            return fail(r, "there are more wrappers than can be");
        *node = ++steer_plan.nodes;
        steer_node_words[*node] = (uint16_t)words;
        edge->target = (uint16_t)(TARGET_NODE | *node);
        return true;
    }
    *node = edge->target & (TARGET_NODE - 1);
    if (!(edge->target & TARGET_NODE))
        return fail(r, "one path goes on where another ends");
    return steer_node_words[*node] == words || fail(r, "the way up the stack differs between two paths");
}

static bool take_frame(struct reading *r, const struct frame **frame)
{
    uint64_t number;
    if (!take_number(r, 10, FRAMES_MAX - 1, &number))
        return false;
    *frame = &r->frame[number];
    return (*frame)->module != 0 || fail(r, "there is no such frame");
}

static bool read_path(struct reading *r)
{
    const struct frame *frame;
    unsigned node = 0;
    if (r->pool == 0)
        return fail(r, "a path without a site that has a pool");
    for (unsigned depth = 0; depth < STEER_DEPTH_MAX; depth++) {
        if (!take_frame(r, &frame))
            return false;
        struct steer_edge *edge = edge_make(r, node, frame);
        if (!edge)
            return false;
        if (at_end(r)) {
            if (edge->target != TARGET_UNKNOWN)
                return fail(r, "two paths are one");
            edge->target = (uint16_t)(TARGET_SITE + steer_plan.sites - 1);
            return true;
        }
        uint64_t words;
        if (*r->at != '+')
            return fail(r, "a path's step is no +NUMBER");
        r->at++;
        if (!take_number(r, 10, STEER_SLOT_WORDS_MAX, &words) || !edge_node(r, edge, words, &node))
            return false;
    }
    return fail(r, "a path is too long");
}

/* ---- the other lines ---- */

static bool read_module(struct reading *r)
{
    uint64_t number;
    if (!take_number(r, 10, STEER_MODULES_MAX - 1, &number))
        return false;
    if (number != steer_plan.modules)
        return fail(r, "modules are not numbered 0, 1, 2");
    struct steer_module *module = &steer_plan.module[steer_plan.modules++];
    skip_blanks(r);
    for (; digit(r->at[0]) < 16 && digit(r->at[1]) < 16; r->at += 2) {
        if (module->id_bytes == STEER_BUILD_ID_MAX)
            return fail(r, "a build id is too long");
        module->id[module->id_bytes++] = (unsigned char)(digit(r->at[0]) * 16 + digit(r->at[1]));
    }
    return module->id_bytes != 0 || fail(r, "a build id is missing");
}

static bool read_memory(struct reading *r)
{
    uint64_t bytes;
    if (!take_number(r, 10, INT64_MAX, &bytes))
        return false;
    steer_plan.memory_bytes = bytes;
    return true;
}

static bool read_frame(struct reading *r)
{
    uint64_t number, module, offset;
    if (!take_number(r, 10, FRAMES_MAX - 1, &number) || !need_number(r, "module", STEER_MODULES_MAX - 1, &module))
        return false;
    if (!take_word(r, "offset") || !take_number(r, 16, INT64_MAX, &offset))
        return fail(r, "an offset is missing");
    if (module >= steer_plan.modules)
        return fail(r, "there is no such module");
    r->frame[number] = (struct frame){offset, (uint32_t)module + 1};
    return true;
}

static bool read_program(struct reading *r)
{
    uint64_t number;
    if (!take_number(r, 10, STEER_MODULES_MAX - 1, &number))
        return false;
    steer_plan.program = (uint32_t)number + 1;
    return number < steer_plan.modules || fail(r, "there is no such module");
}

static uint32_t chunk_bytes_of(size_t peak_bytes)
{
    uint32_t bytes = STEER_CHUNK_MIN;
    while (bytes < STEER_CHUNK_MAX && bytes < peak_bytes / 16)
        bytes *= 2;
    return bytes;
}

static bool read_pool(struct reading *r)
{
    uint64_t number, peak;
    if (!take_number(r, 10, STEER_POOLS_MAX - 1, &number))
        return false;
    if (number != steer_plan.pools + 1)
        return fail(r, "pools are not numbered 1, 2, 3");
    struct steer_pool *pool = &steer_plan.pool[++steer_plan.pools];
    pool->is_slab = take_word(r, "slab");
    if (!pool->is_slab && !take_word(r, "arena"))
        return fail(r, "a pool is an arena or a slab");
    if (!need_number(r, "peak", INT64_MAX, &peak))
        return false;
    pool->peak_bytes = peak;
    pool->chunk_bytes = chunk_bytes_of(peak);
    return true;
}

static bool read_site(struct reading *r)
{
    uint64_t number, pool = 0;
    if (!take_number(r, 10, UINT32_MAX, &number))
        return false;
    r->pool = 0;
    if (take_word(r, "heap"))
        return true;
    if (!need_number(r, "pool", STEER_POOLS_MAX - 1, &pool))
        return false;
    if (pool == 0 || pool > steer_plan.pools)
        return fail(r, "there is no such pool");
    if (steer_plan.sites == STEER_SITES_MAX)
        return fail(r, "there are more sites than can be");
    steer_plan.number[steer_plan.sites] = (uint32_t)number;
    steer_plan.pool_first[steer_plan.sites++] = (uint16_t)pool;
    r->pool = (uint32_t)pool;
    return true;
}

static bool read_line(struct reading *r)
{
    static const struct {
        const char *word;
        bool (*read)(struct reading *r);
    } kinds[] = {{"module", read_module}, {"program", read_program}, {"memory", read_memory}, {"frame", read_frame}, {"pool", read_pool}, {"site", read_site}, {"path", read_path}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (take_word(r, kinds[i].word))
            return kinds[i].read(r);
    return fail(r, "a line begins with no word of a plan");
}

static bool read_head(struct reading *r)
{
    uint64_t version;
    if (!take_word(r, "quire-steer"))
        return fail(r, "it is no plan");
    if (!take_number(r, 10, UINT32_MAX, &version))
        return false;
    return version == 1 || fail(r, "it is of another version than 1");
}

/* All lines; `text` ends with a 0. */
static bool read_lines(struct reading *r, const char *text)
{
    for (const char *line = text, *end; *line; line = end + 1) {
        r->line++;
        end = strchr(line, '\n');
        if (!end)
            return fail(r, "its last line is cut");
        r->at = line;
        uint64_t lines;
        if (r->line == 1) {
            if (!read_head(r))
                return false;
        } else if (*line == '#' || line == end) {
            continue;
        } else if (take_word(r, "end")) {
            return (take_number(r, 10, UINT32_MAX, &lines) && lines == r->counted && end[1] == 0) || fail(r, "its number of lines is wrong");
        } else if (!read_line(r)) {
            return false;
        }
        r->counted += r->line > 1;
    }
    return fail(r, "its end is missing");
}

/* ---- memory for it ---- */

static uint32_t edges_log2_of(const char *text)
{
    uint32_t steps = 0, log2 = FIRST_EDGES_LOG2;
    for (; *text; text++)
        steps += *text == '+' || (*text == '\n' && text[1] == 'p');
    while (log2 < EDGES_LOG2_MAX && (UINT32_C(1) << log2) < 2 * steps + 2)
        log2++;
    return log2;
}

static void say(char why[STEER_WHY_BYTES], uint32_t line, const char *wrong)
{
    char number[16];
    size_t at = sizeof number, used = 0;
    static const char words[] = "line ";
    if (line != 0) {
        memcpy(why, words, used = sizeof words - 1);
        for (; line != 0; line /= 10)
            number[--at] = (char)('0' + line % 10);
        memcpy(why + used, number + at, sizeof number - at);
        used += sizeof number - at;
        memcpy(why + used, ": ", 2);
        used += 2;
    }
    size_t bytes = strlen(wrong);
    memcpy(why + used, wrong, bytes + 1);
}

/* The text of a file, with a 0 behind it; NULL and why not. */
static char *text_of(const char *path, size_t *mapped_bytes, char why[STEER_WHY_BYTES])
{
    for (size_t bytes = 256 << 10; bytes <= FILE_BYTES_MAX; bytes *= 8) {
        void *text;
        if (os_map(bytes, os_page_bytes(), &text) != 0) {
            say(why, 0, "there is no memory to read it");
            return NULL;
        }
        int got = os_read_text(path, text, bytes);
        *mapped_bytes = bytes;
        if (got >= 0 && (size_t)got < bytes - 1 && strlen(text) == (size_t)got)
            return text;
        os_unmap(text, bytes);
        if (got < 0 || (size_t)got < bytes - 1) {
            say(why, 0, got < 0 ? "it cannot be read" : "line 1: it is no plan");
            return NULL;
        }
    }
    say(why, 0, "it is larger than a plan can be");
    return NULL;
}

static bool plan_of_text(const char *text, char why[STEER_WHY_BYTES])
{
    struct reading r = {0};
    void *frames = NULL, *edges = NULL;
    size_t frames_bytes = align_up(FRAMES_MAX * sizeof(struct frame), os_page_bytes());
    steer_plan.edges_log2 = edges_log2_of(text);
    size_t edges_bytes = align_up(sizeof(struct steer_edge) << steer_plan.edges_log2, os_page_bytes());
    if (os_map(frames_bytes, os_page_bytes(), &frames) != 0 || os_map(edges_bytes, os_page_bytes(), &edges) != 0)
        fail(&r, "there is no memory for it");
    r.frame = frames;
    steer_plan.edge = edges;
    bool is_sound = !r.wrong && read_lines(&r, text);
    if (!is_sound)
        say(why, r.line, r.wrong);
    if (frames)
        os_unmap(frames, frames_bytes);
    if (edges && !is_sound)
        os_unmap(edges, edges_bytes);
    return is_sound;
}

bool steer_plan_read(const char *path, char why[STEER_WHY_BYTES])
{
    size_t bytes;
    char *text = text_of(path, &bytes, why);
    bool is_sound = text && plan_of_text(text, why);
    if (!is_sound)
        memset(&steer_plan, 0, sizeof steer_plan);
    if (text)
        os_unmap(text, bytes);
    return is_sound;
}
