// SPDX-License-Identifier: MIT
/*
 * meta.c - what events refer to: stacks, loaded modules, thread names.  One stream, thread number 0.
 *
 * Invariants:
 *   M1  a record is whole in the stream before the first event that needs it
 *   M2  a module is written once for each place it is loaded at, and again when another was there since; one that was unloaded keeps its record
 *
 * Locks: the recorder's, held by every caller.
 * Not here: symbols; names are found when the trace is analysed, from the files named here.
 */
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <unistd.h>

#include "record.h"

#define MODULES_MAX     2048
#define BUILD_ID_MAX    64
#define MODULE_TEXT_MAX (BUILD_ID_MAX + 4096)

static struct {
    struct qtr_live *live;
    uint32_t part;
    struct {
        uintptr_t start, end;
        uint64_t name_hash;  // another library may come to the same place
    } module[MODULES_MAX];
    unsigned modules;
    unsigned long long loads_seen;    // dlpi_adds when the modules were last listed
    unsigned long long unloads_seen;  // dlpi_subs
    char main_path[4096];
    char mapped_path[4096];
} meta;

static void stream_begin(uint32_t part) {
    uint64_t base = rec_tick();
    meta.part = part;
    meta.live->part_and_used = 0;
    atomic_signal_fence(memory_order_seq_cst);
    meta.live->block.thread = QTR_META_THREAD;
    meta.live->block.first_tick = base;
    memcpy(meta.live + 1, &base, sizeof base);
    atomic_signal_fence(memory_order_seq_cst);
    meta.live->part_and_used = (uint64_t)part << 32 | sizeof base;
}

bool rec_meta_start(void) {
    struct qtr_live *live = rec_file_live_block(meta.live);
    if (live == NULL) {
        return false;
    }
    meta.live = live;
    meta.modules = 0;
    meta.loads_seen = 0;
    stream_begin(0);
    ssize_t n = readlink("/proc/self/exe", meta.main_path, sizeof meta.main_path - 1);
    meta.main_path[n > 0 ? n : 0] = '\0';
    rec_meta_modules_changed();
    return true;
}

void rec_meta_forget(void) {
    meta.live = NULL;
    meta.modules = 0;
    meta.loads_seen = 0;
}

/* Room for a record of `bytes`, NULL when the trace has stopped. */
static void *record_begin(size_t bytes) {
    if (meta.live == NULL || rec_header->stop != QTR_STOP_NONE) {
        return NULL;
    }
    uint32_t used = (uint32_t)meta.live->part_and_used;
    if (used + bytes > QTR_STREAM_BYTES_MAX) {
        if (!rec_file_pack(meta.live)) {
            return NULL;
        }
        stream_begin(meta.part + 1);
        used = (uint32_t)meta.live->part_and_used;
    }
    return (unsigned char *)(meta.live + 1) + used;
}

static void record_end(size_t bytes) {
    atomic_signal_fence(memory_order_seq_cst);
    meta.live->part_and_used += bytes;
}

void rec_meta_stack(uint32_t id, const uintptr_t *ips, unsigned count) {
    size_t bytes = sizeof(struct qtr_meta_stack) + count * sizeof(uint64_t);
    struct qtr_meta_stack *record = record_begin(bytes);
    if (record != NULL) {
        record->head = (struct qtr_meta){.kind = QTR_META_STACK, .bytes = (uint16_t)bytes, .number = id};
        for (unsigned i = 0; i < count; i++) {
            record->ip[i] = ips[i];
        }
        record_end(bytes);
        rec_file_touch(false);
    }
}

void rec_meta_slots(uint32_t id, const uint16_t words[QTR_SLOTS_MAX]) {
    struct qtr_meta_slots *record = record_begin(sizeof *record);
    if (record != NULL) {
        record->head = (struct qtr_meta){.kind = QTR_META_SLOTS, .bytes = (uint16_t)sizeof *record, .number = id};
        memcpy(record->words, words, sizeof record->words);
        record_end(sizeof *record);
    }
}

void rec_meta_pool(uint32_t id, const char *name) {
    struct qtr_meta_pool *record = record_begin(sizeof *record);
    if (record != NULL) {
        memset(record, 0, sizeof *record);
        record->head = (struct qtr_meta){.kind = QTR_META_POOL, .bytes = (uint16_t)sizeof *record, .number = id};
        strncpy(record->name, name != NULL ? name : "", sizeof record->name - 1);
        record_end(sizeof *record);
    }
}

void rec_meta_thread(const struct rec_thread *thread) {
    struct qtr_meta_thread *record = record_begin(sizeof *record);
    if (record != NULL) {
        memset(record, 0, sizeof *record);
        record->head = (struct qtr_meta){
            .kind = QTR_META_THREAD_NAME, .bytes = (uint16_t)sizeof *record, .number = thread->number};
        record->first_tick = rec_tick();
        record->tid = thread->tid;
        memcpy(record->name, thread->name, sizeof thread->name);
        record_end(sizeof *record);
        rec_file_touch(false);
    }
}

