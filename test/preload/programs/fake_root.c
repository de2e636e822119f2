// SPDX-License-Identifier: MIT
/* Preloaded behind the library: what it reads of /proc and /sys about memory comes from below FAKE_ROOT, a directory known when this is compiled. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>

static long asked(long number, const long *with)
{
#if defined(__x86_64__)
    register long d __asm__("r10") = with[3], e __asm__("r8") = with[4], f __asm__("r9") = with[5];
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(with[0]), "S"(with[1]), "d"(with[2]), "r"(d), "r"(e), "r"(f) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long n __asm__("x8") = number, b __asm__("x1") = with[1], c __asm__("x2") = with[2], d __asm__("x3") = with[3], e __asm__("x4") = with[4];
    register long f __asm__("x5") = with[5], answer __asm__("x0") = with[0];
    __asm__ volatile("svc 0" : "+r"(answer) : "r"(n), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f) : "memory");
#endif
    if (answer > -4096 && answer < 0) {
        errno = (int)-answer;
        return -1;
    }
    return answer;
}

long syscall(long number, ...)
{
    static const char *const of_memory[] = {"/proc/self/cgroup", "/proc/meminfo", "/proc/pressure/", "/sys/fs/cgroup"};
    char below[1024];
    long with[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        with[i] = va_arg(more, long);
    va_end(more);
    const char *path = number == SYS_openat ? (const char *)with[1] : "";
    for (int i = 0; i < 4; i++)
        if (strncmp(path, of_memory[i], strlen(of_memory[i])) == 0) {
            strcpy(below, FAKE_ROOT);
            strncat(below, path, sizeof below - sizeof FAKE_ROOT - 1);
            with[1] = (long)below;
        }
    return asked(number, with);
}
