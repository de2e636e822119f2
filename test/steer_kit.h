// SPDX-License-Identifier: MIT
/*
 * steer_kit.h - what the tests of steering share: a plan whose return addresses are places in the test itself, and calls that seem to come from there.
 */
#pragma once

#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <elf.h>
#include <link.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <quire/heap.h>

#include "steer/steer_internal.h"
#include "support.h"

/* Stand for the code behind calls; any address of a loaded file will do. */
inline const char test_place[256] = {1};

inline int steer_own_image(struct dl_phdr_info *info, size_t, void *arg)
{
    auto *found = static_cast<std::pair<std::string, uintptr_t> *>(arg);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_NOTE)
            continue;
        const unsigned char *at = reinterpret_cast<const unsigned char *>(info->dlpi_addr + segment.p_vaddr), *end = at + segment.p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof note);
            const unsigned char *name = at + sizeof note, *id = name + ((note.n_namesz + 3u) & ~3u);
            if (note.n_type == NT_GNU_BUILD_ID && memcmp(name, "GNU", 4) == 0)
                for (unsigned b = 0; b < note.n_descsz; b++) {
                    char digits[3];
                    snprintf(digits, sizeof digits, "%02x", id[b]);
                    found->first += digits;
                }
            at = id + ((note.n_descsz + 3u) & ~3u);
        }
    }
    found->second = info->dlpi_addr;
    return 1; /* the program itself comes first */
}

/* The text of a plan: lines of `printf`, frames by place. */
class PlanText {
public:
    PlanText()
    {
        std::pair<std::string, uintptr_t> own;
        dl_iterate_phdr(steer_own_image, &own);
        bias = own.second;
        line("module 0 %s test", own.first.c_str());
    }
    void line(const char *format, ...) __attribute__((format(printf, 2, 3)))
    {
        char text[512];
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
        body += std::string(text) + "\n";
        lines++;
    }
    void frame(unsigned place)
    {
        uintptr_t at = reinterpret_cast<uintptr_t>(&test_place[place]) - bias;
        line("frame %u module 0 offset %lx from 1 of 2 [\"here|test.cc:%u\"]", place, static_cast<unsigned long>(at), place);
    }
    std::string whole() const { return "quire-steer 1\n# a test's\n" + body + "end " + std::to_string(lines) + "\n"; }

private:
    uintptr_t bias;
    std::string body;
    unsigned lines = 0;
};

class PlanFile {
public:
    explicit PlanFile(const std::string &text)
    {
        char name[] = "/tmp/quire-steer-test-XXXXXX";
        int fd = mkstemp(name);
        EXPECT_GE(fd, 0);
        EXPECT_EQ(write(fd, text.data(), text.size()), ssize_t(text.size()));
        close(fd);
        path = name;
    }
    ~PlanFile() { unlink(path.c_str()); }
    std::string path;
};

enum { POOLS = 8, PLACE_HEAP = 100, PLACE_UNKNOWN = 101, PLACE_WRAPPER = 20, STEP_TO_CALLER = 3 };

/* Place p from 1 to 8: pool p.  A wrapper at place 20, its callers 3 words up: 21 is pool 1's, 22 pool 2's, 23 a wrapper again, whose caller 24,
 * 2 words up, is pool 3's. */
inline std::string steer_test_plan()
{
    PlanText plan;
    for (unsigned place = 1; place <= POOLS; place++)
        plan.frame(place);
    for (unsigned place = 20; place <= 24; place++)
        plan.frame(place);
    for (unsigned pool = 1; pool <= POOLS; pool++)
        plan.line("pool %u arena peak 4000000", pool);
    for (unsigned place = 1; place <= POOLS; place++) {
        plan.line("site %u pool %u allocs 1 bytes 1 test: because", place + 100, place);
        plan.line("path %u", place);
    }
    plan.line("site 201 pool 1 allocs 1 bytes 1 test: because");
    plan.line("path 20 +3 21");
    plan.line("site 202 pool 2 allocs 1 bytes 1 test: because");
    plan.line("path 20 +3 22");
    plan.line("site 203 pool 3 allocs 1 bytes 1 test: because");
    plan.line("path 20 +3 23 +2 24");
    plan.line("site 7 heap allocs 1 bytes 1 test: because");
    return plan.whole();
}

/* The plan in force, from the first call on. */
inline void steer_up(bool counts = true)
{
    static bool is_up = false;
    if (is_up)
        return;
    is_up = true;
    PlanFile file(steer_test_plan());
    char why[STEER_WHY_BYTES] = "";
    struct steer_opts opts = {};
    opts.counts = counts;
    ASSERT_TRUE(steer_start(file.path.c_str(), &opts, why)) << why;
}

/* As much may be dead as a test leaves: no pool is sent back. */
inline void steer_up_with_room()
{
    steer_up();
    steer_plan.memory_bytes = size_t(1) << 34;
}

inline struct steer_call call_from(unsigned place)
{
    static const uintptr_t nothing[8] = {};
    return {reinterpret_cast<uintptr_t>(&test_place[place]), nothing};
}
inline void *alloc_at(unsigned place, size_t bytes)
{
    return steer_alloc(bytes, call_from(place));
}
inline bool is_steered(const void *p)
{
    return owner_kind(pagemap_find(p)) == OWNER_STEER;
}
inline uint32_t pool_of_block(const void *p)
{
    return is_steered(p) ? static_cast<const struct steer_chunk *>(owner_object(pagemap_find(p)))->pool : 0;
}
inline size_t held_of(unsigned pool)
{
    return size_load_relaxed(&steer_plan.pool[pool].held_bytes);
}
inline struct steer_site_stats site_stats_of(uint32_t number)
{
    struct steer_site_stats stats = {};
    for (uint32_t i = 0; steer_site_stats(i, &stats); i++)
        if (stats.number == number)
            return stats;
    ADD_FAILURE() << "no site " << number;
    return stats;
}
