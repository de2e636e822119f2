// SPDX-License-Identifier: MIT
/*
 * readers.h - damaged traces, replay programs and plans through the programs that read them, within one process.
 *
 *   seed trace -> quire-analyse -> .qrp -> quire-plan -> plan -> quire-replay
 *        \________________________/_____________________/   one of the three is damaged, and what follows it is run
 *
 * Choices says which and how: below(n) is a number under n. The test draws them from a seed, the fuzzer from its bytes.
 * What the programs answer does not matter; that they come back does. They leave their memory and descriptors to the end of the process;
 * the memory is the heap's here (tools/native/readers.cmake), so that it has ends that are watched. To be included once in a program.
 */
#pragma once

#include "mangle/seed_trace.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <getopt.h>
#include <sys/mman.h>
#include <unistd.h>

int quire_analyse_main(int argc, char **argv);
extern "C" int quire_plan_main(int argc, char **argv);
extern "C" int quire_replay_main(int argc, char **argv);

/* What the programs hold. */
inline std::set<void *> readers_memory;

extern "C" void *readers_mmap(void *, size_t bytes, int, int, int, off_t)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        return MAP_FAILED;
    readers_memory.insert(memory);
    return memory;
}

extern "C" int readers_munmap(void *memory, size_t)
{
    readers_memory.erase(memory);
    free(memory);
    return 0;
}

/* Up to three edits: bits, bytes, numbers that are odd for a length, a cut, a piece of the file once more. */
template <typename Choices> File mangled(File bytes, Choices &choices)
{
    static const uint64_t numbers[] = {0, 1, 0x7f, 0xff, 0xffff, 0x10000, 0x7fffffff, 0xffffffff, 1ull << 63, ~0ull};
    for (uint64_t edits = 1 + choices.below(3); edits > 0 && !bytes.empty(); edits--) {
        size_t at = size_t(choices.below(choices.below(6) == 0 && bytes.size() > 128 ? 128 : bytes.size()));
        size_t left = bytes.size() - at;
        switch (choices.below(8)) {
        case 0: bytes[at] = uint8_t(choices.below(256)); break;
        case 1: bytes.resize(choices.below(4) == 0 ? at : bytes.size() - std::min(bytes.size(), at % 40)); break;
        case 2: {
            size_t from = size_t(choices.below(bytes.size()));
            File piece(bytes.begin() + long(from), bytes.begin() + long(std::min(bytes.size(), from + 1 + choices.below(96))));
            bytes.insert(bytes.begin() + long(at), piece.begin(), piece.end());
            break;
        }
        case 3:
        case 4: {
            uint64_t number = numbers[choices.below(std::size(numbers))];
            memcpy(&bytes[at], &number, std::min(left, size_t(1) << choices.below(4)));
            break;
        }
        default: bytes[at] = uint8_t(bytes[at] ^ 1u << choices.below(8));
        }
    }
    return bytes;
}

class Readers {
public:
    Readers()
    {
        char name[] = "/tmp/quire-mangle-XXXXXX";
        if (!mkdtemp(name))
            throw std::runtime_error("no folder in /tmp");
        folder = name;
        seeds[0] = seed_trace();
    }
    ~Readers()
    {
        for (const char *file : {"trace", "program", "plan", "sites", "profile"})
            unlink(path(file).c_str());
        rmdir(folder.c_str());
    }
    Readers(const Readers &) = delete;

    /* The seed through all of them; whether each took it. */
    bool read_sound()
    {
        write("trace", seeds[0]);
        return read_from(0) == 0;
    }

    /* What read_sound() made of it, here or in a child, becomes the other two seeds; the plan gets what this program has no use for. */
    void learn()
    {
        static const char more[] = "slab 0 bytes 256\nsite 3 slab 0\nsite 4 heap 0\narena 0 kept 1\n";
        seeds[1] = content("program");
        seeds[2] = content("plan");
        seeds[2].insert(seeds[2].end(), more, more + sizeof more - 1);
    }

    bool has_learnt() const { return !seeds[1].empty() && !seeds[2].empty(); }

    template <typename Choices> void step(Choices &choices)
    {
        static const char *const names[] = {"trace", "program", "plan"};
        size_t which = size_t(choices.below(3));
        for (size_t i = 1; i < 3; i++)
            write(names[i], seeds[i]);
        write(names[which], mangled(seeds[which], choices));
        read_from(which);
    }

private:
    std::string folder;
    File seeds[3];

    std::string path(const char *name) const { return folder + "/" + name; }

    void write(const char *name, const File &bytes) const
    {
        FILE *to = fopen(path(name).c_str(), "we");
        if (!to || fwrite(bytes.data(), 1, bytes.size(), to) != bytes.size() || fclose(to) != 0)
            throw std::runtime_error("cannot write " + path(name));
    }

    File content(const char *name) const
    {
        File bytes;
        if (FILE *from = fopen(path(name).c_str(), "re")) {
            for (int c; (c = getc(from)) != EOF;)
                bytes.push_back(uint8_t(c));
            fclose(from);
        }
        return bytes;
    }

    static int run(int (*program)(int, char **), std::vector<std::string> words)
    {
        std::vector<char *> argv;
        for (std::string &word : words)
            argv.push_back(word.data());
        argv.push_back(nullptr);
        optind = 0; // glibc: from the beginning
        return program(int(words.size()), argv.data());
    }

    /* The sum of the exit statuses. */
    int read_from(size_t which) const
    {
        int failures = 0;
        if (which == 0)
            failures += run(quire_analyse_main, {"quire-analyse", path("trace"), "--sites", path("sites"), "--program", path("program"),
                                                 "--profile", path("profile")});
        if (which <= 1)
            failures += run(quire_plan_main, {"quire-plan", "--plan", path("plan"), path("program")});
        return failures + run(quire_replay_main, {"quire-replay", "--null", "--plan", path("plan"), path("program")});
    }
};
