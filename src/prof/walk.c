// SPDX-License-Identifier: MIT
/*
 * walk.c - the call stack of this thread, from malloc's caller outwards.
 *
 *     ours: walk <- prof_alloc <- malloc | caller <- ... <- main <- libc's start          every frame below `call.frame` is left out
 *
 * Invariants:
 *   W1  nothing is read but aligned words at or above sp, on pages that are known to be readable: sp's own, the main thread's and this thread's stack up to
 *       its end, and what the system was asked about
 *   W2  every step goes up the stack, but for a signal's frame, which may lead to another one
 *
 * Locks: none.  Allocates nothing, keeps errno.  Not here: rules (rule.c, cfi.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "prof/prof_internal.h"

enum { WORD = sizeof(uintptr_t), SKIPPED_MAX = 16, ASKED_MAX = 64, SIGNALS_MAX = 4 };
#define MAIN_STACK_BYTES ((uintptr_t)64 << 20) /* the kernel maps nothing else that near below its top */

extern void *__libc_stack_end __attribute__((weak));

/* Readable: [low, high) of this thread's stack.  Of the main thread not needed. */
static THREAD_LOCAL struct {
    uintptr_t low, high;
} own_stack __attribute__((tls_model("initial-exec")));

struct walk {
    struct os_frame frame;
    uintptr_t readable_end, page_start;
    unsigned asked;
    bool sp_is_low; /* prof_cfa() */
};

/* ---- reading ---- */

static void readable_begin(struct walk *walk)
{
    uintptr_t page = align_down(walk->frame.sp, os_page_bytes()), main_end = &__libc_stack_end ? (uintptr_t)__libc_stack_end : 0;
    bool is_main = walk->frame.sp < main_end && main_end - walk->frame.sp < MAIN_STACK_BYTES;
    walk->page_start = page;
    walk->readable_end = is_main ? align_down(main_end, WORD) : page + os_page_bytes();
    if (own_stack.high == 0) {
        own_stack.high = align_down((uintptr_t)os_thread_pointer(), WORD); /* libc puts it at the top */
        own_stack.low = align_down(own_stack.high, os_page_bytes());
    }
}

/* The pages from sp's to the end of the own stack: all known. */
static bool joins_own_stack(struct walk *walk)
{
    if (walk->readable_end < own_stack.low || walk->readable_end >= own_stack.high)
        return false;
    walk->readable_end = own_stack.high;
    if (walk->page_start < own_stack.low)
        own_stack.low = walk->page_start;
    return true;
}

static bool is_readable(struct walk *walk, uintptr_t at)
{
    if (at % WORD != 0 || at < walk->page_start)
        return false;
    while (walk->readable_end < at + WORD) {
        if (joins_own_stack(walk))
            continue;
        if (at - walk->readable_end > ASKED_MAX * os_page_bytes() || walk->asked++ >= ASKED_MAX || !os_is_readable((const void *)walk->readable_end))
            return false;
        walk->readable_end += os_page_bytes();
    }
    return true;
}

static NO_SANITIZE bool word_at(struct walk *walk, uintptr_t at, uintptr_t *word)
{
    if (!is_readable(walk, at))
        return false;
    *word = *(const uintptr_t *)at;
    return true;
}

/* ---- steps ---- */

/* What a signal has interrupted.  It may have run on another stack. */
static NO_SANITIZE bool step_signal(struct walk *walk)
{
    size_t bytes = os_frame_signal_bytes(); /* on x86-64 the return address below them is popped */
    if (bytes == 0 || !is_readable(walk, align_up(walk->frame.sp + bytes, WORD)))
        return false;
    walk->frame = os_frame_interrupted(walk->frame.sp);
    walk->sp_is_low = false;
    if (walk->frame.sp < walk->page_start || walk->frame.sp >= walk->readable_end) {
        if (!os_is_readable((const void *)align_down(walk->frame.sp, WORD)))
            return false;
        readable_begin(walk);
    }
    return walk->frame.ip != 0;
}

/* `is_call`: ip stands behind a call, so the rule is that of the byte before. */
static struct prof_rule rule_here(const struct walk *walk, bool is_call)
{
    struct prof_rule rule = prof_rule_find(walk->frame.ip - is_call);
    return likely(rule.kind != RULE_NONE) ? rule : prof_rule_learn(walk->frame.ip - is_call);
}

