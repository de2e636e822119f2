// SPDX-License-Identifier: MIT
// a realloc to a smaller size, with no memory left: libc's never fails
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    static void *p[100000];
    int n = 0;
    while (n < 100000 && (p[n] = malloc(60000)) != NULL) n++;
    while (n < 100000 && (p[n] = malloc(3000)) != NULL) n++;
    while (n < 100000 && (p[n] = malloc(200)) != NULL) n++;
    errno = 0;
    for (size_t to = 55000; to > 16; to = to * 3 / 4) { void *q = realloc(p[0], to); if (!q) { printf("realloc(60000 -> %zu): NULL, errno %d\n", to, errno); return 1; } p[0] = q; }
    puts("sound"); return 0;
}
