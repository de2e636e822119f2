// SPDX-License-Identifier: MIT
/*
 * text.c - libc's functions of text that the recorder uses, under libc's names (libc.c has the others).
 *
 *   snprintf: %s %d %u, and what stands between them: no more is used
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t strlen(const char *text) {
    return strnlen(text, SIZE_MAX);
}

size_t strnlen(const char *text, size_t most) {
    size_t bytes = 0;
    while (bytes < most && text[bytes] != '\0') {
        bytes++;
        __asm__ volatile("" : "+r"(bytes));  // or a compiler makes a call of strlen of it
    }
    return bytes;
}

int strncmp(const char *one, const char *other, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (one[i] != other[i] || one[i] == '\0') {
            return (unsigned char)one[i] - (unsigned char)other[i];
        }
    }
    return 0;
}

int strcmp(const char *one, const char *other) {
    return strncmp(one, other, SIZE_MAX);
}

char *strncpy(char *restrict to, const char *restrict from, size_t bytes) {
    size_t length = strnlen(from, bytes);
    memcpy(to, from, length);
    memset(to + length, 0, bytes - length);
    return to;
}

char *strchr(const char *text, int c) {
    for (; *text != (char)c; text++) {
        if (*text == '\0') {
            return NULL;
        }
    }
    return (char *)(uintptr_t)text;
}

char *strstr(const char *text, const char *wanted) {
    size_t bytes = strlen(wanted);
    for (; *text != '\0'; text++) {
        if (strncmp(text, wanted, bytes) == 0) {
            return (char *)(uintptr_t)text;
        }
    }
    return NULL;
}

unsigned long long strtoull(const char *restrict text, char **restrict end, int base) {
    unsigned long long number = 0;
    (void)base;
    for (; *text >= '0' && *text <= '9'; text++) {
        number = number * 10 + (unsigned long long)(*text - '0');
    }
    *end = (char *)(uintptr_t)text;
    return number;
}

/* Why a trace could not be made; messages are libc's. */
char *strerror(int code) {
    static const struct {
        int code;
        const char *text;
    } known[] = {
        {ENOENT, "No such file or directory"}, {EACCES, "Permission denied"},         {EPERM, "Operation not permitted"},
        {ENOSPC, "No space left on device"},   {EROFS, "Read-only file system"},      {EDQUOT, "Disk quota exceeded"},
        {EFBIG, "File too large"},             {ENAMETOOLONG, "File name too long"},  {ENOMEM, "Cannot allocate memory"},
        {ENOTDIR, "Not a directory"},          {EMFILE, "Too many open files"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].code == code) {
            return (char *)(uintptr_t)known[i].text;
        }
    }
    return (char *)(uintptr_t)"the system does not allow it";
}

struct out {
    char *at;
    size_t used, room;
};

static void put(struct out *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (out->used + 1 < out->room) {
            out->at[out->used] = *text;
        }
        out->used++;
    }
}

static void put_number(struct out *out, unsigned number, int is_negative) {
    char digits[12], *at = digits + sizeof digits - 1;
    *at = '\0';
    do {
        *--at = (char)('0' + number % 10);
    } while ((number /= 10) != 0);
    if (is_negative) {
        *--at = '-';
    }
    put(out, at);
}

int snprintf(char *restrict to, size_t room, const char *restrict format, ...) {
    struct out out = {to, 0, room};
    va_list values;
    va_start(values, format);
    for (; *format != '\0'; format++) {
        char plain[2] = {*format, '\0'};
        if (*format != '%') {
            put(&out, plain);
        } else if (*++format == 's') {
            put(&out, va_arg(values, const char *));
        } else if (*format == 'u') {
            put_number(&out, va_arg(values, unsigned), 0);
        } else {
            int number = va_arg(values, int);
            put_number(&out, number < 0 ? 0u - (unsigned)number : (unsigned)number, number < 0);
        }
    }
    va_end(values);
    if (room > 0) {
        to[out.used < room ? out.used : room - 1] = '\0';
    }
    return (int)out.used;
}
