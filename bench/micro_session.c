// SPDX-License-Identifier: MIT
/*
 * micro_session.c - an interpreter's day: it loads, takes in libraries, answers requests, then everything is freed and given back.
 *
 *   load        1,000,000 objects, every second one dies young    --> memory
 *   libraries   2,600,000 more, likewise                          --> memory
 *   test        100 requests of 26,000 objects; half of each is garbage, swept at its end; the other half stays   --> memory, requests a CPU-second
 *   give back   all freed in the order of birth, then the allocator's own call for it    --> memory
 *
 * These are the phases for which the seed's figures were published; sizes are an interpreter's (micro_interpreter.c), live memory is as much as there.
 */
#include <string.h>

#include "micro_driver.h"

enum { LOAD = 1000000, LIBRARIES = 2600000, REQUESTS = 100, REQUEST_OBJECTS = 26000, LIVE_MAX = 4000000, YOUNG = 512 };

static char **live;
static size_t live_count;
static uint64_t state = 88172645463325252u;

static char *object(void)
{
    size_t bytes = micro_object_bytes(bench_random(&state) >> 8);
    char *made = malloc(bytes);
    if (!made)
        bench_die("out of memory");
    memset(made, 1, bytes < 16 ? bytes : 16);
    return made;
}

static void grow(size_t objects)
{
    char *young[YOUNG] = {0};
    for (size_t i = 0; i < objects; i += 2) {
        live[live_count++] = object();
        free(young[i / 2 % YOUNG]);
        young[i / 2 % YOUNG] = object();
    }
    for (size_t i = 0; i < YOUNG; i++)
        free(young[i]);
}

static void answer(void)
{
    static char *garbage[REQUEST_OBJECTS / 2];
    for (size_t i = 0; i < REQUEST_OBJECTS / 2; i++) {
        live[live_count++] = object();
        garbage[i] = object();
    }
    for (size_t i = 0; i < REQUEST_OBJECTS / 2; i++)
        free(garbage[i]);
}

void micro_session(const struct micro_config *config)
{
    live = bench_scratch(LIVE_MAX, sizeof *live);
    size_t start_bytes = bench_rss_bytes(), requests = micro_count(config, REQUESTS);
    micro_begin();
    grow(micro_count(config, LOAD));
    size_t load_bytes = bench_rss_bytes() - start_bytes;
    grow(micro_count(config, LIBRARIES));
    size_t libraries_bytes = bench_rss_bytes() - start_bytes;
    uint64_t request_ns = bench_process_ns();
    for (size_t i = 0; i < requests; i++)
        answer();
    request_ns = bench_process_ns() - request_ns;
    size_t test_bytes = bench_rss_bytes() - start_bytes;
    for (size_t i = 0; i < live_count; i++)
        free(live[i]);
    bench_give_back();
    size_t end_bytes = bench_rss_bytes();
    micro_row(config, micro_count(config, LOAD) + micro_count(config, LIBRARIES) + requests * REQUEST_OBJECTS);
    bench_row_number("requests_per_cpu_s", (double)requests * 1e9 / (double)request_ns);
    bench_row_count("load_bytes", load_bytes);
    bench_row_count("libraries_bytes", libraries_bytes);
    bench_row_count("test_bytes", test_bytes);
    bench_row_count("given_back_bytes", end_bytes > start_bytes ? end_bytes - start_bytes : 0);
}
