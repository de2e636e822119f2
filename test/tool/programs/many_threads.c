// SPDX-License-Identifier: MIT
/* so many threads alive at once, each allocates: a server with a thread for each connection */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static pthread_barrier_t all;
static void *work(void *u) {
    for (int i = 0; i < 200; i++) { char *p = malloc(50 + i); memset(p, 1, 50); free(p); }
    pthread_barrier_wait(&all);
    for (int i = 0; i < 200; i++) { char *p = malloc(50 + i); memset(p, 1, 50); free(p); }
    return NULL;
}
int main(int n, char **v) {
    int count = atoi(v[1]);
    pthread_t t[4096];
    pthread_attr_t a;
    pthread_attr_init(&a); pthread_attr_setstacksize(&a, 256 << 10);
    pthread_barrier_init(&all, NULL, count);
    for (int i = 0; i < count; i++) if (pthread_create(&t[i], &a, work, NULL)) return 9;
    for (int i = 0; i < count; i++) pthread_join(t[i], NULL);
    return 0;
}
