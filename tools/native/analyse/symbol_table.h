// SPDX-License-Identifier: MIT
/*
 * symbol_table.h - the functions of one module by address: libdw's own look-up reads all symbols each time.
 *
 *   start  name     start  name           start
 *   |------------|  |-----------|   ...   |----          sorted; a look-up is a binary search
 *
 * Not here: inlined functions and lines (symbols.cc).
 */
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <elfutils/libdwfl.h>

namespace quire {

class SymbolTable {
  public:
    struct Symbol {
        uint64_t start;
        uint64_t bytes;    // 0: not said
        const char *name;  // the module's memory
        int rank;          // of several at one address the highest stands for them
    };
    void fill(Dwfl_Module *module);
    /* The symbol that holds the address, or begins shortly before it and says no size; NULL: none. */
    const Symbol *at(uint64_t address) const;
    /* The last one that begins before it, however far; NULL: none. */
    const Symbol *before(uint64_t address) const;

  private:
    std::vector<Symbol>::const_iterator after(uint64_t address) const;
    std::vector<Symbol> symbols_;
};

}  // namespace quire
