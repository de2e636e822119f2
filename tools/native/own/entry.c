// SPDX-License-Identifier: MIT
/*
 * entry.c - moves the first instructions of a function and puts a jump in their place.
 *
 * Invariants:
 *   E1  what is moved is understood whole (insn.h); what is relative to its own place is made relative to the new one
 *   E2  a moved call pushes the address that it would have pushed in its old place: unwinders and C++ exceptions find the same frames
 *   E3  nothing in the function jumps into the moved bytes but to the first of them
 *
 * Locks: none; only one thread may run.  Not here: which functions (find.c), what the hook does.
 */
#include "entry.h"

#include <string.h>
#include <sys/mman.h>

#include "insn.h"

#define HOOK_BYTES    24u  // mov r11, imm64; jmp [rip]; where to
#define REACH_BYTES   ((uintptr_t)0x7f000000)
#define STEP_BYTES    ((uintptr_t)1 << 16)
#define STEPS_SMALL   256u
#define STEP_LARGE    ((uintptr_t)1 << 22)
#define LOWEST        ((uintptr_t)1 << 16)

static const unsigned char endbr64[ENTRY_SKIP_BYTES] = {0xf3, 0x0f, 0x1e, 0xfa};

static bool is_no_op(const unsigned char *code) {
    while (*code == 0x66 || *code == 0x2e) {
        code++;
    }
    return *code == 0x90 || *code == 0xcc || (code[0] == 0x0f && code[1] == 0x1f);
}

/* Whether the first `wanted` of these bytes are what compilers put between functions. */
static bool is_padding(const unsigned char *code, size_t bytes, size_t wanted) {
    for (size_t at = 0; at < wanted;) {
        struct insn insn = insn_decode(code + at, bytes - at);
        if (insn.kind == INSN_UNKNOWN || !is_no_op(code + at)) {
            return false;
        }
        at += insn.length;
    }
    return true;
}

/* Why an instruction that comes first may not be moved, or NULL. */
static const char *stays(const struct insn *insn, size_t end) {
    if (insn->kind == INSN_UNKNOWN || insn->kind == INSN_LOOP) {
        return "it begins with an instruction that is not understood";
    }
    return insn->kind == INSN_CALL && end < ENTRY_JUMP_BYTES ? "it begins with a call" : NULL;
}

/* Whether anything jumps into the moved bytes. */
static const char *jumped_into(const unsigned char *code, size_t bytes, const struct entry_plan *plan) {
    for (size_t at = 0; at < bytes;) {
        struct insn insn = insn_decode(code + at, bytes - at);
        if (insn.kind == INSN_UNKNOWN) {
            return "an instruction in it is not understood";
        }
        at += insn.length;
        bool is_direct = insn.field != 0 && insn.kind != INSN_PLAIN && insn.kind != INSN_END;
        size_t into = at + (size_t)(ptrdiff_t)insn.relative - plan->skip;
        if (is_direct && into > 0 && into < plan->moved) {
            return "a loop in it begins in its first bytes";
        }
    }
    return NULL;
}

const char *entry_look(const unsigned char *code, size_t bytes, size_t room, struct entry_plan *plan) {
    bool is_marked = bytes >= sizeof endbr64 && memcmp(code, endbr64, sizeof endbr64) == 0;
    *plan = (struct entry_plan){.skip = is_marked ? ENTRY_SKIP_BYTES : 0};
    size_t at = plan->skip;
    bool ended = false;
    while (!ended && at < plan->skip + ENTRY_JUMP_BYTES) {
        struct insn insn = insn_decode(code + at, bytes - at);
        const char *why = at < bytes ? stays(&insn, at + insn.length - plan->skip) : "it is too short";
        if (why != NULL) {
            return why;
        }
        ended = insn.kind == INSN_END || insn.kind == INSN_JUMP;
        at += insn.length;
    }
    plan->moved = (unsigned)at - plan->skip;
    size_t wanted = plan->skip + ENTRY_JUMP_BYTES;
    if (at < wanted && (at < bytes || room < wanted || !is_padding(code + at, room - at, wanted - at))) {
        return "it is too short";
    }
    return jumped_into(code, bytes, plan);
}

