// SPDX-License-Identifier: MIT
/*
 * edges - what POSIX, C11 and glibc's manual promise of each function of malloc's family, at the edges of its arguments.
 *
 *     edges NAME        runs one group: huge aligned bad_alignment zero overflow realloc zeroed look far
 */
#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "must.h"

enum { ERRNO_BEFORE = 4711, ALIGNS = 64 };
void free_sized(void *p, size_t bytes) __attribute__((weak));
void free_aligned_sized(void *p, size_t align_bytes, size_t bytes) __attribute__((weak));

/* ---- one way of asking for memory each: size, alignment ---- */

static void *by_malloc(size_t n, size_t align) { (void)align; return malloc(n); }
static void *by_calloc(size_t n, size_t align) { (void)align; return calloc(1, n); }
static void *by_calloc_bytes(size_t n, size_t align) { (void)align; return calloc(n, 1); }
static void *by_realloc_null(size_t n, size_t align) { (void)align; return realloc(NULL, n); }
static void *by_reallocarray(size_t n, size_t align) { (void)align; return reallocarray(NULL, n, 1); }
static void *by_valloc(size_t n, size_t align) { (void)align; return valloc(n); }
static void *by_pvalloc(size_t n, size_t align) { (void)align; return pvalloc(n); }
static void *by_aligned_alloc(size_t n, size_t align) { return aligned_alloc(align, n); }
static void *by_memalign(size_t n, size_t align) { return memalign(align, n); }
static void *by_posix_memalign(size_t n, size_t align)
{
    void *p = (void *)1;
    errno = ERRNO_BEFORE;
    int error = posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, n);
    MUST(errno == ERRNO_BEFORE, "posix_memalign changed errno to %d", errno);
    if (error == 0)
        return p;
    MUST(p == (void *)1, "posix_memalign changed its pointer");
    errno = error;
    return NULL;
}

