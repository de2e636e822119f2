// SPDX-License-Identifier: MIT
/*
 * bytes.h - libFuzzer's bytes as the choices that a model asks for, and the count of steps said at the end, after FUZZ_STEPS of the environment,
 * and once in a million: who is stopped by a signal has said what it had done.
 */
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

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

inline uint64_t fuzz_steps;
inline uint64_t fuzz_steps_max = UINT64_MAX;
inline const char *fuzz_name;

inline void fuzz_say_steps() { fprintf(stderr, "%s: %lu steps\n", fuzz_name, fuzz_steps); }

/* For LLVMFuzzerInitialize(). */
inline int fuzz_say_steps_at_exit(const char *name)
{
    const char *most = getenv("FUZZ_STEPS");
    fuzz_steps_max = most ? strtoull(most, nullptr, 10) : UINT64_MAX;
    fuzz_name = name;
    atexit(fuzz_say_steps);
    return 0;
}

/* After each program.  libFuzzer takes exit() for a crash. */
inline void fuzz_stop_if_enough()
{
    static uint64_t said;
    if (fuzz_steps / 1000000 != said) {
        said = fuzz_steps / 1000000;
        fuzz_say_steps();
    }
    if (fuzz_steps >= fuzz_steps_max) {
        fuzz_say_steps();
        _exit(0);
    }
}
