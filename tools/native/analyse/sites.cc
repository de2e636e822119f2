// SPDX-License-Identifier: MIT
/*
 * sites.cc - which frames are wrappers, and which stacks are one site.
 *
 * Wrappers, by name: the malloc family and its users in libc that hand the block on (strdup, getline ...), operator new,
 * everything in namespace std, names that end in malloc, calloc, realloc, memalign, strdup or strndup with whatever
 * prefix (xmalloc, g_malloc, CRYPTO_zalloc ...), a list of well-known others, and names given by the user.
 * Frames below a function with such a name are inside it, also without a name of their own; up to INSIDE_GAP other frames
 * may lie between two such names.
 * By shape: a function of at most FORWARDER_BYTES bytes that is called from at least FORWARDER_CALLERS places.
 *
 * Invariant: S1  every stack has a site; a stack of nothing but wrappers is a site at its outermost frame.
 */
#include "sites.h"

#include <algorithm>
#include <set>

namespace quire {

namespace {

constexpr uint64_t FORWARDER_BYTES = 96;
constexpr size_t FORWARDER_CALLERS = 8;
constexpr size_t INSIDE_GAP = 2;

const char *const known_wrappers[] = {
    "free", "reallocarray", "posix_memalign", "aligned_alloc", "valloc", "pvalloc", "asprintf", "vasprintf",
    "__asprintf", "__vasprintf", "__vasprintf_internal", "getline", "getdelim", "_IO_getdelim", "wcsdup", "_Znwm",
    "_Znam", "__gmp_default_allocate", "__gmp_default_reallocate", "jv_mem_alloc", "jv_mem_alloc_unguarded", "jv_mem_calloc", "jv_mem_calloc_unguarded", "jv_mem_realloc",
    "jv_mem_strdup", "jv_mem_strdup_unguarded", "PyObject_New", "_PyObject_New", "_PyObject_GC_New",
    "_PyObject_GC_NewVar", "_PyObject_GC_Alloc", "_PyObject_NewVar", "PyType_GenericAlloc", "_PyType_AllocNoTrack",
    "PyType_GenericNew", "sqlite3MemMalloc", "sqlite3MemRealloc", "mallocWithAlarm", "sqlite3Malloc", "sqlite3MallocZero",
    "sqlite3_malloc64", "sqlite3DbMallocRaw", "sqlite3DbMallocRawNN", "sqlite3DbMallocZero", "sqlite3DbRealloc",
    "sqlite3_realloc64", "sqlite3DbStrDup", "sqlite3DbStrNDup", "dbMallocRawFinish", "dbReallocFinish", "pcache1Alloc",
    "sqlite3Realloc", "g_malloc0", "g_malloc_n", "g_malloc0_n", "g_realloc_n", "g_slice_alloc", "g_slice_alloc0", "g_memdup",
    "g_memdup2", "CRYPTO_zalloc", "CRYPTO_memdup", "apr_palloc", "xmalloc0", "xzalloc", "xcalloc", "xmemdup", "x2realloc",
    "xnmalloc", "xnrealloc", "ggc_internal_alloc",
};

const char *const wrapper_endings[] = {"malloc", "calloc", "realloc", "memalign", "strdup", "strndup", "Malloc", "Calloc",
                                       "Realloc", "Strdup", "_zalloc", "malloc64", "realloc64"};

bool ends_with(const std::string &text, const std::string &ending) {
    return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

bool in_namespace(const std::string &name, const char *space) {
    return name.rfind(space, 0) == 0;
}

/* "f.part.0" and "f.constprop.0" are f; "f(int)" is f; "void f<int>(int)" starts with its result. */
std::string plain_name(const std::string &name) {
    size_t end = name.find_first_of("(.@");
    return end == std::string::npos || end == 0 ? name : name.substr(0, end);
}

/* FNV-1a: no secret is kept, and two of 100,000 sites meet once in a billion programs. */
uint64_t hash_of(const std::string &text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (char c : text) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    return hash;
}

}  // namespace

void Sites::stack_add(uint32_t id, const uint64_t *ips, unsigned count) {
    if (id == 0 || id > STACKS_MAX) {
        return;  // the recorder gives fewer: a damaged record
    }
    if (id >= stacks_.size()) {
        stacks_.resize(id + 1u);
    }
    stacks_[id].assign(ips, ips + count);
}

void Sites::move(const Moved &moved) {
    for (std::vector<uint64_t> &stack : stacks_) {
        for (uint64_t &ip : stack) {
            ip += ip - 1 - moved.start < moved.end - moved.start ? moved.by : 0;
        }
    }
}

bool Sites::is_allocation_name(const std::string &name) const {
    std::string plain = plain_name(name);
    if (wrappers_.count(plain) != 0 || wrappers_.count(name) != 0) {
        return true;
    }
    for (const char *ending : wrapper_endings) {
        if (ends_with(plain, ending)) {
            return true;
        }
    }
    return false;
}

bool Sites::is_wrapper(const Frame &frame) const {
    if (frame.symbol_start != 0 && forwarders_.count(frame.symbol_start) != 0) {
        return true;
    }
    const std::string &name = frame.function;
    if (in_namespace(name, "operator new") || in_namespace(name, "std::") || in_namespace(name, "__gnu_cxx::") ||
        in_namespace(name, "void std::") || in_namespace(name, "void __gnu_cxx::")) {
        return true;
    }
    if (frame.file.find("/include/c++/") != std::string::npos) {
        return true; // a template over what a function has of its own has no namespace in its name
    }
    return !name.empty() && is_allocation_name(name);
}

/* How many of the innermost return addresses lie inside an allocation function, named or not. */
size_t Sites::inside(const std::vector<uint64_t> &stack) {
    size_t end = 0;
    for (size_t i = 0; i + 1 < stack.size() && i <= end + INSIDE_GAP; i++) {
        const Frame &frame = symbols_.at(stack[i]).back();
        if (!frame.function.empty() && is_allocation_name(frame.function)) {
            end = i + 1;
        }
    }
    return end;
}

size_t Sites::first_own(const std::vector<uint64_t> &stack, const Frame **result) {
    for (size_t i = inside(stack); i < stack.size(); i++) {
        for (const Frame &frame : symbols_.at(stack[i])) {
            if (!is_wrapper(frame)) {
                *result = &frame;
                return i;
            }
        }
    }
    *result = &symbols_.at(stack.back()).back();
    return stack.size() - 1;
}

void Sites::fold_forwarders() {
    struct Candidate {
        std::set<uint64_t> callers;
    };
    std::unordered_map<uint64_t, Candidate> candidates;
    for (const std::vector<uint64_t> &stack : stacks_) {
        const Frame *frame = nullptr;
        size_t at = stack.empty() ? 0 : first_own(stack, &frame);
        if (frame != nullptr && frame->symbol_start != 0 && frame->symbol_bytes != 0 &&
            frame->symbol_bytes <= FORWARDER_BYTES && at + 1 < stack.size()) {
            candidates[frame->symbol_start].callers.insert(stack[at + 1]);
        }
    }
    for (const auto &candidate : candidates) {
        if (candidate.second.callers.size() >= FORWARDER_CALLERS) {
            forwarders_.insert(candidate.first);
        }
    }
}

/*
 * A place in the source as text: two return addresses on one line (an unrolled loop) are one place.  Without lines each
 * address is its own.  `from`: leave out the frames that are inlined below it.
 */
std::string Sites::place(uint64_t ip, const Frame *from) {
    std::string text;
    for (const Frame &frame : symbols_.at(ip)) {
        if (from != nullptr && &frame < from) {
            continue;
        }
        text += frame.function + "|" + frame.module + "|" +
                (frame.file.empty() ? std::to_string(frame.offset) : frame.file + ":" + std::to_string(frame.line)) + "\n";
    }
    return text;
}

void Sites::settle() {
    wrappers_.insert(std::begin(known_wrappers), std::end(known_wrappers));
    fold_forwarders();
    sites_.assign(1, Site());
    sites_[0].function = "(unknown)";
    site_of_.assign(stacks_.size(), 0);
    telling_.assign(stacks_.size(), 0);
    std::unordered_map<std::string, uint32_t> numbers;
    for (size_t id = 0; id < stacks_.size(); id++) {
        const std::vector<uint64_t> &stack = stacks_[id];
        if (stack.empty()) {
            continue;
        }
        const Frame *frame = nullptr;
        size_t at = first_own(stack, &frame);
        std::string key;
        for (size_t i = at; i < stack.size() && i < at + 3; i++) {
            key += place(stack[i], i == at ? frame : nullptr);
        }
        auto pool = pools_.find(static_cast<uint32_t>(id));
        key += pool == pools_.end() ? "" : "pool " + pool->second;
        auto inserted = numbers.emplace(key, static_cast<uint32_t>(sites_.size()));
        if (inserted.second) {
            Site site;
            site.after = frame->after;
            site.function = !frame->function.empty() ? frame->function : frame->text().substr(0, frame->text().find(" (after "));
            site.function += pool == pools_.end() ? "" : " (pool " + pool->second + ")";
            site.file = frame->file;
            site.module = frame->module;
            site.line = frame->line;
            site.inlined = frame->inlined;
            site.key = hash_of(key);
            site.stack = stack;
            sites_.push_back(site);
        }
        site_of_[id] = inserted.first->second;
        telling_[id] = static_cast<uint32_t>(std::min(stack.size(), at + 3));
    }
}

void Sites::used(uint32_t stack_id, uint64_t count) {
    uint32_t number = of(stack_id);
    if (number != 0 && count > sites_[number].stack_uses) {
        sites_[number].stack_uses = count;
        sites_[number].stack = stacks_[stack_id];
    }
}

size_t Sites::own_frame(const Site &site) {
    const Frame *own = nullptr;
    size_t address = site.stack.empty() ? 0 : first_own(site.stack, &own);
    size_t line = 0;
    for (size_t i = 0; i <= address && i < site.stack.size(); i++) {
        for (const Frame &frame : symbols_.at(site.stack[i])) {
            if (&frame == own) {
                return line;
            }
            line++;
        }
    }
    return 0;
}

std::vector<std::string> Sites::stack_text(const Site &site) {
    std::vector<std::string> result;
    for (uint64_t ip : site.stack) {
        for (const Frame &frame : symbols_.at(ip)) {
            result.push_back(frame.text());
        }
    }
    return result;
}

}  // namespace quire
