// SPDX-License-Identifier: MIT
/*
 * each_call.h - the nth system call of a kind fails while a program runs, for every n until none is left that could.
 *
 *     n          1      2     ...    last    last + 1
 *     it fails   yes    yes   ...    yes     no: that was the end
 *
 * Programs that differ by more than what fails are variants of one.  The long form takes each of them to its end, where no sanitizer makes them slow; the
 * short one changes them with every n, and ends before the calls may.
 */
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "support.h"

inline const char *os_call_name(int kind)
{
#define OS_CALL_NAME(name) #name,
    static const char *const names[] = {OS_CALLS(OS_CALL_NAME)};
#undef OS_CALL_NAME
    return names[kind];
}

class EachCall {
public:
    /* A program of a variant in [0, variants), and what is looked at after each time it ran with a failure.  The short form ends before `most`. */
    EachCall(std::string name_, int variants_, uint64_t most_, std::function<void(int)> program_, std::function<void()> look_)
        : name(std::move(name_)), variants(variants_), most(most_), program(std::move(program_)), look(std::move(look_))
    {
        std::fill_n(calls, OS_CALL_COUNT, 1);
    }

    /* What no variant asks for when nothing fails cannot fail: the short form leaves those kinds out. */
    void leave_out_what_is_not_called()
    {
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            os_fault_set(os_call(kind), UINT64_MAX, false);
        for (int variant = 0; variant < variants; variant++)
            program(variant);
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            calls[kind] = os_fault_set(os_call(kind), 0, false);
        look();
    }

    /* Each call of a kind fails once, or it and all later ones. */
    void fail(int kind, bool onwards)
    {
        if (calls[kind] == 0 && !test_long())
            return;
        if (onwards || !test_long() || BUILT_WITH_TSAN || under_asan())
            to_the_end(os_call(kind), onwards, 0, variants);
        else
            for (int variant = 0; variant < variants; variant++)
                to_the_end(os_call(kind), onwards, variant, 1);
    }

    /* These kinds are what the program asks the system for, unless memory is watched: of each a call failed by itself. */
    void expect_failed(const std::vector<os_call> &kinds) const
    {
        for (os_call kind : kinds)
            EXPECT_TRUE(failed[kind] > 0 || memory_is_watched()) << name << ": no call of " << os_call_name(kind) << " failed";
    }

    uint64_t failed[OS_CALL_COUNT] = {}; /* how many failed once */

private:
    /* By the variants from `first` on, `turns` of them, in turn. */
    void to_the_end(os_call kind, bool onwards, int first, int turns)
    {
        constexpr uint64_t NEVER_ENDS = 100000;
        int calm = 0; /* how many in turn had no such call any more */
        for (uint64_t nth = 1; calm < turns && nth < (test_long() ? NEVER_ENDS : most); nth++) {
            testing::ScopedTrace where(__FILE__, __LINE__, name + ", " + os_call_name(kind) + " number " + std::to_string(nth) + (onwards ? " and later" : ""));
            (void)os_fault_failed(kind);
            {
                Fault fault(kind, nth, onwards);
                program(first + int(nth % uint64_t(turns)));
            }
            bool did = os_fault_failed(kind) != 0;
            calm = did ? 0 : calm + 1;
            failed[kind] += did && !onwards;
            look();
        }
        EXPECT_TRUE(calm == turns || !test_long()) << name << ": the calls of " << os_call_name(kind) << " have no end";
    }

    uint64_t calls[OS_CALL_COUNT] = {};
    std::string name;
    int variants;
    uint64_t most; /* n of the short form stays below */
    std::function<void(int)> program;
    std::function<void()> look;
};

/*
 * The program in a child for each of its calls of a kind (the short form: the first, and some), which fails there, until none is left: also those calls
 * that a process makes once.  A program returns what was wrong.  How many failed.
 */
inline uint64_t each_call_fails_once_in_a_child(os_call kind, const char *(*program)())
{
    auto *failed = static_cast<uint64_t *>(mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    uint64_t all = 0;
    *failed = 1;
    for (uint64_t nth = 1; *failed != 0; nth += nth < 16 || test_long() ? 1 : 29) {
        *failed = 0;
        pid_t child = fork();
        if (child == 0) {
            os_fault_failed(kind);
            os_fault_set(kind, nth, false);
            const char *wrong = program();
            os_fault_set(kind, 0, false);
            *failed = os_fault_failed(kind);
            if (wrong)
                (void)!write(STDERR_FILENO, wrong, strlen(wrong));
            _exit(wrong != nullptr);
        }
        int status;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0) << "call " << nth << " of " << os_call_name(kind);
        EXPECT_LE(*failed, 1u) << "call " << nth << " of " << os_call_name(kind);
        all += *failed;
    }
    munmap(failed, sizeof(uint64_t));
    return all;
}

inline void expect_failed_in_children(const char *name, const std::vector<os_call> &kinds, const char *(*program)())
{
    for (os_call kind : kinds) {
        uint64_t failed = each_call_fails_once_in_a_child(kind, program);
        EXPECT_GT(failed, 0u) << name << ": no call of " << os_call_name(kind) << " failed";
        testing::Test::RecordProperty(std::string(name) + "_failed_" + os_call_name(kind), std::to_string(failed));
    }
}
