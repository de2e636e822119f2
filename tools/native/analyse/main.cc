// SPDX-License-Identifier: MIT
/*
 * main.cc - quire-analyse TRACE --sites FILE.json --program FILE.qrp --profile FILE.json [--wrapper NAME]...
 *
 *   trace -> definitions -> symbols -> sites -> events, once -> sites.json and program.qrp
 *                                               once more     -> profile.json, where it is wanted
 *
 * Exit status: 0 done, also for a trace that is cut short (the JSON's note says so); 2 usage; 3 the trace cannot be read or a
 * file cannot be written.
 */
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "json_text.h"
#include "paths.h"
#include "profile.h"
#include "report.h"

namespace {

const char usage_text[] =
    "usage: quire-analyse TRACE [--sites FILE.json] [--program FILE.qrp] [--profile FILE.json]\n"
    "                           [--paths FILE.json] [--wrapper NAME]... [--from NS] [--to NS]\n"
    "  --sites FILE     allocation sites as JSON; - for standard output, which is also the default\n"
    "  --program FILE   the stream of calls for quire-replay\n"
    "  --profile FILE   what pictures need: live bytes over time, size by lifetime, stacks, occupancy\n"
    "  --paths FILE     return addresses that lead to malloc: by what a call site is known again\n"
    "  --lines FILE     instead: what stands at the addresses of a program or library that standard input names, in hexadecimal\n"
    "  --wrapper NAME   a function of the program that only wraps malloc: its callers are the sites\n"
    "  --from NS        of the clock CLOCK_MONOTONIC: what was called before is left out, as if recording had begun then\n"
    "  --to NS          the same of what was called after\n";

constexpr uint32_t THREADS_MAX = 1u << 20;  // whose kernel ids are kept

struct Arguments {
    std::string trace, sites, program, profile, paths;
    std::vector<std::string> wrappers;
    uint64_t from_ns = 0, to_ns = UINT64_MAX;
};

int complain(const std::string &text, int status) {
    std::fprintf(stderr, "quire-analyse: %s\n", text.c_str());
    return status;
}

/* 0, or the exit status. */
int arguments_parse(int count, char **values, Arguments &arguments) {
    for (int i = 1; i < count; i++) {
        std::string word = values[i];
        if (word == "--sites" || word == "--program" || word == "--profile" || word == "--paths" || word == "--wrapper" ||
            word == "--from" || word == "--to") {
            if (i + 1 == count) {
                return complain(word + " needs a value\n" + usage_text, 2);
            }
            std::string value = values[++i];
            if (word == "--wrapper") {
                arguments.wrappers.push_back(value);
            } else if (word == "--from" || word == "--to") {
                (word == "--from" ? arguments.from_ns : arguments.to_ns) = std::strtoull(value.c_str(), nullptr, 10);
            } else {
                std::string &file = word == "--sites"     ? arguments.sites
                                    : word == "--program" ? arguments.program
                                    : word == "--paths"   ? arguments.paths
                                                          : arguments.profile;
                file = value;
            }
        } else if (word.size() > 1 && word[0] == '-') {
            return complain("unknown option " + word + "\n" + usage_text, 2);
        } else if (!arguments.trace.empty()) {
            return complain("one trace at a time, not also " + word + "\n" + usage_text, 2);
        } else {
            arguments.trace = word;
        }
    }
    return arguments.trace.empty() ? complain(std::string("no trace given\n") + usage_text, 2) : 0;
}

/* What the trace's definitions fill. */
struct Definitions {
    quire::Symbols symbols;
    quire::Sites sites{symbols};
    std::vector<uint32_t> tids;
};

void stack_defined(void *arg, uint32_t id, const uint64_t *ips, unsigned count) {
    static_cast<Definitions *>(arg)->sites.stack_add(id, ips, count);
}

void module_defined(void *arg, const qtr_meta_module *module, const char *path) {
    Definitions *definitions = static_cast<Definitions *>(arg);
    for (const quire::Moved &moved : definitions->symbols.module_add(*module, path)) {
        definitions->sites.move(moved);
    }
}

void pool_defined(void *arg, uint32_t stack, const char *name) {
    static_cast<Definitions *>(arg)->sites.pool_add(stack, name);
}

void slots_defined(void *arg, const qtr_meta_slots *slots) {
    static_cast<Definitions *>(arg)->sites.slots_add(*slots);
}

void thread_defined(void *arg, const qtr_meta_thread *thread) {
    std::vector<uint32_t> &tids = static_cast<Definitions *>(arg)->tids;
    if (thread->head.number < THREADS_MAX) {
        if (thread->head.number >= tids.size()) {
            tids.resize(thread->head.number + 1u);
        }
        tids[thread->head.number] = thread->tid;
    }
}

int write_all(const Arguments &arguments, const quire::Report &report, quire::ProgramWriter *program,
              const Definitions &definitions) {
    std::string error;
    if (program != nullptr) {
        quire::ProgramWriter::End end = {static_cast<uint32_t>(report.sites->all().size()),
                                         report.life->totals().peak_live_bytes, &definitions.tids, {}};
        for (const quire::SiteLife &site : report.life->sites()) {
            end.untouched.push_back(site.untouched_256th());
        }
        if (!program->finish(end, error)) {
            return complain("cannot write " + error, 3);
        }
    }
    if (!arguments.paths.empty()) {
        FILE *to = std::fopen(arguments.paths.c_str(), "we");
        bool ok = to != nullptr && quire::paths_write(report, to);
        ok = to != nullptr && std::fclose(to) == 0 && ok;
        if (!ok) {
            return complain("cannot write " + arguments.paths + ": " + std::strerror(errno), 3);
        }
    }
    bool wants_other = !arguments.program.empty() || !arguments.profile.empty() || !arguments.paths.empty();
    bool to_stdout = arguments.sites == "-" || (arguments.sites.empty() && !wants_other);
    if (!to_stdout && arguments.sites.empty()) {
        return 0;
    }
    FILE *to = to_stdout ? stdout : std::fopen(arguments.sites.c_str(), "we");
    bool ok = to != nullptr && quire::report_write(report, to);
    ok = to != nullptr && (to_stdout ? std::fflush(to) : std::fclose(to)) == 0 && ok;
    return ok ? 0 : complain("cannot write " + arguments.sites + ": " + std::strerror(errno), 3);
}

/* When a moment was by the trace's ticks; before its first, or after its last, that one. */
uint64_t tick_of(const qtr_reader *reader, uint64_t ns) {
    const qtr_header *header = qtr_reader_header(reader);
    double tick_ns = qtr_tick_ns(reader);
    if (ns <= header->start_monotonic_ns) {
        return 0;
    }
    if (tick_ns <= 0) {
        return UINT64_MAX;
    }
    double ticks = static_cast<double>(ns - header->start_monotonic_ns) / tick_ns;
    return ticks < 9e18 ? header->start_tick + static_cast<uint64_t>(ticks) : UINT64_MAX;
}

/* Every event of the time that is asked for through one Life, in order; false without memory for the merge. */
bool play(const Arguments &arguments, qtr_reader *reader, quire::Life &life) {
    qtr_merge *merge = nullptr;
    if (qtr_merge_begin(reader, &merge) != 0) {
        return false;
    }
    uint64_t from = tick_of(reader, arguments.from_ns), to = tick_of(reader, arguments.to_ns);
    qtr_event event;
    while (qtr_merge_next(merge, &event)) {
        if (event.tick >= from && event.tick <= to) {
            life.event(event);
        } else if (event.kind != QTR_TOUCHED) {
            life.left_out();
        }
    }
    qtr_merge_end(merge);
    return true;
}

/* The second pass.  The first one's Life is gone by now: they never need memory at the same time. */
int profile(const Arguments &arguments, qtr_reader *reader, Definitions &definitions, const quire::ProfileWanted &wanted) {
    quire::Life life(definitions.sites, nullptr, wanted.tick_ns);
    quire::Profile profile(life, wanted);
    life.watch(&profile);
    if (!play(arguments, reader, life)) {
        return complain(arguments.trace + ": no memory to read it", 3);
    }
    profile.settle();
    FILE *to = std::fopen(arguments.profile.c_str(), "we");
    bool ok = to != nullptr && quire::profile_write(profile, definitions.sites, definitions.symbols, to);
    ok = to != nullptr && std::fclose(to) == 0 && ok;
    return ok ? 0 : complain("cannot write " + arguments.profile + ": " + std::strerror(errno), 3);
}

/* The first pass, and what it writes. */
int analyse_once(const Arguments &arguments, qtr_reader *reader, Definitions &definitions, quire::ProfileWanted &wanted) {
    std::string error;
    quire::ProgramWriter program(arguments.program);
    quire::ProgramWriter *writer = arguments.program.empty() ? nullptr : &program;
    if (writer != nullptr && !writer->open(error)) {
        return complain("cannot write " + error, 3);
    }
    quire::Life life(definitions.sites, writer, qtr_tick_ns(reader));
    if (!play(arguments, reader, life)) {
        return complain(arguments.trace + ": no memory to read it", 3);
    }
    life.settle();
    wanted = quire::profile_wanted(life, reader);
    quire::Report report = {reader, &definitions.symbols, &definitions.sites, &life};
    return write_all(arguments, report, writer, definitions);
}

/* What stands at addresses of a file, read from standard input: JSON, address: [function|file:line, ...], innermost first. */
int lines_print(const std::string &path) {
    quire::Symbols symbols;
    qtr_meta_module whole = {};
    whole.end = UINT64_MAX;
    symbols.module_add(whole, path.c_str());
    char word[32];
    const char *comma = "{";
    while (std::scanf("%31s", word) == 1) {
        std::printf("%s\"%s\": [", comma, word);
        const char *between = "";
        for (const quire::Frame &frame : symbols.at(std::strtoull(word, nullptr, 16))) {
            std::printf("%s%s", between, quire::quoted(frame.function + "|" + frame.file + ":" + std::to_string(frame.line)).c_str());
            between = ", ";
        }
        std::printf("]");
        comma = ",\n";
    }
    std::printf("%s}\n", comma[0] == '{' ? "{" : "");
    return std::fflush(stdout) == 0 ? 0 : complain("cannot write", 3);
}

int analyse(const Arguments &arguments, qtr_reader *reader) {
    Definitions definitions;
    for (const std::string &name : arguments.wrappers) {
        definitions.sites.wrapper_add(name);
    }
    qtr_meta_visitor visitor = {stack_defined, module_defined, thread_defined, &definitions, slots_defined, pool_defined};
    if (qtr_meta_each(reader, &visitor) != 0) {
        return complain(arguments.trace + ": no memory to read it", 3);
    }
    definitions.sites.settle();
    quire::ProfileWanted wanted;
    int status = analyse_once(arguments, reader, definitions, wanted);
    return status != 0 || arguments.profile.empty() ? status : profile(arguments, reader, definitions, wanted);
}

}  // namespace

int main(int argc, char **argv) {
    Arguments arguments;
    if (argc == 3 && std::strcmp(argv[1], "--lines") == 0) {
        return lines_print(argv[2]);
    }
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        std::fputs(usage_text, stdout);
        return 0;
    }
    int status = arguments_parse(argc, argv, arguments);
    if (status != 0) {
        return status;
    }
    qtr_reader *reader = nullptr;
    char error[QTR_ERROR_BYTES] = "";
    if (qtr_open(&reader, arguments.trace.c_str(), error) != 0) {
        return complain(error, 3);
    }
    try {
        status = analyse(arguments, reader);
    } catch (const std::bad_alloc &) {
        status = complain(arguments.trace + ": no memory to analyse it", 3);
    }
    qtr_close(reader);
    return status;
}
