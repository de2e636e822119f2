// SPDX-License-Identifier: MIT
/*
 * rules.c - how to step from one return address to its caller's, learnt from libunwind once and then looked up.
 *
 *      higher addresses
 *        | caller's frame            |
 *   CFA  +---------------------------+  = sp + from_sp = bp + from_bp          (sp after the caller returns)
 *        | return address  <- slot   |  CFA - 8
 *        | saved bp                  |  CFA - bp_at, when the function saves it
 *        | this function's frame     |
 *   sp   +---------------------------+
 *
 * libunwind does one step for a return address that is new; what it did is kept as two candidate rules, one
 * relative to sp and one relative to bp.  One of the two is the compiler's own rule; which one shows as soon as
 * they disagree: libunwind is asked again and the wrong candidate is dropped.  A place where both fail
 * (a signal frame, a realigned stack) is stepped by libunwind every time.
 *
 * Invariants:
 *   R1  a rule is used only when its candidates that still stand agree
 *   R2  every step moves sp up and stays below the end of the stack, so no load here can fault; only a signal
 *       frame leads to another stack
 *
 * Locks: look-up takes none; learning takes the recorder's lock.  A reader that meets a rule in change
 * gets at worst a wrong caller, never a fault (R2).
 * Not here: which stack it is (stack.c).
 */
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "record.h"

#define RULES_LOG2 17
#define RULES      (1u << RULES_LOG2)
#define RULES_USED (RULES - RULES / 4)  // beyond this the table is emptied: lookups stay short
#define NO_RULE    INT32_MIN

#define UNKNOWN_STACK_BYTES (64u << 10)

enum rule_kind { RULE_CANDIDATES = 1, RULE_END = 2, RULE_ALWAYS_ASK = 3 };

struct rule {
    _Atomic uintptr_t ip;
    int32_t from_sp;  // NO_RULE: dropped
    int32_t from_bp;  // NO_RULE: dropped
    int32_t bp_at;    // 0: the function leaves bp alone
    uint32_t kind;
};

static struct rule *rules;
static uint32_t rules_used;

