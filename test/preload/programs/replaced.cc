// SPDX-License-Identifier: MIT
/*
 * replaced - a program with an operator new and delete of its own, which keep a header in front of each block: the other forms are made of these two.
 */
#include <cstdlib>
#include <new>

#include "must.h"

static const size_t magic = 0x5eed;
struct header {
    size_t magic, bytes;
};
static int made, gone;

void *operator new(size_t bytes)
{
    auto *head = static_cast<header *>(malloc(sizeof(header) + bytes));
    if (!head)
        throw std::bad_alloc();
    *head = {magic, bytes};
    made++;
    return head + 1;
}

void operator delete(void *p) noexcept
{
    if (!p)
        return;
    auto *head = static_cast<header *>(p) - 1;
    MUST(head->magic == magic, "a block that was not made here: %p", p);
    head->magic = 0;
    gone++;
    free(head);
}

int main()
{
    for (int i = 0; i < 100; i++) {
        operator delete(operator new(40), size_t(40));
        operator delete(operator new(40, std::nothrow));
        operator delete[](operator new[](40), size_t(40));
        operator delete[](operator new[](40, std::nothrow), std::nothrow);
    }
    MUST(made == 400 && gone == 400, "made %d, gone %d", made, gone);
    puts("sound");
    return 0;
}
