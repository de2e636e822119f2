// SPDX-License-Identifier: MIT
/*
 * units.cc - see units.h. Functions of one unit do not overlap, but for those that the linker folded into one: any of them stands for all.
 */
#include "units.h"

#include <algorithm>
#include <dwarf.h>

namespace quire {

namespace {

/* Whether functions may lie below it. */
bool is_outer(int tag) {
    return tag == DW_TAG_namespace || tag == DW_TAG_structure_type || tag == DW_TAG_class_type || tag == DW_TAG_union_type || tag == DW_TAG_module;
}

/* Whether it is a part of a function, with code of its own. */
bool is_inner(int tag) {
    return tag == DW_TAG_inlined_subroutine || tag == DW_TAG_lexical_block || tag == DW_TAG_try_block || tag == DW_TAG_catch_block;
}

/* The child that holds the address, into `child`. */
bool inner_at(Dwarf_Die *parent, Dwarf_Addr address, Dwarf_Die *child) {
    for (int status = dwarf_child(parent, child); status == 0; status = dwarf_siblingof(child, child)) {
        if (is_inner(dwarf_tag(child)) && dwarf_haspc(child, address) > 0) {
            return true;
        }
    }
    return false;
}

}  // namespace

void Units::collect(Dwarf_Die *parent, std::vector<Function> &into) {
    Dwarf_Die child;
    for (int status = dwarf_child(parent, &child); status == 0; status = dwarf_siblingof(&child, &child)) {
        int tag = dwarf_tag(&child);
        if (is_outer(tag)) {
            collect(&child, into);
        } else if (tag == DW_TAG_subprogram) {
            Dwarf_Addr base = 0;
            Dwarf_Addr start = 0;
            Dwarf_Addr end = 0;
            for (ptrdiff_t at = 0; (at = dwarf_ranges(&child, at, &base, &start, &end)) > 0;) {
                into.push_back({start, end, child});
            }
        }
    }
}

const std::vector<Units::Function> &Units::functions(Dwarf_Die *unit) {
    auto [found, is_new] = known_.try_emplace(unit->addr);
    if (is_new) {
        collect(unit, found->second);
        std::stable_sort(found->second.begin(), found->second.end(), [](const Function &a, const Function &b) { return a.start < b.start; });
    }
    return found->second;
}

std::vector<Dwarf_Die> Units::scopes(Dwarf_Die *unit, Dwarf_Addr address) {
    const std::vector<Function> &all = functions(unit);
    auto after = std::upper_bound(all.begin(), all.end(), address, [](Dwarf_Addr wanted, const Function &f) { return wanted < f.start; });
    std::vector<Dwarf_Die> path;
    if (after == all.begin() || address >= std::prev(after)->end) {
        return path;
    }
    path.push_back(std::prev(after)->die);
    Dwarf_Die child;
    while (inner_at(&path.back(), address, &child)) {
        path.push_back(child);
    }
    std::reverse(path.begin(), path.end());
    return path;
}

}  // namespace quire
