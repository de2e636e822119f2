// SPDX-License-Identifier: MIT
/* few allocations, a second of work, an end that runs no destructor */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int n, char **v) {
    for (int i = 0; i < 100; i++) free(malloc(50));
    volatile double s = 0;
    for (long i = 1; i < 150000000; i++) s += 1.0 / i;
    if (n > 1) syscall(SYS_exit_group, 0);
    quick_exit(0);
}
