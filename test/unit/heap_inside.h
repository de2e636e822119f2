// SPDX-License-Identifier: MIT
/*
 * heap_inside.h - the heap's own structures, for tests that look inside.  Behind all other headers.
 */
#pragma once

#include "base/bias.h"
#include "pages/pagemap.h"

#define class class_idx /* a field's name there, which C does not mind */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wextra"
#include "heap/heap_internal.h"
#pragma GCC diagnostic pop
#undef class
