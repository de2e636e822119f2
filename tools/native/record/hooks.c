// SPDX-License-Identifier: MIT
/*
 * hooks.c - the names of libc that the recorder takes, each a detour around the next allocator in line.
 *
 *   program -> malloc (here) -> next malloc (libc's, or another preloaded one)
 *                    \-> one event
 *
 * Invariants:
 *   K1  the event of an allocation is written after it succeeded, that of a free before it happens
 *   K2  inside a hook rec_busy > 0: what the next allocator, libc or libunwind allocate is not recorded
 *   K3  before the next allocator is known (dlsym may allocate) blocks come from a small static buffer, never freed
 *
 * C++ new and delete reach malloc and free and are recorded as those.
 * Locks: none.  errno is what the next allocator left.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "put.h"

#define BOOT_BYTES (64u * 1024)

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    void *(*aligned_alloc)(size_t, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*memalign)(size_t, size_t);
    void *(*valloc)(size_t);
    void *(*pvalloc)(size_t);
    int (*dlclose)(void *);
    int (*setname)(pthread_t, const char *);
    void (*exit_now)(int) __attribute__((noreturn));
    void (*exit_quickly)(int) __attribute__((noreturn));
} next;

/* volatile: libc's headers promise that dlsym calls nothing here, but it may call calloc, which has to see that the hooks are starting. */
static volatile enum { HOOKS_NEW, HOOKS_STARTING, HOOKS_READY } hooks_state;

static _Alignas(16) unsigned char boot_buffer[BOOT_BYTES];
static size_t boot_used;

static void *boot_alloc(size_t bytes) {
    size_t rounded = (bytes + 31) & ~(size_t)15;  // 16 bytes before each block hold its size
    if (bytes > BOOT_BYTES || boot_used + rounded > BOOT_BYTES) {
        errno = ENOMEM;
        return NULL;
    }
    unsigned char *block = boot_buffer + boot_used + 16;
    memcpy(block - 16, &bytes, sizeof bytes);
    boot_used += rounded;
    return block;
}

static bool is_boot(const void *p) {
    return (uintptr_t)p - (uintptr_t)boot_buffer < BOOT_BYTES;
}

static void next_find(void *to, const char *name) {
    void *symbol = rec_next_symbol(name);
    memcpy(to, &symbol, sizeof symbol);
}

__attribute__((noinline)) void rec_hooks_start(void) {
    if (hooks_state != HOOKS_NEW) {
        return;
    }
    hooks_state = HOOKS_STARTING;
    rec_busy++;
    next_find(&next.malloc, "malloc");
    next_find(&next.calloc, "calloc");
    next_find(&next.realloc, "realloc");
    next_find(&next.free, "free");
    next_find(&next.aligned_alloc, "aligned_alloc");
    next_find(&next.posix_memalign, "posix_memalign");
    next_find(&next.memalign, "memalign");
    next_find(&next.valloc, "valloc");
    next_find(&next.pvalloc, "pvalloc");
    next_find(&next.dlclose, "dlclose");
    next_find(&next.setname, "pthread_setname_np");
    next_find(&next.exit_now, "_exit");
    next_find(&next.exit_quickly, "quick_exit");
    hooks_state = HOOKS_READY;
    rec_start();
    rec_busy--;
}

/* True when the hook must not touch `next` yet. */
static inline bool booting(void) {
    if (REC_LIKELY(hooks_state == HOOKS_READY)) {
        return false;
    }
    rec_hooks_start();
    return hooks_state != HOOKS_READY;
}

REC_EXPORT void *malloc(size_t bytes) {
    if (REC_UNLIKELY(booting())) {
        return boot_alloc(bytes);
    }
    bool record = put_wanted();
    rec_busy++;
    void *p = next.malloc(bytes);
    if (REC_LIKELY(record && p != NULL)) {
        put_alloc((struct rec_event){.kind = QTR_MALLOC, .address = (uintptr_t)p, .size = bytes}, CALLER_FRAME());
    }
    rec_busy--;
    return p;
}

REC_EXPORT void *calloc(size_t count, size_t bytes) {
    if (REC_UNLIKELY(booting())) {
        size_t whole = 0;
        return __builtin_mul_overflow(count, bytes, &whole) ? NULL : boot_alloc(whole);
    }
    bool record = put_wanted();
    rec_busy++;
    void *p = next.calloc(count, bytes);
    if (REC_LIKELY(record && p != NULL)) {
        put_alloc((struct rec_event){.kind = QTR_CALLOC, .address = (uintptr_t)p, .size = count * bytes},
                  CALLER_FRAME());
    }
    rec_busy--;
    return p;
}

REC_EXPORT void free(void *p) {
    if (REC_UNLIKELY(booting() || is_boot(p))) {
        return;
    }
    bool record = put_wanted() && p != NULL;
    rec_busy++;
    if (REC_LIKELY(record)) {
        put_free(p);
    }
    next.free(p);
    rec_busy--;
}

static void *boot_realloc(void *old, size_t bytes) {
    size_t old_bytes = 0;
    void *p = hooks_state == HOOKS_READY ? next.malloc(bytes) : boot_alloc(bytes);
    if (old != NULL && p != NULL) {
        memcpy(&old_bytes, (unsigned char *)old - 16, sizeof old_bytes);
        memcpy(p, old, old_bytes < bytes ? old_bytes : bytes);
    }
    return p;
}

