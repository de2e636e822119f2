// SPDX-License-Identifier: MIT
/*
 * must.h - what a model says when the library differs from it: an exception that names the line.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#define MUST(condition)                                                                                                            \
    do {                                                                                                                           \
        if (!(condition))                                                                                                          \
            throw std::logic_error(std::string(#condition ", line ") + std::to_string(__LINE__));                                  \
    } while (0)

/* Whether all `bytes` are `value`: one call, where a loop took most of a fuzzer's time. */
inline bool filled_with(const void *p, uint8_t value, size_t bytes)
{
    const unsigned char *byte = static_cast<const unsigned char *>(p);
    return bytes == 0 || (*byte == value && memcmp(byte, byte + 1, bytes - 1) == 0);
}
