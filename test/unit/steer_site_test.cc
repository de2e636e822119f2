// SPDX-License-Identifier: MIT
/* Which site a call belongs to, and what a plan file must be. */
#include "steer_kit.h"

#include <sys/wait.h>

namespace {

/* In a process of its own: the plan in force stays. */
std::string refusal_of(const std::string &text)
{
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    PlanFile file(text);
    pid_t child = fork();
    if (child == 0) {
        char why[STEER_WHY_BYTES] = "";
        struct steer_opts opts = {};
        memset(&steer_plan, 0, sizeof steer_plan); /* as if there were none */
        if (steer_start(file.path.c_str(), &opts, why))
            strcpy(why, "taken");
        ssize_t written = write(ends[1], why, strlen(why));
        _exit(written < 0);
    }
    close(ends[1]);
    char said[256];
    ssize_t bytes = read(ends[0], said, sizeof said);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return std::string(said, bytes > 0 ? size_t(bytes) : 0);
}

std::string with(std::string text, const char *from, const char *to)
{
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, strlen(from), to);
}

} // namespace

TEST(SteerSite, a_return_address_of_the_plan_leads_to_its_pool_and_another_to_the_heap)
{
    steer_up();
    for (unsigned place = 1; place <= POOLS; place++) {
        void *p = alloc_at(place, 40);
        EXPECT_EQ(pool_of_block(p), place);
        steer_free(p);
    }
    void *p = alloc_at(PLACE_HEAP, 40);
    EXPECT_FALSE(is_steered(p));
    EXPECT_TRUE(quire_heap_owns(quire_heap_default(), p));
    steer_free(p);
}

TEST(SteerSite, behind_a_wrapper_the_word_at_its_place_on_the_stack_decides)
{
    steer_up();
    uintptr_t stack[8] = {};
    struct steer_call call = {reinterpret_cast<uintptr_t>(&test_place[PLACE_WRAPPER]), stack};
    struct {
        unsigned caller, of_caller, pool;
    } rows[] = {{21, 0, 1}, {22, 0, 2}, {23, 24, 3}, {23, 21, 0}, {24, 0, 0}, {20, 0, 0}, {PLACE_UNKNOWN, 0, 0}, {1, 0, 0}};
    for (auto &row : rows) {
        stack[STEP_TO_CALLER] = reinterpret_cast<uintptr_t>(&test_place[row.caller]);
        stack[STEP_TO_CALLER + 2] = reinterpret_cast<uintptr_t>(&test_place[row.of_caller]);
        void *p = steer_alloc(100, call);
        EXPECT_EQ(pool_of_block(p), row.pool) << row.caller;
        steer_free(p);
    }
    stack[STEP_TO_CALLER] = 12345; /* no return address at all */
    void *p = steer_alloc(100, call);
    EXPECT_EQ(pool_of_block(p), 0u);
    steer_free(p);
}

TEST(SteerSite, words_behind_a_wrapper_that_are_no_code_leave_room_for_sites_that_are_met_later)
{
    steer_up();
    uintptr_t stack[8] = {};
    struct steer_call call = {reinterpret_cast<uintptr_t>(&test_place[PLACE_WRAPPER]), stack};
    for (uintptr_t i = 0; i < STEER_TABLE; i++) {
        stack[STEP_TO_CALLER] = 4096 + i;
        void *p = steer_alloc(100, call);
        ASSERT_EQ(pool_of_block(p), 0u);
        steer_free(p);
    }
    void *p = alloc_at(5, 100);
    EXPECT_EQ(pool_of_block(p), 5u);
    steer_free(p);
}

TEST(SteerSite, a_word_that_cannot_be_read_is_not_read)
{
    steer_up();
    void *pages;
    ASSERT_EQ(os_map(2 * os_page_bytes(), os_page_bytes(), &pages), 0);
    ASSERT_EQ(os_guard(static_cast<char *>(pages) + os_page_bytes(), os_page_bytes(), true), 0);
    auto *last = reinterpret_cast<uintptr_t *>(static_cast<char *>(pages) + os_page_bytes()) - 1;
    struct steer_call call = {reinterpret_cast<uintptr_t>(&test_place[PLACE_WRAPPER]), last};
    void *p = steer_alloc(100, call);
    EXPECT_EQ(pool_of_block(p), 0u);
    steer_free(p);
    EXPECT_EQ(os_unmap(pages, 2 * os_page_bytes()), 0);
}

