// SPDX-License-Identifier: MIT
/*
 * slots.c - the slots through which loaded objects call malloc's family lead to our hooks, and back again.
 *
 *   object: .got  [ malloc ] --before--> next allocator's malloc     --now--> malloc (hooks.c) --> next allocator's malloc
 *                     '- remembered: { slot, what it held, what it holds }
 *
 * A slot is a word that a relocation against one of the names fills: a call's (JUMP_SLOT), an address's (GLOB_DAT), one in data.
 * It is changed only where it holds what the hook will call, or where it is not bound yet and would be bound to that.
 *
 * Invariants:
 *   L1  a slot is one aligned store: who calls through it meanwhile gets the one or the other
 *   L2  a page is made writable only when it is not, and gets back what /proc/self/maps said: another thread's loader, in the
 *       middle of filling an object's slots, keeps its right to write
 *   L3  slots are touched while the loader's list stands still (dl_iterate_phdr), so their object is there
 *   L4  a slot that holds neither is left alone, on both ways: somebody else has changed it
 *
 * Locks: the recorder's.  Not here: when (attach.c).
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "slots.h"

#define SLOTS_MAX 65536u

struct slot {
    uintptr_t *at;
    uintptr_t before, hook;
};

/* An object as the loader has it. */
struct object {
    uintptr_t bias, start, end;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *rela[2];  // data's, calls'
    size_t count[2];
    const uint32_t *hash;  // DT_GNU_HASH
};

/* Protection of one mapping, as last asked. */
struct region {
    uintptr_t start, end;
    int protection;
};

static struct {
    struct slot *slot;
    uint32_t used;
    unsigned long long loads_seen;
    bool has_strays;  // some object's calls go to another malloc (RTLD_DEEPBIND): what an unbound slot is bound to is not known
} slots;

#define HOOKED(HOOK)                                                                                                   \
    HOOK(malloc) HOOK(calloc) HOOK(realloc) HOOK(reallocarray) HOOK(free) HOOK(aligned_alloc) HOOK(posix_memalign)     \
    HOOK(memalign) HOOK(valloc) HOOK(pvalloc) HOOK(dlclose) HOOK(pthread_setname_np) HOOK(_exit) HOOK(_Exit)

static struct rec_hook hooks[] = {
#define HOOK(name) {#name, (uintptr_t)name, 0},
    HOOKED(HOOK)
#undef HOOK
};

#define HOOKS (sizeof hooks / sizeof *hooks)

#if CPU_AARCH64
enum { CALL = R_AARCH64_JUMP_SLOT, ADDRESS = R_AARCH64_GLOB_DAT, DATA = R_AARCH64_ABS64 };
#else
enum { CALL = R_X86_64_JUMP_SLOT, ADDRESS = R_X86_64_GLOB_DAT, DATA = R_X86_64_64 };
#endif

/* Where the object lies that an address is of; NULL: of none. */
static const void *object_at(uintptr_t address) {
    Dl_info about;
    return address != 0 && dladdr((const void *)address, &about) != 0 ? about.dli_fbase : NULL;
}

/* C++'s are for those that belong to the malloc: all others call that. */
static void hooks_find(void) {
    struct rec_hook *news = NULL;
    unsigned count = rec_new_hooks(&news);
    for (unsigned i = 0; i < HOOKS; i++) {
        hooks[i].next = (uintptr_t)rec_next_symbol(hooks[i].name);
    }
    const void *owner = object_at(hooks[0].next);
    for (unsigned i = 0; i < count; i++) {
        uintptr_t next = (uintptr_t)rec_next_symbol(news[i].name);
        news[i].next = owner != NULL && object_at(next) == owner ? next : 0;
    }
}

bool rec_slots_start(void) {
    if (slots.used > 0) {
        rec_slots_restore();  // a child of a process that is recorded has them patched
    }
    hooks_find();
    if (slots.slot == NULL) {
        void *memory = mmap(NULL, SLOTS_MAX * sizeof(struct slot), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        slots.slot = memory == MAP_FAILED ? NULL : memory;
    }
    slots.used = 0;
    slots.loads_seen = 0;
    return slots.slot != NULL;
}

/* --- objects --- */

static const void *pointer_of(const struct object *object, uintptr_t value) {
    return (const void *)(value < object->bias ? object->bias + value : value);
}

static void dynamic_read(struct object *object, const ElfW(Dyn) *at) {
    size_t bytes[2] = {0, 0};
    for (; at->d_tag != DT_NULL; at++) {
        const void *to = pointer_of(object, at->d_un.d_ptr);
        switch (at->d_tag) {
        case DT_SYMTAB: object->symbols = to; break;
        case DT_STRTAB: object->names = to; break;
        case DT_GNU_HASH: object->hash = to; break;
        case DT_RELA: object->rela[0] = to; break;
        case DT_RELASZ: bytes[0] = at->d_un.d_val; break;
        case DT_JMPREL: object->rela[1] = to; break;
        case DT_PLTRELSZ: bytes[1] = at->d_un.d_val; break;
        default: break;
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        object->count[i] = object->rela[i] != NULL ? bytes[i] / sizeof(ElfW(Rela)) : 0;
    }
}

/* False: nothing here to look at. */
static bool object_read(struct object *object, const struct dl_phdr_info *info) {
    *object = (struct object){.bias = info->dlpi_addr, .start = UINTPTR_MAX};
    const ElfW(Dyn) *dynamic = NULL;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)low;
        } else if (segment->p_type == PT_LOAD) {
            object->start = low < object->start ? low : object->start;
            object->end = low + segment->p_memsz > object->end ? low + segment->p_memsz : object->end;
        }
    }
    uintptr_t here = (uintptr_t)&slots;
    if (dynamic == NULL || (here >= object->start && here < object->end)) {
        return false;
    }
    dynamic_read(object, dynamic);
    return object->symbols != NULL && object->names != NULL;
}

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++) {
        hash = hash * 33 + (unsigned char)*name;
    }
    return hash;
}

