// SPDX-License-Identifier: MIT
/*
 * prof_kit.h - what the tests of heap profiles share: malloc's names as the preload library has them, and a profile that begins anew.
 */
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#include <quire/heap.h>

#include "look/look_out.h"
#include "os/os.h"
#include "prof/prof_internal.h"
#include "support.h"

/* heap_internal.h has names that are C++'s. */
extern "C" {
void *heap_malloc(size_t bytes);
void *heap_malloc_zero(size_t bytes);
void heap_free_any(void *p);
bool heap_size_fits(const void *p, size_t bytes, size_t align_bytes);
bool heap_size_may_fit(const void *p, size_t bytes);
}

__attribute__((noinline)) inline void *profiled_malloc(size_t bytes)
{
    void *p = prof_alloc(bytes, PROF_CALLER);
    return p;
}

__attribute__((noinline)) inline void *profiled_realloc(void *p, size_t bytes)
{
    void *fresh = prof_realloc(p, bytes, PROF_CALLER);
    return fresh;
}

inline void profiled_free(void *p)
{
    heap_free_any(p);
}

struct Profile {
    explicit Profile(uint64_t every_bytes, uint64_t at_bytes = 0)
    {
        (void)quire_heap_default();
        struct prof_opts opts = {};
        opts.every_bytes = every_bytes;
        opts.at_bytes = at_bytes;
        prof_start(&opts);
    }

    static struct prof_stats stats()
    {
        struct prof_stats stats;
        prof_stats(&stats);
        return stats;
    }

    /* As it is written. */
    static std::string text()
    {
        char path[] = "/tmp/quire-prof-XXXXXX";
        int fd = mkstemp(path);
        unlink(path);
        struct out out;
        out_begin(&out, fd);
        prof_write(&out);
        EXPECT_EQ(out_end(&out), 0);
        std::string text;
        char buffer[4096];
        lseek(fd, 0, SEEK_SET);
        for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
            text.append(buffer, size_t(got));
        close(fd);
        return text;
    }
};
