// SPDX-License-Identifier: MIT
/*
 * look_out.c - text on its way to a file descriptor.
 *
 *     out_text(), out_number(), out_name_*() --> buffer --(full, or the end)--> os_write()
 *
 * Invariants: used <= OUT_BYTES; error != 0 stays so and nothing is written any more.
 *
 * Locks: none; none may be held by the caller, for a write can take for ever.  Not here: what a format looks like (stats_*.c).
 */
#include <string.h>

#include "look/look_out.h"
#include "os/os.h"

void out_begin(struct out *out, int fd)
{
    out->fd = fd;
    out->error = 0;
    out->is_callers = false;
    out->used = 0;
}

static void flush(struct out *out)
{
    if (out->error == 0 && out->used != 0)
        out->error = (out->is_callers ? os_write_plainly : os_write)(out->fd, out->buffer, out->used);
    out->used = 0;
}

int out_end(struct out *out)
{
    flush(out);
    return out->error;
}

void out_char(struct out *out, char c)
{
    if (out->used == OUT_BYTES)
        flush(out);
    out->buffer[out->used++] = c;
}

void out_bytes(struct out *out, const char *text, size_t bytes)
{
    while (bytes != 0) {
        if (out->used == OUT_BYTES)
            flush(out);
        size_t room = OUT_BYTES - out->used, part = bytes < room ? bytes : room;
        memcpy(out->buffer + out->used, text, part);
        out->used += part;
        text += part;
        bytes -= part;
    }
}

void out_text(struct out *out, const char *text)
{
    out_bytes(out, text, strlen(text));
}

/* ---- numbers ---- */

enum { DIGITS_MAX = 20, HEX_BYTES = 16 };

struct digits {
    char text[DIGITS_MAX + 1];
    unsigned from; /* the first one */
};

static void digits_of(struct digits *digits, uint64_t n)
{
    digits->from = DIGITS_MAX;
    digits->text[DIGITS_MAX] = 0;
    do
        digits->text[--digits->from] = (char)('0' + n % 10);
    while (n /= 10);
}

void out_number(struct out *out, uint64_t n)
{
    struct digits digits;
    digits_of(&digits, n);
    out_text(out, digits.text + digits.from);
}

void out_member(struct out *out, const char *name, uint64_t n)
{
    out_text(out, ", \"");
    out_text(out, name);
    out_text(out, "\": ");
    out_number(out, n);
}

void out_text_right(struct out *out, const char *text, unsigned width)
{
    size_t length = strlen(text);
    out_char(out, ' ');
    for (size_t i = length + 1; i < width; i++)
        out_char(out, ' ');
    out_text(out, text);
}

void out_number_right(struct out *out, uint64_t n, unsigned width)
{
    struct digits digits;
    digits_of(&digits, n);
    out_text_right(out, digits.text + digits.from, width);
}

/* ---- names ---- */

/* How long the UTF-8 character at `s` is, and which; 0: there is none.  (RFC 3629: no surrogates, nothing longer than it needs to be.) */
static unsigned character(const unsigned char *s, uint32_t *code)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (unsigned length = 1; length <= 4; length++) {
        if ((s[0] & forms[length - 1].mask) != forms[length - 1].lead)
            continue;
        *code = s[0] & (unsigned char)~forms[length - 1].mask;
        for (unsigned i = 1; i < length; i++) {
            if ((s[i] & 0xc0) != 0x80) /* also at the end of the name */
                return 0;
            *code = *code << 6 | (s[i] & 0x3f);
        }
        return *code >= forms[length - 1].least && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff) ? length : 0;
    }
    return 0;
}

static bool is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

/* What `special` does not take over is written as it stands; a byte that is no character as `none`. */
static void out_name(struct out *out, const char *name, const char *none, bool (*special)(struct out *out, uint32_t code))
{
    uint32_t code;
    for (const unsigned char *s = (const unsigned char *)name; *s;) {
        unsigned length = character(s, &code);
        if (length == 0)
            out_text(out, none);
        else if (!special(out, code))
            for (unsigned i = 0; i < length; i++)
                out_char(out, (char)s[i]);
        s += length ? length : 1;
    }
}

static bool special_text(struct out *out, uint32_t code)
{
    if (is_control(code))
        out_char(out, '?');
    return is_control(code);
}

void out_name_text(struct out *out, const char *name)
{
    out_name(out, name, "?", special_text);
}

static bool special_json(struct out *out, uint32_t code)
{
    if (code == '"' || code == '\\') {
        out_char(out, '\\');
        out_char(out, (char)code);
    } else if (is_control(code)) {
        out_text(out, "\\u00");
        out_char(out, "0123456789abcdef"[code >> 4]);
        out_char(out, "0123456789abcdef"[code & 15]);
    } else {
        return false;
    }
    return true;
}

void out_name_json(struct out *out, const char *name)
{
    out_char(out, '"');
    out_name(out, name, "\xef\xbf\xbd", special_json);
    out_char(out, '"');
}

static bool special_prometheus(struct out *out, uint32_t code)
{
    if (code == '"' || code == '\\' || code == '\n') {
        out_char(out, '\\');
        out_char(out, code == '\n' ? 'n' : (char)code);
    } else if (is_control(code)) {
        out_char(out, '?');
    } else {
        return false;
    }
    return true;
}

void out_name_prometheus(struct out *out, const char *name)
{
    out_char(out, '"');
    out_name(out, name, "\xef\xbf\xbd", special_prometheus);
    out_char(out, '"');
}

void out_digits16(struct out *out, uint64_t n, unsigned least)
{
    char text[HEX_BYTES];
    size_t from = HEX_BYTES;
    for (; n != 0 || HEX_BYTES - from < least; n >>= 4)
        text[--from] = "0123456789abcdef"[n & 15];
    out_bytes(out, text + from, HEX_BYTES - from);
}

void out_hex(struct out *out, uint64_t n)
{
    out_bytes(out, "0x", 2);
    out_digits16(out, n, 1);
}
