// SPDX-License-Identifier: MIT
/*
 * guard_report.c - the line that tells what was done to a guarded block, and by whom it was made and freed.
 *
 *     quire: heap: G1 a freed block is read, byte 8 of 40; allocated by prog+0x1139 < prog+0x1203 (thread 17), freed by prog+0x1188 < ... (thread 18): address 0x7f...
 *
 * Names of functions are for who reads it (addr2line -fe prog 0x1139): the process has neither a library nor memory for them.  Places are return addresses,
 * as distances from where the file's own addresses begin.
 *
 * Locks: none.  Runs in the handler of a fault: calls nothing that allocates or waits.
 */
#include <string.h>

#include "base/panic.h"
#include "heap/heap_internal.h"
#include "os/os.h"
#include "prof/guard_internal.h"

enum { TEXT_BYTES = 800, STACK_BYTES = 300, FRAMES_SHOWN = 8, PATH_BYTES = 256 };

struct text {
    size_t used, most;
    char at[TEXT_BYTES];
};

static void add(struct text *text, const char *more)
{
    for (; *more && text->used < text->most - 1; more++)
        text->at[text->used++] = *more;
    text->at[text->used] = 0;
}

static void add_number(struct text *text, uint64_t n, unsigned base)
{
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    do
        digits[--at] = "0123456789abcdef"[n % base];
    while (n /= base);
    add(text, base == 16 ? "0x" : "");
    add(text, digits + at);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "libfoo.so+0x1234"; only the address where the loader cannot be asked in a handler. */
static void add_place(struct text *text, uintptr_t ip)
{
    struct os_object file;
    char path[PATH_BYTES];
    if (!os_object_is_quick() || !os_object_of(ip - 1, &file)) {
        add_number(text, ip, 16);
        return;
    }
    if (!file.name[0]) {
        os_program_path(path, sizeof path);
        add(text, last_part(path));
    } else {
        add(text, last_part(file.name));
    }
    add(text, "+");
    add_number(text, ip - file.bias, 16);
}

static void add_stack(struct text *text, const char *what, const uintptr_t *ips, unsigned count, uint64_t thread)
{
    size_t most = text->most;
    add(text, what);
    text->most = text->used + STACK_BYTES < most ? text->used + STACK_BYTES : most;
    for (unsigned i = 0; i < count && i < FRAMES_SHOWN; i++) {
        add(text, i ? " < " : "");
        add_place(text, ips[i]);
    }
    text->most = most;
    add(text, " (thread ");
    add_number(text, thread, 10);
    add(text, ")");
}

/* Where the address lies, told from the block. */
static void add_distance(struct text *text, const struct guard_slot *slot, uintptr_t at)
{
    bool is_before = at < slot->start, is_inside = !is_before && at < slot->start + slot->bytes;
    add(text, is_inside ? ", byte " : ", ");
    add_number(text, is_before ? slot->start - at : is_inside ? at - slot->start : at - slot->start - slot->bytes, 10);
    add(text, is_inside ? " of " : is_before ? " bytes before one of " : " bytes behind one of ");
    add_number(text, slot->bytes, 10);
}

void guard_refuse(const struct guard_slot *slot, const char *what, const void *address)
{
    struct text text = {.most = TEXT_BYTES};
    add(&text, what);
    if (slot && u32_load_relaxed(&slot->state) != GUARD_UNUSED) {
        add_distance(&text, slot, (uintptr_t)address);
        add_stack(&text, "; allocated by ", slot->birth, slot->birth_count, slot->birth_thread);
        if (slot->death_count)
            add_stack(&text, ", freed by ", slot->death, slot->death_count, slot->death_thread);
    }
    heap_let_go(&heap_of_process);
    panic("heap", NULL, text.at, address);
}
