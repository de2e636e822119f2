// SPDX-License-Identifier: MIT
/*
 * symbols.cc - names for addresses, by libdw.
 *
 *   address -> module (one that was unloaded has moved away) -> DWARF scopes -> inlined frames and line
 *                                             -> symbol table -> function and offset
 *
 * Each module is opened at its first address and no sooner.  No network, but where DEBUGINFOD_URLS asks for it: libdw then asks those servers.
 * Not here: what makes a site (sites.cc).
 */
#include "symbols.h"

#include "symbol_table.h"
#include "units.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <unistd.h>

namespace quire {

namespace {

constexpr unsigned ADDRESS_BITS = 48;
constexpr uint64_t NEAR_BYTES = 64 << 10;  // a name that begins further before tells nobody where a place is

std::string demangled(const char *name) {
    int status = 0;
    char *text = std::strncmp(name, "_Z", 2) == 0 ? abi::__cxa_demangle(name, nullptr, nullptr, &status) : nullptr;  // of `w` it makes a type
    std::string result = status == 0 && text != nullptr ? text : name;
    std::free(text);
    return result;
}

/* Demangled, without a symbol version. */
std::string plain_name(const std::string &symbol) {
    return demangled(symbol.substr(0, symbol.find('@')).c_str());
}

std::string base_name(const std::string &path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string hex(uint64_t value) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

Dwfl_Callbacks callbacks() {
    Dwfl_Callbacks result;
    std::memset(&result, 0, sizeof result);
    result.find_elf = dwfl_build_id_find_elf;
    result.find_debuginfo = dwfl_standard_find_debuginfo;
    result.section_address = dwfl_offline_section_address;
    return result;
}

const Dwfl_Callbacks dwfl_callbacks = callbacks();

}  // namespace

std::string Frame::text() const {
    if (function.empty()) {
        return (module.empty() ? hex(offset) : module + "+" + hex(offset)) + (after.empty() ? "" : " (after " + after + ")");
    }
    std::string name = inlined ? function + " (inlined)" : function;
    if (!file.empty()) {
        return name + " (" + base_name(file) + ":" + std::to_string(line) + ")";
    }
    return inlined ? name : name + "+" + hex(offset) + " (" + module + ")";
}

struct Symbols::Module {
    uint64_t start = 0, end = 0, bias = 0;
    std::string path, build_id;
    Dwfl *dwfl = nullptr;
    Dwfl_Module *opened = nullptr;
    SymbolTable names;
    Units units;
    bool tried = false;

