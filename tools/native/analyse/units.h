// SPDX-License-Identifier: MIT
/*
 * units.h - the functions of a compilation unit by address, and the scopes within one: libdw's own look-up walks the whole unit each time, twice.
 *
 *   unit   namespaces, classes   functions with code             walked once
 *            function              blocks, inlined functions       walked where the address leads
 *
 * Not here: names and lines of what is found (symbols.cc).
 */
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <elfutils/libdw.h>

namespace quire {

class Units {
  public:
    /* The scopes around `address` (as the unit counts), innermost first, the function that holds them last; none: empty. */
    std::vector<Dwarf_Die> scopes(Dwarf_Die *unit, Dwarf_Addr address);

  private:
    struct Function {
        Dwarf_Addr start, end;
        Dwarf_Die die;
    };
    const std::vector<Function> &functions(Dwarf_Die *unit);
    static void collect(Dwarf_Die *parent, std::vector<Function> &into);

    std::unordered_map<const void *, std::vector<Function>> known_; // by where the unit lies: numbers of units are those of their file alone
};

}  // namespace quire
