// SPDX-License-Identifier: MIT
/* json_text.h - names from a traced program as JSON strings. */
#pragma once

#include <string>

namespace quire {

/* A JSON string; bytes that are no UTF-8 become U+FFFD. */
std::string quoted(const std::string &text);

}  // namespace quire
