// SPDX-License-Identifier: MIT
/*
 * library.c - finds a loaded library by its file, and its functions in its dynamic symbols, one after the other: it is asked seven times.
 *
 * dlopen(RTLD_NOLOAD) will not do before the constructors: glibc runs those of a library that was preloaded and has not had its turn.
 *
 * Locks: none of its own.
 */
#include "library.h"

#include <string.h>
#include <sys/stat.h>

#define VERSION_HIDDEN 0x8000u

struct search {
    struct stat file;
    uintptr_t bias;
    const ElfW(Dyn) *dynamic;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *arg) {
    struct search *search = arg;
    struct stat file;
    (void)size;
    if (info->dlpi_name == NULL || info->dlpi_name[0] != '/' || stat(info->dlpi_name, &file) != 0 || file.st_ino != search->file.st_ino ||
        file.st_dev != search->file.st_dev) {
        return 0;
    }
    search->bias = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            search->dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        }
    }
    return 1;
}

/* How many symbols there are: the hash table says so only by its longest chain. */
static unsigned count_by_gnu_hash(const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], last = 0;
    const uint32_t *bucket = (const uint32_t *)((const uint64_t *)(hash + 4) + hash[2]);
    for (uint32_t i = 0; i < buckets; i++) {
        last = bucket[i] > last ? bucket[i] : last;
    }
    if (last < first || last == 0) {
        return first;
    }
    const uint32_t *chain = bucket + buckets - first;
    while ((chain[last] & 1) == 0) {
        last++;
    }
    return last + 1;
}

bool library_find(struct library *library, const char *path) {
    struct search search = {.dynamic = NULL};
    *library = (struct library){0};
    if (stat(path, &search.file) != 0 || dl_iterate_phdr(look_at, &search) == 0 || search.dynamic == NULL) {
        return false;
    }
    library->bias = search.bias;
    for (const ElfW(Dyn) *entry = search.dynamic; entry->d_tag != DT_NULL; entry++) {
        uintptr_t at = entry->d_un.d_ptr < search.bias ? search.bias + entry->d_un.d_ptr : entry->d_un.d_ptr;
        const void *to = (const void *)at;
        switch (entry->d_tag) {
        case DT_SYMTAB: library->symbols = to; break;
        case DT_STRTAB: library->names = to; break;
        case DT_VERSYM: library->versions = to; break;
        case DT_HASH: library->count = ((const uint32_t *)to)[1]; break;
        case DT_GNU_HASH: library->count = count_by_gnu_hash(to); break;
        default: break;
        }
    }
    return library->symbols != NULL && library->names != NULL;
}

void *library_function(const struct library *library, const char *name) {
    for (unsigned i = 0; i < library->count; i++) {
        const ElfW(Sym) *symbol = &library->symbols[i];
        bool is_hidden = library->versions != NULL && (library->versions[i] & VERSION_HIDDEN) != 0;
        unsigned type = ELF64_ST_TYPE(symbol->st_info);
        if (symbol->st_shndx != SHN_UNDEF && !is_hidden && (type == STT_FUNC || type == STT_GNU_IFUNC) &&
            strcmp(library->names + symbol->st_name, name) == 0) {
            void *at = (void *)(library->bias + symbol->st_value);
            return type == STT_FUNC ? at : ((void *(*)(void))at)();
        }
    }
    return NULL;
}
