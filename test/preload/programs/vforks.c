// SPDX-License-Identifier: MIT
// A vfork child that limits its addresses, in a process and in the child of a fork.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static long vmsize(void) { char b[4096]; FILE *f = fopen("/proc/self/statm", "r"); long n = 0; if (fgets(b, sizeof b, f)) n = atol(b); fclose(f); return n * 4 / 1024; }
static void one(const char *who) {
    void *volatile p = malloc(100);
    long before = vmsize();
    pid_t c = vfork();
    if (c == 0) { struct rlimit l = {1ul << 40, 1ul << 40}; setrlimit(RLIMIT_AS, &l); _exit(0); }
    waitpid(c, NULL, 0);
    printf("%s: %ld MiB before the vfork, %ld after\n", who, before, vmsize()); fflush(stdout);
    free(p);
}
int main(void) {
    one("first process");
    pid_t c = fork();
    if (c == 0) { one("child of a fork"); _exit(0); }
    waitpid(c, NULL, 0);
    return 0;
}
