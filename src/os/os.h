// SPDX-License-Identifier: MIT
/*
 * os.h - all that Quire asks of the operating system: whole pages, files, CPUs, time, threads.
 *
 * Functions return 0 or a value, or a negative errno; none of them sets errno, prints, or knows what an allocator is.
 *
 * The seam: every call passes os_fault(kind) first, by which a test makes the nth call of a kind fail, once or from then on.
 */
#ifndef QUIRE_OS_OS_H
#define QUIRE_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/os_thread.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- fault injection (os_fault.c) ---- */

#define OS_CALLS(X) X(MAP) X(UNMAP) X(REMAP) X(SEAL) X(MARK) X(PROTECT) X(DISCARD) X(ADVISE) X(LIBC) X(OPEN) X(GROW) X(MEMFD) X(UNLINK) X(FLOCK) X(THREAD) X(ENTROPY) X(BARRIER) X(COPY) X(SIGNAL)
enum os_call {
#define OS_CALL_ENUM(name) OS_##name,
    OS_CALLS(OS_CALL_ENUM)
#undef OS_CALL_ENUM
        OS_CALL_COUNT
};

/* From now on the nth call of `kind` (from 1) fails, and all later ones too if `onwards`; nth 0 ends it.  Returns calls seen since the last. */
uint64_t os_fault_set(enum os_call kind, uint64_t nth, bool onwards);
/* How many calls of `kind` were made to fail since this was last asked. */
uint64_t os_fault_failed(enum os_call kind);
/* True when this call has to fail.  For src/os only. */
bool os_fault(enum os_call kind);

/* ---- loaded files (os_object.c) ---- */

struct os_object {
    uintptr_t bias;       /* address - bias: where the file's own tables have it */
    const void *segments; /* ElfW(Phdr)[count] */
    size_t count;
    const char *name;     /* "": the program */
    const void *eh_frame_header; /* .eh_frame_hdr; NULL: none */
};
bool os_object_of(uintptr_t address, struct os_object *object);
/* It takes no lock, so a signal's handler may ask. */
bool os_object_is_quick(void);

/* ---- pages (os_page.c) ---- */

/* The size of an OS page, read once from the kernel: 4 KiB, 16 KiB, 64 KiB. */
size_t os_page_bytes(void);
unsigned os_page_shift(void);
/* The size of a transparent huge page, 0 where the kernel has none or never uses them. */
size_t os_huge_bytes(void);

/* What the process may still map by RLIMIT_AS, roughly: the limit; SIZE_MAX when there is none. */
size_t os_address_space_bytes(void);
/* Address space without memory, aligned; os_commit() before use.  -ENOMEM. */
int os_reserve(size_t bytes, size_t align_bytes, void **out);
int os_commit(void *start, size_t bytes);
/* It can be read from now on, as zeros.  -ENOMEM. */
int os_show(void *start, size_t bytes);
/* Zeroed anonymous memory, readable and writable, aligned to a page (or more).  -ENOMEM. */
int os_map(size_t bytes, size_t align_bytes, void **out);
int os_unmap(void *start, size_t bytes);
/* Whether the system would map so many bytes more, asked by doing so for a moment if they are many.  What was reserved grows and is committed without
 * the question that os_map() asks: more than the machine has would be granted. */
bool os_would_grant(size_t bytes);
/* A mapping of os_map() gets another size; what is new is zero.  `to` NULL: where it is; else it moves onto these `new_bytes`, which are the
 * caller's (os_reserve()) and may be gone after a failure.  -ENOMEM: it is as it was. */
int os_remap(void *start, size_t bytes, size_t new_bytes, void *to);
/* What these anonymous private pages hold moves to `to`, `new_bytes` of the caller's (os_reserve()), no fewer; what is new is zero, and so are the pages
 * themselves from now on.  -ENOMEM: it is as it was; -EFAULT: the same, but `to` may be gone.  (os_leave.c) */
