// SPDX-License-Identifier: MIT
/* netdata.c - a program written for netdata's allocators goes on under their names. */
#include <quire/compat/netdata.h>
#include <stdio.h>

struct dimension {
    const char *name;
    double value;
};

int main(void)
{
    ONEWAYALLOC *query = onewayalloc_create(0);
    ARAL *dimensions = aral_create("dimensions", sizeof(struct dimension), 0, 0, NULL, NULL, NULL, false, false, false);
    struct dimension *all[1000];
    char name[32];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "cpu%d", i);
        all[i] = aral_callocz(dimensions);
        all[i]->name = onewayalloc_strdupz(query, name); /* never NULL: it ends the process */
    }
    for (int i = 0; i < 900; i++)
        aral_freez(dimensions, all[i]);
    printf("%zu bytes of elements are used, the last is %s\n", aral_used_bytes(dimensions), all[999]->name);
    aral_destroy(dimensions);
    onewayalloc_destroy(query); /* and all names */
}
