// SPDX-License-Identifier: MIT
/*
 * look_out.h - text on its way to a file descriptor: a buffer on the caller's stack, names as each format can bear them.
 *
 * After the first write that fails all else is dropped, and out_end() says why; nobody in between has to ask.
 *
 * Names are any 31 bytes.  What is UTF-8 stays as it is; a byte that is none, or a cut character, becomes U+FFFD ('?' in text), a control character
 * what the format has for it.
 */
#ifndef QUIRE_LOOK_OUT_H
#define QUIRE_LOOK_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

enum { OUT_BYTES = 4096 };

struct out {
    int fd, error; /* error: a negative errno, or 0 */
    bool is_callers; /* the program asked for it: signals of its writes are its own */
    size_t used;
    char buffer[OUT_BYTES];
};

/* quire_stats_write(), or by ourselves.  0 or a negative errno. */
int look_write(int fd, uint32_t format, bool is_callers);
void out_begin(struct out *out, int fd);
int out_end(struct out *out); /* what is left, then 0 or a negative errno */

void out_text(struct out *out, const char *text);
void out_bytes(struct out *out, const char *text, size_t bytes);
void out_hex(struct out *out, uint64_t n); /* with 0x, without leading zeros */
void out_digits16(struct out *out, uint64_t n, unsigned least); /* to base 16, at least so many digits, at most 16 */
void out_char(struct out *out, char c);
void out_number(struct out *out, uint64_t n);
void out_member(struct out *out, const char *name, uint64_t n); /* , "NAME": N   of a JSON object */
/* Right-aligned in `width` columns; wider ones have one space before them all the same. */
void out_number_right(struct out *out, uint64_t n, unsigned width);
void out_text_right(struct out *out, const char *text, unsigned width);

void out_name_text(struct out *out, const char *name);       /* control characters: ? */
void out_name_json(struct out *out, const char *name);       /* with its quotes; \uXXXX */
void out_name_prometheus(struct out *out, const char *name); /* with its quotes; \\ \" \n, other control characters: ? */

C_DECLARATIONS_END
#endif
