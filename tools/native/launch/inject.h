// SPDX-License-Identifier: MIT
/*
 * inject.h - a recorder into a static program that has just been executed and has not run yet.
 */
#ifndef QUIRE_LAUNCH_INJECT_H
#define QUIRE_LAUNCH_INJECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * `pid` is ours to trace (PTRACE_SEIZE, with stops at exec and system calls), and about to exec.  0: it runs with the recorder in it; 1: it ended before,
 * or could not exec; -errno: the recorder could not be brought in, nothing of the program has run.  Detached unless an errno is returned.
 */
int inject(pid_t pid, const char *library);

/* --- image.c --- */
struct elf {
    const unsigned char *data;
    size_t bytes;
};
int elf_open(struct elf *elf, const char *path);  /* 0 or -errno: also ENOEXEC */
void elf_close(struct elf *elf);
const void *elf_header(const struct elf *elf);
const void *elf_segment(const struct elf *elf, unsigned type); /* the first of a kind, NULL: none */

/* How thread-local storage is laid out: the recorder's, then the program's, then the thread pointer. */
struct tls {
    uint64_t ours, theirs; /* bytes, as the linker and the program's libc round them */
};
struct tls tls_layout(const struct elf *library, const struct elf *program);

/* The library as it will lie at `base`, relocated; NULL: not to be had.  *bytes: whole pages. */
unsigned char *image_make(const struct elf *library, uint64_t base, struct tls tls, size_t *bytes);
size_t image_bytes(const struct elf *library);

/* The start of the program's thread-local storage, with its addresses where the program lies; NULL: ENOTSUP, it is written in a way that is not known. */
unsigned char *tls_start(const struct elf *program, uint64_t bias, struct tls tls, size_t *bytes);

#endif
