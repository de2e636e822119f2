// SPDX-License-Identifier: MIT
/*
 * pretended_pages.cc - QUIRE_TEST_PAGE_BYTES=16384 or 65536, QUIRE_TEST_CPUS=64: the tests of a machine with such pages, or so many CPUs, on this one.
 *
 * What it cannot show: what the kernel itself does in such pages (its own alignment of mappings, stacks, files), and threads on CPUs that are not there.
 */
#include <cstdlib>

#include "os/os.h"

extern "C" size_t os_page_bytes_pretended()
{
    const char *asked = getenv("QUIRE_TEST_PAGE_BYTES");
    return asked ? strtoull(asked, nullptr, 10) : 0;
}

namespace {
/* Before main, and so before anything is set up for as many CPUs as there are. */
__attribute__((constructor)) void pretend_cpus()
{
    if (const char *asked = getenv("QUIRE_TEST_CPUS"))
        os_cpu_count_fake(unsigned(strtoul(asked, nullptr, 10)));
}
} // namespace
