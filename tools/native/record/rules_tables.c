// SPDX-License-Identifier: MIT
/*
 * rules_tables.c - how to step from one return address to its caller's, read from the unwind tables themselves (src/prof/cfi.c).
 *
 *      higher addresses
 *        | caller's frame              |
 *   CFA  +-----------------------------+  = sp + n, or x29 + n
 *        | this function's frame       |
 *        | return address  <- slot     |  anywhere in it
 *        | caller's x29                |  a word below
 *   sp   +-----------------------------+
 *
 * Where no table covers the code, a JIT's say, frames are chained by x29: believed when it leads up within the stack, to words that can be read.
 * For processors whose stack rules.c, which asks libunwind and knows that a return address lies below the CFA, does not know.
 *
 * Invariants:
 *   R2  every step moves sp up and stays below the end of the stack, so no load here can fault; only a signal
 *       frame leads to another stack
 *
 * Locks: look-up takes none; learning takes the recorder's lock.
 * Not here: which stack it is (stack.c).
 */
#include "os/os.h"
#include "prof/prof_internal.h"
#include "record.h"

#define UNKNOWN_STACK_BYTES (64u << 10)
#define WORD_BYTES          sizeof(uintptr_t)

bool rec_rules_start(void) {
    return true;
}

void rec_rules_forget(void) {
    prof_rules_forget();
}

void rec_rules_end(void) {
    rec_rules_forget();
}

uintptr_t rec_bounds_high(const struct rec_bounds *bounds, uintptr_t sp) {
    bool is_own = sp >= bounds->thread_low && sp < bounds->thread_high;
    return is_own ? bounds->thread_high : sp + UNKNOWN_STACK_BYTES;
}

/* False: not just now.  The file whose code it is comes into the trace. */
static bool rule_learn(uintptr_t ip, struct prof_rule *rule) {
    if (!rec_lock_try()) {
        return false;
    }
    bool may = rec_unwind_begin();
    if (may) {
        rec_meta_module_known(ip);
        if (rec_meta_unloaded()) {  // by libc itself, whose dlclose is not ours
            rec_rules_forget();
        }
        *rule = prof_rule_learn(ip);
        rec_unwind_end();
    }
    rec_unlock();
    return may;
}

static bool lies_within(const struct rec_frame *frame, const struct rec_bounds *bounds, uintptr_t at) {
    return at >= frame->sp && at <= bounds->high - WORD_BYTES && at % WORD_BYTES == 0;
}

/* What a signal has interrupted, perhaps on another stack. */
static enum rec_step step_signal(struct rec_frame *frame, struct rec_bounds *bounds) {
    size_t bytes = os_frame_signal_bytes();
    if (bytes == 0 || bytes > bounds->high - frame->sp) {
        return REC_STEP_END;
    }
    struct os_frame there = os_frame_interrupted(frame->sp);
    bounds->high = rec_bounds_high(bounds, there.sp);
    bounds->sp_is_low = false;
    bounds->is_interrupted = true;
    bounds->link = there.lr;
    *frame = (struct rec_frame){.ip = there.ip, .sp = there.sp, .bp = there.fp};
    return os_is_readable((const void *)(there.sp & ~(WORD_BYTES - 1))) ? REC_STEP_OK : REC_STEP_END;
}

/* A chain of frame pointers is believed as far as it can be read: nothing else says that there are frames. */
static bool chain_holds(const struct rec_frame *frame, const struct rec_bounds *bounds) {
    return lies_within(frame, bounds, frame->bp) && lies_within(frame, bounds, frame->bp + WORD_BYTES) &&
           (bounds->high == bounds->thread_high || os_is_readable((const void *)(frame->bp + WORD_BYTES)));
}

/* From `frame` to its caller.  `slot` gets where the new ip was read, 0 when that says nothing. */
enum rec_step rec_rules_step(struct rec_frame *frame, struct rec_bounds *bounds, uintptr_t *slot) {
    bool is_call = !bounds->is_interrupted;  // ip stands behind a call, so the rule is that of the byte before
    struct prof_rule rule = prof_rule_find(frame->ip - is_call);
    *slot = 0;
    if (REC_UNLIKELY(rule.kind == RULE_NONE) && !rule_learn(frame->ip - is_call, &rule)) {
        return REC_STEP_BUSY;
    }
    if (REC_UNLIKELY(rule.kind == RULE_SIGNAL)) {
        return step_signal(frame, bounds);
    }
    bool is_plain = rule.kind == RULE_PLAIN || (rule.kind == RULE_CHAINED && chain_holds(frame, bounds));
    bool is_leaf = rule.ip_words == 0 && bounds->is_interrupted;
    uintptr_t cfa = is_plain ? prof_cfa(rule, frame->sp, frame->bp, bounds->sp_is_low) : 0;
    uintptr_t ip_at = cfa - rule.ip_words * WORD_BYTES, bp_at = cfa - rule.fp_words * WORD_BYTES;
    bool is_sound = cfa > frame->sp - is_leaf && cfa <= bounds->high && (is_leaf || (rule.ip_words != 0 && lies_within(frame, bounds, ip_at))) &&
                    (rule.fp_words == 0 || lies_within(frame, bounds, bp_at));
    if (REC_UNLIKELY(!is_sound)) {
        return REC_STEP_END;
    }
    uintptr_t ip = prof_address(is_leaf ? bounds->link : *(const uintptr_t *)ip_at);
    *slot = is_leaf ? 0 : ip_at;
    *frame = (struct rec_frame){.ip = ip, .sp = cfa, .bp = rule.fp_words ? *(const uintptr_t *)bp_at : frame->bp};
    bounds->sp_is_low = rule.kind == RULE_CHAINED;
    bounds->is_interrupted = false;
    return REC_STEP_OK;
}
