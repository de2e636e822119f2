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

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (size_t i = 0; i < text.size();) {
        auto c = static_cast<unsigned char>(text[i]);
        size_t more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : 9;
        bool good = more < 4 && i + more < text.size();
        for (size_t k = 1; good && k <= more; k++) {
            good = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
        }
        if (!good) {
            out += "\\ufffd";
            i++;
        } else if (c < 0x20 || c == '"' || c == '\\') {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
            i++;
        } else {
            out.append(text, i, more + 1);
            i += more + 1;
        }
    }
    return out + "\"";
}

}  // namespace quire