int os_leave(void *start, size_t bytes, size_t new_bytes, void *to);
/* Whether these pages, mapped by themselves, are one mapping: only such a one moves as a whole.  Cost: a system call or two.  (os_leave.c) */
bool os_is_one_mapping(void *start, size_t bytes);
/* Pages that the program may have protected, or kept from its children, are as any others again. */
void os_make_plain(void *start, size_t bytes);
/* These pages cannot be touched from now on; or can again.  -ENOMEM. */
int os_guard(void *start, size_t bytes, bool on);
/* The same for good, and their memory goes back: the addresses stay the caller's until os_unmap().  -ENOMEM. */
int os_seal(void *start, size_t bytes);
/*
 * Pages that can be read and written: from now on nobody can touch them, and their memory goes back; or they can be again, and are zero.  No mapping
 * changes, so it takes half the time of os_seal() and os_commit().  -EINVAL: this system has no such marks (Linux 6.13 has), or
 * only says so (qemu-user; the first call asks, by four more), or the pages are locked.
 */
int os_mark(void *start, size_t bytes, bool on);
/* Address space without memory just here, if nobody has it.  -ENOMEM, -EEXIST. */
int os_reserve_at(void *start, size_t bytes);
/* The memory of these anonymous private pages goes back to the system; they read as zero afterwards.  Works where unmapping cannot, and by
 * mapping anew where madvise is not allowed. */
int os_discard(void *start, size_t bytes);
int os_advise_huge(void *start, size_t bytes);
int os_advise_nohuge(void *start, size_t bytes);
/* Give these pages their memory now, in one go; an old kernel does it one by one, when they are written. */
int os_populate(void *start, size_t bytes);
/* How many bytes of these pages are in memory (pages that were only read count too); 0 where that cannot be asked. */
size_t os_resident_bytes(void *start, size_t bytes);
/* A word at this address can be read (os_readable.c). */
bool os_is_readable(const void *address);
/* Of this thread's own stack, if `frame` lies on it, what stays as long as the thread: [low, end).  Both 0: it lies elsewhere, or that is not known. */
struct os_stack {
    uintptr_t low, end;
};
void os_stack_of(const void *frame, struct os_stack *out);
/* It is sure that this is the first thread, on its own stack, which grows: not on a coroutine's. */
bool os_is_first_stack(const void *frame);
/* Out of core dumps, and in again. */
int os_advise_dontdump(void *start, size_t bytes);
int os_advise_dump(void *start, size_t bytes);
/* Shows as [anon:quire:NAME] in /proc/PID/maps where the kernel can; `name` must stay. */
void os_name(void *start, size_t bytes, const char *name);
/* libc's page-aligned memory, not zeroed. */
int os_libc_alloc(size_t bytes, size_t align_bytes, void **out);
void os_libc_free(void *start);
/* Only in the library that defines malloc: libc's, past our own. */
int os_libc_own_alloc(size_t bytes, size_t align_bytes, void **out);
void os_libc_own_free(void *start);

/* ---- files (os_file.c) ---- */

/* Make a directory, its parents excepted; one that exists is left as it is. */
int os_dir_create(const char *path, unsigned mode);
/* It is this user's, and nobody else may read it or write in it. */
bool os_dir_is_private(int dirfd);
/* Open a directory, refusing a symbolic link as its last component.  Returns a descriptor. */
int os_dir_open(const char *path);
/* Create a new file 0600 in `dirfd`: never follows a link, never opens what exists (-EEXIST). */
int os_file_create(int dirfd, const char *name);
/* Open an existing regular file of ours, not following links and not waiting on FIFOs. */
int os_file_open(int dirfd, const char *name);
int os_memfd(const char *name);
/* Make the file `bytes` long with its space reserved: -ENOSPC now rather than SIGBUS later.  Heeds RLIMIT_FSIZE (-EFBIG, no signal). */
int os_file_reserve(int fd, size_t bytes);
int os_map_file(int fd, size_t bytes, size_t align_bytes, void **out);
/* The same for the pages of a shared mapping, by address: -EINVAL where a later os_mapped_reserve() could not say "full". */
int os_mapped_punch(void *start, size_t bytes);
/* Give pages of a shared mapping their memory now: -ENOMEM when the file system is full, where writing to them would be a SIGBUS. */
int os_mapped_reserve(void *start, size_t bytes);
/* True when `name` is a regular file of this user; and when it is the very file that `fd` is. */
bool os_file_is_ours(int dirfd, const char *name);
bool os_file_is(int fd, int dirfd, const char *name);
/* Call fn with the name of everything in a directory; fn may remove it.  Allocates nothing. */
int os_dir_each(int dirfd, void (*fn)(const char *name, void *arg), void *arg);
int os_unlink(int dirfd, const char *name);
/* In one step: whoever opens `to` has the old file or the new one, whole. */
int os_rename(int dirfd, const char *from, const char *to);
/* Try to lock the whole file, shared or exclusive, without waiting: -EWOULDBLOCK. */
int os_flock(int fd, bool exclusive);
void os_close(int fd);

