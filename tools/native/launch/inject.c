// SPDX-License-Identifier: MIT
/*
 * inject.c - inject.h's work, by ptrace: the program stands at its first instruction.
 *
 *   exec stops --> mmap, made by the program itself --> recorder, relocated, written there --> its thread-local storage into PT_TLS
 *              --> static_enter runs on the program's stack, with a thread pointer that is lent --> it reports --> all registers back: go
 *
 * Invariants:
 *   I1  until it is let go the program dies with us (PTRACE_O_EXITKILL): nothing of it has run
 *   I2  what it finds is what the kernel gave it: registers, signals, code; but for PT_TLS, which has room for the recorder's variables more
 *
 * Not here: what the recorder does then (../static).
 */
#include "inject.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../static/order.h"

enum { PAGE_BYTES = 4096, STACK_ROOM = 1024, TLS_BYTES_MAX = 1 << 24, STOP_CALL = SIGTRAP | 0x80 };
enum { PROPERTY = 0x6474e553 }; /* PT_GNU_PROPERTY, which <elf.h> has from glibc 2.32 on */

struct traced {
    pid_t pid;
    int memory;                   /* /proc/PID/mem */
    struct user_regs_struct home; /* at its first instruction */
    struct user_fpregs_struct vectors;
    uint64_t mask;
    unsigned char code[2]; /* that a system call stands in place of */
};

/* Behind the recorder's image: the lent thread's storage and pointer, the order, the start of every thread's storage. */
struct layout {
    uint64_t base, self, order, tls;
};

/* 0, or -errno; -ESRCH: it ended. */
static int wait_stop(struct traced *traced, int *status)
{
    if (waitpid(traced->pid, status, __WALL) < 0)
        return -errno;
    return WIFSTOPPED(*status) ? 0 : -ESRCH;
}

static int wait_exec(struct traced *traced)
{
    int status = 0, code;
    while ((code = wait_stop(traced, &status)) == 0) {
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8))
            return 0;
        int number = status >> 16 || WSTOPSIG(status) == STOP_CALL ? 0 : WSTOPSIG(status);
        ptrace(PTRACE_CONT, traced->pid, NULL, (void *)(long)number);
    }
    return code;
}

/* On to where it next enters or leaves a system call: all signals are blocked meanwhile. */
static int next_call(struct traced *traced, struct user_regs_struct *regs)
{
    int status = 0, code;
    if (ptrace(PTRACE_SYSCALL, traced->pid, NULL, NULL) != 0 || (code = wait_stop(traced, &status)) != 0)
        return -ESRCH;
    if (WSTOPSIG(status) != STOP_CALL)
        return -EFAULT;
    return ptrace(PTRACE_GETREGS, traced->pid, NULL, regs) != 0 ? -errno : 0;
}

static int put(struct traced *traced, uint64_t to, const void *from, size_t bytes)
{
    return pwrite(traced->memory, from, bytes, (off_t)to) == (ssize_t)bytes ? 0 : -EIO;
}

/* A system call made by the program; its result. */
static int64_t remote(struct traced *traced, long number, uint64_t a, uint64_t b, uint64_t c)
{
    struct user_regs_struct regs = traced->home;
    regs.rax = (unsigned long long)number;
    regs.orig_rax = (unsigned long long)-1;
    regs.rdi = a;
    regs.rsi = b;
    regs.rdx = c;
    regs.r10 = MAP_PRIVATE | MAP_ANONYMOUS;
    regs.r8 = (unsigned long long)-1;
    regs.r9 = 0;
    int code = ptrace(PTRACE_SETREGS, traced->pid, NULL, &regs) != 0 ? -errno : next_call(traced, &regs);
    code = code ? code : next_call(traced, &regs);
    return code ? code : (int64_t)regs.rax;
}

