// SPDX-License-Identifier: MIT
/*
 * symbol_table.cc - filled once a module, then searched.
 *
 * Invariant: T1  symbols are in order of their addresses, one for each address
 */
#include "symbol_table.h"

#include <algorithm>

namespace quire {

namespace {

constexpr uint64_t SIZELESS_BYTES = 4096;  // assembly without sizes: that far a name reaches
constexpr size_t ENCLOSING_MAX = 16;       // labels within a function lie between its start and the address

/* Functions before labels, then global names before local ones, then the larger. */
int rank_of(const GElf_Sym &symbol) {
    int type = GELF_ST_TYPE(symbol.st_info), bind = GELF_ST_BIND(symbol.st_info);
    int rank = type == STT_FUNC || type == STT_GNU_IFUNC ? 8 : 0;
    rank += symbol.st_size != 0 ? 4 : 0;
    return rank + (bind == STB_GLOBAL ? 2 : bind == STB_WEAK ? 1 : 0);
}

bool is_code(const GElf_Sym &symbol) {
    int type = GELF_ST_TYPE(symbol.st_info);
    return symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE);
}

}  // namespace

void SymbolTable::fill(Dwfl_Module *module) {
    int count = dwfl_module_getsymtab(module);
    for (int i = 1; i < count; i++) {
        GElf_Sym symbol;
        GElf_Addr address = 0;
        const char *name = dwfl_module_getsym_info(module, i, &symbol, &address, nullptr, nullptr, nullptr);
        if (name != nullptr && name[0] != '\0' && is_code(symbol)) {
            symbols_.push_back({address, symbol.st_size, name, rank_of(symbol)});
        }
    }
    std::stable_sort(symbols_.begin(), symbols_.end(), [](const Symbol &a, const Symbol &b) {
        return a.start != b.start ? a.start < b.start : a.rank > b.rank;
    });
    auto same = [](const Symbol &a, const Symbol &b) { return a.start == b.start; };
    symbols_.erase(std::unique(symbols_.begin(), symbols_.end(), same), symbols_.end());
}

std::vector<SymbolTable::Symbol>::const_iterator SymbolTable::after(uint64_t address) const {
    return std::upper_bound(symbols_.begin(), symbols_.end(), address,
                            [](uint64_t value, const Symbol &symbol) { return value < symbol.start; });
}

const SymbolTable::Symbol *SymbolTable::before(uint64_t address) const {
    auto next = after(address);
    return next == symbols_.begin() ? nullptr : &*(next - 1);
}

const SymbolTable::Symbol *SymbolTable::at(uint64_t address) const {
    auto next = after(address);
    const Symbol *sizeless = nullptr;
    size_t nearby = std::min<size_t>(ENCLOSING_MAX, static_cast<size_t>(next - symbols_.begin()));
    for (size_t i = 1; i <= nearby; i++) {
        const Symbol &symbol = *(next - static_cast<ptrdiff_t>(i));
        uint64_t offset = address - symbol.start;
        if (symbol.bytes != 0 && offset < symbol.bytes) {
            return &symbol;
        }
        if (symbol.bytes == 0 && offset <= SIZELESS_BYTES && sizeless == nullptr) {
            sizeless = &symbol;
        }
        if (symbol.bytes != 0 && sizeless != nullptr) {
            break;  // a function that ended before: the label behind it is not within
        }
    }
    return sizeless;
}

}  // namespace quire