    Module() = default;
    Module(const Module &) = delete;
    Module &operator=(const Module &) = delete;
    ~Module() {
        if (dwfl != nullptr) {
            dwfl_end(dwfl);
        }
    }
    void open(std::string &note);
    void symbol_into(Frame &frame, uint64_t address) const;
    void inlined_into(std::vector<Frame> &frames, uint64_t address);
};

void Symbols::Module::open(std::string &note) {
    tried = true;
    if (path.empty() || path[0] != '/') {
        return;  // the vDSO, or a module without a name
    }
    dwfl = dwfl_begin(&dwfl_callbacks);
    if (dwfl == nullptr) {
        return;
    }
    Dwfl_Module *module = dwfl_report_elf(dwfl, path.c_str(), path.c_str(), -1, bias, true);
    dwfl_report_end(dwfl, nullptr, nullptr);
    if (module == nullptr) {
        note += (note.empty() ? "" : "; ") + std::string("no names from ") + path + ": " + dwfl_errmsg(-1);
        return;
    }
    const unsigned char *bits = nullptr;
    GElf_Addr unused = 0;
    GElf_Addr load = 0;
    dwfl_module_getelf(module, &load);
    int bytes = dwfl_module_build_id(module, &bits, &unused);
    if (!build_id.empty() && bytes > 0 &&
        (static_cast<size_t>(bytes) != build_id.size() || std::memcmp(bits, build_id.data(), build_id.size()) != 0)) {
        note += (note.empty() ? "" : "; ") + std::string("no names from ") + path +
                ": it is another build than the one recorded";
        return;
    }
    opened = module;
    names.fill(module);
}

void Symbols::Module::symbol_into(Frame &frame, uint64_t address) const {
    const SymbolTable::Symbol *symbol = names.at(address);
    if (symbol == nullptr) {  // the nearest symbol ends before: some static function without a name
        const SymbolTable::Symbol *before = names.before(address);
        frame.after = before != nullptr && address - before->start <= NEAR_BYTES ? plain_name(before->name) : "";
        return;
    }
    frame.function = plain_name(symbol->name);
    frame.offset = address - symbol->start + 1;
    frame.symbol_start = symbol->start;
    frame.symbol_bytes = symbol->bytes;
}

namespace {

const char *name_of(Dwarf_Die *scope) {
    Dwarf_Attribute attribute;
    Dwarf_Attribute *linkage = dwarf_attr_integrate(scope, DW_AT_linkage_name, &attribute);
    const char *name = linkage != nullptr ? dwarf_formstring(linkage) : dwarf_diename(scope);
    return name != nullptr ? name : "?";
}

/* Where an inlined function was called, into `frame`. */
void call_place_into(Frame &frame, Dwarf_Die *scope, Dwarf_Files *files) {
    Dwarf_Attribute attribute;
    Dwarf_Word number = 0;
    frame.file.clear();
    frame.line = 0;
    if (dwarf_formudata(dwarf_attr(scope, DW_AT_call_file, &attribute), &number) == 0 && files != nullptr) {
        const char *source = dwarf_filesrc(files, number, nullptr, nullptr);
        frame.file = source != nullptr ? source : "";
    }
    if (dwarf_formudata(dwarf_attr(scope, DW_AT_call_line, &attribute), &number) == 0) {
        frame.line = static_cast<int>(number);
    }
}

}  // namespace

/* The inlined functions around `address`, innermost first, before the frame of the function that holds them. */
void Symbols::Module::inlined_into(std::vector<Frame> &frames, uint64_t address) {
    Dwarf_Addr dwarf_bias = 0;
    Dwarf_Die *unit = dwfl_module_addrdie(opened, address, &dwarf_bias);
    if (unit == nullptr) {
        return;
    }
    std::vector<Dwarf_Die> scopes = units.scopes(unit, address - dwarf_bias);
    Dwarf_Files *files = nullptr;
    dwarf_getsrcfiles(unit, &files, nullptr);
    Frame outer = frames.back();
    frames.clear();
    for (Dwarf_Die &scope : scopes) {
        if (dwarf_tag(&scope) == DW_TAG_inlined_subroutine) {
            Frame inner;
            inner.function = demangled(name_of(&scope));
            inner.module = outer.module;
            inner.file = outer.file;
            inner.line = outer.line;
            inner.inlined = true;
            frames.push_back(inner);
            call_place_into(outer, &scope, files);
        }
    }
    frames.push_back(outer);
}

Symbols::Symbols() = default;
Symbols::~Symbols() = default;

std::vector<Moved> Symbols::module_add(const qtr_meta_module &record, const char *path) {
    std::vector<Moved> moved;
    for (const std::unique_ptr<Module> &gone : modules_) {
        if (gone->start < record.end && record.start < gone->end) {
            moved.push_back({gone->start, gone->end, ++moves_ << ADDRESS_BITS});
            gone->start += moved.back().by;
            gone->end += moved.back().by;
            gone->bias += moved.back().by;
        }
    }
    auto module = std::make_unique<Module>();
    module->start = record.start;
    module->end = record.end;
    module->bias = record.bias;
    module->path = path;
    module->build_id.assign(record.text, record.head.number);
    modules_.push_back(std::move(module));
    return moved;
}

Symbols::Module *Symbols::module_of(uint64_t address) {
    for (size_t i = modules_.size(); i-- > 0;) {
        if (address >= modules_[i]->start && address < modules_[i]->end) {
            return modules_[i].get();
        }
    }
    return nullptr;
}

Origin Symbols::origin(uint64_t return_address) {
    Origin origin;
    const Module *module = module_of(return_address - 1);
    origin.offset = return_address;
    if (module != nullptr) {
        origin.path = module->path;
        origin.offset = return_address - module->bias;
        for (char byte : module->build_id) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
            origin.build_id += digits;
        }
    }
    return origin;
}

std::string Symbols::program() const {
    return modules_.empty() ? "" : modules_[0]->path;  // the loader lists it first
}

const std::vector<Frame> &Symbols::at(uint64_t return_address) {
    auto found = known_.find(return_address);
    if (found != known_.end()) {
        return found->second;
    }
    uint64_t address = return_address - 1;  // within the call, not after it
    std::vector<Frame> frames(1);
    Frame &frame = frames[0];
    frame.offset = return_address;
    Module *module = module_of(address);
    if (module != nullptr) {
        frame.module = base_name(module->path);
        frame.offset = return_address - module->bias;
        if (!module->tried) {
            module->open(note_);
        }
        if (module->opened != nullptr) {
            module->symbol_into(frame, address);
            Dwfl_Line *line = dwfl_module_getsrc(module->opened, address);
            const char *file = line == nullptr ? nullptr
                                               : dwfl_lineinfo(line, nullptr, &frame.line, nullptr, nullptr, nullptr);
            frame.file = file != nullptr ? file : "";
            if (file != nullptr) {
                module->inlined_into(frames, address);
            }
        }
    }
    return known_.emplace(return_address, std::move(frames)).first->second;
}

}  // namespace quire
