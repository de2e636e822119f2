// SPDX-License-Identifier: MIT
/*
 * arena_fuzz.cc - operation programs that libFuzzer writes, run against the arena's model.
 *
 *     CC=clang CXX=clang++ cmake --preset fuzz && cmake --build --preset fuzz
 *     build/fuzz/fuzz/arena_fuzz -max_len=4096 -len_control=0 -entropic=0 -max_total_time=600
 *
 * At its end it prints how many steps it ran.
 */
#include "bytes.h"
#include "model/arena_model.h"

extern "C" int LLVMFuzzerInitialize(int *, char ***) { return fuzz_say_steps_at_exit("arena_fuzz"); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Bytes bytes(data, size);
    quire_arena_opts opts = {};
    opts.size_hint_bytes = bytes.below(3) ? 0 : bytes.below(300000);
    opts.limit_bytes = bytes.below(4) ? 0 : size_t(1) << (13 + bytes.below(12));
    ArenaModel<Bytes> model(opts);
    for (; bytes.more(); fuzz_steps++)
        model.step(bytes);
    model.end();
    fuzz_stop_if_enough();
    return 0;
}
