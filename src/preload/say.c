// SPDX-License-Identifier: MIT
/*
 * say.c - numbers as people read them.
 *
 * Locks: none.  Not here: the buffer and plain numbers (look_out.c).
 */
#include "preload/say.h"

static void spaces(struct out *out, uint64_t n, unsigned width)
{
    unsigned used = 1;
    while (n /= 10)
        used++;
    for (; used < width; used++)
        out_char(out, ' ');
}

/* n / divisor with one digit behind the point. */
static void tenths(struct out *out, uint64_t n, uint64_t divisor, unsigned width)
{
    spaces(out, n / divisor, width > 2 ? width - 2 : 0);
    out_number(out, n / divisor);
    out_char(out, '.');
    out_number(out, n % divisor * 10 / divisor);
}

void say_size(struct out *out, uint64_t bytes, unsigned width)
{
    static const char unit[][5] = {" B", " KiB", " MiB", " GiB", " TiB"};
    unsigned power = 0;
    while (power < 4 && bytes >> (10 * power) >= 1024)
        power++;
    if (power == 0) {
        spaces(out, bytes, width);
        out_number(out, bytes);
    } else {
        tenths(out, bytes, UINT64_C(1) << (10 * power), width);
    }
    out_text(out, unit[power]);
}

void say_time(struct out *out, uint64_t ns)
{
    if (ns >= 1000000000u) {
        tenths(out, ns, 1000000000u, 0);
        out_text(out, " s");
    } else {
        tenths(out, ns, 1000000u, 0);
        out_text(out, " ms");
    }
}
