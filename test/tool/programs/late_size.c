// SPDX-License-Identifier: MIT
/* 5,000 sizes once each, then one size 300,000 times */
#include <stdlib.h>
__attribute__((noinline)) static void one(size_t n) { free(malloc(n)); __asm__ volatile(""); }
int main(void) {
    for (int i = 0; i < 305000; i++) one(i < 5000 ? 10000 + i : 77);
    return 0;
}