static __attribute__((noinline)) void *realloc_from(void *old, size_t bytes, struct rec_frame frame) {
    if (REC_UNLIKELY(booting() || is_boot(old))) {
        return boot_realloc(old, bytes);
    }
    bool record = put_wanted();
    rec_busy++;
    if (REC_UNLIKELY(record && rec_self == NULL)) {
        rec_thread_slow();  // rec_many has to be set before the block is given back
    }
    if (REC_LIKELY(record && old != NULL)) {
        put_look(old);
    }
    uint64_t before = record && atomic_load_explicit(&rec_many, memory_order_relaxed) ? rec_tick() : 0;
    void *p = next.realloc(old, bytes);
    if (REC_LIKELY(record && p != NULL)) {
        if (old != NULL) {
            put_release(QTR_REALLOC_BEGIN, old, before);
        }
        put_alloc((struct rec_event){.kind = old != NULL ? QTR_REALLOC_END : QTR_MALLOC, .address = (uintptr_t)p,
                                     .size = bytes}, frame);
    } else if (record && old != NULL && bytes == 0) {  // libc frees then
        put_release(QTR_FREE, old, before);
    }
    rec_busy--;
    return p;
}

REC_EXPORT void *realloc(void *old, size_t bytes) {
    return realloc_from(old, bytes, CALLER_FRAME());
}

REC_EXPORT void *reallocarray(void *old, size_t count, size_t bytes) {
    size_t whole = 0;
    if (__builtin_mul_overflow(count, bytes, &whole)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc_from(old, whole, CALLER_FRAME());
}

/* The four calls that differ in name only.  A block before the start is refused: nobody aligns that early. */
#define ALIGNED_BODY(call, align_bytes, bytes)                                                                         \
    if (REC_UNLIKELY(booting())) {                                                                                     \
        errno = ENOMEM;                                                                                                \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    bool record = put_wanted();                                                                                            \
    rec_busy++;                                                                                                        \
    void *p = call;                                                                                                    \
    if (record && p != NULL) {                                                                                         \
        put_aligned(p, align_bytes, bytes, CALLER_FRAME());                                                            \
    }                                                                                                                  \
    rec_busy--;                                                                                                        \
    return p

REC_EXPORT void *aligned_alloc(size_t align_bytes, size_t bytes) {
    ALIGNED_BODY(next.aligned_alloc(align_bytes, bytes), align_bytes, bytes);
}

REC_EXPORT void *memalign(size_t align_bytes, size_t bytes);
REC_EXPORT void *memalign(size_t align_bytes, size_t bytes) {
    ALIGNED_BODY(next.memalign(align_bytes, bytes), align_bytes, bytes);
}

REC_EXPORT void *valloc(size_t bytes) {
    ALIGNED_BODY(next.valloc(bytes), (size_t)sysconf(_SC_PAGESIZE), bytes);
}

REC_EXPORT void *pvalloc(size_t bytes);
REC_EXPORT void *pvalloc(size_t bytes) {
    ALIGNED_BODY(next.pvalloc(bytes), (size_t)sysconf(_SC_PAGESIZE), bytes);
}

REC_EXPORT int posix_memalign(void **result, size_t align_bytes, size_t bytes) {
    if (REC_UNLIKELY(booting())) {
        return ENOMEM;
    }
    bool record = put_wanted();
    rec_busy++;
    int rc = next.posix_memalign(result, align_bytes, bytes);
    if (record && rc == 0 && *result != NULL) {
        put_aligned(*result, align_bytes, bytes, CALLER_FRAME());
    }
    rec_busy--;
    return rc;
}

/* Code may be replaced by other code at the same addresses: what was learnt about return addresses is void. */
REC_EXPORT int dlclose(void *handle) {
    if (REC_UNLIKELY(booting())) {
        return -1;
    }
    int rc = next.dlclose(handle);
    if (put_wanted() && !rec_is_forked_child()) {
        int saved_errno = errno;
        rec_busy++;
        if (rec_lock_try()) {
            rec_rules_forget();
            if (rec_unwind_begin()) {
                rec_meta_modules_changed();
                rec_unwind_end();
            }
            rec_unlock();
        }
        rec_busy--;
        errno = saved_errno;
    }
    return rc;
}

REC_EXPORT int pthread_setname_np(pthread_t thread, const char *name) {
    if (REC_UNLIKELY(booting())) {
        return EAGAIN;
    }
    int rc = next.setname(thread, name);
    if (rc == 0 && put_wanted() && !rec_is_forked_child() && pthread_equal(thread, pthread_self())) {
        rec_busy++;
        if (rec_lock_try()) {
            rec_thread_named((uint32_t)syscall(SYS_gettid), name);
            rec_unlock();
        }
        rec_busy--;
    }
    return rc;
}

REC_EXPORT void _exit(int status) {
    if (booting()) {
        __builtin_trap();
    }
    rec_exit_mark(status, true);
    next.exit_now(status);
}

/* No destructor runs, and libc's own _exit is not ours. */
REC_EXPORT void quick_exit(int status) {
    if (booting()) {
        __builtin_trap();
    }
    rec_exit_mark(status, true);
    next.exit_quickly(status);
}

REC_EXPORT void _Exit(int status) {
    _exit(status);
}
