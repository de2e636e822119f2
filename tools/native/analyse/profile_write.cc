// SPDX-License-Identifier: MIT
/*
 * profile_write.cc - schema "quire.profile/1"; doc/report.md tells what each member means.
 *
 *   functions [[function, file, line, module, inlined]]   locations [[function ...] innermost first]   stacks {[location ...], figures}
 *
 * Tables refer to each other by position, so that no name is written twice.  Stacks beyond STACKS_WRITTEN are one sum, so
 * that sums over what is written are always the trace's.
 * Not here: the figures (profile.cc).
 */
#include <algorithm>
#include <string>

#include "json_text.h"
#include "profile.h"

namespace quire {

namespace {

constexpr size_t STACKS_WRITTEN = 50000;

/* Functions and locations, numbered as they are met. */
class Names {
  public:
    explicit Names(Symbols &symbols) : symbols_(symbols) {}

    size_t location(uint64_t ip) {
        auto known = locations_.find(ip);
        if (known != locations_.end()) {
            return known->second;
        }
        std::string text;
        for (const Frame &frame : symbols_.at(ip)) {
            text += (text.empty() ? "" : ",") + std::to_string(function(frame));
        }
        location_texts.push_back("[" + text + "]");
        return locations_[ip] = location_texts.size() - 1;
    }

    std::vector<std::string> function_texts, location_texts;

  private:
    size_t function(const Frame &frame) {
        std::string name = frame.function.empty() ? frame.text() : frame.function;
        std::string text = "[" + quoted(name) + "," + quoted(frame.file) + "," + std::to_string(frame.line) + "," +
                           quoted(frame.module) + "," + (frame.inlined ? "true" : "false") + "]";
        auto added = functions_.emplace(text, function_texts.size());
        if (added.second) {
            function_texts.push_back(text);
        }
        return added.first->second;
    }

