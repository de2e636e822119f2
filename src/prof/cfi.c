// SPDX-License-Identifier: MIT
/*
 * cfi.c - how to step from a frame to its caller's, read from the unwind tables that the loaded files have (.eh_frame).
 *
 *     ip --the loader: whose?--> .eh_frame_hdr --sorted, by halves--> FDE --> CIE
 *                                                                     |       | instructions that hold everywhere
 *                                                                     v       v
 *                                                             instructions up to ip --> rule: CFA, ip, fp
 *
 *     no table covers ip     code made while the program runs, assembly, Go: frames are chained by fp, CFA = fp + 16 (on arm64: or above)
 *     a signal's frame       the kernel has put all registers where ucontext_t has them.  libc's table says so; arm64's kernel has none for its own
 *     an expression as CFA   of a function that aligns its stack: "what lies at fp - 8"; the walk ends at any other
 *
 * Only ip, sp and fp are followed: no compiler reckons the CFA of a call from another register.
 * Reads the files' own read-only pages, allocates nothing, sets no errno.
 *
 * Locks: none, or the loader's (os/os_object.c).
 * Not here: the stack itself (walk.c).
 */
#include <string.h>

#include "base/align.h"
#include "os/os.h"
#include "prof/prof_internal.h"

enum { WORD = sizeof(uintptr_t), STATES_MAX = 4, ENTRY_BYTES = 8, HEADER_BYTES = 12 };
#if CPU_AARCH64
enum { REG_FP = 29, REG_RA = 30, REG_SP = 31 };
#else
enum { REG_FP = 6, REG_SP = 7, REG_RA = 16 };
#endif

/* DWARF's numbers. */
enum { DW_EH_PE_OMIT = 0xff, DW_EH_PE_UDATA4 = 0x03, DW_EH_PE_SDATA4 = 0x0b, DW_EH_PE_UDATA8 = 0x04, DW_EH_PE_SDATA8 = 0x0c, DW_EH_PE_PCREL = 0x10, DW_EH_PE_DATAREL = 0x30 };
enum {
    DW_CFA_ADVANCE = 0x40, DW_CFA_OFFSET = 0x80, DW_CFA_RESTORE = 0xc0,
    DW_CFA_NOP = 0, DW_CFA_SET_LOC, DW_CFA_ADVANCE1, DW_CFA_ADVANCE2, DW_CFA_ADVANCE4, DW_CFA_OFFSET_EXTENDED, DW_CFA_RESTORE_EXTENDED,
    DW_CFA_UNDEFINED, DW_CFA_SAME, DW_CFA_REGISTER, DW_CFA_REMEMBER, DW_CFA_RECALL, DW_CFA_DEF, DW_CFA_DEF_REGISTER, DW_CFA_DEF_OFFSET,
    DW_CFA_DEF_EXPRESSION, DW_CFA_EXPRESSION, DW_CFA_OFFSET_SF, DW_CFA_DEF_SF, DW_CFA_DEF_OFFSET_SF, DW_CFA_VAL_OFFSET, DW_CFA_VAL_OFFSET_SF,
    DW_CFA_VAL_EXPRESSION, DW_CFA_NEGATE_RA = 0x2d, DW_CFA_ARGS_SIZE = 0x2e
};

enum { DW_OP_DEREF = 0x06, DW_OP_BREG0 = 0x70 };

struct cursor {
    const uint8_t *at, *end;
};

static uint64_t take(struct cursor *c, unsigned bytes)
{
    uint64_t n = 0;
    if ((size_t)(c->end - c->at) < bytes) {
        c->at = c->end;
        return 0;
    }
    memcpy(&n, c->at, bytes); /* both processors have the low byte first */
    c->at += bytes;
    return n;
}

static uint64_t take_uleb(struct cursor *c)
{
    uint64_t n = 0;
    unsigned shift = 0;
    for (uint8_t byte = 0x80; byte & 0x80; shift += 7) {
        byte = (uint8_t)take(c, 1);
        n |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
    }
    return n;
}

static int64_t take_sleb(struct cursor *c)
{
    uint64_t n = 0;
    unsigned shift = 0;
    uint8_t byte = 0x80;
    for (; byte & 0x80; shift += 7) {
        byte = (uint8_t)take(c, 1);
        n |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
    }
    return (int64_t)(shift < 64 && (byte & 0x40) ? n | ~UINT64_C(0) << shift : n);
}

