// SPDX-License-Identifier: MIT
/*
 * sanitize.c - AddressSanitizer by its public functions, present when the program was built with it; Valgrind by its client requests.
 *
 * Locks: none.
 */
#include "os/sanitize.h"

#include <stdint.h>

/* Valgrind's client request: instructions that change nothing, and that its translator knows.  By number, as its manual's header has them:
 * what was built where that header is missing is seen all the same. */
enum { RUNNING_THERE = 0x1001, MAKE_NO_ACCESS = 0x4d430000, MAKE_UNDEFINED, MAKE_DEFINED };

static uintptr_t valgrind(uintptr_t request, const void *start, size_t bytes)
{
    const volatile uintptr_t words[6] = {request, (uintptr_t)start, bytes, 0, 0, 0};
#if defined(__x86_64__)
    uintptr_t answer = 0;
    __asm__ volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\txchgq %%rbx, %%rbx"
                     : "+d"(answer)
                     : "a"(words)
                     : "cc", "memory");
    return answer;
#elif defined(__aarch64__)
    register uintptr_t answer __asm__("x3") = 0;
    register const volatile uintptr_t *asked __asm__("x4") = words;
    __asm__ volatile("ror x12, x12, #3\n\tror x12, x12, #13\n\tror x12, x12, #51\n\tror x12, x12, #61\n\torr x10, x10, x10"
                     : "+r"(answer)
                     : "r"(asked)
                     : "cc", "memory");
    return answer;
#else
    return words[5];
#endif
}

/* Public interface of AddressSanitizer's run time (sanitizer/asan_interface.h). */
void __asan_poison_memory_region(const volatile void *start, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *start, size_t bytes) __attribute__((weak));

void __asan_load8(void *word) __attribute__((weak));

/* LeakSanitizer's (sanitizer/lsan_interface.h) and ThreadSanitizer's (sanitizer/tsan_interface.h). */
void __lsan_register_root_region(const void *start, size_t bytes) __attribute__((weak));
void __lsan_unregister_root_region(const void *start, size_t bytes) __attribute__((weak));
void __tsan_acquire(void *key) __attribute__((weak));
void __tsan_release(void *key) __attribute__((weak));

enum { UNASKED, NOBODY, SOMEBODY };
static uint32_t watched;

static __attribute__((cold, noinline)) uint32_t watched_ask(void)
{
    uint32_t answer = &__asan_poison_memory_region != NULL || valgrind(RUNNING_THERE, NULL, 0) ? SOMEBODY : NOBODY;
    __atomic_store_n(&watched, answer, __ATOMIC_RELAXED);
    return answer;
}

bool sanitize_watched(void)
{
    uint32_t seen = __atomic_load_n(&watched, __ATOMIC_RELAXED);
    return (__builtin_expect(seen != UNASKED, 1) ? seen : watched_ask()) == SOMEBODY;
}

void sanitize_no_access(const void *start, size_t bytes)
{
    if (__builtin_expect(!sanitize_watched(), 1))
        return;
    if (&__asan_poison_memory_region != NULL)
        __asan_poison_memory_region(start, bytes);
    valgrind(MAKE_NO_ACCESS, start, bytes);
}

void sanitize_undefined(const void *start, size_t bytes)
{
    if (__builtin_expect(!sanitize_watched(), 1))
        return;
    if (&__asan_unpoison_memory_region != NULL)
        __asan_unpoison_memory_region(start, bytes);
    valgrind(MAKE_UNDEFINED, start, bytes);
}

void sanitize_defined(const void *start, size_t bytes)
{
    if (__builtin_expect(!sanitize_watched(), 1))
        return;
    if (&__asan_unpoison_memory_region != NULL)
        __asan_unpoison_memory_region(start, bytes);
    valgrind(MAKE_DEFINED, start, bytes);
}

void sanitize_read_word(const void *word)
{
    if (&__asan_load8 != NULL)
        __asan_load8((void *)(uintptr_t)word);
}

void sanitize_root(const void *start, size_t bytes, bool live)
{
    if (&__lsan_register_root_region == NULL || &__lsan_unregister_root_region == NULL)
        return;
    if (live)
        __lsan_register_root_region(start, bytes);
    else
        __lsan_unregister_root_region(start, bytes);
}

bool sanitize_race_watched(void)
{
    return &__tsan_acquire != NULL && &__tsan_release != NULL;
}

void sanitize_end_of_use(const void *key)
{
    if (&__tsan_release != NULL)
        __tsan_release((void *)(uintptr_t)key);
}

void sanitize_begin_of_use(const void *key)
{
    if (&__tsan_acquire != NULL)
        __tsan_acquire((void *)(uintptr_t)key);
}
