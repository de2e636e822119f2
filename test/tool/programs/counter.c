// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) { for (unsigned long i = 0;; i++) { char *p = malloc(50); *p = 1; free(p); if (i % 100 == 0) { char t[32]; int k = snprintf(t, sizeof t, "%lu\n", i); pwrite(1, t, k, 0); } } }
