// SPDX-License-Identifier: MIT
/*
 * bytes.h - libFuzzer's bytes as the choices that a model asks for, and the count of steps said at the end.
 */
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

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
inline const char *fuzz_name;

/* For LLVMFuzzerInitialize(). */
inline int fuzz_say_steps_at_exit(const char *name)
{
    fuzz_name = name;
    atexit([] { fprintf(stderr, "%s: %lu steps\n", fuzz_name, fuzz_steps); });
    return 0;
}
