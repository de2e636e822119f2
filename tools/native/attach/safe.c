// SPDX-License-Identifier: MIT
/*
 * safe.c - may this thread be borrowed for a call of dlopen just now?
 *
 *   innermost                                                            outermost
 *   [ libc: a call that waits ] [ the program's own frames ........... ] [ libc: start of main or of a thread ] [ entry ]
 *     at a system call, called      nothing of libc, of an allocator,       at most two                          of main alone
 *     by the program: WAITING       of the loader, of the vdso
 *
 * Conditions, all of them:
 *   S1  the stack was walked to its end, by the unwind tables
 *   S2  the thread is in its own code, or waits in one of libc's calls that hold no lock while they wait
 *   S3  no thread is inside the loader, nor in dl_iterate_phdr(), which holds a lock of the loader's while it calls the program, nor in a stub that an
 *       earlier tracer left
 *   S4  no signal waits for it, and it is in no restartable sequence: both are the kernel's to settle at the interrupted place
 *   S5  it runs 64-bit code, and no filter of system calls holds it that does not hold us: ours would end it
 *
 * Not here: stopping threads (threads.c).
 */
#include <elfutils/libdwfl.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include "attach.h"

#define FRAMES_MAX  256u
#define OUTER_MAX   2u
#define ENTRY_BYTES 64u
#define CS_64_BIT   0x33u

static const char *const waiting_names[] = {
    "_IO_default_uflow", "_IO_file_underflow", "_IO_getc", "__overflow", "__uflow", "__underflow",  // getchar jumps into these
    "accept", "accept4", "clock_nanosleep", "connect", "epoll_pwait", "epoll_pwait2", "epoll_wait", "fdatasync", "fflush", "fgetc",
    "fgets", "flock", "fputs", "fread", "fsync", "fwrite", "getc", "getchar", "io_getevents", "msgrcv", "msgsnd", "nanosleep", "pause",
    "poll", "__poll_chk", "ppoll", "__ppoll_chk", "pread", "pread64", "pselect", "pthread_barrier_wait", "pthread_clockjoin_np",
    "pthread_cond_clockwait", "pthread_cond_timedwait", "pthread_cond_wait", "pthread_join", "pthread_mutex_clocklock",
    "pthread_mutex_lock", "pthread_mutex_timedlock", "pthread_rwlock_rdlock", "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock", "pthread_rwlock_wrlock", "pthread_timedjoin_np", "puts", "pwrite", "pwrite64", "read", "__read_chk",
    "readv", "recv", "__recv_chk", "recvfrom", "__recvfrom_chk", "recvmmsg", "recvmsg", "sched_yield", "select", "sem_clockwait",
    "sem_timedwait", "sem_wait", "semop", "semtimedop", "send", "sendfile", "sendfile64", "sendmmsg", "sendmsg", "sendto",
    "sigsuspend", "sigtimedwait", "sigwait", "sigwaitinfo", "sleep", "splice", "syscall", "thrd_sleep", "usleep", "wait", "wait3",
    "wait4", "waitid", "waitpid", "write", "writev",
};

#define WAITING (sizeof waiting_names / sizeof *waiting_names)

static struct {
    Dwfl *dwfl;
    struct {
        uintptr_t start, end;
    } waiting[WAITING], iterates;
    bool is_silent;
} safe;

struct walk {
    uintptr_t pc[FRAMES_MAX];
    unsigned count;
    bool is_whole;
};

/* No names are needed, so no file with debug information is looked for. */
static int no_debuginfo(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base, const char *file,
                        const char *link, GElf_Word crc, char **found) {
    (void)module, (void)data, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
    return -1;
}

void safe_start(const struct target *target) {
    static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_linux_proc_find_elf, .find_debuginfo = no_debuginfo};
    for (unsigned i = 0; i < WAITING; i++) {
        size_t bytes = 0;
        safe.waiting[i].start = target_libc_symbol(target, waiting_names[i], &bytes);
        safe.waiting[i].end = safe.waiting[i].start + bytes;
    }
    size_t bytes = 0;
    safe.iterates.start = target_libc_symbol(target, "dl_iterate_phdr", &bytes);
    safe.iterates.end = safe.iterates.start + bytes;
    safe.dwfl = dwfl_begin(&callbacks);
    if (safe.dwfl == NULL || dwfl_linux_proc_report(safe.dwfl, target->pid) != 0 || dwfl_report_end(safe.dwfl, NULL, NULL) != 0 ||
        dwfl_linux_proc_attach(safe.dwfl, target->pid, true) < 0) {
        refuse("its stacks cannot be walked", dwfl_errmsg(-1), "start it under quire record");
    }
}

void safe_end(void) {
    dwfl_end(safe.dwfl);
    safe.dwfl = NULL;
}

static int frame_take(Dwfl_Frame *frame, void *data) {
    struct walk *walk = data;
    Dwarf_Addr pc = 0;
    bool is_activation = false;
    if (walk->count == FRAMES_MAX || !dwfl_frame_pc(frame, &pc, &is_activation)) {
        return DWARF_CB_ABORT;
    }
    walk->pc[walk->count++] = (uintptr_t)pc;
    return DWARF_CB_OK;
}