/* Its address in the object; 0: there is none. */
static uintptr_t definition_in(const struct object *object, const char *name) {
    if (object->hash == NULL || object->hash[0] == 0) {
        return 0;
    }
    uint32_t buckets = object->hash[0], first = object->hash[1], words = object->hash[2], hash = gnu_hash(name);
    const uint32_t *bucket = object->hash + 4 + words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t at = bucket[hash % buckets];
    for (; at >= first && at != 0; at++) {
        uint32_t word = chain[at - first];
        if ((word | 1) == (hash | 1) && strcmp(object->names + object->symbols[at].st_name, name) == 0) {
            return object->symbols[at].st_shndx != SHN_UNDEF ? object->bias + object->symbols[at].st_value : 0;
        }
        if ((word & 1) != 0) {
            break;
        }
    }
    return 0;
}

struct search {
    const char *name;
    uintptr_t found;
};

static int definition_visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    struct object object;
    if (object_read(&object, info)) {
        search->found = definition_in(&object, search->name);
    }
    return search->found != 0;
}

/*
 * The loader may answer with a way station: a program that is not position-independent has one for each function of which it takes the address, and
 * a slot of its own leads on from there.  The definition is that of the first object that has one, and objects are listed as they are searched.
 */
void *rec_slots_definition(const char *name) {
    void *said = dlsym(RTLD_DEFAULT, name);
    struct search search = {.name = name};
    const void *owner = object_at((uintptr_t)said);
    if (owner == NULL || owner != object_at(getauxval(AT_ENTRY))) {
        return said;
    }
    dl_iterate_phdr(definition_visit, &search);
    return search.found != 0 ? (void *)search.found : said;
}

/* --- pages --- */

/* One line of /proc/self/maps after the other, without malloc; false at its end. */
struct maps {
    int fd;
    size_t used, at;
    char text[2048];
};

static int maps_char(struct maps *maps) {
    if (maps->at == maps->used) {
        ssize_t n = read(maps->fd, maps->text, sizeof maps->text);
        maps->used = n > 0 ? (size_t)n : 0;
        maps->at = 0;
        if (n <= 0) {
            return -1;
        }
    }
    return (unsigned char)maps->text[maps->at++]; /* names may have any bytes */
}

static bool maps_line(struct maps *maps, struct region *region) {
    char line[64];
    unsigned n = 0;
    int c = maps_char(maps);
    for (; c >= 0 && c != '\n'; c = maps_char(maps)) {
        if (n < sizeof line - 1) {
            line[n++] = (char)c;
        }
    }
    line[n] = '\0';
    char *end = NULL;
    region->start = strtoul(line, &end, 16);
    if (*end != '-') {
        return false;
    }
    region->end = strtoul(end + 1, &end, 16);
    if (strlen(end) < 4) {
        return false;
    }
    region->protection = (end[1] == 'r' ? PROT_READ : 0) | (end[2] == 'w' ? PROT_WRITE : 0) | (end[3] == 'x' ? PROT_EXEC : 0);
    return true;
}

static bool region_of(struct region *region, uintptr_t address) {
    if (address >= region->start && address < region->end) {
        return true;
    }
    struct maps maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    bool found = false;
    while (maps.fd >= 0 && !found && maps_line(&maps, region)) {
        found = address >= region->start && address < region->end;
    }
    if (maps.fd >= 0) {
        close(maps.fd);
    }
    if (!found) {
        *region = (struct region){0};
    }
    return found;
}

static bool slot_write(uintptr_t *at, uintptr_t value, struct region *region) {
    if (!region_of(region, (uintptr_t)at)) {
        return false;
    }
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)at & ~(page_bytes - 1));
    bool is_closed = (region->protection & PROT_WRITE) == 0;
    if (is_closed && mprotect(page, page_bytes, region->protection | PROT_WRITE) != 0) {
        return false;
    }
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    if (is_closed) {
        mprotect(page, page_bytes, region->protection);
    }
    return true;
}

