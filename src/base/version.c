// SPDX-License-Identifier: MIT
/* version.c - the version of the library, from the one place that has it. */
#include <quire/quire.h>

#define TEXT(x) #x
#define DOTTED(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

const char *quire_version(void)
{
    return DOTTED(QUIRE_VERSION_MAJOR, QUIRE_VERSION_MINOR, QUIRE_VERSION_PATCH);
}
