// SPDX-License-Identifier: MIT
/* abi.c - reading and writing structs of a program's own length; see abi.h for the picture. */
#include "base/abi.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/panic.h"

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How long the program's struct is. */
static size_t bytes_of(const struct abi_layout *layout, const void *theirs)
{
    size_t bytes;
    memcpy(&bytes, theirs, sizeof bytes);
    return bytes ? bytes : layout->first_bytes;
}

static bool all_zero(const char *from, size_t bytes)
{
    while (bytes > 0 && from[bytes - 1] == 0)
        bytes--;
    return bytes == 0;
}

int abi_verify(const struct abi_layout *layout, const void *theirs)
{
    size_t bytes = bytes_of(layout, theirs);
    if (bytes < layout->first_bytes)
        return -EINVAL;
    if (bytes > ABI_BYTES_MAX || (bytes > layout->bytes && !all_zero((const char *)theirs + layout->bytes, bytes - layout->bytes)))
        return -E2BIG;
    return 0;
}

int abi_read(const struct abi_layout *layout, void *own, const void *theirs)
{
    int error = theirs ? abi_verify(layout, theirs) : 0;
    if (error)
        return error;
    size_t bytes = theirs ? min(bytes_of(layout, theirs), layout->bytes) : 0;
    if (bytes)
        memcpy(own, theirs, bytes);
    memset((char *)own + bytes, 0, layout->bytes - bytes);
    memcpy(own, &layout->bytes, sizeof layout->bytes);
    return 0;
}

void abi_write(const struct abi_layout *layout, const void *own, void *theirs)
{
    size_t bytes = bytes_of(layout, theirs), valid = min(bytes, layout->bytes);
    if (bytes < layout->first_bytes || bytes > ABI_BYTES_MAX)
        panic("statistics", layout->name, "E1 struct_bytes is neither 0 nor a size of this struct", theirs);
    memcpy(theirs, own, valid);
    memset((char *)theirs + valid, 0, bytes - valid);
    memcpy(theirs, &valid, sizeof valid);
}