struct way {
    const char *name;
    void *(*ask)(size_t n, size_t align);
    bool takes_align;
    size_t least_align; /* 0: the OS page */
};
static const struct way ways[] = {
    {"malloc", by_malloc, false, 16}, {"calloc", by_calloc, false, 16}, {"calloc bytes", by_calloc_bytes, false, 16},
    {"realloc NULL", by_realloc_null, false, 16}, {"reallocarray", by_reallocarray, false, 16},
    {"valloc", by_valloc, false, 0}, {"pvalloc", by_pvalloc, false, 0}, {"aligned_alloc", by_aligned_alloc, true, 16},
    {"memalign", by_memalign, true, 16}, {"posix_memalign", by_posix_memalign, true, 16},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* A block that was had: aligned, as large as it says, writable to its last byte. */
static void verify(const struct way *way, void *p, size_t n, size_t align)
{
    size_t least = way->least_align ? way->least_align : page_bytes();
    least = least < align ? align : least;
    MUST((uintptr_t)p % least == 0, "%s(%zu, align %zu) is %p", way->name, n, align, p);
    size_t usable = malloc_usable_size(p);
    MUST(usable >= n, "%s(%zu) has %zu usable bytes", way->name, n, usable);
    memset(p, 0xa5, usable);
    free(p);
}

/* ---- groups ---- */

static void huge(void)
{
    static const size_t tops[] = {SIZE_MAX, (size_t)PTRDIFF_MAX + 1};
    for (size_t w = 0; w < WAYS; w++) {
        for (size_t top = 0; top < 2; top++) {
            for (unsigned shift = 0; shift < 63; shift++) {
                size_t n = top == 0 ? SIZE_MAX - ((size_t)1 << shift) + 1 : tops[1] + ((size_t)1 << shift) - 1;
                if (n <= PTRDIFF_MAX)
                    continue;
                for (unsigned log2 = 0; log2 < (ways[w].takes_align ? ALIGNS : 1u); log2++) {
                    errno = 0;
                    void *p = ways[w].ask(n, (size_t)1 << log2);
                    MUST(p == NULL && errno == ENOMEM, "%s(%zx, 2^%u) is %p, errno %d", ways[w].name, n, log2, p, errno);
                }
            }
        }
    }
}

/* Legal, but more than there is: refused, or had without memory being spent on it. */
static void far(void)
{
    for (size_t w = 0; w < WAYS; w++) {
        for (unsigned shift = 36; shift < 63; shift++) {
            errno = 0;
            void *p = ways[w].ask(((size_t)1 << shift) - 1, 64);
            MUST(p || errno == ENOMEM, "%s(2^%u - 1): errno %d", ways[w].name, shift, errno);
            free(p);
        }
        MUST(ways[w].ask(PTRDIFF_MAX, 16) == NULL, "%s(PTRDIFF_MAX)", ways[w].name);
    }
}

static void aligned(void)
{
    for (size_t w = 0; w < WAYS; w++) {
        for (unsigned log2 = 0; log2 < (ways[w].takes_align ? 22u : 1u); log2++) {
            size_t step = 1;
            for (size_t n = 0; n <= (1u << 20) + 1; n += step) {
                void *p = ways[w].ask(n, (size_t)1 << log2);
                MUST(p, "%s(%zu, 2^%u)", ways[w].name, n, log2);
                if (p)
                    verify(&ways[w], p, n, (size_t)1 << log2);
                if (n >= 128)
                    step = n / 3; /* near every size class, around powers of two too */
            }
        }
        for (unsigned log2 = 22; log2 < ALIGNS && ways[w].takes_align; log2++) {
            errno = 0;
            void *p = ways[w].ask(1, (size_t)1 << log2);
            MUST(p ? (uintptr_t)p % ((size_t)1 << log2) == 0 : errno == ENOMEM, "%s(1, 2^%u) is %p, errno %d", ways[w].name, log2, p, errno);
            free(p);
        }
    }
}

static void bad_alignment(void)
{
    static const size_t no_powers[] = {0, 3, 5, 24, 48, 100, 4095, SIZE_MAX, (size_t)1 << 63 | 1};
    for (size_t i = 0; i < sizeof no_powers / sizeof no_powers[0]; i++) {
        size_t align = no_powers[i];
        errno = 0;
        void *p = aligned_alloc(align, 64);
        MUST(p == NULL && errno == EINVAL, "aligned_alloc(%zu) is %p, errno %d", align, p, errno);
        p = (void *)1;
        errno = ERRNO_BEFORE;
        int error = posix_memalign(&p, align, 64);
        MUST(error == EINVAL && errno == ERRNO_BEFORE && p == (void *)1, "posix_memalign(%zu) is %d", align, error);
    }
    for (size_t align = 1; align < sizeof(void *); align *= 2) {
        void *p = (void *)1;
        MUST(posix_memalign(&p, align, 64) == EINVAL && p == (void *)1, "posix_memalign(%zu)", align);
    }
    for (size_t align = 0; align < 5000; align += 7) { /* memalign rounds up, as glibc's does */
        void *p = memalign(align, 100);
        MUST(p && (align == 0 || (uintptr_t)p % ((size_t)1 << (64 - __builtin_clzll(align - (align > 1)))) == 0 || align == 1), "memalign(%zu) is %p", align, p);
        free(p);
    }
    errno = 0;
    MUST(memalign(SIZE_MAX, 1) == NULL && errno == EINVAL, "memalign(SIZE_MAX): errno %d", errno);
}

static void zero(void)
{
    void *blocks[100];
    for (size_t w = 0; w < WAYS; w++) {
        for (int i = 0; i < 100; i++) {
            blocks[i] = ways[w].ask(0, 16);
            MUST(blocks[i], "%s(0)", ways[w].name);
            for (int j = 0; j < i; j++)
                MUST(blocks[i] != blocks[j], "%s(0) twice the same", ways[w].name);
        }
        for (int i = 0; i < 100; i++)
            free(blocks[i]);
    }
    static const size_t sizes[] = {1, 100, 5000, 40000, 1 << 20, 1 << 26};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        errno = ERRNO_BEFORE;
        MUST(realloc(malloc(sizes[i]), 0) == NULL, "realloc(p, 0)");
        MUST(errno == ERRNO_BEFORE, "realloc(p, 0) changed errno to %d", errno);
        void *p = malloc(sizes[i]);
        errno = ERRNO_BEFORE;
        free(p);
        MUST(errno == ERRNO_BEFORE, "free changed errno to %d", errno);
    }
    free(NULL);
    MUST(malloc_usable_size(NULL) == 0, "malloc_usable_size(NULL)");
    if (free_sized && free_aligned_sized) {
        free_sized(NULL, 0);
        free_sized(malloc(100), 100);
        free_aligned_sized(aligned_alloc(64, 128), 64, 128);
    }
}

static void overflow(void)
{
    for (unsigned i = 1; i < 64; i++) {
        for (unsigned j = 64 - i; j < 64; j++) {
            size_t a = (size_t)1 << i, b = (size_t)1 << j;
            errno = 0;
            void *p = calloc(a, b);
            MUST(p == NULL && errno == ENOMEM, "calloc(2^%u, 2^%u)", i, j);
            char *old = malloc(32);
            memset(old, 7, 32);
            errno = 0;
            p = reallocarray(old, a, b);
            MUST(p == NULL && errno == ENOMEM && old[0] == 7 && old[31] == 7, "reallocarray(2^%u, 2^%u)", i, j);
            errno = 0;
            MUST(realloc(old, SIZE_MAX - i) == NULL && errno == ENOMEM && old[31] == 7, "realloc(SIZE_MAX - %u)", i);
            free(old);
        }
    }
}

static void verify_pattern(const unsigned char *p, size_t n, unsigned char seed)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (unsigned char)(seed + i * 31)) {
            MUST(false, "byte %zu of %zu is lost", i, n);
            return;
        }
}

static void realloc_keeps(void)
{
    uint32_t random = 1;
    for (int round = 0; round < 40; round++) {
        size_t have = 0;
        unsigned char *p = NULL;
        for (int step = 0; step < 40; step++) {
            random = random * 1664525u + 1013904223u;
            size_t n = (size_t)(random >> 8) % ((size_t)1 << (4 + random % 19)) + 1;
            p = realloc(p, n);
            MUST(p, "realloc(%zu)", n);
            verify_pattern(p, have < n ? have : n, (unsigned char)round);
            for (size_t i = have < n ? have : n; i < n; i++)
                p[i] = (unsigned char)(round + i * 31);
            have = n;
        }
        free(p);
    }
}

