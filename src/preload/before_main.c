// SPDX-License-Identifier: MIT
/*
 * before_main.c - a call between the libraries' constructors and the program's own.
 *
 *     ld.so -> our constructor -> libc's, all others' -> _start --slot--> start_here() -> fn() -> __libc_start_main -> main
 *
 * Our constructor is too early for some things: before libc's own has run, dlopen() would run that with no arguments and no environment.  So
 * the slot through which the program's _start calls libc leads here until it is used, once.
 *
 * Locks: none; no thread but the first is there.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/align.h"
#include "os/os.h"
#include "preload/preload.h"

typedef int main_function(int count, char **words, char **list);
typedef int start_function(main_function *main, int count, char **words, void (*init)(void), void (*end)(void), void (*loader_end)(void), void *stack);

static struct {
    start_function *next;
    start_function **slot;
    bool is_read_only;
    void (*fn)(void);
} start;

/* What the loader's tables of the program say. */
struct tables {
    uintptr_t bias, closed_start, closed_end; /* the part that is read-only after relocation */
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *of[2]; /* data's, calls' */
    size_t bytes[2];
};

static void tables_read(struct tables *tables, const ElfW(Dyn) *at)
{
    for (; at->d_tag != DT_NULL; at++) {
        uintptr_t value = at->d_un.d_ptr, address = value < tables->bias ? tables->bias + value : value;
        switch (at->d_tag) {
        case DT_SYMTAB: tables->symbols = (const ElfW(Sym) *)address; break;
        case DT_STRTAB: tables->names = (const char *)address; break;
        case DT_RELA: tables->of[0] = (const ElfW(Rela) *)address; break;
        case DT_RELASZ: tables->bytes[0] = value; break;
        case DT_JMPREL: tables->of[1] = (const ElfW(Rela) *)address; break;
        case DT_PLTRELSZ: tables->bytes[1] = value; break;
        default: break;
        }
    }
}

static bool program_read(struct tables *tables)
{
    struct os_object program;
    const ElfW(Dyn) *dynamic = NULL;
    if (!os_object_of(getauxval(AT_ENTRY), &program))
        return false;
    *tables = (struct tables){.bias = program.bias};
    const ElfW(Phdr) *segment = program.segments;
    for (size_t i = 0; i < program.count; i++, segment++) {
        uintptr_t at = program.bias + segment->p_vaddr;
        if (segment->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)at;
        if (segment->p_type == PT_GNU_RELRO) {
            tables->closed_start = at;
            tables->closed_end = align_down(at + segment->p_memsz, os_page_bytes()); /* a page in part stays open */
        }
    }
    if (dynamic)
        tables_read(tables, dynamic);
    return tables->symbols && tables->names;
}

/* Also what it leads to: by the loader's name for it where it may not be bound yet. */
static bool slot_find(const struct tables *tables)
{
    static const char name[] = "__libc_start_main";
    for (int part = 0; part < 2; part++)
        for (size_t i = 0; tables->of[part] && i < tables->bytes[part] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *rela = &tables->of[part][i];
            const ElfW(Sym) *symbol = &tables->symbols[ELF64_R_SYM(rela->r_info)];
            if (strcmp(tables->names + symbol->st_name, name) != 0)
                continue;
            start.slot = (start_function **)(tables->bias + rela->r_offset);
            start.next = part == 0 ? *start.slot : (start_function *)(uintptr_t)dlsym(RTLD_DEFAULT, name);
            return start.next != NULL;
        }
    return false;
}

static bool slot_set(start_function *value)
{
    void *page = (void *)align_down((uintptr_t)start.slot, os_page_bytes());
    if (start.is_read_only && os_commit(page, os_page_bytes()) != 0)
        return false;
    *start.slot = value;
    if (start.is_read_only)
        (void)os_show(page, os_page_bytes());
    return true;
}

static int start_here(main_function *main, int count, char **words, void (*init)(void), void (*end)(void), void (*loader_end)(void), void *stack)
{
    (void)slot_set(start.next);
    start.fn();
    return start.next(main, count, words, init, end, loader_end, stack);
}

bool before_main(void (*fn)(void))
{
    struct tables tables;
    if (!program_read(&tables) || !slot_find(&tables))
        return false;
    uintptr_t at = (uintptr_t)start.slot;
    start.is_read_only = at >= tables.closed_start && at < tables.closed_end;
    start.fn = fn;
    return slot_set(start_here);
}
