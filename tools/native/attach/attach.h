// SPDX-License-Identifier: MIT
/*
 * attach.h - what quire-attach's parts know of each other.
 *
 *   main.c     what is done in which order, what is said            call.c   one call of a function inside the target
 *   target.c   what lies where in the target                        stub.c   the code it runs there
 *   threads.c  its threads: stopped, let go                         safe.c   may this thread be borrowed just now?
 *
 * Not here: what the recorder does (../record/attach.c).
 */
#ifndef QUIRE_ATTACH_ATTACH_H
#define QUIRE_ATTACH_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "area.h"
#include "stub.h"

#define OBJECTS_MAX 4096u

enum object_kind { OBJECT_OTHER, OBJECT_LOADER, OBJECT_LIBC, OBJECT_MALLOC, OBJECT_VDSO };

/* An executable mapping. */
struct object {
    uintptr_t start, end;
    enum object_kind kind;
    char path[512];
};

struct target {
    pid_t pid;
    pid_t own_pid;  // as it sees itself
    int memory;  // /proc/PID/mem
    struct object *objects;
    unsigned count;
    uintptr_t entry;  // of the program: where its main thread's stack ends
    uintptr_t libc_base;
    struct elf_file *libc;
    uintptr_t place, place_end;  // room for the stub, behind an object's code
    size_t wanted;               // of it, in bytes
    bool is_sure;                // it is as large, and its object is never unloaded
    uintptr_t area;              // struct attach_area, once the library is there
};

/* What the kernel sees of a system call that was interrupted, and keeps to itself. */
enum { ERESTARTSYS = 512, ERESTARTNOINTR = 513, ERESTARTNOHAND = 514, ERESTART_RESTARTBLOCK = 516 };

/* One thread, held. */
struct thread {
    pid_t tid;
    bool is_stopped, is_late;
    struct user_regs_struct regs;
};

struct threads {
    struct thread *thread;
    unsigned count;
};

/* --- main.c --- */
uint64_t now_ms(void);
_Noreturn void refuse(const char *what, const char *why, const char *fix);
void step(const char *name);  // a test may stop us here

/* --- target.c --- */
void target_read(struct target *target, const char *library);
void target_read_maps(struct target *target, const char *library);
const struct object *target_object(const struct target *target, uintptr_t address);
uintptr_t target_libc_symbol(const struct target *target, const char *name, size_t *bytes);
bool target_get(const struct target *target, uintptr_t from, void *to, size_t bytes);
bool target_put(const struct target *target, uintptr_t to, const void *from, size_t bytes);
uint64_t status_number(pid_t tid, const char *name);  // the last on the line of /proc/TID/status that begins so ("NSpid:"); 0: there is none

/* --- threads.c --- */
bool threads_stop(struct threads *threads, pid_t pid);  // false: one did not stop in time
void threads_release(struct threads *threads, const struct thread *but);
void thread_release(struct thread *thread);
bool thread_wait(pid_t tid, int *status, unsigned timeout_ms);

/* --- safe.c --- */
void safe_start(const struct target *target);
struct thread *safe_thread(const struct target *target, struct threads *threads);  // NULL: none just now
void safe_end(void);

/* --- call.c --- */
struct call {
    const char *library, *function;
    const struct attach_order *order;
    size_t order_bytes;
    // out
    int64_t result;
    char why[256];  // where the library could not be loaded
};
bool call_make(struct target *target, struct threads *threads, struct thread *thread, struct call *call);  // false: it did not come back
size_t call_room(const struct call *call);

#endif
