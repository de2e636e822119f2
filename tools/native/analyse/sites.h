// SPDX-License-Identifier: MIT
/*
 * sites.h - from call stacks to allocation sites.
 *
 *   stack:  malloc's caller ...  xmalloc | parse_list | parse_value | parse | main
 *                                wrapper   ^site        ^---------^ two callers tell equal sites apart
 *
 * A site is the place of the first frame that is not a wrapper, with those of its next two callers.  doc/trace-format.md says what is a wrapper.
 */
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "symbols.h"

namespace quire {

constexpr uint32_t STACKS_MAX = 1u << 20;  // more than any recorder numbers

struct Site {
    std::string function, file, module, after;
    int line = 0;
    bool inlined = false;         // the function, into its caller
    uint64_t key = 0;             // the same in every trace of one program: of the places that tell sites apart
    std::vector<uint64_t> stack;  // return addresses of the stack that stands for the site
    uint64_t stack_uses = 0;
};

class Sites {
  public:
    explicit Sites(Symbols &symbols) : symbols_(symbols) {}
    void wrapper_add(const std::string &name) { wrappers_.insert(name); }
    void stack_add(uint32_t id, const uint64_t *ips, unsigned count);
    /* In the stacks so far. */
    void move(const Moved &moved);
    void slots_add(const qtr_meta_slots &slots) { slots_[slots.head.number].push_back(slots); }
    /* A stack's blocks are of this pool of the program's own. */
    void pool_add(uint32_t id, const std::string &name) { pools_[id] = name; }
    const std::unordered_map<uint32_t, std::vector<qtr_meta_slots>> &slots() const { return slots_; }
    /* How many of a stack's innermost frames tell its site apart. */
    size_t telling(uint32_t stack_id) { return stack_id < telling_.size() ? telling_[stack_id] : 0; }
    /* After all stacks are known: folds wrappers and numbers the sites. */
    void settle();
    /* The site of a stack; site 0 stands for stacks that are not known. */
    uint32_t of(uint32_t stack_id) { return stack_id < site_of_.size() ? site_of_[stack_id] : 0; }
    void used(uint32_t stack_id, uint64_t count);
    const std::vector<Site> &all() const { return sites_; }
    const std::vector<std::vector<uint64_t>> &stacks() const { return stacks_; }
    std::vector<std::string> stack_text(const Site &site);
    /* Which of the lines of stack_text() is the site's own function. */
    size_t own_frame(const Site &site);

  private:
    bool is_wrapper(const Frame &frame) const;
    bool is_allocation_name(const std::string &name) const;
    size_t inside(const std::vector<uint64_t> &stack);
    void fold_forwarders();
    std::string place(uint64_t ip, const Frame *from);
    /* Index of the first return address of a stack that is not all wrappers, and its innermost other frame. */
    size_t first_own(const std::vector<uint64_t> &stack, const Frame **frame);
    Symbols &symbols_;
    std::unordered_set<std::string> wrappers_;
    std::unordered_set<uint64_t> forwarders_;  // symbol starts
    std::vector<std::vector<uint64_t>> stacks_;
    std::vector<uint32_t> site_of_;
    std::vector<uint32_t> telling_;
    std::unordered_map<uint32_t, std::vector<qtr_meta_slots>> slots_;
    std::unordered_map<uint32_t, std::string> pools_;
    std::vector<Site> sites_;
};

}  // namespace quire
