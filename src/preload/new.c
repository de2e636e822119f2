// SPDX-License-Identifier: MIT
/*
 * new.c - C++'s names, in C: every form of operator new and delete, without needing libstdc++.
 *
 *     new(n) --- a block ---> done
 *        | none
 *        v
 *     new_slow()   is there a new-handler?  call it and try again;  none: throw std::bad_alloc
 *
 * The handler and the throwing are the C++ library's: found as weak references where the program is linked with it, else by asking the loader
 * for one that was loaded later.  Exceptions pass through these frames (-fexceptions).  A nothrow form must swallow what the handler throws,
 * which C cannot: with a handler set it hands over to the C++ library's own, which calls our throwing form back and catches.
 *
 *     _Znw new   _Zna new[]   _Zdl delete   _Zda delete[]   m size_t   St11align_val_t   RKSt9nothrow_t   Pv void *
 *
 * Locks: none.  Not here: what delete(p, size) compares (careful.c).
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "base/align.h"
#include "base/panic.h"
#include "heap/heap_internal.h"
#include "preload/preload.h"

#define EXPORT __attribute__((visibility("default"))) CACHE_ALIGNED /* in the middle of a line of code they take up to an eighth longer */
STATIC_ASSERT(sizeof(size_t) == sizeof(unsigned long), "size_t is mangled as m");
#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* the compiler of C++ knows these names by itself */

typedef void new_handler(void);
extern new_handler *_ZSt15get_new_handlerv(void) __attribute__((weak));
extern void _ZSt17__throw_bad_allocv(void) __attribute__((weak));

/* A function of the C++ library that this process has loaded, by whatever way. */
static uintptr_t cxx_function(const char *name)
{
    static const char libraries[][16] = {"libstdc++.so.6", "libc++.so.1", "libc++abi.so.1"};
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++) {
        void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        uintptr_t found = library ? (uintptr_t)dlsym(library, name) : 0;
        if (library)
            dlclose(library);
        if (found)
            return found;
    }
    return 0;
}

static new_handler *handler_now(void)
{
    new_handler *(*get)(void) = _ZSt15get_new_handlerv;
    if (!get)
        get = (new_handler * (*)(void)) cxx_function("_ZSt15get_new_handlerv");
    return get ? get() : NULL;
}

static __attribute__((noreturn)) void throw_bad_alloc(size_t bytes)
{
    void (*thrower)(void) = _ZSt17__throw_bad_allocv;
    if (!thrower)
        thrower = (void (*)(void))cxx_function("_ZSt17__throw_bad_allocv");
    if (!thrower)
        thrower = (void (*)(void))cxx_function("_ZNSt3__117__throw_bad_allocEv");
    if (thrower)
        thrower();
    panic("malloc", NULL, "operator new has no memory, and nobody is there to throw std::bad_alloc", (const void *)bytes);
}

/* align_bytes 0: none was asked for. */
static COLD void *new_slow(size_t bytes, size_t align_bytes)
{
    for (;;) {
        new_handler *handler = align_bytes == 0 || is_pow2(align_bytes) ? handler_now() : NULL;
        if (!handler)
            throw_bad_alloc(bytes);
        handler();
        void *p = align_bytes == 0 ? malloc(bytes) : aligned_alloc(align_bytes, bytes);
        if (p)
            return p;
    }
}

static NOINLINE void *new_long(size_t bytes, struct steer_call call)
{
    void *p = preload_alloc_next(bytes, call);
    return likely(p != NULL) ? p : new_slow(bytes, 0);
}

static ALWAYS_INLINE void *aligned_or_null(size_t bytes, size_t align_bytes, struct steer_call call)
{
    return preload_samples() && is_pow2(align_bytes) ? prof_alloc_aligned(bytes, align_bytes, prof_call_of(call)) : aligned_alloc(align_bytes, bytes);
}

/* The caller is asked for where it is needed: a function that asks at its beginning has something to save. */
#define NEW_QUICK(bytes) (preload_quick_alloc(bytes) ?: new_long(bytes, STEER_CALLER))

/* ---- where the program has operators of its own ---- */

