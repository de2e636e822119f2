// SPDX-License-Identifier: MIT
/*
 * must.h - what a model says when the library differs from it: an exception that names the line.
 */
#pragma once

#include <stdexcept>
#include <string>

#define MUST(condition)                                                                                                            \
    do {                                                                                                                           \
        if (!(condition))                                                                                                          \
            throw std::logic_error(std::string(#condition ", line ") + std::to_string(__LINE__));                                  \
    } while (0)
