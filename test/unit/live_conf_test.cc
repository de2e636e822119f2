// SPDX-License-Identifier: MIT
/* The key `top` of QUIRE_CONF, as programs without the preload library read it. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unistd.h>

#include "look/live.h"

namespace {

constexpr uint64_t ms = 1000000, second = 1000 * ms;

/* The interval that is found, and what was said. */
struct Found {
    uint64_t interval_ns;
    std::string said;
};

Found find(const char *conf)
{
    int ends[2];
    char text[512];
    EXPECT_EQ(pipe(ends), 0);
    uint64_t interval_ns = live_conf_find(conf, ends[1]);
    close(ends[1]);
    ssize_t got = read(ends[0], text, sizeof text);
    close(ends[0]);
    return {interval_ns, std::string(text, got > 0 ? (size_t)got : 0)};
}

} // namespace

TEST(LiveConf, what_is_understood_is_not_spoken_of)
{
    struct {
        const char *conf;
        uint64_t interval_ns;
    } table[] = {{"", 0}, {"top", second}, {"top:1", second}, {"top:on", second}, {"TOP:Yes", second}, {"top:0", 0}, {"top:off", 0},
        {"top:100ms", 100 * ms}, {"top:10ms", 10 * ms}, {"top:2s", 2 * second}, {"top:3600s", 3600 * second}, {" top : 50ms ", 50 * ms},
        {"limit:2G,top:1,secure:1", second}, {"limit:2G, top", second}, {"top:1,top:0", 0}, {"top:0,top:20ms", 20 * ms},
        {"topper:1", 0}, {"stop:1", 0}, {"limit:top", 0}, {",,,", 0}, {"top,", second}, {"stats:exit=/tmp/top:1", 0}};
    for (const auto &row : table) {
        Found found = find(row.conf);
        EXPECT_EQ(found.interval_ns, row.interval_ns) << row.conf;
        EXPECT_EQ(found.said, "") << row.conf;
    }
}

TEST(LiveConf, what_is_not_understood_is_one_line_and_off)
{
    for (const char *conf : {"top:", "top:2", "top:5ms", "top:9ms", "top:3601s", "top:1h", "top:-1s", "top:99999999999s", "top:1 s", "top:ms", "top:1us"}) {
        Found found = find(conf);
        EXPECT_EQ(found.interval_ns, 0u) << conf;
        EXPECT_EQ(found.said.rfind("quire: QUIRE_CONF: top cannot be that; write top:1", 0), 0u) << conf;
        EXPECT_EQ(std::count(found.said.begin(), found.said.end(), '\n'), 1) << conf;
    }
}

TEST(LiveConf, a_mistake_does_not_undo_what_was_said_before)
{
    EXPECT_EQ(find("top:100ms,top:soon").interval_ns, 100 * ms);
}
