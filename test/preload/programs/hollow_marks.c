// SPDX-License-Identifier: MIT
/* On a system that says yes to marks in the page tables and makes none, as qemu-user does: a secure heap's large blocks are zero, and closed when they are freed. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 40000, GUARD_INSTALL = 102 };
static sigjmp_buf back;
static void touched(int number) { siglongjmp(back, number); }

static void say_yes(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, GUARD_INSTALL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO), /* 0: done, it says */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        say_yes();
        execl(argv[0], argv[0], "again", (char *)NULL);
        return 2;
    }
    signal(SIGSEGV, touched);
    for (volatile int i = 0; i < 400; i++) {
        char *p = calloc(1, BYTES);
        for (int at = 0; at < BYTES; at++)
            if (p[at])
                return printf("a block is not zero\n"), 1;
        memset(p, 'x', BYTES);
        free(p);
        if (sigsetjmp(back, 1) == 0) {
            if (((volatile char *)p)[BYTES / 2] == 'x')
                return printf("a freed block can be read\n"), 1;
        }
    }
    printf("sound\n");
    return 0;
}