bool rec_rules_start(void) {
    rec_unwinder_start();
    if (rules != NULL) {
        return true;
    }
    void *memory = mmap(NULL, RULES * sizeof(struct rule), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    rules = memory == MAP_FAILED ? NULL : memory;
    return rules != NULL;
}

/* libunwind keeps what it did by address, too, and does not see libraries go. */
void rec_rules_forget(void) {
    unw_flush_cache(unw_local_addr_space, 0, 0);
    for (uint32_t i = 0; i < RULES; i++) {
        if (atomic_load_explicit(&rules[i].ip, memory_order_relaxed) != 0) {
            atomic_store_explicit(&rules[i].ip, 0, memory_order_relaxed);
        }
    }
    rules_used = 0;
}

/* A reader in the middle of a rule gets one that says nothing (R2). */
void rec_rules_end(void) {
    unw_flush_cache(unw_local_addr_space, 0, 0);
    madvise(rules, RULES * sizeof(struct rule), MADV_DONTNEED);
    rules_used = 0;
}

static struct rule *rule_find(uintptr_t ip) {
    uint32_t at = (uint32_t)((ip * 0x9e3779b97f4a7c15u) >> (64 - RULES_LOG2));
    for (;; at = (at + 1) & (RULES - 1)) {
        uintptr_t there = atomic_load_explicit(&rules[at].ip, memory_order_acquire);
        if (there == ip || there == 0) {
            return &rules[at];
        }
    }
}

/* Is this where a signal handler returns to: mov $SYS_rt_sigreturn, %rax; syscall?  libunwind says so only for whole walks. */
static bool is_signal_return(uintptr_t ip) {
    static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
    return memcmp((const void *)ip, code, sizeof code) == 0;
}

/* One step by libunwind.  `bp_slot` gets where the function saved bp, 0 when it did not. */
static bool step_by_libunwind(struct rec_frame *frame, uintptr_t *bp_slot) {
    unw_context_t context;
    unw_cursor_t cursor;
    memset(&context, 0, sizeof context);
    context.uc_mcontext.gregs[REG_RIP] = (greg_t)frame->ip;
    context.uc_mcontext.gregs[REG_RSP] = (greg_t)frame->sp;
    context.uc_mcontext.gregs[REG_RBP] = (greg_t)frame->bp;
    unw_word_t ip = 0, sp = 0, bp = 0;
    if (unw_init_local(&cursor, &context) != 0) {
        return false;
    }
    if (unw_step(&cursor) <= 0 || unw_get_reg(&cursor, UNW_REG_IP, &ip) != 0 ||
        unw_get_reg(&cursor, UNW_REG_SP, &sp) != 0 || unw_get_reg(&cursor, UNW_X86_64_RBP, &bp) != 0 || ip == 0) {
        return false;
    }
    unw_save_loc_t saved;
    *bp_slot = 0;
    if (unw_get_save_loc(&cursor, UNW_X86_64_RBP, &saved) == 0 && saved.type == UNW_SLT_MEMORY &&
        saved.u.addr >= frame->sp && saved.u.addr < sp) {
        *bp_slot = (uintptr_t)saved.u.addr;
    }
    frame->ip = (uintptr_t)ip;
    frame->sp = (uintptr_t)sp;
    frame->bp = (uintptr_t)bp;
    return true;
}

/*
 * Code without unwind information is stepped by libunwind along the chain of frame pointers, and it says a wrong sp then. The right one is
 * above the saved bp; `bp_slot` is where that lies.
 */
static void sp_mend(const struct rec_frame *before, struct rec_frame *after, uintptr_t high, uintptr_t *bp_slot) {
    uintptr_t bp = before->bp;
    if (bp < before->sp || bp > high - 16 || (bp & 7) != 0) {
        return;
    }
    const uintptr_t *saved = (const uintptr_t *)bp;
    bool is_said = after->sp > before->sp && after->sp <= high && *(const uintptr_t *)(after->sp - 8) == after->ip;
    if (!is_said && saved[0] == after->bp && saved[1] == after->ip) {
        after->sp = bp + 16;
        *bp_slot = bp;
    }
}

static int32_t distance(uintptr_t from, uintptr_t to) {
    intptr_t d = (intptr_t)(to - from);
    return d > INT32_MIN && d < INT32_MAX ? (int32_t)d : NO_RULE;
}

static void rule_learn(struct rule *rule, const struct rec_frame *before, const struct rec_frame *after,
                       uintptr_t bp_slot) {
    int32_t from_sp = distance(before->sp, after->sp), from_bp = distance(before->bp, after->sp);
    if (atomic_load_explicit(&rule->ip, memory_order_relaxed) == before->ip && rule->kind == RULE_CANDIDATES) {
        rule->from_sp = rule->from_sp == from_sp ? from_sp : NO_RULE;
        rule->from_bp = rule->from_bp == from_bp ? from_bp : NO_RULE;
        if (rule->from_sp == NO_RULE && rule->from_bp == NO_RULE) {
            rule->kind = RULE_ALWAYS_ASK;
        }
        return;
    }
    rule->from_sp = from_sp;
    rule->from_bp = from_bp;
    rule->bp_at = bp_slot == 0 ? 0 : distance(bp_slot, after->sp);
    rule->kind = RULE_CANDIDATES;
}

/* Ask libunwind for this step and keep what it did. */
static enum rec_step step_slow(struct rec_frame *frame, struct rec_bounds *bounds, uintptr_t *slot) {
    struct rec_frame before = *frame;
    uintptr_t bp_slot = 0;
    if (!rec_lock_try()) {
        return REC_STEP_BUSY;
    }
    if (!rec_unwind_begin()) {
        rec_unlock();
        return REC_STEP_BUSY;
    }
    bool is_file_code = rec_meta_module_known(before.ip);
    if (rec_meta_unloaded()) {  // by libc itself, whose dlclose is not ours
        rec_rules_forget();
    }
    bool stepped = step_by_libunwind(frame, &bp_slot);
    rec_unwind_end();
    bool is_signal = stepped && is_file_code && is_signal_return(before.ip);
    if (stepped && !is_signal) {
        sp_mend(&before, frame, bounds->high, &bp_slot);
    }
    if (rules_used >= RULES_USED) {
        rec_rules_forget();
    }
    struct rule *rule = rule_find(before.ip);
    bool is_new = atomic_load_explicit(&rule->ip, memory_order_relaxed) == 0;
    if (stepped && is_signal) {  // back on the stack that was interrupted, which may be another one
        bounds->high = rec_bounds_high(bounds, frame->sp);
    }
    bool upward = stepped && (is_signal || frame->sp > before.sp) && frame->sp <= bounds->high;
    if (!stepped) {
        rule->kind = RULE_END;
    } else if (is_signal || !upward || *(const uintptr_t *)(frame->sp - 8) != frame->ip) {
        rule->kind = RULE_ALWAYS_ASK;
    } else {
        rule_learn(rule, &before, frame, bp_slot);
    }
    if (is_new) {
        rules_used++;
        atomic_store_explicit(&rule->ip, before.ip, memory_order_release);
    }
    rec_unlock();
    *slot = upward && !is_signal ? frame->sp - 8 : 0;
    return upward ? REC_STEP_OK : REC_STEP_END;
}

/* The end of the stack that sp is on.  A coroutine's is not known: CFI ends the walk there, and this is the belt. */
uintptr_t rec_bounds_high(const struct rec_bounds *bounds, uintptr_t sp) {
    bool is_own = sp >= bounds->thread_low && sp < bounds->thread_high;
    return is_own ? bounds->thread_high : sp + UNKNOWN_STACK_BYTES;
}

/* From `frame` to its caller.  `slot` gets where the new ip was read, 0 when that says nothing. */
enum rec_step rec_rules_step(struct rec_frame *frame, struct rec_bounds *bounds, uintptr_t *slot) {
    const struct rule *rule = rule_find(frame->ip);
    if (atomic_load_explicit(&rule->ip, memory_order_relaxed) == 0) {
        return step_slow(frame, bounds, slot);
    }
    if (REC_UNLIKELY(rule->kind != RULE_CANDIDATES)) {
        return rule->kind == RULE_END ? REC_STEP_END : step_slow(frame, bounds, slot);
    }
    int32_t from_sp = rule->from_sp, from_bp = rule->from_bp, bp_at = rule->bp_at;
    uintptr_t cfa = frame->sp + (uintptr_t)(intptr_t)from_sp, by_bp = frame->bp + (uintptr_t)(intptr_t)from_bp;
    if (from_sp == NO_RULE) {
        cfa = by_bp;
    } else if (from_bp != NO_RULE && cfa != by_bp) {
        return step_slow(frame, bounds, slot);
    }
    if (REC_UNLIKELY(cfa <= frame->sp || cfa > bounds->high || (cfa & 7) != 0)) {
        return step_slow(frame, bounds, slot);
    }
    if (bp_at != 0) {
        uintptr_t bp_slot = cfa - (uintptr_t)(intptr_t)bp_at;
        if (REC_UNLIKELY(bp_slot < frame->sp || bp_slot > cfa - 8)) {
            return step_slow(frame, bounds, slot);
        }
        frame->bp = *(const uintptr_t *)bp_slot;
    }
    frame->ip = *(const uintptr_t *)(cfa - 8);
    frame->sp = cfa;
    *slot = cfa - 8;
    return REC_STEP_OK;
}