/* ---- the process (os_process.c) ---- */

/* Field `number`, from 3 on, of a /proc/PID/stat; `otherwise` where there is none.  Nothing is allocated. */
uint64_t os_stat_field(const char *stat, int number, uint64_t otherwise);
/* A small file, as much of it as fits, with a 0 behind.  How many bytes, or -errno. */
int os_read_text(const char *path, char *text, size_t bytes);
/* Each mapping that can be run, by rising addresses (os_code.c).  0 or -errno, as before Linux 6.11. */
enum { OS_RIGHTS_BYTES = 5, OS_NAME_BYTES = 4096 };
struct os_code {
    uintptr_t start, end;
    uint64_t offset, inode;
    uint32_t major, minor;
    char rights[OS_RIGHTS_BYTES], name[OS_NAME_BYTES]; /* "r-xp"; a path, [vdso], or nothing */
};
int os_code_each(void (*fn)(const struct os_code *code, void *arg), void *arg);
/* All of a file, in pieces.  0 or -errno. */
int os_read_each(const char *path, void (*fn)(const char *text, size_t bytes, void *arg), void *arg);
/* fn is called at this signal from now on, whatever was before; calls of the program that it interrupts begin anew. */
int os_on_signal(int number, void (*fn)(int number));
/* fn is asked at each fault (SIGSEGV, SIGBUS) that the program's own code meets; false: it is whoever's it was before.  Runs in the handler. */
enum os_access { OS_ACCESS_READ, OS_ACCESS_WRITE, OS_ACCESS_UNKNOWN };
int os_on_fault(bool (*fn)(uintptr_t address, enum os_access access));
/*
 * From a handler: fn runs in a copy of this process that has no other thread, for so many seconds at most, and begins with os_repair(); the caller
 * waits.  The program sees no child: no SIGCHLD, and nothing to wait for.  -EBUSY: in another thread; or -errno: there is no copy.
 */
int os_in_copy(void (*fn)(void), unsigned seconds_max);
bool os_is_copy(void); /* os_process_id() is the process's then, not the copy's */
/* fn is called at this signal, where the program has left it alone up to now.  False: it has not. */
bool os_on_signal_if_default(int number, void (*fn)(int number));
/* In its handler: what it does by default, once the handler has returned. */
void os_signal_by_default(int number);
/* What kind of memory an address lies in, and the ends of its mapping; OS_MEMORY_NONE: it cannot be read; OS_MEMORY_UNKNOWN: no /proc, or no descriptor to ask it by. */
enum os_memory { OS_MEMORY_NONE, OS_MEMORY_ANON, OS_MEMORY_BRK, OS_MEMORY_OTHER, OS_MEMORY_UNKNOWN };
enum os_memory os_memory_of(const void *p, uintptr_t *start, uintptr_t *end);
uintptr_t os_brk(void); /* where that ends, if there is any */
bool os_has_brk(void); /* there is memory of the kind OS_MEMORY_BRK */
uint64_t os_cpu_time_ns(void); /* of all its threads */
uint64_t os_thread_time_ns(void); /* of the calling thread alone */
void os_program_path(char *path, size_t bytes);
/* Runs with more rights than its user, who must not tell it what to do. */
bool os_is_privileged(void);
uint64_t os_user_id(void); /* the effective one */
/* A variable of the environment; NULL: not set, or the program runs with more rights than its user.  Not before the libc is set up. */
const char *os_setting(const char *name);
/* Create or empty a file that the user named.  A descriptor, or -errno. */
int os_report_open(const char *path);
/* Which file a descriptor is of; false: it is closed. */
struct os_identity {
    uint64_t device, inode;
};
bool os_fd_identity(int fd, struct os_identity *out);
/* A copy that is not inherited, with a number from `least` up, out of the program's way; -1: there is no room. */
int os_fd_keep(int fd, int least);

/* ---- memory as the system has it (os_memory.c) ---- */

/* What this process and its like may have together: the least limit of its cgroups, else all memory of the machine.  0: it cannot be asked. */
uint64_t os_memory_bytes(void);
/* For how long, since ever, some task of its cgroup (else of the machine) has waited for memory.  -ENOENT: this system does not say. */
int os_memory_stalled_us(uint64_t *out);
/* How often, since ever, its cgroups were over memory.high, or at memory.max when they wanted more.  -ENOENT: none of them says. */
int os_memory_limit_hits(uint64_t *out);
/* For tests: these read /proc and /sys below this directory from now on; "": the true ones. */
void os_root_set(const char *directory);

