// SPDX-License-Identifier: MIT
/*
 * sanitize.c - AddressSanitizer by its public functions, present when the program was built with it; Valgrind by its client requests.
 *
 * Locks: none.
 */
#include "os/sanitize.h"

#include <stdint.h>

#if __has_include(<valgrind/memcheck.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <valgrind/memcheck.h>
#pragma GCC diagnostic pop
#else
#define RUNNING_ON_VALGRIND 0
#define VALGRIND_MAKE_MEM_NOACCESS(start, bytes) ((void)(start), (void)(bytes))
#define VALGRIND_MAKE_MEM_UNDEFINED(start, bytes) ((void)(start), (void)(bytes))
#define VALGRIND_MAKE_MEM_DEFINED(start, bytes) ((void)(start), (void)(bytes))
#endif

/* Public interface of AddressSanitizer's run time (sanitizer/asan_interface.h). */
void __asan_poison_memory_region(const volatile void *start, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *start, size_t bytes) __attribute__((weak));

void __asan_load8(void *word) __attribute__((weak));

/* LeakSanitizer's (sanitizer/lsan_interface.h) and ThreadSanitizer's (sanitizer/tsan_interface.h). */
void __lsan_register_root_region(const void *start, size_t bytes) __attribute__((weak));
void __lsan_unregister_root_region(const void *start, size_t bytes) __attribute__((weak));
void __tsan_acquire(void *key) __attribute__((weak));
void __tsan_release(void *key) __attribute__((weak));

enum { UNKNOWN, NOBODY, SOMEBODY };
static uint32_t watched;

static __attribute__((cold, noinline)) uint32_t watched_ask(void)
{
    uint32_t answer = &__asan_poison_memory_region != NULL || RUNNING_ON_VALGRIND ? SOMEBODY : NOBODY;
    __atomic_store_n(&watched, answer, __ATOMIC_RELAXED);
    return answer;
}

bool sanitize_watched(void)
{
    uint32_t seen = __atomic_load_n(&watched, __ATOMIC_RELAXED);
    return (__builtin_expect(seen != UNKNOWN, 1) ? seen : watched_ask()) == SOMEBODY;
}

void sanitize_no_access(const void *start, size_t bytes)
{
    if (__builtin_expect(!sanitize_watched(), 1))
        return;
    if (&__asan_poison_memory_region != NULL)
        __asan_poison_memory_region(start, bytes);
    VALGRIND_MAKE_MEM_NOACCESS(start, bytes);
}

void sanitize_undefined(const void *start, size_t bytes)
{
    if (__builtin_expect(!sanitize_watched(), 1))
        return;
    if (&__asan_unpoison_memory_region != NULL)
        __asan_unpoison_memory_region(start, bytes);
    VALGRIND_MAKE_MEM_UNDEFINED(start, bytes);
}

void sanitize_defined(const void *start, size_t bytes)
{
    if (__builtin_expect(!sanitize_watched(), 1))
        return;
    if (&__asan_unpoison_memory_region != NULL)
        __asan_unpoison_memory_region(start, bytes);
    VALGRIND_MAKE_MEM_DEFINED(start, bytes);
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
