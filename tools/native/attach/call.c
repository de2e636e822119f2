// SPDX-License-Identifier: MIT
/*
 * call.c - one call of a function of the recorder, by a thread of the target.
 *
 *   stopped, safe --> stub written behind some object's code --> registers --> runs, we look at each of its system calls
 *                                                                               '--> it reports --> signals back: home
 *
 * From the moment its registers are set the thread needs nobody (stub.c): where we end, it comes home by itself.  Where we do not, we bring
 * it home, which lets us wipe the room that the stub was in.
 *
 * Invariants:
 *   K1  the stub is whole before a register is set, and is wiped only when the thread is seen outside of it
 *
 * Not here: which thread (safe.c).
 */
#include <cpuid.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "attach.h"

#define CALL_MS      20000u
#define NODELETE_NOW 0x1002u       // RTLD_NODELETE | RTLD_NOW
#define DLOPEN_MODE  0x80000000u   // what glibc's own users of __libc_dlopen_mode say
#define DIRECTION    0x400u
#define TRAP         0x100u

/* Text behind the code, in this order. */
struct layout {
    size_t path, name, order, end;
};

static struct layout layout_of(const struct call *call) {
    struct layout at = {.path = ((size_t)(attach_stub_end - attach_stub_begin) + 15) & ~(size_t)15};
    at.name = at.path + strlen(call->library) + 1;
    at.order = (at.name + strlen(call->function) + 1 + 15) & ~(size_t)15;
    at.end = at.order + call->order_bytes;
    return at;
}

size_t call_room(const struct call *call) {
    return layout_of(call).end;
}

/* Where the thread goes on if we are no more by then: a system call that we interrupted is made again, as the kernel does where no signal has come. */
static struct user_regs_struct home_of(const struct thread *thread) {
    struct user_regs_struct home = thread->regs;
    long number = (long)home.orig_rax, result = (long)home.rax;
    if (number >= 0) {
        if (result == -ERESTART_RESTARTBLOCK) {
            home.rax = SYS_restart_syscall;
            home.rip -= 2;
        } else if (result == -ERESTARTSYS || result == -ERESTARTNOINTR || result == -ERESTARTNOHAND) {
            home.rax = home.orig_rax;
            home.rip -= 2;
        }
    }
    home.orig_rax = (unsigned long long)-1;
    home.eflags &= ~(unsigned long long)TRAP;
    return home;
}

static size_t xsave_bytes(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1) == 0 || __get_cpuid_count(0xd, 0, &a, &b, &c, &d) == 0) {
        refuse("this processor cannot keep its vector registers by xsave", "it is too old", "start it under quire record");
    }
    return b;
}

static void data_registers(struct attach_stub_data *data, const struct user_regs_struct *home) {
    data->rip = home->rip;
    data->r15 = home->r15;
    data->r14 = home->r14;
    data->r13 = home->r13;
    data->r12 = home->r12;
    data->rbp = home->rbp;
    data->rbx = home->rbx;
    data->r11 = home->r11;
    data->r10 = home->r10;
    data->r9 = home->r9;
    data->r8 = home->r8;
    data->rax = home->rax;
    data->rcx = home->rcx;
    data->rdx = home->rdx;
    data->rsi = home->rsi;
    data->rdi = home->rdi;
    data->rsp = home->rsp;
    data->flags = home->eflags;
}

static void data_functions(struct attach_stub_data *data, const struct target *target) {
    data->errno_location = target_libc_symbol(target, "__errno_location", NULL);
    data->dlopen = target_libc_symbol(target, "dlopen", NULL);
    data->dlsym = target_libc_symbol(target, "dlsym", NULL);
    data->dlerror = target_libc_symbol(target, "dlerror", NULL);
    data->dlopen_flags = NODELETE_NOW;
    if (data->dlopen == 0) {  // before glibc 2.34
        data->dlopen = target_libc_symbol(target, "__libc_dlopen_mode", NULL);
        data->dlsym = target_libc_symbol(target, "__libc_dlsym", NULL);
        data->dlopen_flags |= DLOPEN_MODE;
    }
    if (data->errno_location == 0 || data->dlopen == 0 || data->dlsym == 0) {
        refuse("its libc has no dlopen", "its file is stripped of its names, or very old", "start it under quire record");
    }
}

