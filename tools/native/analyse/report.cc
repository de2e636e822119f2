// SPDX-License-Identifier: MIT
/*
 * report.cc - schema "quire.sites/1"; doc/trace-format.md tells what each member means.
 *
 * Sites are listed by count, most first; "id" is the number that the replay program uses.
 * Not here: advice.  This file says what was, not what to do.
 */
#include "report.h"

#include <algorithm>

#include "json_text.h"

namespace quire {

namespace {

std::string list(const std::vector<std::string> &texts) {
    std::string out = "[";
    for (size_t i = 0; i < texts.size(); i++) {
        out += (i > 0 ? ", " : "") + quoted(texts[i]);
    }
    return out + "]";
}

std::string member(const char *name, uint64_t value) {
    return quoted(name) + ": " + std::to_string(value);
}

std::string seconds(uint64_t ns) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6f", static_cast<double>(ns) / 1e9);
    return text;
}

std::vector<std::string> command(const qtr_header *header) {
    std::vector<std::string> result;
    std::string argument;
    for (uint32_t i = 0; i < header->command_bytes; i++) {
        if (header->command[i] == '\0') {
            result.push_back(argument);
            argument.clear();
        } else {
            argument += header->command[i];
        }
    }
    return result;
}

void facts_write(const Report &report, FILE *to) {
    const qtr_header *header = qtr_reader_header(report.reader);
    const LifeTotals &totals = report.life->totals();
    std::string note = qtr_note(report.reader);
    if (!report.symbols->note().empty()) {
        note += (note.empty() ? "" : "; ") + report.symbols->note();
    }
    uint64_t wall_ns = header->last_monotonic_ns - header->start_monotonic_ns;
    std::fprintf(to, "  \"trace\": {\n    \"command\": %s,\n    \"pid\": %u, \"parent_pid\": %u,\n",
                 list(command(header)).c_str(), header->pid, header->parent_pid);
    std::fprintf(to, "    %s, %s, %s, %s,\n", member("events", totals.events).c_str(),
                 member("allocations", totals.allocations).c_str(), member("frees", totals.frees).c_str(),
                 member("reallocs", totals.reallocs).c_str());
    std::fprintf(to, "    %s,\n", member("events_outside", totals.events_outside).c_str());
    std::fprintf(to, "    %s, %s, %s,\n", member("unknown_frees", totals.unknown_frees).c_str(),
                 member("missed_frees", totals.missed_frees).c_str(), member("threads", totals.threads).c_str());
    std::fprintf(to, "    \"wall_s\": %s, \"cpu_s\": %s, %s,\n", seconds(wall_ns).c_str(),
                 seconds(header->cpu_ns - std::min(header->cpu_ns, header->cpu_ns_before)).c_str(), member("peak_rss_bytes", header->peak_rss_bytes).c_str());
    std::fprintf(to, "    %s, %s, %s,\n", member("peak_live_bytes", totals.peak_live_bytes).c_str(),
                 member("peak_live_objects", totals.peak_live).c_str(),
                 member("live_bytes_at_end", totals.live_bytes).c_str());
    std::fprintf(to, "    \"exit_status\": %s,\n", header->exit_known == 1 ? std::to_string(header->exit_status).c_str() : "null");
    std::fprintf(to, "    %s, %s, \"attached\": %s, \"exited\": %s, \"complete\": %s,\n    \"note\": %s\n  },\n",
                 member("unknown_stacks", header->unknown_stacks).c_str(),
                 member("lost_events", header->lost_events).c_str(), header->cpu_ns_before > 0 ? "true" : "false",
                 header->state == QTR_EXITED ? "true" : "false",
                 qtr_complete(report.reader) ? "true" : "false", quoted(note).c_str());
}

std::string spread(const char *name, const Spread &values) {
    return quoted(name) + ": {" + member("p50", values.percentile(50)) + ", " + member("p90", values.percentile(90)) +
           ", " + member("p99", values.percentile(99)) + ", " + member("max", values.max()) + "}";
}

std::string sizes(const SiteLife &life) {
    std::string out = "{" + member("min", life.size_min) + ", " + member("max", life.size_max) + ", \"top\": [";
    bool first = true;
    for (const SizeCount &size : life.top_sizes(8)) {
        out += (first ? "{" : ", {") + member("bytes", size.bytes) + ", " + member("count", size.count) + "}";
        first = false;
    }
    return out + "]}";
}

void site_write(const Report &report, uint32_t id, FILE *to) {
    const Site &site = report.sites->all()[id];
    const SiteLife &life = report.life->sites()[id];
    const Generations &g = life.generations;
    std::fprintf(to, "    {\n      %s, \"function\": %s, \"file\": %s, \"line\": %d, \"module\": %s, \"after\": %s,\n",
                 member("id", id).c_str(), quoted(site.function).c_str(), quoted(site.file).c_str(), site.line,
                 quoted(site.module).c_str(), quoted(site.after).c_str());
    std::fprintf(to, "      \"inlined\": %s, \"key\": \"%016llx\", %s,\n", site.inlined ? "true" : "false",
                 static_cast<unsigned long long>(site.key), member("frame", report.sites->own_frame(site)).c_str());
    std::fprintf(to, "      \"stack\": %s,\n", list(report.sites->stack_text(site)).c_str());
    std::fprintf(to, "      %s, %s, %s, %s, %s,\n", member("count", life.count).c_str(),
                 member("bytes", life.bytes).c_str(), member("zeroed", life.zeroed).c_str(),
                 member("aligned", life.aligned).c_str(), member("freed", life.frees).c_str());
    std::fprintf(to, "      %s, %s, %s,\n", member("never_freed", life.live).c_str(),
                 member("reallocs", life.reallocs).c_str(), member("realloc_bytes", life.realloc_bytes).c_str());
    std::fprintf(to, "      \"sizes\": %s,\n", sizes(life).c_str());
    std::fprintf(to, "      %s,\n      %s,\n", spread("lifetime_allocations", life.life_allocations).c_str(),
                 spread("lifetime_ns", life.life_ns).c_str());
    std::fprintf(to, "      %s, %s, %s,\n", member("peak_live_objects", life.peak_live).c_str(),
                 member("peak_live_bytes", life.peak_live_bytes).c_str(),
                 member("bytes_at_program_peak", life.bytes_at_peak).c_str());
    std::fprintf(to, "      %s, %s, %s,\n", member("threads_allocating", life.allocating.size()).c_str(),
                 member("threads_freeing", life.freeing.size()).c_str(),
                 member("cross_thread_frees", life.cross_thread_frees).c_str());
    std::fprintf(to, "      \"generations\": {%s, %s, %s, %s, %s, %s, \"open_at_end\": %s}\n    }",
                 member("count", g.count).c_str(), member("allocated_bytes_sum", g.allocated_bytes_sum).c_str(),
                 member("allocated_bytes_max", g.allocated_bytes_max).c_str(),
                 member("peak_live_bytes_sum", g.peak_live_bytes_sum).c_str(),
                 member("peak_live_bytes_max", g.peak_live_bytes_max).c_str(),
                 member("objects_max", g.objects_max).c_str(), life.live > 0 ? "true" : "false");
}

}  // namespace

bool report_write(const Report &report, FILE *to) {
    const std::vector<SiteLife> &lives = report.life->sites();
    std::vector<uint32_t> order;
    for (uint32_t id = 0; id < lives.size(); id++) {
        if (lives[id].count > 0) {
            order.push_back(id);
        }
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return lives[a].count != lives[b].count ? lives[a].count > lives[b].count : a < b;
    });
    std::fprintf(to, "{\n  \"schema\": \"quire.sites/1\",\n");
    facts_write(report, to);
    std::fprintf(to, "  \"sites\": [");
    for (size_t i = 0; i < order.size(); i++) {
        std::fprintf(to, i > 0 ? ",\n" : "\n");
        site_write(report, order[i], to);
    }
    std::fprintf(to, "\n  ]\n}\n");
    return std::ferror(to) == 0;
}

}  // namespace quire
