// SPDX-License-Identifier: MIT
/* Stacks that are walked by the unwind tables are those that libgcc finds. */
#include "prof_kit.h"

#include <csignal>
#include <execinfo.h>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>

namespace {

using Stack = std::vector<uintptr_t>;
Stack ours, theirs;

/* A sanitizer stands between backtrace() and us with a frame of its own. */
void drop_inner()
{
    while (!theirs.empty() && !ours.empty() && theirs.front() != ours.front())
        theirs.erase(theirs.begin());
}

/* Both walks, from the same place: the caller of this. */
__attribute__((noinline)) void look()
{
    uintptr_t ips[PROF_FRAMES_MAX];
    void *frames[PROF_FRAMES_MAX + 8];
    unsigned count = prof_walk(os_frame_here(), PROF_CALLER, PROF_FRAMES_MAX, ips);
    int depth = backtrace(frames, PROF_FRAMES_MAX + 8);
    ours.assign(ips, ips + count);
    theirs.clear();
    for (int i = 1; i < depth; i++)
        theirs.push_back(uintptr_t(frames[i]));
    drop_inner();
    theirs.resize(std::min(theirs.size(), size_t(PROF_FRAMES_MAX)));
}

/* libgcc ends a frame later where the outermost one has no caller. */
void expect_same(size_t interrupted = 0)
{
    ASSERT_GT(ours.size(), 2u);
    ASSERT_LE(ours.size(), theirs.size());
    EXPECT_LE(theirs.size() - ours.size(), 1u);
    theirs.resize(ours.size());
    for (size_t i = 0; i < interrupted && i < ours.size(); i++)
        if (ours[i] == theirs[i] + 1) { /* what was interrupted: no return address, but readers take one off all */
            theirs[i]++;
            interrupted = 0;
        }
    EXPECT_EQ(interrupted, 0u);
    EXPECT_EQ(ours, theirs);
}

__attribute__((noinline)) int down(int depth)
{
    volatile char room[100];
    room[depth % 100] = char(depth);
    if (depth == 0)
        look();
    else
        down(depth - 1);
    return room[depth % 100];
}

TEST(ProfWalk, a_stack_is_what_libgcc_says_it_is)
{
    down(7);
    expect_same();
    EXPECT_GE(ours.size(), 9u);
}

TEST(ProfWalk, a_stack_is_the_same_when_the_rules_are_known_already)
{
    down(5);
    Stack first = ours;
    down(5);
    expect_same();
    EXPECT_EQ(Stack(ours.begin(), ours.begin() + 6), Stack(first.begin(), first.begin() + 6));
}

/* Of more such frames in every stack than have room each walk would learn them all anew. */
TEST(ProfWalk, of_addresses_with_one_hash_the_youngest_four_rules_are_kept)
{
    static char code[1 << 16];
    std::vector<uintptr_t> same;
    for (char *at = code; at < code + sizeof code && same.size() < PROF_WAYS + 2; at++)
        if (prof_set_of(uintptr_t(at)) == prof_set_of(uintptr_t(code)))
            same.push_back(uintptr_t(at));
    ASSERT_EQ(same.size(), size_t(PROF_WAYS + 2));
    prof_rules_forget();
    for (size_t i = 0; i < same.size(); i++) {
        EXPECT_EQ(prof_rule_find(same[i]).kind, uint32_t(RULE_NONE));
        uint32_t kind = prof_rule_learn(same[i]).kind;
        EXPECT_NE(kind, uint32_t(RULE_NONE));
        for (size_t had = 0; had <= i; had++)
            EXPECT_EQ(prof_rule_find(same[had]).kind, had + PROF_WAYS > i ? kind : uint32_t(RULE_NONE)) << had << " of " << i;
    }
}

TEST(ProfWalk, a_deep_stack_is_cut_at_its_outer_end)
{
    down(200);
    EXPECT_EQ(ours.size(), size_t(PROF_FRAMES_MAX));
    EXPECT_EQ(ours, theirs);
}

TEST(ProfWalk, a_thread_is_walked_to_its_beginning)
{
    std::thread([] { down(20); }).join();
    expect_same();
}

TEST(ProfWalk, a_frame_that_aligns_its_stack_is_passed)
{
    auto aligned = [](int depth) __attribute__((noinline)) {
        alignas(256) volatile char room[256];
        volatile char *more = static_cast<volatile char *>(__builtin_alloca(size_t(depth) * 16));
        room[0] = more[0] = 1;
        look();
        return room[0] + more[0];
    };
    aligned(3);
    expect_same();
}

__attribute__((noinline)) void on_signal(int)
{
    down(2);
}

/* So that nothing allocates in the handler: backtrace() is loaded, both stacks have room. */
void get_ready()
{
    look();
    ours.reserve(PROF_FRAMES_MAX);
    theirs.reserve(PROF_FRAMES_MAX + 8);
}

TEST(ProfWalk, a_signal_handler_is_walked_into_what_it_has_interrupted)
{
    struct sigaction action = {}, before;
    get_ready();
    action.sa_handler = on_signal;
    sigaction(SIGUSR1, &action, &before);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &before, nullptr);
    expect_same(20);
    EXPECT_GT(ours.size(), 6u);
}

TEST(ProfWalk, a_handler_on_another_stack_too)
{
    std::vector<char> room(size_t(1) << 16);
    stack_t other = {}, old;
    other.ss_sp = room.data();
    other.ss_size = room.size();
    ASSERT_EQ(sigaltstack(&other, &old), 0);
    struct sigaction action = {}, before;
    get_ready();
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, &before);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &before, nullptr);
    sigaltstack(&old, nullptr);
    expect_same(20);
}

ucontext_t main_context, co_context;

void coroutine()
{
    down(3);
    swapcontext(&co_context, &main_context);
}

TEST(ProfWalk, a_coroutine_at_the_very_end_of_its_mapping_is_walked_without_a_fault)
{
    size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = 16 * page;
    char *room = static_cast<char *>(mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_EQ(mprotect(room + bytes, page, PROT_NONE), 0);
    ASSERT_EQ(getcontext(&co_context), 0);
    co_context.uc_stack.ss_sp = room;
    co_context.uc_stack.ss_size = bytes;
    co_context.uc_link = nullptr;
    makecontext(&co_context, coroutine, 0);
    swapcontext(&main_context, &co_context);
    EXPECT_GE(ours.size(), 5u);
    Stack inner(ours.begin(), ours.begin() + 5), known(theirs.begin(), theirs.begin() + 5);
    EXPECT_EQ(inner, known);
    munmap(room, bytes + page);
}

TEST(ProfWalk, a_frame_pointer_that_points_nowhere_ends_the_walk)
{
    uintptr_t ips[PROF_FRAMES_MAX];
    for (uintptr_t fp : {uintptr_t(0), uintptr_t(8), uintptr_t(0x1234567), ~uintptr_t(0) - 7, uintptr_t(&ips[1]) + 3}) {
        struct os_frame frame = os_frame_here();
        frame.ip = 0x10; /* nobody's code: by frame pointers */
        frame.fp = fp;
        struct prof_call call = {0x10, reinterpret_cast<const uintptr_t *>(frame.sp)};
        EXPECT_EQ(prof_walk(frame, call, PROF_FRAMES_MAX, ips), 1u) << fp;
    }
}

} // namespace