/* A pointer in one of the ways that compilers write; 0: another way. */
static uintptr_t take_pointer(struct cursor *c, uint8_t way)
{
    uintptr_t here = (uintptr_t)c->at, n;
    switch (way & 0x0f) {
    case DW_EH_PE_UDATA4:
        n = (uintptr_t)take(c, 4);
        break;
    case DW_EH_PE_SDATA4:
        n = (uintptr_t)(intptr_t)(int32_t)take(c, 4);
        break;
    case 0:
    case DW_EH_PE_UDATA8:
    case DW_EH_PE_SDATA8:
        n = (uintptr_t)take(c, 8);
        break;
    default:
        c->at = c->end;
        return 0;
    }
    return (way & 0x70) == DW_EH_PE_PCREL ? here + n : n;
}

/* ---- whose code it is ---- */

static const uint8_t *header_of(uintptr_t ip)
{
    struct os_object object;
    return os_object_of(ip, &object) ? object.eh_frame_header : NULL;
}

/* The last entry that begins at or before `ip`: its FDE.  Entries are pairs of distances from the table's own header. */
static const uint8_t *fde_of(const uint8_t *header, uintptr_t ip)
{
    if (!header || header[0] != 1 || header[1] != (DW_EH_PE_PCREL | DW_EH_PE_SDATA4) || header[2] != DW_EH_PE_UDATA4 ||
        header[3] != (DW_EH_PE_DATAREL | DW_EH_PE_SDATA4))
        return NULL;
    uint32_t low = 0, high;
    int32_t entry[2];
    memcpy(&high, header + 8, sizeof high);
    intptr_t wanted = (intptr_t)(ip - (uintptr_t)header);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        memcpy(entry, header + HEADER_BYTES + (size_t)middle * ENTRY_BYTES, sizeof entry);
        if (entry[0] <= wanted)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    memcpy(entry, header + HEADER_BYTES + (size_t)(low - 1) * ENTRY_BYTES, sizeof entry);
    return header + entry[1];
}

/* ---- one function's description ---- */

struct code {
    struct cursor common, own; /* instructions */
    uintptr_t start, end;
    uint64_t code_factor;
    int64_t data_factor;
    bool is_signal;
};

static struct cursor record(const uint8_t *at)
{
    uint32_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return (struct cursor){at + 4, at + 4 + (bytes < UINT32_MAX ? bytes : 0)}; /* longer than 4 GiB: no */
}

/* The letters of a CIE say what stands in it and in its FDEs. */
static bool cie_read(const uint8_t *at, struct code *code, uint8_t *way, bool *has_extra)
{
    struct cursor c = record(at);
    (void)take(&c, 4);
    uint8_t version = (uint8_t)take(&c, 1);
    const uint8_t *letters = c.at;
    while (c.at < c.end && take(&c, 1) != 0)
        ;
    code->code_factor = take_uleb(&c);
    code->data_factor = take_sleb(&c);
    uint64_t ra = version == 1 ? take(&c, 1) : take_uleb(&c);
    *way = 0;
    *has_extra = letters[0] == 'z';
    code->is_signal = false;
    if (ra != REG_RA || (letters[0] != 0 && !*has_extra))
        return false;
    uint64_t extra = *has_extra ? take_uleb(&c) : 0;
    const uint8_t *instructions = c.at + extra;
    for (const uint8_t *letter = letters + *has_extra; *letter; letter++) {
        if (*letter == 'R')
            *way = (uint8_t)take(&c, 1);
        else if (*letter == 'P') {
            uint8_t personality = (uint8_t)take(&c, 1);
            (void)take_pointer(&c, personality & 0x7f);
        } else if (*letter == 'L')
            (void)take(&c, 1);
        else if (*letter == 'S')
            code->is_signal = true;
        else if (*letter != 'B')
            return false;
    }
    code->common = (struct cursor){instructions, c.end};
    return instructions <= c.end;
}

static bool fde_read(const uint8_t *at, struct code *code)
{
    struct cursor c = record(at);
    const uint8_t *here = c.at;
    int32_t back = (int32_t)take(&c, 4);
    uint8_t way;
    bool has_extra;
    if (back <= 0 || !cie_read(here - back, code, &way, &has_extra))
        return false;
    code->start = take_pointer(&c, way);
    code->end = code->start + take_pointer(&c, way & 0x0f);
    uint64_t extra = has_extra ? take_uleb(&c) : 0;
    code->own = (struct cursor){c.at + extra, c.end};
    return c.at + extra <= c.end;
}

/* ---- its instructions ---- */

struct saved {
    enum { SAVED_NOT, SAVED_AT, SAVED_NEVER, SAVED_ELSE } how; /* never: there is no caller */
    int64_t offset; /* from the CFA */
};
struct row {
    uint64_t cfa_register;
    int64_t cfa_offset;
    enum { CFA_PLAIN, CFA_AT, CFA_ELSE } cfa; /* at: what lies there */
    struct saved fp, ra;
};
struct machine {
    struct row row, first, kept[STATES_MAX];
    unsigned depth;
    bool is_lost; /* what cannot be followed */
};