    Symbols &symbols_;
    std::unordered_map<uint64_t, size_t> locations_;
    std::unordered_map<std::string, size_t> functions_;
};

void samples_write(const Profile &profile, FILE *to) {
    std::fputs("\"samples\":[", to);
    const char *comma = "";
    for (const ProfileSample &sample : profile.samples()) {
        std::fprintf(to, "%s\n[%llu,%llu,%llu,%llu,%llu,[", comma, static_cast<unsigned long long>(sample.ops),
                     static_cast<unsigned long long>(sample.ns), static_cast<unsigned long long>(sample.live_bytes),
                     static_cast<unsigned long long>(sample.live_bytes_max),
                     static_cast<unsigned long long>(sample.live_objects));
        for (size_t i = 0; i < sample.site_bytes.size(); i++) {
            std::fprintf(to, "%s%llu", i > 0 ? "," : "", static_cast<unsigned long long>(sample.site_bytes[i]));
        }
        std::fputs("]]", to);
        comma = ",";
    }
    std::fputs("]", to);
}

/* [log2 of the size, log2 of the lifetime in ns or -1 for those that live to the end, objects, bytes] */
void cells_write(const SizeLifetime &matrix, FILE *to) {
    std::fputs("[", to);
    const char *comma = "";
    for (size_t i = 0; i < matrix.cells.size(); i++) {
        const SizeLifetime::Cell &cell = matrix.cells[i];
        if (cell.count > 0) {
            size_t life = i % PROFILE_LOG2S;
            std::fprintf(to, "%s[%zu,%d,%llu,%llu]", comma, i / PROFILE_LOG2S,
                         life == PROFILE_LOG2S - 1 ? -1 : static_cast<int>(life),
                         static_cast<unsigned long long>(cell.count), static_cast<unsigned long long>(cell.bytes));
            comma = ",";
        }
    }
    std::fputs("]", to);
}

void sites_write(const Profile &profile, const Sites &sites, FILE *to) {
    std::fputs("\"sites\":[", to);
    for (size_t i = 0; i < profile.wanted().sites.size(); i++) {
        uint32_t id = profile.wanted().sites[i];
        const Site &site = sites.all()[id];
        std::fprintf(to, "%s\n{\"id\":%u,\"function\":%s,\"file\":%s,\"line\":%d,\"size_lifetime\":", i > 0 ? "," : "", id,
                     quoted(site.function).c_str(), quoted(site.file).c_str(), site.line);
        cells_write(profile.of_sites()[i], to);
        std::fputs("}", to);
    }
    std::fputs("]", to);
}

/* Which grains live, four a digit, the first one its lowest bit; no zeros at the end: as bits in "quire.map/1". */
std::string grains_text(const Occupancy::Page &page) {
    std::string text;
    for (unsigned i = 0; i < GRAINS; i += 4) {
        text += "0123456789abcdef"[page.grains[i / 64] >> (i % 64) & 15];
    }
    text.resize(text.find_last_not_of('0') + 1);
    return text;
}

/* A region's pages: [live bytes, site, grains] each. */
void pages_write(const std::vector<Occupancy::Page> &pages, FILE *to) {
    for (size_t i = 0; i < pages.size(); i++) {
        std::fprintf(to, "%s[%llu,%u,\"%s\"]", i > 0 ? "," : "", static_cast<unsigned long long>(pages[i].bytes),
                     pages[i].site, grains_text(pages[i]).c_str());
    }
}

/* A region's blocks: [live bytes, site] each. */
void occupancy_write(const char *name, const Occupancy &map, FILE *to) {
    std::fprintf(to, "\"%s\":{\"block_bytes\":%llu,\"page_bytes\":%llu,\"left_out_bytes\":%llu,\"regions\":[", name,
                 static_cast<unsigned long long>(map.block_pages << 12),
                 static_cast<unsigned long long>(map.page_pages << 12),
                 static_cast<unsigned long long>(map.left_out_bytes));
    for (size_t r = 0; r < map.regions.size(); r++) {
        const Occupancy::Region &region = map.regions[r];
        std::fprintf(to, "%s\n{\"address\":\"0x%llx\",\"blocks\":[", r > 0 ? "," : "",
                     static_cast<unsigned long long>(region.first_page << 12));
        for (size_t i = 0; i < region.blocks.size(); i++) {
            std::fprintf(to, "%s[%llu,%u]", i > 0 ? "," : "", static_cast<unsigned long long>(region.blocks[i].bytes),
                         region.blocks[i].site);
        }
        std::fputs("],\"pages\":[", to);
        pages_write(region.pages, to);
        std::fputs("]}", to);
    }
    std::fputs("]}", to);
}

void stack_write(const StackUse &use, const std::string &locations, FILE *to) {
    std::fprintf(to, "[[%s],%llu,%llu,%llu,%llu,%llu,%llu,%llu]", locations.c_str(),
                 static_cast<unsigned long long>(use.allocations), static_cast<unsigned long long>(use.bytes),
                 static_cast<unsigned long long>(use.grown_bytes), static_cast<unsigned long long>(use.peak_live),
                 static_cast<unsigned long long>(use.peak_live_bytes), static_cast<unsigned long long>(use.live),
                 static_cast<unsigned long long>(use.live_bytes));
}

void add(StackUse &to, const StackUse &more) {
    to.allocations += more.allocations;
    to.bytes += more.bytes;
    to.grown_bytes += more.grown_bytes;
    to.peak_live += more.peak_live;
    to.peak_live_bytes += more.peak_live_bytes;
    to.live += more.live;
    to.live_bytes += more.live_bytes;
}

void stacks_write(const Profile &profile, const Sites &sites, Names &names, FILE *to) {
    const std::vector<StackUse> &uses = profile.stacks();
    std::vector<uint32_t> order;
    for (uint32_t id = 0; id < uses.size(); id++) {
        if (uses[id].allocations > 0) {
            order.push_back(id);
        }
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return uses[a].bytes != uses[b].bytes ? uses[a].bytes > uses[b].bytes : a < b;
    });
    std::fputs("\"stacks\":[", to);
    StackUse others;
    for (size_t i = 0; i < order.size(); i++) {
        uint32_t id = order[i];
        bool known = id < sites.stacks().size() && !sites.stacks()[id].empty();
        if (i >= STACKS_WRITTEN || !known) {
            add(others, uses[id]);
            continue;
        }
        std::string locations;
        for (uint64_t ip : sites.stacks()[id]) {
            locations += (locations.empty() ? "" : ",") + std::to_string(names.location(ip));
        }
        stack_write(uses[id], locations, to);
        std::fputs(",\n", to);
    }
    stack_write(others, "", to);  // always there, and last: stacks that are not known or not written
    std::fputs("]", to);
}

void texts_write(const char *name, const std::vector<std::string> &texts, FILE *to) {
    std::fprintf(to, ",\n\"%s\":[", name);
    for (size_t i = 0; i < texts.size(); i++) {
        std::fprintf(to, "%s%s", i > 0 ? ",\n" : "", texts[i].c_str());
    }
    std::fputs("]", to);
}

}  // namespace

bool profile_write(const Profile &profile, Sites &sites, Symbols &symbols, FILE *to) {
    Names names(symbols);
    std::fprintf(to, "{\"schema\":\"quire.profile/1\",\"frames_max\":%u,\n", QTR_FRAMES_MAX);
    samples_write(profile, to);
    std::fputs(",\n\"size_lifetime\":", to);
    cells_write(profile.whole(), to);
    std::fputs(",\n", to);
    sites_write(profile, sites, to);
    std::fputs(",\n", to);
    occupancy_write("occupancy_at_peak", profile.at_peak(), to);
    std::fputs(",\n", to);
    occupancy_write("occupancy_at_end", profile.at_end(), to);
    std::fputs(",\n", to);
    stacks_write(profile, sites, names, to);
    texts_write("locations", names.location_texts, to);
    texts_write("functions", names.function_texts, to);
    std::fputs("}\n", to);
    return std::ferror(to) == 0;
}

}  // namespace quire