static void walk_stack(const struct thread *thread, struct walk *walk) {
    walk->count = 0;
    walk->is_whole = dwfl_getthread_frames(safe.dwfl, thread->tid, frame_take, walk) == 0 && walk->count > 0;
}

static enum object_kind kind_at(const struct target *target, uintptr_t pc) {
    const struct object *object = target_object(target, pc);
    return object == NULL ? OBJECT_OTHER : object->kind;
}

static bool is_in_stub(const struct target *target, uintptr_t pc) {
    return pc >= target->place && pc < target->place_end;
}

/* S3 */
static bool is_in_loader(const struct target *target, const struct walk *walk) {
    for (unsigned i = 0; i < walk->count; i++) {
        bool iterates = walk->pc[i] > safe.iterates.start && walk->pc[i] < safe.iterates.end;
        if (kind_at(target, walk->pc[i]) == OBJECT_LOADER || iterates || is_in_stub(target, walk->pc[i])) {
            return true;
        }
    }
    return false;
}

static bool is_waiting_call(uintptr_t pc) {
    for (unsigned i = 0; i < WAITING; i++) {
        if (pc >= safe.waiting[i].start && pc < safe.waiting[i].end) {
            return true;
        }
    }
    return false;
}

static bool is_at_system_call(const struct target *target, uintptr_t pc) {
    unsigned char code[2];
    return target_get(target, pc - sizeof code, code, sizeof code) && code[0] == 0x0f && code[1] == 0x05;
}

/* S1, S2 */
static bool is_good_stack(const struct target *target, const struct walk *walk) {
    if (!walk->is_whole) {
        return false;
    }
    unsigned inner = 0, end = walk->count;
    while (inner < end && kind_at(target, walk->pc[inner]) == OBJECT_LIBC) {
        inner++;
    }
    if (inner == end || (inner > 0 && (!is_at_system_call(target, walk->pc[0]) || !is_waiting_call(walk->pc[inner - 1] - (inner > 1))))) {
        return false;
    }
    if (walk->pc[end - 1] - target->entry < ENTRY_BYTES) {
        end--;
    }
    for (unsigned outer = 0; outer < OUTER_MAX && end > inner && kind_at(target, walk->pc[end - 1]) == OBJECT_LIBC; outer++) {
        end--;
    }
    for (unsigned i = inner; i < end; i++) {
        if (kind_at(target, walk->pc[i]) != OBJECT_OTHER) {
            return false;
        }
    }
    return true;
}

/* What the kernel tells from 5.13 on; glibc's header has both from 2.34 on. */
#define GET_RSEQ_CONFIGURATION 0x420f
struct rseq_configuration {
    uint64_t rseq_abi_pointer;
    uint32_t rseq_abi_size, signature, flags, pad;
};

/* In the middle of a restartable sequence? */
static bool is_in_sequence(const struct target *target, const struct thread *thread) {
    struct rseq_configuration where;
    uint64_t sequence = 0, at[2] = {0, 0};
    if (ptrace(GET_RSEQ_CONFIGURATION, thread->tid, (void *)sizeof where, &where) <= 0 || where.rseq_abi_pointer == 0) {
        return false;
    }
    if (!target_get(target, (uintptr_t)where.rseq_abi_pointer + 8, &sequence, sizeof sequence) || sequence == 0) {
        return false;
    }
    // the descriptor: version, flags, start, length
    return target_get(target, (uintptr_t)sequence + 8, at, sizeof at) && thread->regs.rip - at[0] < at[1];
}

/* As the tool asked of each before; one may have shut itself in meanwhile. */
static bool is_shut_in(pid_t tid) {
    uint64_t mode = status_number(tid, "Seccomp:"), filters = status_number(tid, "Seccomp_filters:");
    return mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && (filters == 0 || filters > status_number(getpid(), "Seccomp_filters:")));
}

/* S4, S5 */
static bool is_good_moment(const struct target *target, const struct thread *thread) {
    if (is_shut_in(thread->tid)) {
        return false;
    }
    uint64_t blocked = 0;
    if (thread->regs.cs != CS_64_BIT || ptrace(PTRACE_GETSIGMASK, thread->tid, (void *)sizeof blocked, &blocked) != 0) {
        return false;
    }
    struct __ptrace_peeksiginfo_args ask = {.nr = 1};
    siginfo_t info;
    for (int shared = 0; shared < 2; shared++) {
        ask.flags = shared ? PTRACE_PEEKSIGINFO_SHARED : 0;
        for (ask.off = 0; ptrace(PTRACE_PEEKSIGINFO, thread->tid, &ask, &info) == 1; ask.off++) {
            if (!(blocked >> (info.si_signo - 1) & 1)) {
                return false;
            }
        }
    }
    return !is_in_sequence(target, thread);
}

struct thread *safe_thread(const struct target *target, struct threads *threads) {
    struct thread *found = NULL;
    for (unsigned i = 0; i < threads->count; i++) {
        struct thread *thread = &threads->thread[i];
        struct walk walk;
        if (!thread->is_stopped) {
            continue;
        }
        walk_stack(thread, &walk);
        if (is_in_loader(target, &walk)) {
            return NULL;
        }
        if (found == NULL && is_good_stack(target, &walk) && is_good_moment(target, thread)) {
            found = thread;
        }
    }
    return found;
}
