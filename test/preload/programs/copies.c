// SPDX-License-Identifier: MIT
/*
 * copies.c - children of clone(), which runs no handlers of a fork, while the clock's thread gives memory back: the program knows of one thread only, so
 * its children may call whatever they want.  With decay:1ms.  `copies cut`: the child of a vfork limits its addresses, and changes nothing of the parent's.
 */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <linux/kcmp.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "churn.h"

enum { BLOCKS = 3000, OF_CHILD = 300, BYTES = 20000, ROUNDS = 12, CHILDREN = 40, STACK_BYTES = 64 << 10 };
static char *blocks[BLOCKS];

static void fill_and_free(int count)
{
    for (int i = 0; i < count; i++)
        if ((blocks[i] = malloc(BYTES)) != NULL)
            memset(blocks[i], 1, BYTES);
    for (int i = 0; i < count; i++)
        free(blocks[i]);
}

static int child(void *unused)
{
    alarm(20);
    fill_and_free(OF_CHILD);
    free(malloc(5 << 20));
    _exit(0);
    return unused != NULL;
}

static void copies(void)
{
    char *stack = malloc(STACK_BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        fill_and_free(BLOCKS);
        for (int i = 0; i < CHILDREN; i++) {
            int status = -1;
            pid_t pid = clone(child, stack + STACK_BYTES, SIGCHLD, NULL);
            MUST(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "round %d, child %d: %x", round, i, (unsigned)status);
        }
    }
    free(stack);
}

static size_t addresses_kib(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fscanf(file, "%zu", &pages) == 1, "statm");
    fclose(file);
    return pages * 4;
}

static void cut(void)
{
    if (syscall(SYS_kcmp, getpid(), getpid(), KCMP_VM, 0, 0) != 0) {
        printf("not here\n"); /* without it a child of vfork cannot be told from one of clone */
        exit(0);
    }
    free(malloc(1000));
    size_t before = addresses_kib();
    pid_t pid = vfork();
    if (pid == 0) {
        struct rlimit limit = {8ul << 30, 8ul << 30};
        _exit(setrlimit(RLIMIT_AS, &limit));
    }
    int status = -1;
    MUST(waitpid(pid, &status, 0) == pid && status == 0, "the child: %x", (unsigned)status);
    MUST(addresses_kib() >= before, "%zu KiB of addresses, %zu before", addresses_kib(), before);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "cut") == 0)
        cut();
    else
        copies();
    return must_end();
}
