// SPDX-License-Identifier: MIT
// one block each of 150 sizes, and before the Nth of them 200 MiB in blocks of one size: for some N the report's list has not the largest
#include <stdlib.h>
void *volatile kept;
int main(int c, char **v) {
    for (int k = 0; k < 150; k++) {
        if (k == atoi(v[1])) for (int i = 0; i < 20; i++) kept = malloc(10 << 20);
        kept = malloc(40000 + k * 5000);
    }
    return 0;
}
