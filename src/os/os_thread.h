// SPDX-License-Identifier: MIT
/*
 * os_thread.h - where the calling thread's own variables begin.
 */
#ifndef QUIRE_OS_OS_THREAD_H
#define QUIRE_OS_OS_THREAD_H

/* gcc before 11 and clang before 14 have no word for it on x86-64. */
static inline char *os_thread_pointer(void)
{
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 11)
    char *place;
    __asm__("movq %%fs:0, %0" : "=r"(place));
    return place;
#else
    return (char *)__builtin_thread_pointer();
#endif
}

#endif
