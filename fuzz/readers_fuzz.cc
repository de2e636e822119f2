// SPDX-License-Identifier: MIT
/*
 * readers_fuzz.cc - edits that libFuzzer chooses, of a trace, a replay program or a plan, and the programs that read them.
 *
 *     CC=clang CXX=clang++ cmake --preset fuzz && cmake --build --preset fuzz
 *     build/fuzz/fuzz/readers_fuzz -close_fd_mask=3 -detect_leaks=0 -max_len=64 -len_control=0 -rss_limit_mb=4096 -max_total_time=600
 *
 * The programs leave memory and descriptors to the end of their process: both are given back after each file. At its end it prints how many files it gave them.
 */
#include "bytes.h"
#include "mangle/readers.h"

#include <memory>

static void give_back(int first_fd)
{
    for (void *memory : readers_memory)
        free(memory);
    readers_memory.clear();
    close_range(unsigned(first_fd), ~0u, 0);
}

static std::unique_ptr<Readers> readers;
static int first_fd;

extern "C" int LLVMFuzzerInitialize(int *, char ***)
{
    first_fd = dup(0);
    close(first_fd);
    readers = std::make_unique<Readers>();
    if (!readers->read_sound())
        abort();
    readers->learn();
    give_back(first_fd);
    return fuzz_say_steps_at_exit("readers_fuzz");
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (fuzz_steps == 0) { // libFuzzer has opened what it needs by now
        first_fd = dup(0);
        close(first_fd);
    }
    Bytes bytes(data, size);
    readers->step(bytes);
    give_back(first_fd);
    fuzz_steps++;
    fuzz_stop_if_enough();
    return 0;
}
