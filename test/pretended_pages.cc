// SPDX-License-Identifier: MIT
/*
 * pretended_pages.cc - QUIRE_TEST_PAGE_BYTES=16384 or 65536: the tests of a machine with such pages, on this one.
 *
 * What it cannot show: what the kernel itself does in such pages (its own alignment of mappings, stacks, files).
 */
#include <cstdlib>

extern "C" size_t os_page_bytes_pretended()
{
    const char *asked = getenv("QUIRE_TEST_PAGE_BYTES");
    return asked ? strtoull(asked, nullptr, 10) : 0;
}
