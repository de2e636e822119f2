// SPDX-License-Identifier: MIT
/*
 * new.c - C++'s new and delete of an allocator that does not go by malloc for them: the drop-in's, jemalloc's, tcmalloc's, mimalloc's.
 *
 *   program --slot--> new_0 (here) --> operator new of the library whose malloc it is, too --> one event
 *
 * Of libstdc++'s, which call malloc, no slot leads here: they are recorded by malloc's (slots.c asks rec_new_hooks()).
 *
 * Invariants: hooks.c's K1 and K2 hold, with one difference: an exception may pass through a new, so rec_busy is not raised around it.  Where it has
 * called malloc by a slot nevertheless there is an event of that block already.
 *
 * Locks: none.  Not here: which slots lead here (slots.c).
 */
#include "put.h"
#include "slots.h"

/* By their names in C++'s ABI: nothing else of them is to be known, for all arguments are handed on. */
#define NEWS(NEW)                                                                                                      \
    NEW(0, "_Znwm", 0) NEW(1, "_Znam", 0) NEW(2, "_ZnwmRKSt9nothrow_t", 0) NEW(3, "_ZnamRKSt9nothrow_t", 0)            \
    NEW(4, "_ZnwmSt11align_val_t", 1) NEW(5, "_ZnamSt11align_val_t", 1)                                                \
    NEW(6, "_ZnwmSt11align_val_tRKSt9nothrow_t", 1) NEW(7, "_ZnamSt11align_val_tRKSt9nothrow_t", 1)
#define DELETES(DELETE)                                                                                                \
    DELETE(8, "_ZdlPv") DELETE(9, "_ZdaPv") DELETE(10, "_ZdlPvRKSt9nothrow_t") DELETE(11, "_ZdaPvRKSt9nothrow_t")      \
    DELETE(12, "_ZdlPvm") DELETE(13, "_ZdaPvm") DELETE(14, "_ZdlPvSt11align_val_t") DELETE(15, "_ZdaPvSt11align_val_t") \
    DELETE(16, "_ZdlPvmSt11align_val_t") DELETE(17, "_ZdaPvmSt11align_val_t")                                          \
    DELETE(18, "_ZdlPvSt11align_val_tRKSt9nothrow_t") DELETE(19, "_ZdaPvSt11align_val_tRKSt9nothrow_t")                \
    DELETE(20, "free_sized") DELETE(21, "free_aligned_sized")

enum { HOOKS = 22 };
static struct rec_hook hooks[HOOKS];

/* Differs where this thread has put an event meanwhile. */
static uintptr_t place(void) {
    const struct rec_thread *thread = rec_self;
    return thread == NULL ? 0 : (uintptr_t)thread->cursor + thread->part;
}

/* The last event since then is this very block's: not a thread's stack, if the allocator has started one of its own. */
static bool has_event(const void *p, uintptr_t before) {
    return place() != before && rec_self->last_word == (uintptr_t)p / 8;
}

#define NEW(number, name, is_aligned)                                                                                  \
    static void *new_##number(size_t bytes, size_t second, void *third) {                                              \
        void *(*next)(size_t, size_t, void *) = (void *(*)(size_t, size_t, void *))hooks[number].next;                 \
        bool record = put_wanted();                                                                                    \
        uintptr_t before = place();                                                                                    \
        void *p = next(bytes, second, third);                                                                          \
        if (REC_LIKELY(record && p != NULL && !has_event(p, before))) {                                                    \
            rec_busy++;                                                                                                \
            if (is_aligned) {                                                                                          \
                put_aligned(p, second, bytes, CALLER_FRAME());                                                         \
            } else {                                                                                                   \
                put_alloc((struct rec_event){.kind = QTR_MALLOC, .address = (uintptr_t)p, .size = bytes}, CALLER_FRAME()); \
            }                                                                                                          \
            rec_busy--;                                                                                                \
        }                                                                                                              \
        return p;                                                                                                      \
    }
NEWS(NEW)

#define DELETE(number, name)                                                                                           \
    static void delete_##number(void *p, size_t second, void *third) {                                                 \
        void (*next)(void *, size_t, void *) = (void (*)(void *, size_t, void *))hooks[number].next;                   \
        bool record = put_wanted() && p != NULL;                                                                       \
        rec_busy++;                                                                                                    \
        if (REC_LIKELY(record)) {                                                                                      \
            put_free(p);                                                                                               \
        }                                                                                                              \
        next(p, second, third);                                                                                        \
        rec_busy--;                                                                                                    \
    }
DELETES(DELETE)

unsigned rec_new_hooks(struct rec_hook **list) {
#define NEW_HOOK(number, symbol, is_aligned) hooks[number] = (struct rec_hook){symbol, (uintptr_t)new_##number, 0};
#define DELETE_HOOK(number, symbol) hooks[number] = (struct rec_hook){symbol, (uintptr_t)delete_##number, 0};
    if (hooks[0].name == NULL) {
        NEWS(NEW_HOOK)
        DELETES(DELETE_HOOK)
    }
    *list = hooks;
    return HOOKS;
}
