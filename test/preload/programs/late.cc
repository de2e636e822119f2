// SPDX-License-Identifier: MIT
/*
 * late - C++ in a library that a C program opens late and to itself: operator new is ours all the same, and has to find who can throw.
 */
#include <cstddef>
#include <cstdint>
#include <new>

static volatile size_t huge_bytes = SIZE_MAX / 4 * 3;
static int handler_calls;

extern "C" int late_new()
{
    int broken = 0;
    try {
        operator delete(operator new(huge_bytes));
        broken |= 1;
    } catch (const std::bad_alloc &) {
    }
    std::set_new_handler([] {
        handler_calls++;
        throw std::bad_alloc();
    });
    broken |= operator new(huge_bytes, std::nothrow) ? 2 : 0;
    broken |= handler_calls == 1 ? 0 : 4;
    std::set_new_handler(nullptr);
    operator delete(operator new(100), 100);
    return broken;
}
