// SPDX-License-Identifier: MIT
/* The nth system call cannot be had: blocks are served, or NULL + ENOMEM; a sample without a stack is counted as lost.  For every n until none fails. */
#include "each_call.h"
#include "prof_kit.h"

#include <cerrno>
#include <set>
#include <sys/mman.h>
#include <sys/wait.h>

#include "prof/guard.h"

namespace {

enum { AGAIN = 101 };

/* 0, or what was wrong; 100: no call failed. */
int run_with_fault(enum os_call kind, uint64_t nth, bool onwards)
{
    pid_t child = fork();
    if (child == 0) {
        Profile profile(1024);
        void *warm = profiled_malloc(10);
        if (Profile::stats().samples != 0) /* chance: tables and the clock's thread have come with it, before what is counted */
            _exit(AGAIN);
        os_fault_set(kind, nth, onwards);
        std::vector<unsigned char *> blocks;
        for (size_t i = 0; i < 3000; i++) {
            size_t bytes = i % 1000 == 999 ? 6 << 20 : 100 + i % 1000; /* large ones are mapped each: how often regions are is a matter of where the first lies */
            errno = 0;
            auto *p = static_cast<unsigned char *>(profiled_malloc(bytes));
            if (p && i % 3 == 0)
                if (auto *fresh = static_cast<unsigned char *>(profiled_realloc(p, bytes + 100)))
                    p = fresh;
            if (!p && errno != ENOMEM)
                _exit(2);
            if (p) {
                memset(p, int(i), bytes);
                blocks.push_back(p);
            }
        }
        uint64_t calls = os_fault_set(kind, 0, false);
        struct prof_stats stats = Profile::stats();
        if (prof_check() || quire_heap_check(quire_heap_default()))
            _exit(3);
        if (stats.samples < 1000 && !onwards)
            _exit(4);
        for (auto *p : blocks) {
            if (p[0] != p[99])
                _exit(5);
            profiled_free(p);
        }
        profiled_free(warm);
        if (Profile::stats().live_bytes != 0 || Profile::stats().live_blocks != 0)
            _exit(6);
        _exit(calls < nth ? 100 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int run_until_begun(enum os_call kind, uint64_t nth, bool onwards)
{
    int said;
    while ((said = run_with_fault(kind, nth, onwards)) == AGAIN)
        ;
    return said;
}

void each_nth(enum os_call kind, uint64_t at_least)
{
    for (bool onwards : {false, true}) {
        uint64_t nth = 1;
        for (int said = 0; said == 0 && nth < 400; nth++)
            if ((said = run_until_begun(kind, nth, onwards)) != 0) {
                EXPECT_EQ(said, 100) << nth << onwards;
            }
        EXPECT_GE(nth, at_least);
    }
}

TEST(ProfFault, no_mapping_can_be_had)
{
    each_nth(OS_MAP, 4);
}

/* Many stacks, some of which are refused; told again all are there, each once. */
const char *table_program()
{
    const uint32_t count = 12000;
    std::vector<uint32_t> sites(count);
    std::set<uint32_t> different;
    auto ips = [](uint32_t i, uintptr_t *out) { out[0] = 0x1000 + i, out[1] = 0x9000 + i / 50, out[2] = 0x8000; };
    for (int round = 0; round < 3; round++)
        for (uint32_t i = 0; i < count; i++) {
            uintptr_t stack[3];
            ips(i, stack);
            uint32_t site = prof_site_locked(stack, 3);
            if ((site == 0 && round > 0) || (sites[i] != 0 && site != sites[i]))
                return "a stack has no site, or another one\n";
            sites[i] = site;
        }
    for (uint32_t i = 0; i < count; i++) {
        uintptr_t stack[3], seen[PROF_FRAMES_MAX];
        ips(i, stack);
        if (prof_site_ips(prof_site_at(sites[i]), seen) != 3 || memcmp(seen, stack, sizeof stack) != 0)
            return "a site has another stack\n";
        different.insert(sites[i]);
    }
    if (different.size() != count || prof_sites() != count || prof_table_check())
        return "the table is not sound\n";
    prof_table_reset();
    return prof_table_bytes() == 0 && prof_sites() == 0 ? nullptr : "the table is not empty\n";
}

TEST(ProfFault, every_system_call_of_the_tables_fails_once)
{
    expect_failed_in_children("table", {OS_MAP, OS_UNMAP}, table_program);
}

/* A pool is there at the second try at the latest; a block is had or not; no slot is lost, and none is handed out with what was in it. */
const char *guard_program()
{
    std::vector<void *> live;
    if (guard_start() != 0 && guard_start() != 0)
        return "the pool cannot be had\n";
    auto take = [] { return static_cast<unsigned char *>(guard_alloc(100, 16, 0, PROF_CALLER)); };
    for (int i = 0, refused = 0; i < GUARD_SLOTS + 20; i++) {
        unsigned char *p = take();
        if (!p && refused++ > 0)
            return "two blocks were refused\n";
        for (int at = 0; p && at < 100; at++)
            if (p[at] != 0)
                return "a block is not zero\n";
        if (p)
            guard_free(memset(p, 'x', 100), PROF_CALLER);
    }
    for (int refused = 0; refused < 2;)
        if (void *p = take())
            live.push_back(p);
        else
            refused++;
    for (void *p : live)
        guard_free(p, PROF_CALLER);
    return live.size() == GUARD_SLOTS ? nullptr : "a slot is lost\n";
}

/* The same on a system that has no marks. */
const char *guard_unmarked_program()
{
    os_fault_set(OS_MARK, 1, true);
    const char *fault = guard_program();
    os_fault_set(OS_MARK, 0, false);
    return fault;
}

/* Memory is there for the slots only: they go again. */
const char *guard_half_program()
{
    os_fault_set(OS_MAP, 2, false);
    if (guard_start() == 0)
        return "there is a pool without addresses\n";
    os_fault_set(OS_MAP, 0, false);
    return guard_start() == 0 ? nullptr : "the pool cannot be had\n";
}

TEST(ProfFault, every_system_call_of_the_guarded_pool_fails_once)
{
    if (guard_pool_bytes != 0)
        GTEST_SKIP() << "the process has its pool already";
    expect_failed_in_children("guard", {OS_MAP, OS_PROTECT, OS_MARK, OS_SIGNAL}, guard_program);
    expect_failed_in_children("guard_unmarked", {OS_MAP, OS_PROTECT, OS_SEAL, OS_SIGNAL}, guard_unmarked_program);
    expect_failed_in_children("guard_half", {OS_UNMAP}, guard_half_program);
}

TEST(ProfFault, no_entropy_can_be_had)
{
    Profile profile(1024);
    os_fault_set(OS_ENTROPY, 1, true);
    void *p = profiled_malloc(100000);
    EXPECT_GE(os_fault_failed(OS_ENTROPY), 1u); /* the heap may ask, too */
    os_fault_set(OS_ENTROPY, 0, false);
    EXPECT_GE(Profile::stats().live_bytes, 96u << 10);
    profiled_free(p);
}

} // namespace
