// SPDX-License-Identifier: MIT
/*
 * json_text.cc - names as JSON strings, whatever bytes they hold.
 *
 *   a " \ or control byte -> \u00xx      bytes that are no UTF-8 -> \ufffd      all else -> itself
 *
 * Not here: documents (report.cc, profile_write.cc).
 */
#include "json_text.h"

#include <cstdio>

namespace quire {

namespace {

/* How many bytes the character at `i` has; 0 where that is none of UTF-8 (RFC 3629: nothing longer than need be, no surrogates). */
size_t character_bytes(const std::string &text, size_t i) {
    auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    unsigned char c = byte(i);
    if (c < 0x80) {
        return 1;
    }
    size_t bytes = c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (bytes == 0 || i + bytes > text.size()) {
        return 0;
    }
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    bool good = byte(i + 1) >= low && byte(i + 1) <= high;
    for (size_t k = 2; k < bytes; k++) {
        good = good && (byte(i + k) & 0xc0) == 0x80;
    }
    return good ? bytes : 0;
}

}  // namespace

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (size_t i = 0; i < text.size();) {
        auto c = static_cast<unsigned char>(text[i]);
        size_t bytes = character_bytes(text, i);
        if (bytes == 0) {
            out += "\\ufffd";
            i++;
        } else if (c < 0x20 || c == '"' || c == '\\') {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
            i++;
        } else {
            out.append(text, i, bytes);
            i += bytes;
        }
    }
    return out + "\"";
}

}  // namespace quire