TEST(SteerSite, code_that_no_file_holds_is_the_heaps_however_many_places_of_it_there_are)
{
    steer_up();
    char *code = new char[1 << 20];
    for (size_t i = 0; i < STEER_TABLE + 1000; i++) { /* more than can be remembered */
        void *p = steer_alloc(16, {reinterpret_cast<uintptr_t>(code + i * 16), nullptr});
        ASSERT_FALSE(is_steered(p));
        steer_free(p);
    }
    delete[] code;
    EXPECT_LE(steer_learnt(), uint32_t(STEER_TABLE));
    void *p = alloc_at(1, 40); /* met before or not: never wrong */
    steer_free(p);
}

TEST(SteerPlan, a_sound_plan_is_taken)
{
    EXPECT_EQ(refusal_of(steer_test_plan()), "taken");
}

TEST(SteerPlan, what_is_wrong_with_a_plan_is_said_with_its_line)
{
    const std::string good = steer_test_plan();
    EXPECT_EQ(refusal_of(""), "its end is missing") << "an empty file";
    EXPECT_EQ(refusal_of("hello\n"), "line 1: it is no plan");
    EXPECT_EQ(refusal_of(with(good, "quire-steer 1", "quire-steer 2")), "line 1: it is of another version than 1");
    EXPECT_EQ(refusal_of(good.substr(0, good.size() - 10)).find("line "), 0u);
    EXPECT_EQ(refusal_of(good.substr(0, good.find("end "))), "line 47: its end is missing");
    EXPECT_EQ(refusal_of(with(good, "pool 2 arena", "pool 3 arena")), "line 18: pools are not numbered 1, 2, 3");
    EXPECT_EQ(refusal_of(with(good, "pool 2 arena", "pool 2 pond")), "line 18: a pool is an arena or a slab");
    EXPECT_EQ(refusal_of(with(good, "path 20 +3 22", "path 20 +4 22")), "line 44: the way up the stack differs between two paths");
    EXPECT_EQ(refusal_of(with(good, "path 20 +3 22", "path 20")), "line 44: two paths are one");
    EXPECT_EQ(refusal_of(with(good, "path 20 +3 22", "path 21 +3 22")), "taken");
    EXPECT_EQ(refusal_of(with(good, "path 20 +3 22", "path 1 +3 22")), "line 44: one path goes on where another ends");
    EXPECT_EQ(refusal_of(with(good, "path 20 +3 22", "path 99")), "line 44: there is no such frame");
    EXPECT_EQ(refusal_of(with(good, "site 202 pool 2", "site 202 pool 9")), "line 43: there is no such pool");
    EXPECT_EQ(refusal_of(with(good, "module 0 ", "module 0 xyz ")), "line 3: a build id is missing");
    EXPECT_EQ(refusal_of(with(good, "+3 23 +2 24", "+3 23 +99999999999999999999 24")), "line 46: a number is too large");
    EXPECT_EQ(refusal_of(with(good, "pool 2 arena", "lake 2 arena")), "line 18: a line begins with no word of a plan");
    EXPECT_EQ(refusal_of(with(good, "# a test's\n", "# a test's\nprogram 3\n")), "line 3: there is no such module");
}

TEST(SteerPlan, a_file_that_is_not_there_or_no_text_is_refused)
{
    char why[STEER_WHY_BYTES] = "";
    struct steer_opts opts = {};
    pid_t child = fork();
    memset(child ? why : reinterpret_cast<char *>(&steer_plan), 0, child ? sizeof why : sizeof steer_plan);
    if (child == 0)
        _exit(steer_start("/nonexistent/plan", &opts, why) || strcmp(why, "it cannot be read") != 0);
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(refusal_of(std::string("quire-steer 1\n\0end 0\n", 21)), "line 1: it is no plan");
}

TEST(SteerPlan, a_plan_whose_bytes_are_changed_at_random_is_taken_or_refused_and_never_more)
{
    const std::string good = steer_test_plan();
    Random random(5);
    for (int i = 0; i < (BUILT_WITH_TSAN ? 20 : 150); i++) {
        std::string text = good;
        for (uint64_t n = random.below(8); n-- > 0;)
            text[random.below(text.size())] = char(random.below(4) == 0 ? '\n' : 32 + random.below(90));
        std::string said = refusal_of(text);
        EXPECT_TRUE(said == "taken" || said.find("line ") == 0) << said;
    }
}