static void save(struct machine *m, uint64_t reg, struct saved saved)
{
    if (reg == REG_FP)
        m->row.fp = saved;
    else if (reg == REG_RA)
        m->row.ra = saved;
}

static void restore(struct machine *m, uint64_t reg)
{
    save(m, reg, reg == REG_FP ? m->first.fp : m->first.ra);
}

static void cfa_is(struct machine *m, uint64_t reg, int64_t offset)
{
    m->row.cfa_register = reg;
    m->row.cfa_offset = offset;
    m->row.cfa = CFA_PLAIN;
}

static void skip(struct cursor *c)
{
    uint64_t bytes = take_uleb(c);
    c->at = bytes <= (uint64_t)(c->end - c->at) ? c->at + bytes : c->end;
}

/* "The word at fp + n", and no other. */
static void cfa_by_expression(struct machine *m, struct cursor *c)
{
    uint64_t bytes = take_uleb(c);
    struct cursor inner = {c->at, bytes <= (uint64_t)(c->end - c->at) ? c->at + bytes : c->end};
    c->at = inner.end;
    bool is_by_fp = take(&inner, 1) == DW_OP_BREG0 + REG_FP;
    m->row.cfa_offset = take_sleb(&inner);
    m->row.cfa = is_by_fp && take(&inner, 1) == DW_OP_DEREF && inner.at == inner.end ? CFA_AT : CFA_ELSE;
}

/* Instructions that say what the CFA is. */
static void step_cfa(struct machine *m, struct cursor *c, uint8_t op, int64_t factor)
{
    uint64_t reg;
    switch (op) {
    case DW_CFA_DEF:
        reg = take_uleb(c);
        cfa_is(m, reg, (int64_t)take_uleb(c));
        break;
    case DW_CFA_DEF_SF:
        reg = take_uleb(c);
        cfa_is(m, reg, take_sleb(c) * factor);
        break;
    case DW_CFA_DEF_REGISTER:
        cfa_is(m, take_uleb(c), m->row.cfa_offset);
        break;
    case DW_CFA_DEF_OFFSET:
        m->row.cfa_offset = (int64_t)take_uleb(c);
        break;
    case DW_CFA_DEF_OFFSET_SF:
        m->row.cfa_offset = take_sleb(c) * factor;
        break;
    case DW_CFA_DEF_EXPRESSION:
        cfa_by_expression(m, c);
        break;
    default:
        m->is_lost = true;
    }
}

/* Instructions that say where a register is, or hand on to those above. */
static void step_place(struct machine *m, struct cursor *c, uint8_t op, int64_t factor)
{
    bool is_cfa = (op >= DW_CFA_DEF && op <= DW_CFA_DEF_EXPRESSION) || op == DW_CFA_DEF_SF || op == DW_CFA_DEF_OFFSET_SF;
    if (is_cfa || op < DW_CFA_OFFSET_EXTENDED || op > DW_CFA_VAL_EXPRESSION) {
        step_cfa(m, c, op, factor);
        return;
    }
    uint64_t reg = take_uleb(c);
    struct saved saved = {SAVED_ELSE, 0};
    switch (op) {
    case DW_CFA_OFFSET_EXTENDED:
        saved = (struct saved){SAVED_AT, (int64_t)take_uleb(c) * factor};
        break;
    case DW_CFA_OFFSET_SF:
        saved = (struct saved){SAVED_AT, take_sleb(c) * factor};
        break;
    case DW_CFA_RESTORE_EXTENDED:
        restore(m, reg);
        return;
    case DW_CFA_UNDEFINED:
        saved.how = SAVED_NEVER;
        break;
    case DW_CFA_SAME:
        saved.how = SAVED_NOT;
        break;
    case DW_CFA_EXPRESSION:
    case DW_CFA_VAL_EXPRESSION:
        skip(c);
        break;
    default: /* in another register, or reckoned: a number follows, read past alike with a sign or without */
        (void)take_uleb(c);
    }
    save(m, reg, saved);
}

