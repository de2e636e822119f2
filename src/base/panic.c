// SPDX-License-Identifier: MIT
/*
 * panic.c - one line by write(2), then the user's hook, then a trap.
 *
 * The line is built in a buffer on the stack: the heap may be what is broken, and stdio may hold a lock.  A panic inside the hook traps at
 * once; one in another thread meanwhile writes its line and waits for the end.
 *
 * Locks: none.
 */
#include <stdint.h>

#include <quire/quire.h>

#include "base/atomic.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/os_probe.h"

enum { LINE_BYTES = 1024, NAME_BYTES_SHOWN = 64 };

static atomic_addr panic_hook;
static atomic_u64 panicking; /* the process and the thread whose panic it is; 0: nobody's */
static THREAD_LOCAL bool in_hook __attribute__((tls_model("initial-exec"))); /* in the child that the hook makes, too */

void quire_on_panic(void (*fn)(const char *message, const void *address))
{
    addr_store_relaxed(&panic_hook, (uintptr_t)fn);
}

struct line {
    char text[LINE_BYTES];
    size_t used;
};

static void line_add(struct line *line, const char *text, size_t bytes_max)
{
    for (size_t i = 0; i < bytes_max && text[i] && line->used < LINE_BYTES - 2; i++)
        line->text[line->used++] = text[i] >= ' ' && text[i] != 127 ? text[i] : '?';
}

static void line_add_hex(struct line *line, uintptr_t n)
{
    char digits[2 + 16 + 1] = "0x";
    int shift = 60, at = 2;
    while (shift > 0 && n >> shift == 0)
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        digits[at++] = "0123456789abcdef"[n >> shift & 15];
    digits[at] = 0;
    line_add(line, digits, SIZE_MAX);
}

void panic(const char *kind, const char *name, const char *what, const void *address)
{
    struct line line = {.used = 0};
    PROBE3(refused, (uintptr_t)kind, (uintptr_t)what, (uintptr_t)address);
    line_add(&line, "quire: ", SIZE_MAX);
    line_add(&line, kind, SIZE_MAX);
    if (name) {
        line_add(&line, " \"", SIZE_MAX);
        line_add(&line, name, NAME_BYTES_SHOWN);
        line_add(&line, "\"", SIZE_MAX);
    }
    line_add(&line, ": ", SIZE_MAX);
    line_add(&line, what, SIZE_MAX);
    line_add(&line, ": address ", SIZE_MAX);
    line_add_hex(&line, (uintptr_t)address);
    line.text[line.used] = '\n';
    os_write_stderr(line.text, line.used + 1);
    line.text[line.used] = 0;

    void (*hook)(const char *, const void *) = (void (*)(const char *, const void *))addr_load_relaxed(&panic_hook);
    uint64_t seen = u64_load_relaxed(&panicking), self = os_process_id() << 32 | os_thread_id();
    bool is_first = !in_hook && (seen == 0 || seen >> 32 != self >> 32) && u64_cas_acquire(&panicking, &seen, self); /* of this process: a child has the word, and not the thread */
    in_hook = in_hook || is_first;
    if (is_first && hook)
        hook(line.text, address);
    else if (!in_hook && seen != self)
        for (;;) /* another thread's hook is at work; it ends the process */
            os_sleep_ns(1000000000u);
    __builtin_trap();
}