static bool stub_write(const struct target *target, const struct thread *thread, const struct user_regs_struct *home,
                       const struct call *call) {
    struct layout at = layout_of(call);
    unsigned char *text = calloc(1, at.end);
    if (text == NULL) {
        return false;
    }
    struct attach_stub_data data = {.magic = STUB_MAGIC, .mask_all = UINT64_MAX, .xsave_bytes = xsave_bytes() + 64};
    data_registers(&data, home);
    data_functions(&data, target);
    data.path = target->place + at.path;
    data.name = target->place + at.name;
    data.argument = target->place + at.order;
    bool ok = ptrace(PTRACE_GETSIGMASK, thread->tid, (void *)sizeof data.mask, &data.mask) == 0;
    memcpy(text, attach_stub_begin, (size_t)(attach_stub_end - attach_stub_begin));
    memcpy(text, &data, sizeof data);
    strcpy((char *)text + at.path, call->library);
    strcpy((char *)text + at.name, call->function);
    memcpy(text + at.order, call->order, call->order_bytes);
    ok = ok && target_put(target, target->place, text, at.end);
    free(text);
    return ok;
}

static void stub_wipe(const struct target *target, const struct call *call) {
    size_t bytes = layout_of(call).end;
    void *zeros = calloc(1, bytes);
    if (zeros != NULL) {
        target_put(target, target->place, zeros, bytes);
        free(zeros);
    }
}

static void report_take(const struct target *target, const struct user_regs_struct *regs, struct call *call) {
    call->result = (int64_t)regs->rsi;
    for (size_t i = 0; regs->rdx != 0 && i < sizeof call->why - 1; i++) {
        if (!target_get(target, (uintptr_t)regs->rdx + i, &call->why[i], 1) || call->why[i] == '\0') {
            break;
        }
    }
}

enum seen { SEEN_NOTHING, SEEN_LAST_CALL, SEEN_GONE };

/* One system call, entered or left. */
static enum seen look(const struct target *target, const struct thread *thread, struct call *call) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, thread->tid, NULL, &regs) != 0) {
        return SEEN_GONE;
    }
    if ((long)regs.rax != -ENOSYS) {
        return SEEN_NOTHING;  // left
    }
    step("inside");
    if (regs.orig_rax == SYS_getppid && regs.rdi == ATTACH_REPORT) {
        report_take(target, &regs, call);
        step("reported");
    }
    bool is_last = regs.orig_rax == SYS_rt_sigprocmask && regs.rsi == target->place + offsetof(struct attach_stub_data, mask);
    return is_last ? SEEN_LAST_CALL : SEEN_NOTHING;
}

/* Until the thread has its signals back; false: it is gone, or does not come back. */
static bool lead(const struct target *target, const struct thread *thread, struct call *call) {
    enum seen seen = SEEN_NOTHING;
    int status = 0, number = 0;
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, thread->tid, NULL, (void *)(uintptr_t)number) != 0 || !thread_wait(thread->tid, &status, CALL_MS) ||
            !WIFSTOPPED(status)) {
            return false;
        }
        number = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            if (seen == SEEN_LAST_CALL) {
                return true;
            }
            seen = look(target, thread, call);
        } else if (status >> 16 == 0) {
            number = WSTOPSIG(status);
        }
        if (seen == SEEN_GONE) {
            return false;
        }
    }
}

/*
 * In the kernel's hands, with the registers it was stopped with: the kernel settles whether its system call is made again, or ends with EINTR for
 * a signal that came meanwhile, and waited until now.
 */
static bool bring_home(const struct thread *thread) {
    int status = 0;
    return ptrace(PTRACE_INTERRUPT, thread->tid, NULL, NULL) == 0 && ptrace(PTRACE_CONT, thread->tid, NULL, NULL) == 0 &&
           thread_wait(thread->tid, &status, CALL_MS) && WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_STOP &&
           ptrace(PTRACE_SETREGS, thread->tid, NULL, &thread->regs) == 0;
}

bool call_make(struct target *target, struct threads *threads, struct thread *thread, struct call *call) {
    struct user_regs_struct home = home_of(thread), away = home;
    call->result = -ENOMEM;  // what is not reported: there was no memory for a stack
    if (!stub_write(target, thread, &home, call)) {
        threads_release(threads, NULL);
        refuse("the code for it cannot be written into the process", strerror(errno), "start it under quire record");
    }
    step("written");
    away.rbx = target->place;
    away.rip = target->place + (uintptr_t)(attach_stub_code - attach_stub_begin);
    away.eflags &= ~(unsigned long long)DIRECTION;
    if (ptrace(PTRACE_SETREGS, thread->tid, NULL, &away) != 0) {
        stub_wipe(target, call);
        threads_release(threads, NULL);
        return false;
    }
    const uint64_t all = UINT64_MAX;
    ptrace(PTRACE_SETSIGMASK, thread->tid, (void *)sizeof all, &all);  // now, not by the stub's first call: no signal comes before it; the stub unblocks
    step("sent");
    threads_release(threads, thread);
    step("alone");
    bool is_home = lead(target, thread, call) && bring_home(thread);
    step("home");
    if (is_home) {
        stub_wipe(target, call);
    }
    thread_release(thread);
    free(threads->thread);
    *threads = (struct threads){0};
    return is_home;
}