/*
 * C++'s other forms are by default made of the plain ones, which a program may replace: delete(p, size) of one that has its own delete(p) is that one's.  The C++
 * library's own do as the standard says.  Who stands before us with all forms (a recorder) has not replaced some: he comes to us with each.
 */
static bool is_replaced;

void *_Znwm(size_t bytes);
void *_Znam(size_t bytes);
void *_ZnwmSt11align_val_t(size_t bytes, size_t align_bytes);
void *_ZnamRKSt9nothrow_t(size_t bytes, const void *tag);
void _ZdlPv(void *p);
void _ZdaPv(void *p);
void _ZdaPvm(void *p, size_t bytes);
void _ZdlPvSt11align_val_t(void *p, size_t align_bytes);

static bool is_anothers(const char *name, uintptr_t ours)
{
    uintptr_t found = (uintptr_t)dlsym(RTLD_DEFAULT, name);
    return found != 0 && found != ours;
}

void new_begin(void)
{
    bool plain = is_anothers("_Znwm", (uintptr_t)_Znwm) || is_anothers("_ZdlPv", (uintptr_t)_ZdlPv) || is_anothers("_Znam", (uintptr_t)_Znam) || is_anothers("_ZdaPv", (uintptr_t)_ZdaPv) ||
        is_anothers("_ZnwmSt11align_val_t", (uintptr_t)_ZnwmSt11align_val_t) || is_anothers("_ZdlPvSt11align_val_t", (uintptr_t)_ZdlPvSt11align_val_t);
    is_replaced = plain && !(is_anothers("_ZdaPvm", (uintptr_t)_ZdaPvm) && is_anothers("_ZnamRKSt9nothrow_t", (uintptr_t)_ZnamRKSt9nothrow_t));
}

static COLD uintptr_t library_form(const char *name, atomic_addr *known)
{
    uintptr_t found = addr_load_relaxed(known);
    if (found == 0) {
        found = cxx_function(name);
        addr_store_relaxed(known, found);
    }
    return found;
}

/*
 * One form, `own` where the C++ library's is not asked.  Who asks it is a function of its own: so ours calls nothing, and has nothing to save.
 */