/* --- slots --- */

static const struct rec_hook *hook_among(const struct rec_hook *list, unsigned count, const char *name) {
    for (unsigned i = 0; i < count; i++) {
        if (list[i].name[0] == name[0] && strcmp(list[i].name, name) == 0) {
            return list[i].next != 0 ? &list[i] : NULL;
        }
    }
    return NULL;
}

static const struct rec_hook *hook_of(const char *name) {
    struct rec_hook *news = NULL;
    unsigned count = rec_new_hooks(&news);
    if (name[0] == '_' && name[1] == 'Z') {  // there may be very many of these
        return name[2] == 'n' || name[2] == 'd' ? hook_among(news, count, name) : NULL;
    }
    const struct rec_hook *found = hook_among(hooks, HOOKS, name);
    return found != NULL || name[0] != 'f' ? found : hook_among(news, count, name);
}

/* What a relocation fills. */
struct place {
    const struct object *object;
    const ElfW(Sym) *symbol;
    const struct rec_hook *hook;
    uintptr_t *at;
    bool is_call;
};

/* Not bound yet, or a program's own way station. */
static bool is_within(const struct place *place, uintptr_t value) {
    return value >= place->object->start && value < place->object->end;
}

static int another_visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    const struct search *search = data;
    struct object object;
    return object_read(&object, info) && definition_in(&object, search->name) == search->found;
}

/* Does this call go to another malloc, or free, than other objects' calls? */
static void stray_look(const struct place *place, void *unused) {
    (void)unused;
    struct search search = {place->hook->name, __atomic_load_n(place->at, __ATOMIC_ACQUIRE)};
    bool is_asked = place->is_call && (strcmp(search.name, "malloc") == 0 || strcmp(search.name, "free") == 0);
    bool is_usual = search.found == 0 || search.found == place->hook->next || search.found == place->hook->hook || is_within(place, search.found);
    slots.has_strays |= is_asked && !is_usual && dl_iterate_phdr(another_visit, &search) != 0;
}

static void slot_patch(const struct place *place, void *region) {
    uintptr_t value = __atomic_load_n(place->at, __ATOMIC_ACQUIRE);
    bool is_unbound = place->is_call && place->symbol->st_shndx == SHN_UNDEF && is_within(place, value) && !slots.has_strays;
    if ((value == place->hook->next || is_unbound) && slots.used < SLOTS_MAX) {
        slots.slot[slots.used] = (struct slot){place->at, value, place->hook->hook};
        slots.used += slot_write(place->at, place->hook->hook, region);
    }
}

struct visit {
    void (*fn)(const struct place *place, void *data);
    void *data;
};

static int places_visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    const struct visit *visit = data;
    slots.loads_seen = info->dlpi_adds;
    struct object object;
    if (!object_read(&object, info)) {
        return 0;
    }
    for (unsigned part = 0; part < 2; part++) {
        for (size_t i = 0; i < object.count[part]; i++) {
            const ElfW(Rela) *rela = &object.rela[part][i];
            unsigned type = ELF64_R_TYPE(rela->r_info);
            const ElfW(Sym) *symbol = &object.symbols[ELF64_R_SYM(rela->r_info)];
            uintptr_t at = object.bias + rela->r_offset;
            if ((type != CALL && type != ADDRESS && type != DATA) || rela->r_addend != 0 || at % sizeof at != 0) {
                continue;
            }
            const struct rec_hook *hook = hook_of(object.names + symbol->st_name);
            if (hook != NULL) {
                visit->fn(&(struct place){&object, symbol, hook, (uintptr_t *)at, type == CALL}, visit->data);
            }
        }
    }
    return 0;
}

bool rec_slots_patch(void) {
    struct region region = {0};
    struct visit look = {stray_look, NULL}, patch = {slot_patch, &region};
    slots.has_strays = false;
    dl_iterate_phdr(places_visit, &look);
    dl_iterate_phdr(places_visit, &patch);
    return slots.used < SLOTS_MAX;
}

static int restore_visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct object object;
    if (!object_read(&object, info)) {
        return 0;
    }
    for (uint32_t i = 0; i < slots.used; i++) {
        struct slot *slot = &slots.slot[i];
        bool is_here = (uintptr_t)slot->at >= object.start && (uintptr_t)slot->at < object.end;
        if (is_here && __atomic_load_n(slot->at, __ATOMIC_ACQUIRE) == slot->hook) {
            slot_write(slot->at, slot->before, data);
        }
    }
    return 0;
}

void rec_slots_restore(void) {
    struct region region = {0};
    dl_iterate_phdr(restore_visit, &region);
    slots.used = 0;
}

static int loads_visit(struct dl_phdr_info *info, size_t size, void *loads) {
    (void)size;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1;
}

bool rec_slots_stale(void) {
    unsigned long long loads = 0;
    dl_iterate_phdr(loads_visit, &loads);
    return loads != slots.loads_seen;
}

uint32_t rec_slots_patched(void) {
    return slots.used;
}