/* ---- CPUs (os_cpu.c) ---- */

/* How many CPUs may exist, ids 0 .. n-1; read once. */
unsigned os_cpu_count(void);
/* The CPU that runs this, now: only a hint unless the caller holds what makes it one.  May be >= os_cpu_count() on odd systems. */
unsigned os_cpu_id(void);
/* The same, as it was at one of the last calls: where the id costs a call, and any will do. */
unsigned os_cpu_id_roughly(void);
/* For tests: os_cpu_count() says so from now on, whatever the truth is; 0: the truth again. */
void os_cpu_count_fake(unsigned count);
/* For tests, by os_rseq.h: this thread runs on CPU `id`, whatever the truth is; -1: the truth again. */
void os_cpu_fake(int id);

/* ---- time, entropy, messages, threads (os_misc.c) ---- */

uint64_t os_time_ns(void); /* monotonic */
uint64_t os_clock_s(void); /* since 1970 */
void os_host_name(char *name, size_t bytes);
int os_entropy(void *out, size_t bytes);
void os_write_stderr(const char *text, size_t bytes);
/* What a positive errno means, in English; nothing is allocated. */
const char *os_error_text(int error);
/*
 * Write all of it, however often that is interrupted.  0, or the errno of write(2), negative; a part may have been written.  Where nobody reads, or a file
 * outgrows the process's limit, that is an error like another, not the signal that ends a program which knows nothing of what is written.
 */
int os_write(int fd, const char *text, size_t bytes);
int os_write_plainly(int fd, const char *text, size_t bytes); /* the same, but with the signal: for text that the program asked for */
/* The thread blocks a signal, as it does in every handler but those that asked not to. */
bool os_blocks_signals(void);
/* Handlers of the program's have to wait: they might fork. */
struct os_signals {
    uint64_t words[16];
};
void os_signals_hold(struct os_signals *before);
void os_signals_let(const struct os_signals *before);
/* Sleep while *word == expected, at most timeout_ns (0: no limit); wakes on os_futex_wake, on signals, and for no reason. */
void os_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns);
bool os_futex_wake(uint32_t *word, int count); /* true: somebody slept */
/* A detached thread with a small stack (or the default one, where thread-local storage needs more) that takes no signals. */
int os_thread_start(void (*fn)(void *), void *arg);
/* Before main, and before any thread: learns how large such a stack is to be.  Later the loader's lock is not asked for: in the child of a fork nobody may ever let go of it. */
void os_threads_at_load(void);
/*
 * Where main() has ended by pthread_exit(), libc ends the process when its last thread does: threads of ours that see that none of the program's is left
 * return.  The former is told by who notices that a thread ends (os_thread_ends(); true: of such a process), the latter is read from /proc: a system call or three.
 */
bool os_thread_ends(void);
bool os_main_has_ended(void);
bool os_is_deserted(void);
void os_threads_after_fork(void); /* in the child: it has none of ours, and its first thread is the one that forked */
/* Call fn in the child after every fork from now on; nothing is done before the fork, so no lock is held across it. */
int os_after_fork_in_child(void (*fn)(void));
enum { OS_REPAIRS_MAX = 16 };
void os_repair(void); /* all these fn, in their order: in a copy */
/* A child of clone() or _Fork(), which call no fn: who waits for what a thread of ours holds that is not there calls os_repair() himself.  Two loads. */
bool os_is_unrepaired(void);
/* Call fn(arg) when this thread ends; one arg for each fn, of which there are four at most.  -ENOMEM. */
int os_at_thread_exit(void (*fn)(void *), void *arg);
uint64_t os_thread_id(void);
/* The process has never had a second thread, or has none any more; false where libc does not say. */
bool os_is_single_threaded(void);
uint64_t os_process_id(void); /* os_copy.c */
void os_sleep_ns(uint64_t ns);
void os_yield(void);
/* After os_barrier() every other thread of the process has passed a full memory barrier: theirs can be for the compiler only.  -ENOSYS where the
 * system cannot. */
int os_barrier_init(void);
void os_barrier(void);

#ifdef __cplusplus
}
#endif
#endif
