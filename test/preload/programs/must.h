// SPDX-License-Identifier: MIT
/*
 * must.h - how these programs say what went wrong: each broken promise is a line, and the program ends with "sound" when there was none.
 */
#ifndef TEST_PRELOAD_MUST_H
#define TEST_PRELOAD_MUST_H

#include <stdio.h>

static int must_broken;

#define MUST(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition) && must_broken++ < 20) {                                                  \
            printf("line %d: %s: ", __LINE__, #condition);                                         \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

static inline int must_end(void)
{
    if (must_broken == 0)
        printf("sound\n");
    return must_broken != 0;
}

#endif
