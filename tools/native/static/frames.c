// SPDX-License-Identifier: MIT
/*
 * frames.c - a table of a program's unwind entries, sorted by address: what linkers write into .eh_frame_hdr, but not for -static.
 *
 *   .eh_frame  CIE FDE FDE CIE FDE ...     -->     header | { start, FDE } { start, FDE } ...      distances from the header
 *
 * Entries whose addresses are written in another way than compilers write them here are left out: their frames are chained by rbp.
 * Locks: none, one thread runs.  Not here: what the entries say (src/prof/cfi.c).
 */
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../own/entry.h"
#include "static.h"

#define WAY_RELATIVE 0x1bu  // from where it stands, four bytes
#define WAY_TABLE    0x3bu  // from the header, four bytes
#define WAY_COUNT    0x03u

struct pair {
    int32_t start, entry;
};

struct header {
    uint8_t version, way_frames, way_count, way_table;
    int32_t frames;
    uint32_t count;
    struct pair pair[];
};

struct section {
    const unsigned char *at, *end;
};

static struct section find(const unsigned char *file, size_t bytes, uintptr_t bias) {
    const Elf64_Ehdr *head = (const void *)file;
    struct section none = {NULL, NULL};
    if (bytes < sizeof *head || head->e_shoff > bytes || (uint64_t)head->e_shnum * sizeof(Elf64_Shdr) > bytes - head->e_shoff ||
        head->e_shstrndx >= head->e_shnum) {
        return none;
    }
    const Elf64_Shdr *sections = (const void *)(file + head->e_shoff), *names = &sections[head->e_shstrndx];
    for (unsigned i = 0; i < head->e_shnum; i++) {
        uint64_t name = names->sh_offset + sections[i].sh_name;
        bool is_it = name < bytes && bytes - name >= sizeof ".eh_frame" && memcmp(file + name, ".eh_frame", sizeof ".eh_frame") == 0;
        if (is_it && (sections[i].sh_flags & SHF_ALLOC) != 0) {
            const unsigned char *at = (const unsigned char *)(bias + sections[i].sh_addr);
            return (struct section){at, at + sections[i].sh_size};
        }
    }
    return none;
}

/* Whether its FDEs begin with a distance of four bytes: the letter R, and what stands for it. */
static bool is_understood(const unsigned char *cie, const unsigned char *end) {
    const unsigned char *letters = cie + 9, *at = letters + strlen((const char *)letters) + 1;
    if (letters[0] != 'z' || cie[8] != 1) {
        return false;
    }
    for (unsigned skipped = 0; skipped < 2; at++) {  // two factors
        skipped += (*at & 0x80) == 0;
    }
    at += 2;  // the return address's register, and how long the rest is: both below 128
    for (letters++; *letters != '\0' && at < end; letters++) {
        if (*letters == 'R') {
            return *at == WAY_RELATIVE;
        }
        if (*letters == 'P') {
            unsigned size = *at & 7;
            at += size == 0 || size == 4 ? 9 : size == 3 ? 5 : 3;
        } else if (*letters == 'L') {
            at++;
        } else if (*letters != 'S') {
            return false;
        }
    }
    return false;
}

/* Each FDE into the table, where there is one already; how many. */
static uint32_t collect(struct section frames, struct header *table) {
    uint32_t count = 0, bytes = 0, back = 0;
    for (const unsigned char *at = frames.at; at + 8 < frames.end; at += 4 + (size_t)bytes) {
        memcpy(&bytes, at, 4);
        memcpy(&back, at + 4, 4);
        const unsigned char *cie = at + 4 - back;
        bool is_entry = bytes >= 12 && bytes < (size_t)(frames.end - at - 3) && back != 0 && cie >= frames.at && cie < at;
        if (!is_entry || !is_understood(cie, frames.end)) {
            continue;
        }
        if (table != NULL) {
            int32_t away = 0;
            memcpy(&away, at + 8, 4);
            uintptr_t start = (uintptr_t)(at + 8) + (uintptr_t)(intptr_t)away;
            table->pair[count] = (struct pair){(int32_t)(intptr_t)(start - (uintptr_t)table), (int32_t)(at - (unsigned char *)table)};
        }
        count++;
    }
    return count;
}

static void sift(struct pair *pair, uint32_t from, uint32_t count) {
    for (uint32_t child; (child = 2 * from + 1) < count; from = child) {
        child += child + 1 < count && pair[child].start < pair[child + 1].start;
        if (pair[from].start >= pair[child].start) {
            return;
        }
        struct pair kept = pair[from];
        pair[from] = pair[child];
        pair[child] = kept;
    }
}

static void sort(struct pair *pair, uint32_t count) {
    for (uint32_t i = count / 2; i-- > 0;) {
        sift(pair, i, count);
    }
    for (uint32_t left = count; left-- > 1;) {
        struct pair kept = pair[0];
        pair[0] = pair[left];
        pair[left] = kept;
        sift(pair, 0, left);
    }
}

uintptr_t static_frames_table(uintptr_t bias, uintptr_t low, uintptr_t high) {
    struct stat about;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0) {
        return 0;
    }
    void *file = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED) {
        return 0;
    }
    struct section frames = find(file, (size_t)about.st_size, bias);
    munmap(file, (size_t)about.st_size);
    uint32_t count = frames.at == NULL ? 0 : collect(frames, NULL);
    size_t bytes = sizeof(struct header) + count * sizeof(struct pair);
    struct header *table = count == 0 ? NULL : entry_pages_near(low, high, bytes);
    if (table == NULL) {
        return 0;
    }
    *table = (struct header){.version = 1, .way_frames = WAY_RELATIVE, .way_count = WAY_COUNT, .way_table = WAY_TABLE, .count = count};
    collect(frames, table);
    sort(table->pair, count);
    mprotect(table, bytes, PROT_READ);
    return (uintptr_t)table;
}
