// SPDX-License-Identifier: MIT
/*
 * paths.cc - schema "quire.paths/1": what a library needs to know a call site again.
 *
 *   modules   the files, with build id
 *   frames    return addresses: module, offset in it, function and line
 *   stacks    site, allocations, how many frames tell the site apart, frames (innermost first), and in which words above the
 *             caller's stack pointer the next return addresses lay: one list for each way that was seen
 *
 * Not here: which of them are wanted (the quire tool), what is done with them (src/steer).
 */
#include "paths.h"

#include <map>

#include "json_text.h"

namespace quire {

namespace {

class Paths {
  public:
    Paths(const Report &report, FILE *to) : report_(report), to_(to) {}
    bool write();

  private:
    size_t frame_of(uint64_t ip);
    void stack_write(uint32_t id, uint64_t allocs);
    const Report &report_;
    FILE *to_;
    std::map<std::string, size_t> module_numbers_;
    std::vector<std::string> modules_;
    std::unordered_map<uint64_t, size_t> frame_numbers_;
    std::vector<std::string> frames_;
};

/* By its return address; two loads of one file give two frames that read alike. */
size_t Paths::frame_of(uint64_t ip) {
    auto inserted = frame_numbers_.emplace(ip, frames_.size());
    if (!inserted.second) {
        return inserted.first->second;
    }
    const Origin origin = report_.symbols->origin(ip);
    std::string module = "{\"path\": " + quoted(origin.path) + ", \"build_id\": " + quoted(origin.build_id) + "}";
    auto numbered = module_numbers_.emplace(module, modules_.size());
    if (numbered.second) {
        modules_.push_back(module);
    }
    const std::vector<Frame> &frames = report_.symbols->at(ip);
    const Frame &outer = frames.back();
    std::string text = "{\"module\": " + std::to_string(numbered.first->second) + ", \"offset\": " + std::to_string(origin.offset) +
                       ", \"function\": " + quoted(outer.function) + ", \"from_function\": " + std::to_string(outer.symbol_start ? outer.offset : 0) +
                       ", \"function_bytes\": " + std::to_string(outer.symbol_bytes) + ", \"lines\": [";
    for (size_t i = 0; i < frames.size(); i++) {
        text += (i > 0 ? ", " : "") + quoted(frames[i].function + "|" + frames[i].file + ":" + std::to_string(frames[i].line));
    }
    frames_.push_back(text + "]}");
    return inserted.first->second;
}

void Paths::stack_write(uint32_t id, uint64_t allocs) {
    const std::vector<uint64_t> &stack = report_.sites->stacks()[id];
    size_t telling = report_.sites->telling(id);
    std::fprintf(to_, "{\"site\": %u, \"allocs\": %llu, \"telling\": %zu, \"frames\": [", report_.sites->of(id),
                 static_cast<unsigned long long>(allocs), telling);
    for (size_t i = 0; i < stack.size() && i <= QTR_SLOTS_MAX; i++) {
        std::fprintf(to_, i > 0 ? ", %zu" : "%zu", frame_of(stack[i]));
    }
    std::fprintf(to_, "], \"slots\": [");
    auto found = report_.sites->slots().find(id);
    if (found != report_.sites->slots().end()) {
        const char *comma = "";
        for (const qtr_meta_slots &slots : found->second) {
            std::fprintf(to_, "%s[", comma);
            for (unsigned i = 0; i < QTR_SLOTS_MAX; i++) {
                int words = slots.words[i] == QTR_SLOT_NONE ? -1 : slots.words[i];
                std::fprintf(to_, i > 0 ? ", %d" : "%d", words);
            }
            std::fprintf(to_, "]");
            comma = ", ";
        }
    }
    std::fprintf(to_, "]}");
}

bool Paths::write() {
    const std::vector<uint64_t> &uses = report_.life->stack_uses();
    std::fprintf(to_, "{\"schema\": \"quire.paths/1\",\n\"stacks\": [");
    const char *comma = "\n";
    for (uint32_t id = 1; id < uses.size() && id < report_.sites->stacks().size(); id++) {
        if (uses[id] > 0 && report_.sites->of(id) != 0) {
            std::fprintf(to_, "%s", comma);
            stack_write(id, uses[id]);
            comma = ",\n";
        }
    }
    std::fprintf(to_, "],\n\"modules\": [");
    for (size_t i = 0; i < modules_.size(); i++) {
        std::fprintf(to_, "%s\n%s", i > 0 ? "," : "", modules_[i].c_str());
    }
    std::fprintf(to_, "],\n\"frames\": [");
    for (size_t i = 0; i < frames_.size(); i++) {
        std::fprintf(to_, "%s\n%s", i > 0 ? "," : "", frames_[i].c_str());
    }
    std::fprintf(to_, "],\n\"program\": %s}\n", quoted(report_.symbols->program()).c_str());
    return std::ferror(to_) == 0;
}

}  // namespace

bool paths_write(const Report &report, FILE *to) {
    return Paths(report, to).write();
}

}  // namespace quire