/* From a frame to its caller. */
static bool step(struct walk *walk, struct prof_rule rule, bool is_call)
{
    uintptr_t fp = walk->frame.fp, ip = walk->frame.lr, cfa = prof_cfa(rule, walk->frame.sp, fp, walk->sp_is_low);
    if (rule.kind == RULE_END)
        return false;
    if (rule.kind == RULE_SIGNAL)
        return step_signal(walk);
    if (rule.kind == RULE_ALIGNED && (fp < walk->frame.sp || !word_at(walk, fp - rule.cfa_bytes, &cfa) || !word_at(walk, fp, &fp)))
        return false;
    if (cfa <= walk->frame.sp && !(cfa == walk->frame.sp && rule.ip_words == 0 && !is_call)) /* W2; a leaf has nothing on the stack */
        return false;
    if (rule.ip_words && !word_at(walk, cfa - rule.ip_words * WORD, &ip))
        return false;
    if (rule.fp_words && !word_at(walk, cfa - rule.fp_words * WORD, &fp))
        return false;
    ip = prof_address(ip);
    walk->frame = (struct os_frame){ip, cfa, fp, 0};
    walk->sp_is_low = CPU_AARCH64 && rule.kind == RULE_CHAINED;
    return ip > 1;
}

/*
 * Nearly all steps: behind calls, by rules that are kept and plain, on words that are known to be readable.  Writes the callers' addresses and says how
 * many; where anything else is to be looked at, or sp comes to `top`, it ends.
 */
static NO_SANITIZE unsigned quick_steps(struct walk *walk, uintptr_t top, unsigned most, uintptr_t *ips)
{
    uintptr_t ip = walk->frame.ip, sp = walk->frame.sp, fp = walk->frame.fp, start = walk->page_start, room = walk->readable_end - start;
    unsigned count = 0;
    while (count < most && sp < top && !walk->sp_is_low) {
        struct prof_rule rule = prof_rule_find(ip - 1);
        uintptr_t cfa = (rule.by_fp ? fp : sp) + rule.cfa_bytes, ip_at = cfa - rule.ip_words * WORD, fp_at = cfa - rule.fp_words * WORD;
        bool is_there = cfa - start <= room && ip_at - start < room && fp_at - start <= room && cfa % WORD == 0;
        if (rule.kind != RULE_PLAIN || rule.ip_words == 0 || cfa <= sp || !is_there)
            break;
        uintptr_t next = prof_address(*(const uintptr_t *)ip_at);
        if (next <= 1)
            break;
        if (rule.fp_words)
            fp = *(const uintptr_t *)fp_at;
        ip = ips[count++] = next;
        sp = cfa;
    }
    if (count)
        walk->frame = (struct os_frame){ip, sp, fp, 0};
    return count;
}

/* Up to the caller's frame. */
static bool leave_ours(struct walk *walk, struct prof_call call)
{
    uintptr_t ours[SKIPPED_MAX], top = (uintptr_t)call.frame;
    for (unsigned i = 0; i < SKIPPED_MAX && walk->frame.sp < top; i++) {
        if (!step(walk, rule_here(walk, i != 0), i != 0))
            return false;
        (void)quick_steps(walk, top, SKIPPED_MAX, ours);
    }
    return walk->frame.sp == top && walk->frame.ip == prof_address(call.ret);
}

unsigned prof_walk(struct os_frame from, struct prof_call call, unsigned most, uintptr_t *ips)
{
    struct walk walk = {.frame = from};
    unsigned count = 1, signals = 0;
    ips[0] = prof_address(call.ret);
    if (from.ip == 0)
        return count;
    readable_begin(&walk);
    if (!leave_ours(&walk, call))
        return count;
    bool is_call = true;
    while (count < most) {
        count += is_call ? quick_steps(&walk, UINTPTR_MAX, most - count, ips + count) : 0;
        if (count == most)
            break;
        struct prof_rule rule = rule_here(&walk, is_call);
        bool is_signal = rule.kind == RULE_SIGNAL; /* its table begins a byte early, for that */
        signals += is_signal;
        if (signals > SIGNALS_MAX || !step(&walk, rule, is_call))
            break;
        ips[count++] = walk.frame.ip + is_signal; /* readers take one off: what was interrupted is no return address */
        is_call = !is_signal;
    }
    return count;
}
