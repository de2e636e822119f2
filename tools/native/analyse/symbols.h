// SPDX-License-Identifier: MIT
/*
 * symbols.h - what stands at an address of the traced program: functions, innermost first, with inlined ones.
 *
 * Names come from the files that were loaded then, if they are still the same (build id): DWARF when there is any, else
 * .symtab or .dynsym (also those of .gnu_debugdata, and what a debuginfod server has, where DEBUGINFOD_URLS names one), else
 * "module+0xoffset" and the exported name before it.
 */
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../trace/reader.h"

namespace quire {

struct Frame {
    std::string function;        // demangled; "" when no symbol covers the address
    std::string file;            // "" without debug information
    std::string after;           // demangled; where `function` is empty: the last symbol that begins before, "" too when there is none
    std::string module;          // file name without its folder; "" for code that no file holds
    int line = 0;
    bool inlined = false;
    uint64_t offset = 0;         // from the symbol, or from the module's base without a symbol
    uint64_t symbol_start = 0;   // 0 when inlined or unknown
    uint64_t symbol_bytes = 0;

    std::string text() const;    // "function (file:line)", "function (inlined) (file:line)", "function+0x1c (module)", "module+0x1234 (after name)" or "module+0x1234"
};

/* The file that an address was in. */
struct Origin {
    std::string path;      // "" for code that no file holds
    std::string build_id;  // hexadecimal
    uint64_t offset = 0;   // of the address, in the file's own addresses
};

/* Addresses from `start` up to `end` are by so much higher from now on. */
struct Moved {
    uint64_t start, end, by;
};

class Symbols {
  public:
    Symbols();
    ~Symbols();
    /* Before any address is asked for.  Modules that were unloaded before this one came to their place move to where nothing ever was. */
    std::vector<Moved> module_add(const qtr_meta_module &record, const char *path);
    /* Frames at a return address; never empty.  The reference stays valid. */
    const std::vector<Frame> &at(uint64_t return_address);
    Origin origin(uint64_t return_address);
    std::string program() const;  // the path of the file that was executed
    const std::string &note() const { return note_; }

  private:
    struct Module;
    Module *module_of(uint64_t address);
    std::vector<std::unique_ptr<Module>> modules_;
    uint64_t moves_ = 0;
    std::unordered_map<uint64_t, std::vector<Frame>> known_;
    std::string note_;
};

}  // namespace quire
