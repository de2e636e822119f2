// SPDX-License-Identifier: MIT
/*
 * stats.c - quire_stats_write(): which printer, and what its caller is told.
 *
 *     roll (objects, copied)  -->  printer  -->  out (4 KiB)  -->  write(2)       all of it on this thread's stack
 *
 * Locks: none while anything is written.
 */
#include <errno.h>

#include <quire/stats.h>

#include "look/look.h"
#include "look/look_out.h"

typedef void printer(struct out *out, struct look_roll *roll);

static printer *const printers[] = {[QUIRE_STATS_TEXT] = stats_text, [QUIRE_STATS_JSON] = stats_json, [QUIRE_STATS_PROMETHEUS] = stats_prometheus};

int look_write(int fd, uint32_t format, bool is_callers)
{
    struct out out;
    struct look_roll roll;
    out_begin(&out, fd);
    out.is_callers = is_callers;
    printers[format](&out, &roll);
    return out_end(&out);
}

int quire_stats_write(int fd, uint32_t format)
{
    int kept = errno, error = format < LOOK_COUNT_OF(printers) ? look_write(fd, format, true) : -EINVAL;
    errno = error ? -error : kept;
    return error ? -1 : 0;
}
