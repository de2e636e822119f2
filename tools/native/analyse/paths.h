// SPDX-License-Identifier: MIT
/* paths.h - return addresses that lead to malloc, each with its file and build id, as JSON, schema "quire.paths/1". */
#pragma once

#include <cstdio>

#include "report.h"

namespace quire {

bool paths_write(const Report &report, FILE *to);

}  // namespace quire
