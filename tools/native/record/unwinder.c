// SPDX-License-Identifier: MIT
/*
 * unwinder.c - libunwind tries addresses with a pipe of its own: here it gets one that the program does not meet.
 *
 *   libunwind: .got  [ pipe2 ] --> pipe2_high()      both ends get numbers out of the way of programs that expect 3 and 4
 *                    [ read  ] --> read_own()  --.
 *                    [ close ] --> close_own()    +-- the pipe itself, or EBADF: the program has closed the number, or uses it for
 *                    [ write, syscall ] --> ...  -'   something else; libunwind makes another pipe then
 *
 * It keeps two numbers, and looks at neither again. A program that puts a file of its own in their place (a daemon that closes all, a
 * shell's `exec 3>&1`) would lose bytes of that, get some that it has not written, and find it closed.
 *
 * Invariants:
 *   N1  libunwind reads, writes and closes no descriptor that we gave it and that is not its pipe any more
 *   N2  a slot is changed once, and keeps the protection that it has
 *   N3  no slots but those of a library of that name: a program that has libunwind inside calls close() through the same ones
 *
 * Locks: the recorder's, or nobody records yet.  Not here: what it is asked (rules.c).
 */
#define UNW_LOCAL_ONLY
#include <errno.h>
#include <fcntl.h>
#include <libunwind.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "record.h"

static struct {
    int number[2];
    dev_t device;
    ino_t inode;
} ends = {.number = {-1, -1}};

static bool is_ours(int fd) {
    return fd >= 0 && (fd == ends.number[0] || fd == ends.number[1]);
}

/* Whether a descriptor may be used: all but one of the pipe's that is something else by now. */
static bool is_sound(int fd) {
    struct stat now;
    if (!is_ours(fd) || (fstat(fd, &now) == 0 && now.st_dev == ends.device && now.st_ino == ends.inode)) {
        return true;
    }
    errno = EBADF;
    return false;
}

static int pipe2_high(int number[2], int flags) {
    if (pipe2(number, flags | O_CLOEXEC) != 0) {
        return -1;
    }
    struct stat now;
    for (unsigned i = 0; i < 2; i++) {
        ends.number[i] = number[i] = rec_file_moved_up(number[i]);
    }
    if (fstat(number[0], &now) == 0) {
        ends.device = now.st_dev;
        ends.inode = now.st_ino;
    }
    return 0;
}

static int pipe_high(int number[2]) {
    return pipe2_high(number, 0);
}

static ssize_t read_own(int fd, void *to, size_t bytes) {
    return is_sound(fd) ? read(fd, to, bytes) : -1;
}

static ssize_t write_own(int fd, const void *from, size_t bytes) {
    return is_sound(fd) ? write(fd, from, bytes) : -1;
}

static int close_own(int fd) {
    return is_sound(fd) ? close(fd) : -1;
}

static long syscall_own(long number, long a, long b, long c, long d, long e, long f) {
    return number != SYS_write || is_sound((int)a) ? syscall(number, a, b, c, d, e, f) : -1;
}

static const struct {
    const char *name;
    uintptr_t ours;
} ways[] = {
    {"pipe", (uintptr_t)pipe_high}, {"pipe2", (uintptr_t)pipe2_high}, {"read", (uintptr_t)read_own},
    {"write", (uintptr_t)write_own}, {"close", (uintptr_t)close_own}, {"syscall", (uintptr_t)syscall_own},
};

/* What the loader has of libunwind. */
struct unwinder {
    uintptr_t bias, sealed, sealed_end;  // pages that the loader has made read-only after it had filled them
    const ElfW(Dyn) *dynamic;
};

static void slot_set(const struct unwinder *unwinder, uintptr_t at, uintptr_t value) {
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)(at & -(uintptr_t)bytes);
    bool is_sealed = at >= unwinder->sealed && at < unwinder->sealed_end;
    if (is_sealed && mprotect(page, bytes, PROT_READ | PROT_WRITE) != 0) {
        return;
    }
    atomic_store_explicit((_Atomic uintptr_t *)at, value, memory_order_relaxed);
    if (is_sealed) {
        mprotect(page, bytes, PROT_READ);
    }
}

static uintptr_t dynamic_find(const struct unwinder *unwinder, ElfW(Sxword) tag, bool is_place) {
    for (const ElfW(Dyn) *at = unwinder->dynamic; at->d_tag != DT_NULL; at++) {
        if (at->d_tag == tag) {
            return at->d_un.d_ptr + (is_place && at->d_un.d_ptr < unwinder->bias ? unwinder->bias : 0);
        }
    }
    return 0;
}

static void slots_set(const struct unwinder *unwinder, const ElfW(Rela) *rela, size_t bytes) {
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)dynamic_find(unwinder, DT_SYMTAB, true);
    const char *names = (const char *)dynamic_find(unwinder, DT_STRTAB, true);
    for (size_t i = 0; rela != NULL && symbols != NULL && names != NULL && i < bytes / sizeof *rela; i++) {
        unsigned kind = ELF64_R_TYPE(rela[i].r_info);
        const char *name = names + symbols[ELF64_R_SYM(rela[i].r_info)].st_name;
        for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
            if ((kind == R_X86_64_JUMP_SLOT || kind == R_X86_64_GLOB_DAT) && strcmp(name, ways[way].name) == 0) {
                slot_set(unwinder, unwinder->bias + rela[i].r_offset, ways[way].ours);
            }
        }
    }
}

static bool is_named(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash != NULL ? slash + 1 : path, "libunwind", strlen("libunwind")) == 0;
}

/* Nonzero: this object is libunwind; its slots are set. */
static int look_at(struct dl_phdr_info *info, size_t bytes, void *inside) {
    (void)bytes;
    struct unwinder unwinder = {.bias = info->dlpi_addr};
    uintptr_t page_mask = -(uintptr_t)sysconf(_SC_PAGESIZE);
    bool is_it = false;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + segment->p_vaddr, high = low + segment->p_memsz;
        is_it = is_it || (segment->p_type == PT_LOAD && (uintptr_t)inside >= low && (uintptr_t)inside < high);
        if (segment->p_type == PT_DYNAMIC) {
            unwinder.dynamic = (const ElfW(Dyn) *)low;
        } else if (segment->p_type == PT_GNU_RELRO) {
            unwinder.sealed = low & page_mask;
            unwinder.sealed_end = high & page_mask;
        }
    }
    if (!is_it || unwinder.dynamic == NULL || !is_named(info->dlpi_name)) {
        return 0;
    }
    slots_set(&unwinder, (const ElfW(Rela) *)dynamic_find(&unwinder, DT_JMPREL, true), dynamic_find(&unwinder, DT_PLTRELSZ, false));
    slots_set(&unwinder, (const ElfW(Rela) *)dynamic_find(&unwinder, DT_RELA, true), dynamic_find(&unwinder, DT_RELASZ, false));
    return 1;
}

void rec_unwinder_start(void) {
    static bool is_done;
    if (!is_done) {
        is_done = true;
        dl_iterate_phdr(look_at, (void *)(uintptr_t)unw_init_local);
    }
}
