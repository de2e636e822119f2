// SPDX-License-Identifier: MIT
/* Files that show a process: replaced whole or not at all, for their user alone, with nothing left open. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "look/live.h"
#include "look/look_out.h"
#include "os/os.h"

namespace {

std::vector<std::string> names_in(const std::string &path)
{
    std::vector<std::string> names;
    DIR *dir = opendir(path.c_str());
    for (dirent *entry = dir ? readdir(dir) : nullptr; entry; entry = readdir(dir))
        if (entry->d_name[0] != '.')
            names.push_back(entry->d_name);
    if (dir)
        closedir(dir);
    std::sort(names.begin(), names.end());
    return names;
}

/* A directory of its own, as if the process had found that one. */
class LivePlace : public testing::Test {
protected:
    std::string dir = testing::TempDir() + "quire-live." + std::to_string(getpid());
    std::string pid = std::to_string(getpid());
    live_place place = {};

    void SetUp() override
    {
        ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
        ASSERT_LT(dir.size(), sizeof place.dir);
        strcpy(place.dir, dir.c_str());
    }
    void TearDown() override
    {
        for (const auto &name : names_in(dir))
            unlink((dir + "/" + name).c_str());
        rmdir(dir.c_str());
    }
    std::string contents(const char *suffix)
    {
        std::ifstream file(dir + "/" + pid + "." + suffix);
        return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }
    void put(const char *suffix, const std::string &text)
    {
        std::ofstream(dir + "/" + pid + "." + suffix, std::ios::binary) << text;
    }
};

void say(out *out, const void *text)
{
    for (int i = 0; i < 1000; i++)
        out_text(out, static_cast<const char *>(text));
}

std::string thousand(const char *text)
{
    std::string all;
    for (int i = 0; i < 1000; i++)
        all += text;
    return all;
}

} // namespace

TEST_F(LivePlace, a_file_is_its_users_alone_and_is_replaced_whole)
{
    ASSERT_EQ(live_place_write(&place, "json", say, "first "), 0);
    EXPECT_EQ(contents("json"), thousand("first "));
    ASSERT_EQ(live_place_write(&place, "json", say, "2 "), 0);
    EXPECT_EQ(contents("json"), thousand("2 "));
    EXPECT_EQ(names_in(dir), std::vector<std::string>{pid + ".json"});
    struct stat status;
    ASSERT_EQ(stat((dir + "/" + pid + ".json").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    live_place_remove(&place, "json");
    EXPECT_TRUE(names_in(dir).empty());
}

TEST_F(LivePlace, whichever_call_fails_the_old_file_stays_and_nothing_else_does)
{
    ASSERT_EQ(live_place_write(&place, "json", say, "old "), 0);
    size_t open_before = names_in("/proc/self/fd").size();
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        live_place trial = place;
        os_fault_set(OS_OPEN, nth, true);
        int error = live_place_write(&trial, "json", say, "new ");
        os_fault_set(OS_OPEN, 0, false);
        EXPECT_EQ(names_in("/proc/self/fd").size(), open_before);
        EXPECT_EQ(names_in(dir), std::vector<std::string>{pid + ".json"});
        EXPECT_EQ(contents("json"), thousand(error ? "old " : "new ")) << nth;
        if (error == 0)
            break;
        EXPECT_LT(error, 0);
        failures++;
    }
    EXPECT_GE(failures, 4) << "the directory made, opened, a file made, renamed";
}

TEST_F(LivePlace, who_has_no_descriptor_for_a_while_stays_where_he_is)
{
    ASSERT_EQ(live_place_write(&place, "json", say, "old "), 0);
    os_fault_set(OS_OPEN, 2, false); /* the first makes the directory */
    EXPECT_EQ(live_place_write(&place, "json", say, "new "), -EMFILE);
    os_fault_set(OS_OPEN, 0, false);
    EXPECT_STREQ(place.dir, dir.c_str());
    live_place_remove(&place, "json");
    EXPECT_TRUE(names_in(dir).empty());
}

TEST_F(LivePlace, what_a_killed_process_of_that_number_left_half_written_is_no_hindrance)
{
    put("new", "half");
    ASSERT_EQ(live_place_write(&place, "json", say, "x"), 0);
    EXPECT_EQ(names_in(dir), std::vector<std::string>{pid + ".json"});
}

TEST_F(LivePlace, a_link_in_the_way_is_not_followed)
{
    put("victim", "untouched");
    ASSERT_EQ(symlink((dir + "/" + pid + ".victim").c_str(), (dir + "/" + pid + ".new").c_str()), 0);
    ASSERT_EQ(live_place_write(&place, "json", say, "x"), 0);
    EXPECT_EQ(contents("victim"), "untouched");
}

TEST_F(LivePlace, a_directory_that_others_may_enter_is_not_written_to)
{
    ASSERT_EQ(chmod(dir.c_str(), 0750), 0);
    (void)live_place_write(&place, "unit-test", say, "x");
    EXPECT_TRUE(names_in(dir).empty());
    EXPECT_STRNE(place.dir, dir.c_str()) << "another one, or none";
    live_place_remove(&place, "unit-test");
}

TEST_F(LivePlace, a_question_is_read_once_and_only_if_it_is_one)
{
    live_question question;
    EXPECT_FALSE(live_place_asked(&place, &question));
    put("ask", "map 0123456789abcdef\n");
    ASSERT_TRUE(live_place_asked(&place, &question));
    EXPECT_STREQ(question.kind, "map");
    EXPECT_STREQ(question.token, "0123456789abcdef");
    EXPECT_FALSE(live_place_asked(&place, &question));
    const std::string none[] = {"", "map", "map ", "map json", "map ask", "map new", "map ../x", "map A", " map 1", "statistics 1", "map 0123456789abcdef0",
        std::string("\0map 1", 6), std::string(5000, 'm')};
    for (const std::string &text : none) {
        put("ask", text);
        EXPECT_FALSE(live_place_asked(&place, &question)) << text;
        EXPECT_TRUE(names_in(dir).empty()) << text;
    }
}
