// SPDX-License-Identifier: MIT
/*
 * plain_zstd.c - as much of libzstd as the recorder calls: frames that hold their bytes as they are.
 *
 *     magic | 0xa0: one segment, no checksum, a length of four bytes | length | block: last, raw, length << 3 | bytes
 *
 * For a recorder built for a machine whose libzstd is not here.  A part is shorter than a block may be (128 KiB).
 */
#define ZSTD_STATIC_LINKING_ONLY
#include <stdint.h>
#include <string.h>
#include <zstd.h>

enum { FRAME_BYTES = 4 + 1 + 4 + 3 };

size_t ZSTD_compress2(ZSTD_CCtx *context, void *to, size_t to_bytes, const void *from, size_t bytes)
{
    const uint32_t magic = 0xfd2fb528u, length = (uint32_t)bytes, block = (uint32_t)bytes << 3 | 1;
    unsigned char *at = to;
    (void)context;
    if (to_bytes < bytes + FRAME_BYTES)
        return (size_t)-1;
    memcpy(at, &magic, 4);
    at[4] = 0xa0;
    memcpy(at + 5, &length, 4);
    memcpy(at + 9, &block, 3);
    memcpy(at + FRAME_BYTES, from, bytes);
    return bytes + FRAME_BYTES;
}

unsigned ZSTD_isError(size_t code)
{
    return code == (size_t)-1;
}

ZSTD_compressionParameters ZSTD_getCParams(int level, unsigned long long bytes, size_t dictionary_bytes)
{
    (void)level, (void)bytes, (void)dictionary_bytes;
    return (ZSTD_compressionParameters){0};
}

size_t ZSTD_estimateCCtxSize_usingCParams(ZSTD_compressionParameters parameters)
{
    (void)parameters;
    return 1;
}

ZSTD_CCtx *ZSTD_initStaticCCtx(void *memory, size_t bytes)
{
    (void)bytes;
    return memory;
}

size_t ZSTD_CCtx_setParameter(ZSTD_CCtx *context, ZSTD_cParameter parameter, int value)
{
    (void)context, (void)parameter, (void)value;
    return 0;
}
