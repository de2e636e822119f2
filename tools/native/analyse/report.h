// SPDX-License-Identifier: MIT
/* report.h - the sites' figures as JSON, schema "quire.sites/1". */
#pragma once

#include <cstdio>

#include "life.h"

namespace quire {

struct Report {
    const qtr_reader *reader;
    Symbols *symbols;
    Sites *sites;
    const Life *life;
};

bool report_write(const Report &report, FILE *to);

}  // namespace quire