static bool put_relative(unsigned char *at, const unsigned char *target) {
    ptrdiff_t away = target - (at + 4);
    int32_t narrow = (int32_t)away;
    memcpy(at, &narrow, sizeof narrow);
    return narrow == away;
}

/* `from` is copied to *to and *to advanced; false: out of reach. `spare`: eight bytes of the stub for an address. */
static bool move_one(unsigned char **to, const unsigned char *from, const struct insn *insn, unsigned char *spare) {
    unsigned char *out = *to;
    const unsigned char *next = from + insn->length;
    bool reached = true;
    if (insn->kind == INSN_PLAIN || insn->kind == INSN_END) {
        memcpy(out, from, insn->length);
        *to += insn->length;
        if (insn->field != 0) {
            ptrdiff_t relative = insn->relative + (from - out);
            int32_t narrow = (int32_t)relative;
            memcpy(out + insn->field, &narrow, sizeof narrow);
            reached = narrow == relative;
        }
        return reached;
    }
    if (insn->kind == INSN_BRANCH) {
        *out++ = 0x0f;
        *out++ = (unsigned char)(0x80 | insn->condition);
    } else {
        if (insn->kind == INSN_CALL) {  // push [rip + spare]
            memcpy(spare, &next, sizeof next);
            *out++ = 0xff;
            *out++ = 0x35;
            reached = put_relative(out, spare);
            out += 4;
        }
        *out++ = 0xe9;
    }
    reached = put_relative(out, next + insn->relative) && reached;
    *to = out + 4;
    return reached;
}

bool entry_prepare(struct entry *entry) {
    unsigned char *stub = entry->stub, *to = stub + HOOK_BYTES;
    static const unsigned char hook[] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0};
    memset(stub, 0xcc, ENTRY_STUB_BYTES);
    memcpy(stub, hook, sizeof hook);
    memcpy(stub + 2, &entry->argument, sizeof entry->argument);
    memcpy(stub + sizeof hook, &entry->to, sizeof entry->to);
    const unsigned char *from = entry->function + entry->plan.skip, *end = from + entry->plan.moved;
    enum insn_kind last = INSN_PLAIN;
    while (from < end) {
        struct insn insn = insn_decode(from, (size_t)(end - from));
        if (!move_one(&to, from, &insn, stub + ENTRY_STUB_BYTES - 8)) {
            return false;
        }
        last = insn.kind;
        from += insn.length;
    }
    if (last != INSN_JUMP && last != INSN_END && last != INSN_CALL) {
        *to = 0xe9;
        return put_relative(to + 1, end);
    }
    return true;
}

void *entry_original(const struct entry *entry) {
    return entry->stub + HOOK_BYTES;
}

void entry_patch(struct entry *entry) {
    unsigned char *at = entry->function + entry->plan.skip, jump[ENTRY_JUMP_BYTES] = {0xe9};
    memcpy(entry->original, at, sizeof entry->original);
    ptrdiff_t away = entry->stub - (at + sizeof jump);
    int32_t narrow = (int32_t)away;
    memcpy(jump + 1, &narrow, sizeof narrow);
    memcpy(at, jump, sizeof jump);
}

void entry_unpatch(struct entry *entry) {
    memcpy(entry->function + entry->plan.skip, entry->original, sizeof entry->original);
}

static void *pages_at(uintptr_t at, size_t bytes) {
    void *pages = mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    if ((uintptr_t)pages != at) {  // a kernel that takes the address for a wish
        munmap(pages, bytes);
        return NULL;
    }
    return pages;
}

void *entry_pages_near(uintptr_t low, uintptr_t high, size_t bytes) {
    uintptr_t at = low & ~(STEP_BYTES - 1);
    for (unsigned step = 0; at > LOWEST + bytes; step++) {
        at -= step < STEPS_SMALL || at < 2 * STEP_LARGE ? STEP_BYTES : STEP_LARGE;
        if (high - at > REACH_BYTES) {
            return NULL;
        }
        void *pages = pages_at(at, bytes);
        if (pages != NULL) {
            return pages;
        }
    }
    return NULL;
}
