// SPDX-License-Identifier: MIT
/* a malloc with a lock that is not recursive, as any has; slow under it, so that whoever looks finds a thread inside */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
static volatile int lock;
static char *at, *end;
static void take(void) { while (__sync_lock_test_and_set(&lock, 1)) __builtin_ia32_pause(); }
static void drop(void) { __sync_lock_release(&lock); }
static void slow(void) { for (volatile int i = 0; i < 200000; i++) { } }
void *malloc(size_t n) {
    take();
    slow();
    n = (n + 31) & ~(size_t)15;
    if (at == NULL || at + n > end) { size_t m = n > (1 << 26) ? n : 1 << 26; at = mmap(0, m, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); end = at + m; }
    char *p = at; at += n; *(size_t *)p = n - 16;
    drop();
    return p + 16;
}
void free(void *p) { take(); slow(); drop(); }
void *calloc(size_t a, size_t b) { return malloc(a * b); }
void *realloc(void *o, size_t n) { void *p = malloc(n); if (o) { size_t m = ((size_t *)o)[-2]; memcpy(p, o, m < n ? m : n); } return p; }
size_t malloc_usable_size(void *p) { return p ? ((size_t *)p)[-2] : 0; }
int posix_memalign(void **r, size_t a, size_t n) { char *p = malloc(n + a); *r = (void *)(((uintptr_t)p + a - 1) & -a); return 0; }
void *aligned_alloc(size_t a, size_t n) { void *p; posix_memalign(&p, a, n); return p; }
void *memalign(size_t a, size_t n) { return aligned_alloc(a, n); }
