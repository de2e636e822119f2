// SPDX-License-Identifier: MIT
/*
 * arena_fuzz.cc - operation programs that libFuzzer writes, run against the arena's model.
 *
 *     CC=clang CXX=clang++ cmake --preset fuzz && cmake --build --preset fuzz
 *     build/fuzz/fuzz/arena_fuzz -max_len=4096 -max_total_time=600
 *
 * At its end it prints how many steps it ran.
 */
#include <cstdio>
#include <cstdlib>

#include "model/arena_model.h"

namespace {

/* Two bytes a choice; at the end of the input all choices are 0. */
class Bytes {
public:
    Bytes(const uint8_t *data, size_t size) : at(data), end(data + size) {}
    bool more() const { return end - at >= 2; }
    uint64_t below(uint64_t n)
    {
        uint64_t choice = more() ? uint64_t(at[0]) << 8 | at[1] : 0;
        at += more() ? 2 : 0;
        return n <= 65536 ? choice % n : choice * (n / 65536) % n;
    }
    uint64_t next() { return below(65536); }

private:
    const uint8_t *at, *end;
};

uint64_t steps;
void say_steps() { fprintf(stderr, "arena_fuzz: %lu steps\n", steps); }

} // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***)
{
    atexit(say_steps);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Bytes bytes(data, size);
    quire_arena_opts opts = {};
    opts.size_hint_bytes = bytes.below(3) ? 0 : bytes.below(300000);
    opts.limit_bytes = bytes.below(4) ? 0 : size_t(1) << (13 + bytes.below(12));
    ArenaModel<Bytes> model(opts);
    for (; bytes.more(); steps++)
        model.step(bytes);
    model.end();
    return 0;
}
