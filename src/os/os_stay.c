// SPDX-License-Identifier: MIT
/*
 * os_stay.c - a plugin that has this library inside stays when it is closed.
 *
 *     dlopen(plugin) --> our constructor opens it once more, not to be deleted --> ... our thread sleeps in it --> dlclose(plugin): it stays
 *
 * libquire.so is linked with -z nodelete, and so is who links libquire.a by pkg-config, CMake or Meson.  Who compiles quire.c into a plugin, as a Rust
 * crate does, need not know of it.  A program and a library with that flag have nothing to do.  Nothing is done where the loader cannot be asked: in static
 * programs, and with a glibc before 2.34 without libdl.
 *
 * Locks: the loader's, which has it already and may take it twice.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

extern const ElfW(Dyn) own_dynamic[] __asm__("_DYNAMIC") __attribute__((weak, visibility("hidden")));
extern __typeof__(dladdr) loader_find __asm__("dladdr") __attribute__((weak));
extern __typeof__(dlsym) loader_name __asm__("dlsym") __attribute__((weak)); /* not dlopen(): who links a static program would be warned of it */

static bool stays_anyway(void)
{
    for (const ElfW(Dyn) *entry = own_dynamic; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_DEBUG || (entry->d_tag == DT_FLAGS_1 && (entry->d_un.d_val & DF_1_NODELETE))) /* DT_DEBUG: a program */
            return true;
    return false;
}

static __attribute__((constructor)) void stay_at_load(void)
{
    Dl_info own;
    if (!own_dynamic || !loader_find || !loader_name || stays_anyway() || loader_find(own_dynamic, &own) == 0)
        return;
    __typeof__(&dlopen) loader_open = (__typeof__(&dlopen))(uintptr_t)loader_name(RTLD_DEFAULT, "dlopen");
    if (loader_open)
        (void)loader_open(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}
