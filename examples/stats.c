// SPDX-License-Identifier: MIT
/* stats.c - what every object of a program holds: `stats` for people, `stats json`, `stats prometheus` for programs. */
#include <quire/percpu.h>
#include <quire/slab.h>
#include <quire/stats.h>
#include <stdio.h>
#include <string.h>

struct connection {
    int fd;
    char request[500];
};

int main(int argc, char **argv)
{
    static const char *const formats[] = {"text", "json", "prometheus"}; /* QUIRE_STATS_TEXT, _JSON, _PROMETHEUS */
    const char *wanted = argc > 1 ? argv[1] : "text";
    uint32_t format = QUIRE_STATS_TEXT;
    while (format <= QUIRE_STATS_PROMETHEUS && strcmp(formats[format], wanted) != 0)
        format++;

    struct quire_slab *connections = quire_slab_create(sizeof(struct connection), &(struct quire_slab_opts){.name = "connections"});
    struct quire_percpu *counters = quire_percpu_create(&(struct quire_percpu_opts){.name = "counters"});
    if (!connections || !counters)
        return perror("stats"), 1;
    for (int i = 0; i < 1000; i++)
        if (!quire_slab_alloc(connections) || !quire_percpu_alloc(counters, sizeof(intptr_t), 0).bits)
            return perror("stats"), 1;

    if (quire_stats_write(1, format) != 0)
        return perror("stats"), 1;
    quire_percpu_destroy(counters);
    quire_slab_destroy(connections); /* and all connections */
    return 0;
}
