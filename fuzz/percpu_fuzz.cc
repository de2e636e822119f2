// SPDX-License-Identifier: MIT
/*
 * percpu_fuzz.cc - operation programs that libFuzzer writes, run against the per-CPU allocator's model, with restartable sequences on an area of
 * the program's own and without, one in 32 with threads that take turns.
 *
 *     CC=clang CXX=clang++ cmake --preset fuzz && cmake --build --preset fuzz
 *     build/fuzz/fuzz/percpu_fuzz -max_len=4096 -len_control=0 -entropic=0 -max_total_time=600
 *
 * At its end it prints how many steps it ran.
 */
#include "bytes.h"
#include "model/percpu_model.h"

extern "C" int LLVMFuzzerInitialize(int *, char ***) { return fuzz_say_steps_at_exit("percpu_fuzz"); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Bytes bytes(data, size);
    bool threads = bytes.below(32) == 1;
    os_rseq_mode mode = bytes.below(2) ? OS_RSEQ_FAKE : OS_RSEQ_OFF;
    PercpuModel<Bytes> model(percpu_setup(bytes, mode, threads), bytes);
    for (; model.alive() && bytes.more(); fuzz_steps++)
        model.step(bytes);
    model.end();
    fuzz_stop_if_enough();
    return 0;
}
