// SPDX-License-Identifier: MIT
/*
 * plant.c - finds the allocators among what is loaded (find.c), and patches their entries (entry.c).
 *
 * Invariants:
 *   L1  an allocator is hooked as a whole or not at all: a block whose free is not seen would look as if it were leaked
 *   L2  code is patched only where the file that was read and the memory agree
 *   L3  a page is never writable and executable at once
 *
 * Locks: none: own_plant() runs before main.  Not here: what is done with the calls (../record/own.c, ../sample/sample.c).
 */
#include "plant.h"

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HOOKS_MAX   (4 * OWN_FUNCTIONS_MAX)
#define FLAGS_ALIGN 63u  // of jemalloc's flags: log2 of the alignment
#define FLAG_ZERO   64u

void own_enter(void);  // enter.c: in assembly

static struct {
    struct own_hook hook[HOOKS_MAX];
    unsigned count;
    struct own_module module;
    struct own_options options;
    uintptr_t page_bytes;
    bool is_alone;
} own;

struct loaded {
    const char *path;
    uintptr_t bias, low, high;
};

static bool protect(const void *at, size_t bytes, int protection) {
    uintptr_t low = (uintptr_t)at & ~(own.page_bytes - 1);
    uintptr_t high = ((uintptr_t)at + bytes + own.page_bytes - 1) & ~(own.page_bytes - 1);
    return mprotect((void *)low, high - low, protection) == 0;
}

/* Writes the entries of hooks from `first` on, or takes them back; where it came to an end, own.count when all is done. */
static unsigned write_all(unsigned first, void (*write)(struct entry *)) {
    unsigned i = first;
    for (; i < own.count; i++) {
        struct entry *entry = &own.hook[i].entry;
        unsigned char *at = entry->function + entry->plan.skip;
        if (!protect(at, ENTRY_JUMP_BYTES, PROT_READ | PROT_WRITE)) {
            break;
        }
        write(entry);
        protect(at, ENTRY_JUMP_BYTES, PROT_READ | PROT_EXEC);
    }
    return i;
}

/* False: nothing was changed. */
static bool patch_all(unsigned first) {
    unsigned reached = write_all(first, entry_patch);
    bool all = reached == own.count;
    if (!all) {
        own.count = reached;
        write_all(first, entry_unpatch);
    }
    return all;
}

/* One hook more; NULL or why not. */
static const char *hook_add(const struct own_function *function, const struct loaded *loaded, unsigned char *stub) {
    struct own_hook *hook = &own.hook[own.count];
    unsigned char *code = (unsigned char *)(loaded->bias + function->address);
    if (function->kind.call == OWN_USABLE && !own.options.reads) {
        return NULL;
    }
    if (memcmp(code, function->code, function->plan.skip + function->plan.moved) != 0) {
        return "its code is not that of the file any more";
    }
    *hook = (struct own_hook){
        .entry = {.function = code, .plan = function->plan, .stub = stub, .argument = hook, .to = (void *)(uintptr_t)own_enter},
        .kind = function->kind};
    hook->original = entry_original(&hook->entry);
    if (!entry_prepare(&hook->entry)) {
        return "what it refers to is too far away";
    }
    own.count++;
    return NULL;
}

static void plant(const struct own_module *module, const struct loaded *loaded) {
    unsigned first = own.count;
    size_t bytes = module->count * ENTRY_STUB_BYTES;
    const char *name = module->functions[0].name, *why = module->why;
    unsigned char *stubs = NULL;
    if (module->refused != NULL) {
        name = module->refused;
    } else if (!own.is_alone) {
        why = "other threads may run already";
    } else if (own.count + module->count > HOOKS_MAX) {
        why = "too many allocators are loaded";
    } else if ((stubs = entry_pages_near(loaded->low, loaded->high, bytes)) == NULL) {
        why = "there is no free memory near it";
    }
    for (unsigned i = 0; why == NULL && i < module->count; i++) {
        name = module->functions[i].name;
        why = hook_add(&module->functions[i], loaded, stubs + i * ENTRY_STUB_BYTES);
    }
    if (why == NULL && (!protect(stubs, bytes, PROT_READ | PROT_EXEC) || !patch_all(first))) {
        why = "the kernel does not let its code be changed";
    }
    if (why != NULL) {
        own.count = first;
        own.options.say(name, loaded->path, why);
    }
}

static bool is_spared(const struct loaded *loaded) {
    uintptr_t ours = (uintptr_t)own_plant - loaded->low, spared = (uintptr_t)own.options.spared - loaded->low;
    return ours < loaded->high - loaded->low || spared < loaded->high - loaded->low;
}

static int look_at(struct dl_phdr_info *info, size_t size, void *arg) {
    unsigned *seen = arg;
    bool is_program = (*seen)++ == 0;
    struct loaded loaded = {is_program ? "/proc/self/exe" : info->dlpi_name, info->dlpi_addr, UINTPTR_MAX, 0};
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD) {
            uintptr_t low = loaded.bias + segment->p_vaddr, high = low + segment->p_memsz;
            loaded.low = low < loaded.low ? low : loaded.low;
            loaded.high = high > loaded.high ? high : loaded.high;
        }
    }
    if (loaded.path == NULL || loaded.path[0] != '/' || is_spared(&loaded)) {
        return 0;
    }
    if (own_read(&own.module, loaded.path, is_program) && own.module.family != OWN_NOBODY) {
        plant(&own.module, &loaded);
    }
    own_close(&own.module);
    return 0;
}

/* Threads of this process; a library's constructor may have started some. */
static unsigned threads(void) {
    unsigned count = 0;
    char buffer[1024];
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    for (long got; (got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;) {
        for (long at = 0; at < got;) {
            struct dirent64 entry;
            memcpy(&entry, buffer + at, offsetof(struct dirent64, d_name) + 1);
            count += entry.d_name[0] != '.';
            at += entry.d_reclen;
        }
    }
    close(fd);
    return count;
}

unsigned own_plant(const struct own_options *options) {
    unsigned seen = 0;
    own.options = *options;
    own.page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    own.is_alone = threads() == 1;
    dl_iterate_phdr(look_at, &seen);
    return own.count;
}

struct own_request own_request_of(const struct own_frame *frame) {
    const struct own_kind *kind = &frame->hook->kind;
    struct own_request request = {.block = frame->argument[kind->first], .zeroed = kind->call == OWN_ZEROED};
    if (kind->size != OWN_NO_ARGUMENT) {
        request.bytes = frame->argument[kind->first + kind->size];
    }
    if (kind->count != OWN_NO_ARGUMENT) {
        request.bytes *= frame->argument[kind->first + kind->count];
    }
    if (kind->align != OWN_NO_ARGUMENT) {
        request.align_bytes = frame->argument[kind->first + kind->align];
    }
    if (kind->is_flags) {
        request.zeroed = (request.align_bytes & FLAG_ZERO) != 0;
        request.align_bytes = UINT64_C(1) << (request.align_bytes & FLAGS_ALIGN);
    }
    return request;
}

void own_uproot(void) {
    write_all(0, entry_unpatch);
    own.count = 0;
}
