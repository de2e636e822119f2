// SPDX-License-Identifier: MIT
/*
 * cxx - operator new and delete in all forms: alignment, the new-handler, what is thrown and what is not.
 */
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "must.h"

static volatile size_t huge_bytes = SIZE_MAX / 2;
static int handler_calls;
static void *reserve;

static void handler_gives_up()
{
    if (++handler_calls == 3)
        std::set_new_handler(nullptr);
}

static void handler_throws()
{
    handler_calls++;
    throw std::bad_alloc();
}

template <class Fn> static bool throws_bad_alloc(Fn fn)
{
    try {
        (void)fn();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static void forms()
{
    for (size_t n = 0; n < 70000; n = n * 5 / 4 + 1) {
        void *p[6] = {operator new(n), operator new[](n), operator new(n, std::nothrow), operator new[](n, std::nothrow),
                      operator new(n, std::align_val_t(256)), operator new[](n, std::align_val_t(256), std::nothrow)};
        for (void *q : p) {
            MUST(q && reinterpret_cast<uintptr_t>(q) % 16 == 0, "new(%zu) is %p", n, q);
            memset(q, 1, n);
        }
        MUST(reinterpret_cast<uintptr_t>(p[4]) % 256 == 0 && reinterpret_cast<uintptr_t>(p[5]) % 256 == 0, "aligned new(%zu)", n);
        operator delete(p[0]);
        operator delete[](p[1], n);
        operator delete(p[2], n);
        operator delete[](p[3], std::nothrow);
        operator delete(p[4], n, std::align_val_t(256));
        operator delete[](p[5], std::align_val_t(256), std::nothrow);
    }
    operator delete(nullptr);
    operator delete[](nullptr, 5);
}

static void failures()
{
    MUST(throws_bad_alloc([] { return operator new(huge_bytes * 2); }), "new");
    MUST(throws_bad_alloc([] { return operator new[](huge_bytes * 2); }), "new[]");
    MUST(throws_bad_alloc([] { return operator new(huge_bytes * 2, std::align_val_t(64)); }), "aligned new");
    MUST(throws_bad_alloc([] { return operator new(64, std::align_val_t(24)); }), "new at 24");
    MUST(throws_bad_alloc([] { return new std::string[huge_bytes]; }), "new string[]");
    MUST(operator new(huge_bytes * 2, std::nothrow) == nullptr, "nothrow new");
    MUST(operator new[](huge_bytes * 2, std::nothrow) == nullptr, "nothrow new[]");
    MUST(operator new(huge_bytes * 2, std::align_val_t(64), std::nothrow) == nullptr, "nothrow aligned new");
    MUST(throws_bad_alloc([] { return std::vector<char>(huge_bytes).size(); }), "vector");
}

static void handlers()
{
    std::set_new_handler(handler_gives_up);
    MUST(throws_bad_alloc([] { return operator new(huge_bytes * 2); }) && handler_calls == 3, "the handler was called %d times", handler_calls);
    handler_calls = 0;
    std::set_new_handler(handler_throws);
    MUST(operator new(huge_bytes * 2, std::nothrow) == nullptr && handler_calls == 1, "a handler that throws, nothrow: %d calls", handler_calls);
    MUST(operator new[](huge_bytes * 2, std::align_val_t(64), std::nothrow) == nullptr && handler_calls == 2, "aligned: %d calls", handler_calls);
    MUST(throws_bad_alloc([] { return operator new(huge_bytes * 2); }) && handler_calls == 3, "a handler that throws: %d calls", handler_calls);
    std::set_new_handler(nullptr);
}

/* Under limit:64M: the handler frees what was kept in reserve, and new succeeds. */
static void handler_frees()
{
    reserve = operator new(40 << 20);
    std::set_new_handler([] {
        handler_calls++;
        operator delete(reserve);
        reserve = nullptr;
        std::set_new_handler(nullptr);
    });
    handler_calls = 0;
    void *p = operator new(40 << 20);
    MUST(p && handler_calls == 1 && !reserve, "%d calls", handler_calls);
    operator delete(p);
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "limit") == 0) {
        handler_frees();
        return must_end();
    }
    forms();
    failures();
    handlers();
    return must_end();
}