/* The GNU build id in a PT_NOTE segment; 0 bytes when there is none. */
static size_t build_id_find(const struct dl_phdr_info *info, const unsigned char **id) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE) {
            continue;
        }
        const unsigned char *at = (const unsigned char *)(info->dlpi_addr + segment->p_vaddr);
        const unsigned char *end = at + segment->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof note);
            const unsigned char *name = at + sizeof note;
            const unsigned char *desc = name + ((note.n_namesz + 3u) & ~3u);
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(name, "GNU", 4) == 0 &&
                note.n_descsz <= BUILD_ID_MAX && desc + note.n_descsz <= end) {
                *id = desc;
                return note.n_descsz;
            }
            at = desc + ((note.n_descsz + 3u) & ~3u);
        }
    }
    return 0;
}

/*
 * The file that was loaded. The loader has it by the name that it was asked for: LD_LIBRARY_PATH=lib, dlopen("./plugin.so"). Who reads the trace may
 * be in another folder, and so may the program be by now; the kernel knows.
 */
static const char *module_path(const struct dl_phdr_info *info, uintptr_t start) {
    uintptr_t bounds[2];
    const char *name = info->dlpi_name != NULL ? info->dlpi_name : "";
    if (name[0] == '\0') {
        return meta.modules == 0 ? meta.main_path : "[unnamed]";
    }
    size_t slash = 0;
    while (name[slash] != '\0' && name[slash] != '/') {
        slash++;
    }
    bool is_relative = slash > 0 && name[slash] == '/';  // no slash: the kernel's own, linux-vdso.so.1
    bool is_known = is_relative && rec_mapping_of(start, bounds, meta.mapped_path, sizeof meta.mapped_path);
    return is_known && meta.mapped_path[0] == '/' ? meta.mapped_path : name;
}

static void module_write(const struct dl_phdr_info *info, uintptr_t start, uintptr_t end) {
    const unsigned char *id = NULL;
    size_t id_bytes = build_id_find(info, &id);
    const char *path = module_path(info, start);
    size_t path_bytes = strnlen(path, MODULE_TEXT_MAX - BUILD_ID_MAX - 1);
    size_t bytes = (offsetof(struct qtr_meta_module, text) + id_bytes + path_bytes + 1 + 7) & ~(size_t)7;
    struct qtr_meta_module *record = record_begin(bytes);
    if (record == NULL) {
        return;
    }
    memset(record, 0, bytes);
    record->head = (struct qtr_meta){
        .kind = QTR_META_MODULE, .bytes = (uint16_t)bytes, .number = (uint32_t)id_bytes};
    record->first_tick = rec_tick();
    record->start = start;
    record->end = end;
    record->bias = info->dlpi_addr;
    if (id_bytes > 0) {
        memcpy(record->text, id, id_bytes);
    }
    memcpy(record->text + id_bytes, path, path_bytes);
    record_end(bytes);
}

static uint64_t name_hash(const char *name) {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (; name != NULL && *name != '\0'; name++) {
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    }
    return hash;
}

static int module_visit(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    meta.loads_seen = info->dlpi_adds;
    uintptr_t start = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD) {
            uintptr_t low = info->dlpi_addr + segment->p_vaddr;
            start = low < start ? low : start;
            end = low + segment->p_memsz > end ? low + segment->p_memsz : end;
        }
    }
    uint64_t hash = name_hash(info->dlpi_name);
    for (unsigned i = 0; i < meta.modules; i++) {
        if (meta.module[i].start == start && meta.module[i].end == end && meta.module[i].name_hash == hash) {
            return 0;
        }
    }
    for (unsigned i = 0; i < meta.modules; i++) {
        if (meta.module[i].start < end && start < meta.module[i].end) {  // it is gone, or this could not be here
            meta.module[i--] = meta.module[--meta.modules];
        }
    }
    if (end > start && meta.modules < MODULES_MAX) {
        module_write(info, start, end);
        meta.module[meta.modules].start = start;
        meta.module[meta.modules].end = end;
        meta.module[meta.modules].name_hash = hash;
        meta.modules++;
    }
    return 0;
}

static int loads_visit(struct dl_phdr_info *info, size_t size, void *loads) {
    (void)size;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1;
}

static int unloads_visit(struct dl_phdr_info *info, size_t size, void *unloads) {
    (void)size;
    *(unsigned long long *)unloads = info->dlpi_subs;
    return 1;
}

bool rec_meta_unloaded(void) {
    unsigned long long seen = meta.unloads_seen;
    dl_iterate_phdr(unloads_visit, &meta.unloads_seen);
    return meta.unloads_seen != seen;
}

void rec_meta_modules_changed(void) {
    dl_iterate_phdr(module_visit, NULL);
}

static bool module_holds(uintptr_t ip) {
    for (unsigned i = 0; i < meta.modules; i++) {
        if (ip >= meta.module[i].start && ip < meta.module[i].end) {
            return true;
        }
    }
    return false;
}

bool rec_meta_module_known(uintptr_t ip) {
    unsigned long long loads = 0;
    dl_iterate_phdr(loads_visit, &loads);
    if (loads != meta.loads_seen) {
        rec_meta_modules_changed();
    }
    return module_holds(ip);  // else code that no file holds, a JIT's say
}