static int borrow(struct traced *traced)
{
    static const unsigned char call[sizeof traced->code] = {0x0f, 0x05};
    uint64_t all = ~(uint64_t)0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", (int)traced->pid);
    traced->memory = open(path, O_RDWR | O_CLOEXEC);
    if (traced->memory < 0)
        return -errno;
    int code = next_call(traced, &traced->home); /* leaves exec */
    if (code == 0 && (ptrace(PTRACE_GETFPREGS, traced->pid, NULL, &traced->vectors) != 0 ||
                      ptrace(PTRACE_GETSIGMASK, traced->pid, (void *)sizeof traced->mask, &traced->mask) != 0 ||
                      ptrace(PTRACE_SETSIGMASK, traced->pid, (void *)sizeof all, &all) != 0 ||
                      pread(traced->memory, traced->code, sizeof traced->code, (off_t)traced->home.rip) != sizeof traced->code))
        code = -errno;
    return code ? code : put(traced, traced->home.rip, call, sizeof call);
}

static int give_back(struct traced *traced)
{
    int code = put(traced, traced->home.rip, traced->code, sizeof traced->code);
    traced->home.orig_rax = (unsigned long long)-1;
    if (code == 0 && (ptrace(PTRACE_SETREGS, traced->pid, NULL, &traced->home) != 0 ||
                      ptrace(PTRACE_SETFPREGS, traced->pid, NULL, &traced->vectors) != 0 ||
                      ptrace(PTRACE_SETSIGMASK, traced->pid, (void *)sizeof traced->mask, &traced->mask) != 0))
        code = -errno;
    return code;
}

/* Where in the program's memory its segments are told of; 0: nowhere. */
static uint64_t headers_at(const struct elf *program, uint64_t bias)
{
    const Elf64_Ehdr *head = elf_header(program);
    const Elf64_Phdr *segment = (const void *)(program->data + head->e_phoff);
    uint64_t bytes = (uint64_t)head->e_phnum * sizeof *segment;
    for (unsigned n = 0; n < head->e_phnum; n++)
        if (segment[n].p_type == PT_LOAD && head->e_phoff >= segment[n].p_offset && head->e_phoff + bytes <= segment[n].p_offset + segment[n].p_filesz)
            return bias + segment[n].p_vaddr + (head->e_phoff - segment[n].p_offset);
    return 0;
}

/* The program's libc makes each thread's storage from PT_TLS: it gets the longer one.  Where there is none, a header that nobody reads any more becomes it. */
static int tls_put(struct traced *traced, const struct elf *program, uint64_t bias, struct tls tls, const struct layout *at)
{
    const Elf64_Phdr *all = (const void *)(program->data + ((const Elf64_Ehdr *)elf_header(program))->e_phoff);
    const Elf64_Phdr *old = elf_segment(program, PT_TLS), *place = old;
    const unsigned spare[] = {PROPERTY, PT_NOTE, PT_GNU_STACK, PT_NULL};
    for (unsigned n = 0; place == NULL && n < sizeof spare / sizeof spare[0]; n++)
        place = elf_segment(program, spare[n]);
    size_t bytes = 0;
    unsigned char *start = place == NULL || (place->p_type == PT_GNU_STACK && place->p_memsz != 0) ? NULL : tls_start(program, bias, tls, &bytes);
    if (start == NULL)
        return -ENOTSUP;
    Elf64_Phdr changed = {.p_type = PT_TLS, .p_flags = PF_R, .p_align = old == NULL ? 16 : old->p_align, .p_vaddr = at->tls - bias,
                          .p_filesz = bytes, .p_memsz = tls.ours + (old == NULL ? 0 : old->p_memsz)};
    int code = put(traced, at->tls, start, bytes);
    free(start);
    return code ? code : put(traced, headers_at(program, bias) + (uint64_t)(place - all) * sizeof changed, &changed, sizeof changed);
}

