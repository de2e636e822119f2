// SPDX-License-Identifier: MIT
/*
 * steered.cc - one call site, for tests of plans.
 *
 *     steered keep | sized | sized_heap | c_sized | twice | right | coroutines
 */
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" void free_sized(void *p, size_t bytes) __attribute__((weak));

namespace {
enum { COUNT = 2000, STACK_BYTES = 36 << 10 };
void *kept[COUNT];

__attribute__((noinline)) void *make(size_t bytes)
{
    return ::operator new(bytes);
}

/* A wrapper with much of its own on the stack. */
__attribute__((noinline)) void *copied(size_t bytes)
{
    char text[bytes];
    memset(text, 'x', bytes);
    __asm__ volatile("" : : "r"(text) : "memory");
    return memcpy(malloc(bytes + 1), text, bytes);
}

__attribute__((noinline)) void copies()
{
    for (int round = 0; round < 3; round++) {
        for (void *&p : kept)
            p = copied(2000);
        for (void *p : kept)
            free(p);
    }
}

__attribute__((noinline)) void more_copies()
{
    for (int i = 0; i < COUNT; i++)
        free(copied(2000));
}

ucontext_t home, other;

void on(char *stack)
{
    getcontext(&other);
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = STACK_BYTES;
    other.uc_link = &home;
    makecontext(&other, reinterpret_cast<void (*)()>(reinterpret_cast<uintptr_t>(copied)), 1, 16);
    swapcontext(&home, &other);
}

/* What lay above the stack of the first is gone when it allocates again. */
void coroutines()
{
    void *both = mmap(nullptr, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *stacks = static_cast<char *>(both);
    on(stacks);
    on(stacks + STACK_BYTES);
    munmap(stacks + STACK_BYTES, STACK_BYTES);
    on(stacks);
}
} // namespace

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    for (void *&p : kept)
        p = make(64);
    if (strcmp(what, "keep") == 0)
        return puts("sound") < 0;
    if (strcmp(what, "sized") == 0)
        ::operator delete(kept[1], static_cast<size_t>(4000));
    if (strcmp(what, "sized_heap") == 0)
        ::operator delete[](::operator new[](64), static_cast<size_t>(4000));
    if (strcmp(what, "c_sized") == 0)
        free_sized(kept[1], 4000);
    if (strcmp(what, "twice") == 0) {
        ::operator delete(kept[COUNT - 1]);
        ::operator delete(kept[COUNT - 1]);
    }
    for (void *p : kept)
        ::operator delete(p, static_cast<size_t>(64));
    copies();
    more_copies();
    if (strcmp(what, "coroutines") == 0)
        coroutines();
    return puts("sound") < 0;
}
