// SPDX-License-Identifier: MIT
/*
 * names.c - names.h's tables: a prefix, then a name that allocators share.
 *
 *   _rjem_ malloc    mi_ malloc_aligned    tc_ new_nothrow    mallocx    _Znwm    _RNvCs..._7___rustc12___rust_alloc
 *
 * Of names that only read, those are here that are asked about a block.
 */
#include "names.h"

#include <stddef.h>
#include <string.h>

#define NO OWN_NO_ARGUMENT

struct row {
    const char *name;
    struct own_kind kind;
};

#define ALLOC(size, count, align)   {OWN_ALLOC, 0, size, count, align, false}
#define ZEROED(size, count, align)  {OWN_ZEROED, 0, size, count, align, false}
#define RESIZE(size, count, align)  {OWN_RESIZE, 0, size, count, align, false}
#define FREE                        {OWN_FREE, 0, NO, NO, NO, false}
#define EXIT                        {OWN_EXIT, 0, NO, NO, NO, false}
#define USABLE                      {OWN_USABLE, 0, NO, NO, NO, false}

static const struct row libc[] = {
    {"malloc", ALLOC(0, NO, NO)},        {"calloc", ZEROED(1, 0, NO)},        {"realloc", RESIZE(1, NO, NO)},
    {"free", FREE},                      {"cfree", FREE},                     {"aligned_alloc", ALLOC(1, NO, 0)},
    {"memalign", ALLOC(1, NO, 0)},       {"valloc", ALLOC(0, NO, NO)},        {"pvalloc", ALLOC(0, NO, NO)},
    {"reallocarray", RESIZE(2, 1, NO)},  {"free_sized", FREE},                {"free_aligned_sized", FREE},
    {"posix_memalign", {OWN_POSIX, 0, 2, NO, 1, false}},              {"malloc_usable_size", USABLE},
    {"_exit", EXIT},                     {"_Exit", EXIT},
};

static const struct row jemalloc[] = {
    {"mallocx", {OWN_ALLOC, 0, 0, NO, 1, true}},         {"rallocx", {OWN_RESIZE, 0, 1, NO, 2, true}},
    {"xallocx", {OWN_RESIZE_HERE, 0, 1, NO, 3, true}},   {"sdallocx", FREE}, {"dallocx", FREE},
    {"sallocx", USABLE},
};

static const struct row mimalloc[] = {
    {"zalloc", ZEROED(0, NO, NO)},            {"malloc_small", ALLOC(0, NO, NO)},       {"zalloc_small", ZEROED(0, NO, NO)},
    {"mallocn", ALLOC(1, 0, NO)},             {"reallocn", RESIZE(2, 1, NO)},           {"reallocf", RESIZE(1, NO, NO)},
    {"rezalloc", RESIZE(1, NO, NO)},          {"recalloc", RESIZE(2, 1, NO)},           {"expand", RESIZE(1, NO, NO)},
    {"malloc_aligned", ALLOC(0, NO, 1)},      {"malloc_aligned_at", ALLOC(0, NO, 1)},   {"zalloc_aligned", ZEROED(0, NO, 1)},
    {"zalloc_aligned_at", ZEROED(0, NO, 1)},  {"calloc_aligned", ZEROED(1, 0, 2)},      {"calloc_aligned_at", ZEROED(1, 0, 2)},
    {"realloc_aligned", RESIZE(1, NO, 2)},    {"realloc_aligned_at", RESIZE(1, NO, 2)}, {"rezalloc_aligned", RESIZE(1, NO, 2)},
    {"rezalloc_aligned_at", RESIZE(1, NO, 2)}, {"recalloc_aligned", RESIZE(2, 1, 3)},   {"recalloc_aligned_at", RESIZE(2, 1, 3)},
    {"free_size", FREE},                      {"free_size_aligned", FREE},              {"free_aligned", FREE},
    {"free_small", FREE},                     {"new", ALLOC(0, NO, NO)},                {"new_nothrow", ALLOC(0, NO, NO)},
    {"new_aligned", ALLOC(0, NO, 1)},         {"new_aligned_nothrow", ALLOC(0, NO, 1)}, {"new_n", ALLOC(1, 0, NO)},
    {"new_realloc", RESIZE(1, NO, NO)},       {"new_reallocn", RESIZE(2, 1, NO)},         {"usable_size", USABLE},
    {"malloc_size", USABLE},
};

static const struct row tcmalloc[] = {
    {"new", ALLOC(0, NO, NO)},                  {"newarray", ALLOC(0, NO, NO)},            {"new_nothrow", ALLOC(0, NO, NO)},
    {"newarray_nothrow", ALLOC(0, NO, NO)},     {"new_aligned", ALLOC(0, NO, 1)},          {"newarray_aligned", ALLOC(0, NO, 1)},
    {"new_aligned_nothrow", ALLOC(0, NO, 1)},   {"newarray_aligned_nothrow", ALLOC(0, NO, 1)},
    {"delete", FREE},                           {"deletearray", FREE},                     {"delete_nothrow", FREE},
    {"deletearray_nothrow", FREE},              {"delete_sized", FREE},                    {"deletearray_sized", FREE},
    {"delete_aligned", FREE},                   {"deletearray_aligned", FREE},             {"delete_sized_aligned", FREE},
    {"deletearray_sized_aligned", FREE},        {"delete_aligned_nothrow", FREE},          {"deletearray_aligned_nothrow", FREE},
    {"malloc_size", USABLE},
};