static int map(struct traced *traced, const struct elf *library, const struct elf *program, struct tls tls, struct layout *at)
{
    const Elf64_Phdr *theirs = elf_segment(program, PT_TLS);
    uint64_t image = image_bytes(library), align = theirs != NULL && theirs->p_align > 16 ? theirs->p_align : 16;
    uint64_t lent = (tls.ours + tls.theirs + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    uint64_t bytes = image + lent + 2 * PAGE_BYTES + 2 * align + tls.ours + (theirs == NULL ? 0 : theirs->p_filesz);
    int64_t base = remote(traced, SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE);
    if (base < 0 && base > -PAGE_BYTES)
        return (int)base;
    *at = (struct layout){.base = (uint64_t)base, .self = (uint64_t)base + image + lent};
    at->order = at->self + PAGE_BYTES;
    at->tls = (at->order + sizeof(struct static_order) + align - 1) / align * align + (theirs == NULL ? 0 : theirs->p_vaddr % align);
    return 0;
}

static int library_put(struct traced *traced, const struct elf *library, struct tls tls, const struct layout *at)
{
    const Elf64_Phdr *segment = (const void *)(library->data + ((const Elf64_Ehdr *)elf_header(library))->e_phoff);
    size_t bytes = 0;
    unsigned char *image = image_make(library, at->base, tls, &bytes);
    int64_t code = image == NULL ? -ENOTSUP : put(traced, at->base, image, bytes);
    free(image);
    for (unsigned n = 0; code == 0 && n < ((const Elf64_Ehdr *)elf_header(library))->e_phnum; n++) {
        uint64_t low = segment[n].p_vaddr & ~(uint64_t)(PAGE_BYTES - 1), high = segment[n].p_vaddr + segment[n].p_memsz;
        if (segment[n].p_type == PT_LOAD && (segment[n].p_flags & PF_X) != 0)
            code = remote(traced, SYS_mprotect, at->base + low, high - low, PROT_READ | PROT_EXEC);
    }
    return (int)code;
}

/* The recorder's first steps, on the program's stack. */
static int begin(struct traced *traced, const struct elf *library, const struct elf *program, uint64_t bias, const struct layout *at)
{
    const Elf64_Ehdr *head = elf_header(program);
    struct static_order order = {.stack = traced->home.rsp, .bias = bias, .headers = headers_at(program, bias), .headers_count = head->e_phnum};
    struct user_regs_struct regs = traced->home;
    regs.rip = at->base + ((const Elf64_Ehdr *)elf_header(library))->e_entry;
    regs.rdi = at->order;
    regs.rsp = (regs.rsp - STACK_ROOM) & ~(uint64_t)15;
    regs.fs_base = at->self;
    regs.orig_rax = (unsigned long long)-1;
    int code = put(traced, at->order, &order, sizeof order);
    code = code ? code : put(traced, at->self, &at->self, sizeof at->self);
    if (code == 0 && ptrace(PTRACE_SETREGS, traced->pid, NULL, &regs) != 0)
        code = -errno;
    while (code == 0) {
        code = next_call(traced, &regs);
        if (code == 0 && regs.orig_rax == SYS_getppid && regs.rdi == STATIC_REPORT && (int64_t)regs.rax != -ENOSYS)
            break;
    }
    return code;
}

static int inject_into(struct traced *traced, const struct elf *library, const struct elf *program)
{
    struct layout at;
    struct tls tls = tls_layout(library, program);
    uint64_t bias = traced->home.rip - ((const Elf64_Ehdr *)elf_header(program))->e_entry;
    if (elf_segment(program, PT_INTERP) != NULL || headers_at(program, bias) == 0 || tls.ours + tls.theirs > TLS_BYTES_MAX)
        return -ENOTSUP;
    int code = map(traced, library, program, tls, &at);
    code = code ? code : library_put(traced, library, tls, &at);
    code = code ? code : begin(traced, library, program, bias, &at);
    return code ? code : tls_put(traced, program, bias, tls, &at);
}

int inject(pid_t pid, const char *library)
{
    struct traced traced = {.pid = pid, .memory = -1};
    struct elf ours, theirs = {NULL, 0};
    char path[64];
    int code = wait_exec(&traced);
    if (code != 0)
        return code == -ESRCH ? 1 : code;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    code = elf_open(&ours, library);
    if (code != 0)
        return code;
    code = elf_open(&theirs, path);
    code = code ? code : borrow(&traced);
    code = code ? code : inject_into(&traced, &ours, &theirs);
    code = code ? code : give_back(&traced);
    elf_close(&ours);
    if (theirs.data)
        elf_close(&theirs);
    close(traced.memory);
    if (code == 0)
        ptrace(PTRACE_DETACH, pid, NULL, NULL);
    return code;
}
