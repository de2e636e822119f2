// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fake_root.h"
#include "pages/pressure.h"

namespace {
const uint64_t mib = 1 << 20;

struct Said {
    const char *name;
    FakeRoot::Files files;
    uint64_t bytes;
};
const std::string machine = "MemTotal:       1048576 kB\nMemFree:        100 kB\n";
const std::string deep = "/" + std::string(200, 'd'); /* a directory's name */
} // namespace

TEST(OsMemory, the_least_limit_on_the_way_up_to_the_root_counts_else_the_machines_memory)
{
    const Said table[] = {
        {"nothing is said at all", {}, 0},
        {"no cgroup", {{"proc/meminfo", machine}}, 1024 * mib},
        {"the second version", {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/memory.max", "209715200\n"}}, 200 * mib},
        {"its parent's is less",
         {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/memory.max", "209715200\n"}, {"sys/fs/cgroup/a/memory.max", "104857600\n"}},
         100 * mib},
        {"its parent's is more",
         {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/memory.max", "104857600\n"}, {"sys/fs/cgroup/a/memory.max", "209715200\n"}},
         100 * mib},
        {"a namespace of cgroups shows the root", {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "104857600\n"}}, 100 * mib},
        {"max is none", {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/memory.max", "max\n"}}, 1024 * mib},
        {"more than there is", {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/memory.max", "9223372036854771712\n"}}, 1024 * mib},
        {"outside of the namespace's root",
         {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/../b\n"}, {"sys/fs/b/memory.max", "1048576\n"}, {"sys/fs/cgroup/memory.max", "104857600\n"}},
         100 * mib},
        {"the first version",
         {{"proc/meminfo", machine},
          {"proc/self/cgroup", "12:pids:/p\n7:cpu,memory:/m\n0::/a\n"},
          {"sys/fs/cgroup/memory/m/memory.limit_in_bytes", "104857600\n"},
          {"sys/fs/cgroup/a/memory.max", "1048576\n"}},
         100 * mib},
        {"the first version behind the second's line",
         {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::/a\n7:memory:/m\n"}, {"sys/fs/cgroup/memory/m/memory.limit_in_bytes", "104857600\n"}},
         100 * mib},
        {"the host's path in a container, of which the root is shown",
         {{"proc/meminfo", machine}, {"proc/self/cgroup", "7:memory:/docker/0123\n"}, {"sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"}},
         100 * mib},
        {"another controller that begins alike", {{"proc/meminfo", machine}, {"proc/self/cgroup", "7:memoryless:/m\n"}, {"sys/fs/cgroup/memory/m/memory.limit_in_bytes", "1\n"}}, 1024 * mib},
        {"no machine, but a limit", {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/memory.max", "104857600"}}, 100 * mib},
        {"no sense", {{"proc/meminfo", "MemTotal: many\n"}, {"proc/self/cgroup", "0::\n:\n7:memory\n\n::::"}}, 0},
        {"a path longer than ours", {{"proc/meminfo", machine}, {"proc/self/cgroup", "0::" + deep + deep + deep + deep + deep + deep + "\n"}, {"sys/fs/cgroup/memory.max", "104857600"}}, 100 * mib},
    };
    for (auto &row : table) {
        FakeRoot root(row.files);
        EXPECT_EQ(os_memory_bytes(), row.bytes) << row.name;
    }
}

TEST(OsMemory, this_systems_is_no_more_than_its_machines)
{
    uint64_t kib = 0;
    std::string word;
    std::ifstream("/proc/meminfo") >> word >> kib;
    EXPECT_GT(os_memory_bytes(), 0u);
    EXPECT_LE(os_memory_bytes(), kib * 1024);
}

/* What is read under each root, or the error. */
static void expect_read(int (*read)(uint64_t *out), const std::vector<std::pair<FakeRoot::Files, int64_t>> &table)
{
    for (auto &[files, expected] : table) {
        FakeRoot root(files);
        uint64_t out = 0;
        int error = read(&out);
        EXPECT_EQ(error ? error : int64_t(out), expected);
    }
}

TEST(OsMemory, waiting_for_memory_is_the_nearest_cgroups_that_says_else_the_machines)
{
    const std::string said = "some avg10=1.00 avg60=2.00 avg300=3.00 total=777\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n", other = "some total=5\n";
    const FakeRoot::Files nowhere = {}, here = {{"proc/pressure/memory", other}, {"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/memory.pressure", said}},
                          above = {{"proc/pressure/memory", other}, {"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/memory.pressure", said}},
                          all = {{"proc/pressure/memory", other}, {"proc/self/cgroup", "0::/a/b\n"}},
                          first = {{"proc/pressure/memory", other}, {"proc/self/cgroup", "7:memory:/a\n"}, {"sys/fs/cgroup/memory/a/memory.pressure", said}},
                          torn = {{"proc/pressure/memory", "some total=\n"}}, full = {{"proc/pressure/memory", "full total=5\n"}};
    const std::vector<std::pair<FakeRoot::Files, int64_t>> table = {{nowhere, -ENOENT}, {here, 777}, {above, 777}, {all, 5}, {first, 5}, {torn, -EINVAL}, {full, -EINVAL}};
    expect_read(os_memory_stalled_us, table);
}

TEST(OsMemory, hits_of_limits_are_those_of_the_cgroup_and_of_all_above_it)
{
    const std::string at = "low 7\nhigh 4\nmax 2\noom 1\noom_kill 1\noom_group_kill 0\n", above = "low 0\nhigh 0\nmax 30\noom 0\noom_kill 0\n";
    const FakeRoot::Files nowhere = {{"proc/self/cgroup", "0::/a/b\n"}}, no_cgroup = {{"sys/fs/cgroup/memory.events.local", at}},
                          here = {{"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/memory.events.local", at}, {"sys/fs/cgroup/a/memory.events", above}},
                          both = {{"proc/self/cgroup", "0::/a/b\n"}, {"sys/fs/cgroup/a/b/memory.events.local", at}, {"sys/fs/cgroup/a/memory.events.local", above}},
                          first = {{"proc/self/cgroup", "7:memory:/a\n"}, {"sys/fs/cgroup/memory/a/memory.failcnt", "50\n"}, {"sys/fs/cgroup/memory/memory.failcnt", "0\n"}},
                          torn = {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/memory.events.local", "low 3\nhi"}};
    const std::vector<std::pair<FakeRoot::Files, int64_t>> table = {{nowhere, -ENOENT}, {no_cgroup, -ENOENT}, {here, 6}, {both, 36}, {first, 50}, {torn, 0}};
    expect_read(os_memory_limit_hits, table);
}

TEST(Pressure, at_a_limit_is_what_has_grown_since_the_look_before)
{
    const std::string file = "sys/fs/cgroup/a/memory.events.local";
    FakeRoot root(FakeRoot::Files{{"proc/self/cgroup", "0::/a\n"}, {file, "high 5\nmax 5\n"}});
    struct pressure_seen seen = {};
    EXPECT_FALSE(pressure_hits_limit(&seen)) << "one reading says nothing";
    EXPECT_FALSE(pressure_hits_limit(&seen));
    root.write(file, "high 6\nmax 5\n");
    EXPECT_TRUE(pressure_hits_limit(&seen));
    EXPECT_FALSE(pressure_hits_limit(&seen)) << "that was then";
    root.write(file, "high 6\nmax 6\n");
    EXPECT_TRUE(pressure_hits_limit(&seen));
    root.write(file, "high 0\nmax 1\n");
    EXPECT_FALSE(pressure_hits_limit(&seen)) << "another cgroup's";
    struct pressure_seen other = {};
    EXPECT_FALSE(pressure_hits_limit(&other)) << "each one who looks has seen what he has";
}

TEST(Pressure, is_a_share_of_the_time_between_two_readings)
{
    const uint64_t s = 1000000000;
    EXPECT_FALSE(pressure_exceeds(100000, s, 10));
    EXPECT_TRUE(pressure_exceeds(100001, s, 10));
    EXPECT_TRUE(pressure_exceeds(75001, s * 3 / 4, 10));
    EXPECT_FALSE(pressure_exceeds(0, 0, 10));
    EXPECT_TRUE(pressure_exceeds(1, 0, 10));
    EXPECT_FALSE(pressure_exceeds(s * 3600 / 1000, s * 3600, 100));

    FakeRoot root(FakeRoot::Files{{"proc/pressure/memory", "some total=1000\n"}});
    EXPECT_FALSE(pressure_is_high(1)) << "nobody has asked for it";
    pressure_watch(10);
    EXPECT_FALSE(pressure_is_high(s)) << "one reading says nothing";
    EXPECT_FALSE(pressure_is_high(2 * s)) << "nothing waits";
    root.write("proc/pressure/memory", "some total=102000\n");
    EXPECT_TRUE(pressure_is_high(3 * s));
    EXPECT_FALSE(pressure_is_high(4 * s)) << "that was then";
    root.write("proc/pressure/memory", "some total=5\n");
    EXPECT_FALSE(pressure_is_high(5 * s)) << "it went backwards: another cgroup's";
    root.write("proc/pressure/memory", "some total=150005\n");
    EXPECT_TRUE(pressure_is_high(6 * s));
    pressure_watch(0);
}