static const struct row language[] = {
    {"_Znwm", ALLOC(0, NO, NO)},                           {"_Znam", ALLOC(0, NO, NO)},
    {"_ZnwmRKSt9nothrow_t", ALLOC(0, NO, NO)},             {"_ZnamRKSt9nothrow_t", ALLOC(0, NO, NO)},
    {"_ZnwmSt11align_val_t", ALLOC(0, NO, 1)},             {"_ZnamSt11align_val_t", ALLOC(0, NO, 1)},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t", ALLOC(0, NO, 1)}, {"_ZnamSt11align_val_tRKSt9nothrow_t", ALLOC(0, NO, 1)},
    {"_ZdlPv", FREE},                                      {"_ZdaPv", FREE},
    {"_ZdlPvm", FREE},                                     {"_ZdaPvm", FREE},
    {"_ZdlPvRKSt9nothrow_t", FREE},                        {"_ZdaPvRKSt9nothrow_t", FREE},
    {"_ZdlPvSt11align_val_t", FREE},                       {"_ZdaPvSt11align_val_t", FREE},
    {"_ZdlPvmSt11align_val_t", FREE},                      {"_ZdaPvmSt11align_val_t", FREE},
    {"_ZdlPvSt11align_val_tRKSt9nothrow_t", FREE},         {"_ZdaPvSt11align_val_tRKSt9nothrow_t", FREE},
    {"__rust_alloc", ALLOC(0, NO, 1)},                     {"__rust_alloc_zeroed", ZEROED(0, NO, 1)},
    {"__rust_realloc", RESIZE(3, NO, 2)},                  {"__rust_dealloc", FREE},
};

static bool has(const struct row *rows, size_t count, const char *name, struct own_kind *kind) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *kind = rows[i].kind;
            return true;
        }
    }
    return false;
}

#define HAS(rows, name, kind) has(rows, sizeof(rows) / sizeof(rows)[0], name, kind)

/* heap_malloc(heap, size) is malloc(size) with an argument more. */
static bool has_heap(const char *name, struct own_kind *kind) {
    static const char *const with_heap[] = {
        "malloc", "zalloc", "calloc", "mallocn", "malloc_small", "realloc", "reallocn", "reallocf", "rezalloc", "recalloc",
        "malloc_aligned", "malloc_aligned_at", "zalloc_aligned", "zalloc_aligned_at", "calloc_aligned", "calloc_aligned_at",
        "realloc_aligned", "realloc_aligned_at", "rezalloc_aligned", "rezalloc_aligned_at", "recalloc_aligned",
        "recalloc_aligned_at",
    };
    for (size_t i = 0; i < sizeof with_heap / sizeof with_heap[0]; i++) {
        if (strcmp(with_heap[i], name) == 0 && (HAS(libc, name, kind) || HAS(mimalloc, name, kind))) {
            kind->first = 1;
            return true;
        }
    }
    return false;
}

/* rustc's names of its own four functions: as they are, or in the crate __rustc with a hash before. */
static const char *rust_name(const char *name) {
    static const char crate[] = "7___rustc";
    const char *at = strncmp(name, "_RNvC", 5) == 0 ? strstr(name, crate) : NULL;
    if (at == NULL) {
        return name;
    }
    at += sizeof crate - 1;
    size_t bytes = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        bytes = bytes * 10 + (size_t)(*at - '0');
    }
    at += *at == '_';  // between a length and a name that begins with _
    return strlen(at) == bytes ? at : name;
}

static bool begins(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

enum own_family own_name(const char *name, struct own_kind *kind) {
    if (begins(name, "mi_heap_")) {
        return has_heap(name + 8, kind) ? OWN_MIMALLOC : OWN_NOBODY;
    }
    if (begins(name, "mi_")) {
        return HAS(libc, name + 3, kind) || HAS(mimalloc, name + 3, kind) ? OWN_MIMALLOC : OWN_NOBODY;
    }
    if (begins(name, "je_") || begins(name, "_rjem_")) {
        const char *rest = name + (name[0] == 'j' ? 3 : 6);
        return HAS(libc, rest, kind) || HAS(jemalloc, rest, kind) ? OWN_JEMALLOC : OWN_NOBODY;
    }
    if (begins(name, "tc_")) {
        return HAS(libc, name + 3, kind) || HAS(tcmalloc, name + 3, kind) ? OWN_TCMALLOC : OWN_NOBODY;
    }
    if (HAS(jemalloc, name, kind)) {
        return OWN_JEMALLOC;
    }
    if (name[0] == '_' && strcmp(name, "_exit") != 0 && strcmp(name, "_Exit") != 0) {
        return HAS(language, rust_name(name), kind) ? OWN_LANGUAGE : OWN_NOBODY;
    }
    return HAS(libc, name, kind) ? OWN_LIBC : OWN_NOBODY;
}

const char *own_family_name(enum own_family family) {
    static const char *const names[] = {"", "malloc", "", "mimalloc", "jemalloc", "tcmalloc"};
    return names[family];
}