/* One instruction; returns by how much the place in the code advances. */
static uint64_t step(struct machine *m, struct cursor *c, const struct code *code)
{
    uint8_t op = (uint8_t)take(c, 1), low = op & 0x3f;
    switch (op & 0xc0) {
    case DW_CFA_ADVANCE:
        return low * code->code_factor;
    case DW_CFA_OFFSET:
        save(m, low, (struct saved){SAVED_AT, (int64_t)take_uleb(c) * code->data_factor});
        return 0;
    case DW_CFA_RESTORE:
        restore(m, low);
        return 0;
    default:
        break;
    }
    switch (op) {
    case DW_CFA_NOP:
    case DW_CFA_NEGATE_RA: /* the signature of a return address is taken off in any case (walk.c) */
        return 0;
    case DW_CFA_ADVANCE1:
        return take(c, 1) * code->code_factor;
    case DW_CFA_ADVANCE2:
        return take(c, 2) * code->code_factor;
    case DW_CFA_ADVANCE4:
        return take(c, 4) * code->code_factor;
    case DW_CFA_ARGS_SIZE:
        (void)take_uleb(c);
        return 0;
    case DW_CFA_REMEMBER:
        if (m->depth < STATES_MAX)
            m->kept[m->depth] = m->row;
        m->is_lost |= m->depth++ >= STATES_MAX;
        return 0;
    case DW_CFA_RECALL:
        m->is_lost |= m->depth == 0;
        if (!m->is_lost)
            m->row = m->kept[--m->depth];
        return 0;
    default:
        step_place(m, c, op, code->data_factor);
        return 0;
    }
}

/* An advance beyond ip ends it, and changes nothing itself. */
static void execute(struct machine *m, struct cursor c, const struct code *code, uintptr_t ip)
{
    uintptr_t at = code->start;
    while (c.at < c.end && at <= ip && !m->is_lost)
        at += step(m, &c, code);
}

/* A call's return address stands behind it, perhaps in the next function: `ip` is the address before. */
static bool row_of(const struct code *code, uintptr_t ip, struct row *row)
{
    struct machine m;
    memset(&m, 0, sizeof m);
    execute(&m, code->common, code, UINTPTR_MAX);
    m.first = m.row;
    execute(&m, code->own, code, ip);
    *row = m.row;
    return !m.is_lost;
}

/* ---- rules ---- */

static const struct prof_rule rule_end = {.kind = RULE_END};
static const struct prof_rule rule_of_frame_pointers = {.kind = RULE_CHAINED, .by_fp = 1, .cfa_bytes = 2 * WORD, .fp_words = 2, .ip_words = 1};

/* How many words below the CFA; false: not so, or further than any frame is large. */
static bool words_below(struct saved saved, uint32_t *words)
{
    int64_t below = -saved.offset;
    *words = saved.how == SAVED_AT ? (uint32_t)(below / WORD) : 0;
    return saved.how == SAVED_NOT || (saved.how == SAVED_AT && below > 0 && below % WORD == 0 && below < (1 << 20));
}

static struct prof_rule rule_from(const struct row *row)
{
    struct prof_rule rule = {.kind = RULE_PLAIN, .by_fp = row->cfa_register == REG_FP};
    if (row->cfa == CFA_AT && row->cfa_offset < 0 && row->cfa_offset > -(1 << 20))
        return (struct prof_rule){.kind = RULE_ALIGNED, .by_fp = 1, .cfa_bytes = (uint32_t)-row->cfa_offset, .ip_words = 1};
    bool is_known = (rule.by_fp || row->cfa_register == REG_SP) && row->cfa_offset >= 0 && row->cfa_offset < (1 << 23);
    if (row->cfa != CFA_PLAIN || !is_known || !words_below(row->fp, &rule.fp_words) || !words_below(row->ra, &rule.ip_words))
        return rule_end;
    rule.cfa_bytes = (uint32_t)row->cfa_offset;
    return rule;
}

/* Where a handler returns to on arm64, "mov x8, #139; svc #0": code of the kernel's.  `ip` is its address, or the one before. */
static bool is_signal_return(uintptr_t ip)
{
    enum { MOV_X8_139 = 0xd2801168, SVC_0 = 0xd4000001, EACH_BYTES = 4 };
    uintptr_t first = align_up(ip, EACH_BYTES), second = first + EACH_BYTES;
    uint32_t code[2];
    if (!CPU_AARCH64 || !os_is_readable((const void *)align_down(first, WORD)) || !os_is_readable((const void *)align_down(second, WORD)))
        return false;
    memcpy(code, (const void *)first, sizeof code);
    return code[0] == MOV_X8_139 && code[1] == SVC_0;
}

struct prof_rule prof_rule_of(uintptr_t ip)
{
    const uint8_t *fde = fde_of(header_of(ip), ip);
    struct code code;
    struct row row;
    if (!fde || !fde_read(fde, &code) || ip - code.start >= code.end - code.start)
        return is_signal_return(ip) ? (struct prof_rule){.kind = RULE_SIGNAL} : rule_of_frame_pointers;
    if (code.is_signal)
        return (struct prof_rule){.kind = RULE_SIGNAL};
    return row_of(&code, ip, &row) ? rule_from(&row) : rule_end;
}