#define FORM(result, name, parameters, arguments, own)                                             \
    static NOINLINE COLD result name##_librarys parameters                                         \
    {                                                                                              \
        static atomic_addr known;                                                                  \
        result(*form) parameters = (result(*) parameters)library_form(#name, &known);              \
        if (form)                                                                                  \
            return form arguments;                                                                 \
        return own;                                                                                \
    }                                                                                              \
    EXPORT result name parameters                                                                  \
    {                                                                                              \
        if (unlikely(is_replaced))                                                                 \
            return name##_librarys arguments;                                                      \
        return own;                                                                                \
    }

/* ---- new ---- */

static ALWAYS_INLINE void *new_aligned(size_t bytes, size_t align_bytes, struct steer_call call)
{
    void *p = aligned_or_null(bytes, align_bytes, call);
    return likely(p != NULL) ? p : new_slow(bytes, align_bytes);
}

EXPORT void *_Znwm(size_t bytes)
{
    return NEW_QUICK(bytes);
}

EXPORT void *_ZnwmSt11align_val_t(size_t bytes, size_t align_bytes)
{
    return new_aligned(bytes, align_bytes, STEER_CALLER);
}

FORM(void *, _Znam, (size_t bytes), (bytes), NEW_QUICK(bytes))
FORM(void *, _ZnamSt11align_val_t, (size_t bytes, size_t align_bytes), (bytes, align_bytes), new_aligned(bytes, align_bytes, STEER_CALLER))

/* ---- new (std::nothrow) ---- */

static COLD void *nothrow_slow(const char *name, size_t bytes, const void *tag)
{
    uintptr_t library = handler_now() ? cxx_function(name) : 0;
    return library ? ((void *(*)(size_t, const void *))library)(bytes, tag) : NULL;
}

static COLD void *nothrow_aligned_slow(const char *name, size_t bytes, size_t align_bytes, const void *tag)
{
    uintptr_t library = handler_now() ? cxx_function(name) : 0;
    return library ? ((void *(*)(size_t, size_t, const void *))library)(bytes, align_bytes, tag) : NULL;
}

static ALWAYS_INLINE void *nothrow_quick(const char *name, size_t bytes, const void *tag, struct steer_call call)
{
    void *p = preload_quick_alloc(bytes);
    p = likely(p != NULL) ? p : preload_alloc_next(bytes, call);
    return likely(p != NULL) ? p : nothrow_slow(name, bytes, tag);
}

static ALWAYS_INLINE void *nothrow_aligned(const char *name, size_t bytes, size_t align_bytes, const void *tag, struct steer_call call)
{
    void *p = aligned_or_null(bytes, align_bytes, call);
    return likely(p != NULL) ? p : nothrow_aligned_slow(name, bytes, align_bytes, tag);
}

#define NOTHROW(name) FORM(void *, name, (size_t bytes, const void *tag), (bytes, tag), nothrow_quick(#name, bytes, tag, STEER_CALLER))
#define NOTHROW_ALIGNED(name)                                                                      \
    FORM(void *, name, (size_t bytes, size_t align_bytes, const void *tag), (bytes, align_bytes, tag), nothrow_aligned(#name, bytes, align_bytes, tag, STEER_CALLER))
NOTHROW(_ZnwmRKSt9nothrow_t)
NOTHROW(_ZnamRKSt9nothrow_t)
NOTHROW_ALIGNED(_ZnwmSt11align_val_tRKSt9nothrow_t)
NOTHROW_ALIGNED(_ZnamSt11align_val_tRKSt9nothrow_t)

/* ---- delete: what is said besides the pointer is for the careful ---- */

static NOINLINE void delete_sized_otherwise(void *p, size_t bytes)
{
    uint32_t mode = u32_load_relaxed(&preload_mode);
    preload_frees_open(mode);
    if (mode != PRELOAD_STEERS || (!steer_free_sized(p, bytes) && !preload_quick_free_sized(p, bytes)))
        careful_free_sized(p, bytes, 0);
}

static ALWAYS_INLINE void delete_sized(void *p, size_t bytes)
{
    if (unlikely(!preload_quick_free_sized(p, bytes)))
        delete_sized_otherwise(p, bytes);
}

static ALWAYS_INLINE void delete_aligned(void *p, size_t align_bytes)
{
    preload_verify_alignment(p, align_bytes);
    preload_free(p);
}

static ALWAYS_INLINE void delete_sized_aligned(void *p, size_t bytes, size_t align_bytes)
{
    preload_verify_alignment(p, align_bytes);
    careful_free_sized(p, bytes, align_bytes);
}

EXPORT void _ZdlPv(void *p)
{
    preload_free(p);
}

EXPORT void _ZdlPvSt11align_val_t(void *p, size_t align_bytes)
{
    delete_aligned(p, align_bytes);
}

FORM(void, _ZdaPv, (void *p), (p), preload_free(p))
FORM(void, _ZdaPvSt11align_val_t, (void *p, size_t align_bytes), (p, align_bytes), delete_aligned(p, align_bytes))
#define DELETE_SIZED(name) FORM(void, name, (void *p, size_t bytes), (p, bytes), delete_sized(p, bytes))
#define DELETE_NOTHROW(name) FORM(void, name, (void *p, const void *tag), (p, tag), preload_free(p))
#define DELETE_SIZED_ALIGNED(name) FORM(void, name, (void *p, size_t bytes, size_t align_bytes), (p, bytes, align_bytes), delete_sized_aligned(p, bytes, align_bytes))
#define DELETE_ALIGNED_NOTHROW(name) FORM(void, name, (void *p, size_t align_bytes, const void *tag), (p, align_bytes, tag), delete_aligned(p, align_bytes))
DELETE_SIZED(_ZdlPvm)
DELETE_SIZED(_ZdaPvm)
DELETE_NOTHROW(_ZdlPvRKSt9nothrow_t)
DELETE_NOTHROW(_ZdaPvRKSt9nothrow_t)
DELETE_SIZED_ALIGNED(_ZdlPvmSt11align_val_t)
DELETE_SIZED_ALIGNED(_ZdaPvmSt11align_val_t)
DELETE_ALIGNED_NOTHROW(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE_ALIGNED_NOTHROW(_ZdaPvSt11align_val_tRKSt9nothrow_t)
