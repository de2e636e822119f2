// SPDX-License-Identifier: MIT
/* What the child of a fork would find, looked at after each instruction of an operation (the processor's trap flag). */
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include <quire/source.h>

#include "os/os.h"
#include "pages/region_internal.h"
#include "support.h"
#include "trap_flag.h"

#if QUIRE_CPU_X86_64
namespace {
const size_t quarter = REGION_BYTES_MAX / 4; /* the largest span that a region is made for */
uint64_t looks, torn;

void look(int, siginfo_t *, void *)
{
    looks++;
    for (uint32_t i = 0; i < regions.count; i++)
        torn += !region_by_id[i] || !region_by_id[i]->start || !region_by_id[i]->map.taken || region_by_id[i]->id != i;
}

bool take_stepped(quire_source *source, quire_span *span)
{
    trap_begin();
    int error = source->verbs->take(source, quarter, os_page_bytes(), span);
    trap_end();
    return error == 0;
}
} // namespace

TEST(RegionStep, at_no_instruction_is_a_region_counted_that_is_not_whole)
{
    if (memory_is_watched())
        GTEST_SKIP() << "what watches memory notes each 8 bytes of a span, one trapped instruction after the other";
    quire_source *source = quire_source_default();
    std::vector<quire_span> spans;
    struct sigaction action = {}, before;
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
    uint32_t first = regions.count;
    bool came = true;
    for (int i = 0; i < 8 && regions.count < first + 1 && came; i++) {
        spans.emplace_back();
        came = take_stepped(source, &spans.back());
    }
    uint32_t made = regions.count - first;
    EXPECT_EQ(sigaction(SIGTRAP, &before, nullptr), 0);
    if (!came) {
        spans.pop_back();
        if (made == 0)
            GTEST_SKIP() << "so many addresses are not to be had here";
    }
    EXPECT_EQ(made, 1u);
    EXPECT_GT(looks, 100u);
    EXPECT_EQ(torn, 0u);
    for (const quire_span &span : spans)
        source->verbs->give(source, &span);
}
#endif