static void zeroed(void)
{
    for (size_t n = 1; n < ((size_t)8 << 20); n = n * 3 / 2 + 1) {
        for (int round = 0; round < 3; round++) {
            unsigned char *p = calloc(1, n);
            MUST(p, "calloc(%zu)", n);
            for (size_t i = 0; p && i < n; i++)
                if (p[i] != 0) {
                    MUST(false, "byte %zu of calloc(1, %zu) is %d", i, n, p[i]);
                    break;
                }
            memset(p, 0xff, malloc_usable_size(p));
            free(p);
        }
    }
}

static void look(void)
{
    struct mallinfo2 before = mallinfo2();
    char *small[1000], *large = malloc(10 << 20);
    for (int i = 0; i < 1000; i++)
        small[i] = malloc(1000);
    struct mallinfo2 after = mallinfo2();
    MUST(after.hblkhd >= before.hblkhd + (10 << 20), "hblkhd %zu after %zu", after.hblkhd, before.hblkhd);
    MUST(after.uordblks >= before.uordblks + 1000 * 1000 && after.uordblks < before.uordblks + (10 << 20), "uordblks %zu after %zu", after.uordblks, before.uordblks);
    for (int i = 0; i < 1000; i++)
        free(small[i]);
    free(large);
    (void)malloc_trim(0);
    struct mallinfo2 end = mallinfo2();
    MUST(end.uordblks + 900 * 1000 < after.uordblks, "uordblks %zu after %zu", end.uordblks, after.uordblks);
    MUST(malloc_trim(0) == 0 || malloc_trim(0) == 1, "malloc_trim");
}

/* Programs rely on it: a size that is no multiple of the alignment, and none at all. */
static void any_size_aligned(void)
{
    for (size_t align = 1; align <= 65536; align *= 2) {
        for (size_t n = 0; n < 100000; n = n * 3 + 1) {
            errno = ERRNO_BEFORE;
            void *p = aligned_alloc(align, n);
            MUST(p && (uintptr_t)p % align == 0 && errno == ERRNO_BEFORE, "aligned_alloc(%zu, %zu) is %p, errno %d", align, n, p, errno);
            free(p);
        }
    }
}

static void tune(void)
{
    MUST(mallopt(12345, 1) == 0, "an unknown parameter");
    MUST(mallopt(M_TRIM_THRESHOLD, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1, "M_TRIM_THRESHOLD");
    MUST(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(M_ARENA_MAX, 1) == 1 && mallopt(M_PERTURB, 0) == 1, "others");
    mallopt(M_TRIM_THRESHOLD, 0);
    char *p[1000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1000; i++)
            memset(p[i] = malloc(20000), 1, 20000);
        for (int i = 0; i < 1000; i++)
            free(p[i]);
    }
    MUST(mallinfo2().keepcost < 1 << 20, "kept %zu", mallinfo2().keepcost);
}

static size_t number_behind(const char *text, const char *words)
{
    const char *found = strstr(text, words);
    return found ? strtoull(found + strlen(words), NULL, 10) : SIZE_MAX;
}

static void information(void)
{
    static char text[1 << 16];
    char *large = malloc(10 << 20), *small[100];
    for (int i = 0; i < 100; i++)
        small[i] = malloc(1000);
    FILE *file = fmemopen(text, sizeof text, "w");
    MUST(malloc_info(1, file) == EINVAL, "options");
    MUST(malloc_info(0, file) == 0, "malloc_info");
    fclose(file);
    MUST(strncmp(text, "<malloc version=\"1\">", 20) == 0 && strstr(text, "</malloc>"), "%s", text);
    MUST(number_behind(text, "type=\"mmap\" count=\"") == 1, "%s", text);
    struct mallinfo2 info = mallinfo2();
    size_t current = number_behind(text, "<system type=\"current\" size=\""), max = number_behind(text, "<system type=\"max\" size=\"");
    MUST(current >= info.uordblks && current < info.arena + info.hblkhd + (1 << 20) && max >= current, "current %zu, max %zu", current, max);
    size_t free_bytes = number_behind(text, "<total type=\"rest\" count=\"");
    MUST(free_bytes != SIZE_MAX && free_bytes > 0, "%s", text);
    for (int i = 0; i < 100; i++)
        free(small[i]);
    free(large);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {{"huge", huge}, {"far", far}, {"aligned", aligned}, {"any_size_aligned", any_size_aligned}, {"tune", tune}, {"information", information}, {"bad_alignment", bad_alignment}, {"zero", zero}, {"overflow", overflow},
        {"realloc", realloc_keeps}, {"zeroed", zeroed}, {"look", look}};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (count == 2 && strcmp(words[1], groups[i].name) == 0) {
            groups[i].run();
            return must_end();
        }
    return 2;
}
