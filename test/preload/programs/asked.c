// SPDX-License-Identifier: MIT
// A plan's site allocates and frees whole chunks in some threads; the main thread asks for statistics, or ends while they run.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) void *make(size_t n) { void *p = malloc(n); __asm__ volatile("" : "+r"(p)); return p; }
static void *work(void *a) {
    enum { N = 20000, M = 400 };
    static __thread void *p[N], *q[M];
    for (;;) {
        for (int i = 0; i < N; i++) p[i] = make(64);
        for (int i = 0; i < N; i++) free(p[i]);
        for (int i = 0; i < M; i++) { q[i] = malloc(512); memset(q[i], 0x5f, 512); }
        for (int i = 0; i < M; i++) free(q[i]);
    }
    return a;
}
int main(int c, char **v) {
    pthread_t t;
    for (int i = 0; i < 3; i++) pthread_create(&t, NULL, work, NULL);
    for (int i = 0; i < (c > 1 ? atoi(v[1]) : 300); i++) { malloc_stats(); usleep(200); }
    puts("sound");
    return 0;
}
