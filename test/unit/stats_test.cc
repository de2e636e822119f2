// SPDX-License-Identifier: MIT
/* Each sentence of quire/stats.h: what is written in each format, that it adds up, and what the caller is told. */
#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

#include <quire/percpu.h>
#include <quire/slab.h>

#include "support.h"
#include "unit/stats_kit.h"

namespace {
const uint32_t formats[] = {QUIRE_STATS_TEXT, QUIRE_STATS_JSON, QUIRE_STATS_PROMETHEUS};
const char *const kinds[] = {"sources", "slabs", "percpu"};
const std::map<std::string, std::string> singular = {{"sources", "source"}, {"slabs", "slab"}, {"percpu", "percpu"}};

/* A slab, or a pool, with some live things in it. */
struct Nodes {
    quire_slab *slab;
    explicit Nodes(const char *name, size_t elements = 100, size_t bytes = 72)
    {
        quire_slab_opts opts = {};
        opts.name = name;
        slab = quire_slab_create(bytes, &opts);
        for (size_t i = 0; i < elements; i++)
            EXPECT_NE(quire_slab_alloc(slab), nullptr);
    }
    Nodes(const Nodes &) = delete;
    ~Nodes() { quire_slab_destroy(slab); }
};

struct Counters {
    quire_percpu *pool;
    explicit Counters(const char *name, size_t objects = 10)
    {
        quire_percpu_opts opts = {};
        opts.name = name;
        opts.chunk_bytes = 16384;
        opts.cpus = 2;
        pool = quire_percpu_create(&opts);
        for (size_t i = 0; i < objects; i++)
            quire_percpu_add(pool, quire_percpu_alloc(pool, 8, 0), 1);
    }
    Counters(const Counters &) = delete;
    ~Counters() { quire_percpu_destroy(pool); }
};

std::vector<const Json *> named(const Json &all, const std::string &kind, const std::string &name)
{
    std::vector<const Json *> found;
    for (const Json &object : all[kind].items)
        if (object["name"].string == name)
            found.push_back(&object);
    return found;
}

size_t text_count(const std::string &name)
{
    size_t count = 0;
    auto tables = Table::parse(written(QUIRE_STATS_TEXT));
    for (const auto &table : tables)
        for (const Table::Row &row : table.second.rows)
            count += row.name == "\"" + name + "\"";
    return count;
}

size_t prometheus_count(const std::string &metric, const std::string &name)
{
    size_t count = 0;
    Prometheus all = Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
    for (const auto &sample : all.metrics.at(metric).samples)
        count += sample.labels.at("name") == name;
    return count;
}
} // namespace

/* ---- what is there ---- */

TEST(Stats, each_format_shows_an_object_while_it_lives_and_not_after)
{
    {
        Nodes nodes("seen once");
        Counters counters("seen too");
        EXPECT_EQ(text_count("seen once"), 1u);
        EXPECT_EQ(text_count("seen too"), 1u);
        Json all = Json::parse(written(QUIRE_STATS_JSON));
        EXPECT_EQ(named(all, "slabs", "seen once").size(), 1u);
        EXPECT_EQ(named(all, "percpu", "seen too").size(), 1u);
        EXPECT_EQ(prometheus_count("quire_slab_live_elements", "seen once"), 1u);
        EXPECT_EQ(prometheus_count("quire_percpu_live_objects", "seen too"), 1u);
    }
    EXPECT_EQ(text_count("seen once"), 0u);
    EXPECT_EQ(named(Json::parse(written(QUIRE_STATS_JSON)), "percpu", "seen too").size(), 0u);
    EXPECT_EQ(prometheus_count("quire_slab_live_elements", "seen once"), 0u);
}

TEST(Stats, json_says_what_the_objects_own_statistics_say)
{
    Nodes nodes("numbers", 1234, 100);
    quire_slab_free(nodes.slab, quire_slab_alloc(nodes.slab));
    Counters counters("numbers", 77);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    struct quire_slab_stats slab;
    quire_slab_stats(nodes.slab, &slab);
    const Json &a = *named(all, "slabs", "numbers").at(0);
    EXPECT_EQ(a["live_elements"].number, 1234u);
    EXPECT_EQ(a["mapped_bytes"].number, slab.mapped_bytes);
    EXPECT_EQ(a["slot_bytes"].number, slab.slot_bytes);
    EXPECT_EQ(a["caches"].number, slab.caches);
    struct quire_percpu_stats pool;
    quire_percpu_stats(counters.pool, &pool);
    const Json &b = *named(all, "percpu", "numbers").at(0);
    EXPECT_EQ(b["live_objects"].number, 77u);
    EXPECT_EQ(b["live_bytes"].number, pool.live_bytes);
    EXPECT_EQ(b["cpus"].number, 2u);
    EXPECT_EQ(b["object_bytes_max"].number, 8u);
    EXPECT_EQ(b["owners"].number, pool.owners);
    EXPECT_EQ(all["schema"].string, "quire.stats/1");
    EXPECT_EQ(all["process"].number, static_cast<uint64_t>(getpid()));
}

TEST(Stats, objects_of_one_name_and_those_without_are_told_apart_by_their_ids)
{
    Nodes a("twin"), b("twin"), c(nullptr), d("");
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    auto twins = named(all, "slabs", "twin");
    ASSERT_EQ(twins.size(), 2u);
    EXPECT_NE((*twins[0])["id"].number, (*twins[1])["id"].number);
    EXPECT_GE(named(all, "slabs", "").size(), 2u);
    Prometheus::parse(written(QUIRE_STATS_PROMETHEUS)); /* throws when a series is there twice */
    size_t nameless = 0;
    auto tables = Table::parse(written(QUIRE_STATS_TEXT));
    for (const Table::Row &row : tables.at("slabs").rows)
        nameless += row.name == "-";
    EXPECT_GE(nameless, 2u);
}

TEST(Stats, an_id_is_never_used_twice)
{
    uint64_t first, second;
    {
        Nodes nodes("id");
        first = (*named(Json::parse(written(QUIRE_STATS_JSON)), "slabs", "id").at(0))["id"].number;
    }
    Nodes nodes("id");
    second = (*named(Json::parse(written(QUIRE_STATS_JSON)), "slabs", "id").at(0))["id"].number;
    EXPECT_GT(second, first);
}

TEST(Stats, more_objects_than_are_looked_at_together_are_each_shown_once)
{
    for (size_t count : {31u, 32u, 33u, 64u, 100u}) {
        std::vector<std::unique_ptr<Nodes>> many;
        for (size_t i = 0; i < count; i++)
            many.push_back(std::make_unique<Nodes>(("many " + std::to_string(i)).c_str(), i));
        Json all = Json::parse(written(QUIRE_STATS_JSON));
        Prometheus metrics = Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
        std::map<std::string, uint64_t> live;
        for (const auto &sample : metrics.metrics.at("quire_slab_live_elements").samples)
            live[sample.labels.at("name")] = sample.value;
        auto tables = Table::parse(written(QUIRE_STATS_TEXT));
        std::map<std::string, size_t> rows;
        for (const Table::Row &row : tables.at("slabs").rows)
            rows[row.name]++;
        for (size_t i = 0; i < count; i++) {
            std::string name = "many " + std::to_string(i);
            auto found = named(all, "slabs", name);
            ASSERT_EQ(found.size(), 1u) << name;
            EXPECT_EQ((*found[0])["live_elements"].number, i);
            EXPECT_EQ(live.at(name), i);
            EXPECT_EQ(rows["\"" + name + "\""], 1u);
        }
    }
}

/* ---- sums ---- */

TEST(Stats, parts_are_the_whole_and_sums_are_the_sums)
{
    Nodes a("sum a", 1000), b("sum b", 10, 5000);
    Counters c("sum c"), d("sum d", 300);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    for (const char *kind : kinds) {
        std::map<std::string, uint64_t> sums;
        for (const Json &object : all[kind].items) {
            if (object.members.count("mapped_bytes")) {
                EXPECT_EQ(object["mapped_bytes"].number, object["live_bytes"].number + object["free_bytes"].number + object["meta_bytes"].number);
            }
            for (const auto &member : object.members)
                sums[member.first] += member.second.number;
        }
        sums["objects"] = all[kind].items.size();
        for (const auto &sum : all["sums"][kind].members)
            EXPECT_EQ(sum.second.number, sums.at(sum.first)) << kind << " " << sum.first;
        EXPECT_FALSE(all["sums"][kind].members.count("peak_bytes")) << "peaks are not of one moment: their sum says nothing";
    }
    EXPECT_TRUE(all["sums"]["slabs"].members.count("mapped_bytes"));
}

TEST(Stats, the_tables_columns_add_up_to_their_last_row)
{
    Nodes a("row a", 1000), b("row b", 10, 5000);
    Counters c("row c");
    auto tables = Table::parse(written(QUIRE_STATS_TEXT));
    for (const char *kind : kinds) {
        const Table &table = tables.at(kind);
        ASSERT_GE(table.rows.size(), 2u) << kind;
        for (const std::string &column : table.columns) {
            uint64_t sum = 0;
            for (size_t i = 0; i + 1 < table.rows.size(); i++)
                sum += std::stoull(table.rows[i].cells.at(column));
            const std::string &last = table.rows.back().cells.at(column);
            if (last != "-") {
                EXPECT_EQ(std::stoull(last), sum) << kind << " " << column;
            }
        }
        EXPECT_EQ(table.rows.back().name, "(" + std::to_string(table.rows.size() - 1) + " together)");
    }
    EXPECT_EQ(tables.at("slabs").rows.back().cells.at("slot_bytes"), "-");
    EXPECT_NE(tables.at("slabs").rows.back().cells.at("mapped_bytes"), "-");
}

TEST(Stats, the_states_of_an_object_add_up_to_what_json_says_it_holds)
{
    Nodes nodes("states", 5000);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    Prometheus metrics = Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
    uint64_t sum = 0, states = 0;
    for (const auto &sample : metrics.metrics.at("quire_slab_bytes").samples)
        if (sample.labels.at("name") == "states") {
            sum += sample.value;
            states++;
        }
    EXPECT_EQ(states, 3u);
    EXPECT_EQ(sum, (*named(all, "slabs", "states").at(0))["mapped_bytes"].number);
}

TEST(Stats, every_field_of_json_that_is_no_sum_of_parts_is_a_metric)
{
    Nodes nodes("fields");
    Counters counters("fields");
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    Prometheus metrics = Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
    for (const char *kind : kinds) {
        std::string prefix = "quire_" + singular.at(kind) + "_";
        std::set<std::string> states;
        for (const auto &sample : metrics.metrics.at(prefix + "bytes").samples)
            states.insert(sample.labels.at("state") + "_bytes");
        for (const auto &member : all[kind].items.at(0).members)
            if (member.first != "name" && member.first != "id" && member.first != "mapped_bytes" && !states.count(member.first)) {
                bool is_there = metrics.metrics.count(prefix + member.first) || metrics.metrics.count(prefix + member.first + "_total");
                EXPECT_TRUE(is_there) << kind << " " << member.first;
            }
    }
    for (const auto &metric : metrics.metrics) {
        bool rises = metric.second.type == "counter", says_so = metric.first.size() > 6 && metric.first.compare(metric.first.size() - 6, 6, "_total") == 0;
        EXPECT_EQ(rises, says_so) << metric.first;
        EXPECT_FALSE(metric.second.help.empty()) << metric.first;
    }
}

/* ---- names ---- */

TEST(Stats, names_of_any_bytes_leave_each_format_valid)
{
    std::vector<std::unique_ptr<Nodes>> all;
    for (int byte = 1; byte < 256; byte++) {
        all.push_back(std::make_unique<Nodes>(std::string(3, static_cast<char>(byte)).c_str(), 0));
        all.push_back(std::make_unique<Nodes>((std::string("a") + static_cast<char>(byte) + "\"").c_str(), 0));
    }
    Json::parse(written(QUIRE_STATS_JSON));
    Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
    Table::parse(written(QUIRE_STATS_TEXT));
    std::string text = written(QUIRE_STATS_TEXT);
    for (size_t at = 0; at < text.size();) {
        uint32_t code = utf8_next(text, at);
        EXPECT_TRUE(code == '\n' || (code >= 0x20 && code < 0x7f) || code >= 0xa0) << "a terminal's control character: " << code;
    }
}

TEST(Stats, what_a_name_says_is_read_back_from_each_format)
{
    struct {
        const char *name, *json, *prometheus, *text;
    } table[] = {
        {"plain", "plain", "plain", "plain"},
        {"say \"it\"\\now", "say \"it\"\\now", "say \"it\"\\now", "say \"it\"\\now"},
        {"two\nlines\tand \x1b[1m", "two\nlines\tand \x1b[1m", "two\nlines?and ?[1m", "two?lines?and ?[1m"},
        {"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xbe", "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xbe", "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xbe", "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xbe"},
        {"\xff|\xc3|\xe2\x82|\xed\xa0\x80|\xc0\x80", "\xef\xbf\xbd|\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd",
         "\xef\xbf\xbd|\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd", "?|?|??|???|??"},
        /* 31 bytes are kept: the last character is cut in two */
        {"123456789012345678901234567890\xc3\xa9", "123456789012345678901234567890\xef\xbf\xbd", "123456789012345678901234567890\xef\xbf\xbd", "123456789012345678901234567890?"},
    };
    for (const auto &row : table) {
        Nodes nodes(row.name, 0);
        EXPECT_EQ(named(Json::parse(written(QUIRE_STATS_JSON)), "slabs", row.json).size(), 1u) << row.json;
        EXPECT_EQ(prometheus_count("quire_slab_pages", row.prometheus), 1u) << row.prometheus;
        EXPECT_EQ(text_count(row.text), 1u) << row.text;
    }
}

/* ---- what the caller is told ---- */

TEST(Stats, errno_is_left_as_it_was)
{
    for (uint32_t format : formats) {
        int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        errno = 77;
        EXPECT_EQ(quire_stats_write(fd, format), 0);
        EXPECT_EQ(errno, 77);
        close(fd);
    }
}

TEST(Stats, a_format_that_is_none_is_einval_and_nothing_is_written)
{
    int fd = memfd_create("stats", MFD_CLOEXEC);
    for (uint32_t format : {3u, 4u, 0x80000000u, 0xffffffffu}) {
        errno = 0;
        EXPECT_EQ(quire_stats_write(fd, format), -1);
        EXPECT_EQ(errno, EINVAL);
    }
    EXPECT_EQ(contents(fd), "");
    close(fd);
}

TEST(Stats, what_write_refuses_is_the_callers_to_see)
{
    signal(SIGPIPE, SIG_IGN);
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC), read_only = open("/dev/null", O_RDONLY | O_CLOEXEC), ends[2];
    ASSERT_EQ(pipe(ends), 0);
    close(ends[0]);
    struct {
        int fd, error;
    } table[] = {{-1, EBADF}, {read_only, EBADF}, {full, ENOSPC}, {ends[1], EPIPE}};
    for (const auto &row : table)
        for (uint32_t format : formats) {
            errno = 0;
            EXPECT_EQ(quire_stats_write(row.fd, format), -1);
            EXPECT_EQ(errno, row.error);
        }
    close(full);
    close(read_only);
    close(ends[1]);
    signal(SIGPIPE, SIG_DFL);
}

TEST(Stats, a_descriptor_that_does_not_wait_is_eagain_when_it_is_full)
{
    std::vector<std::unique_ptr<Nodes>> many;
    for (int i = 0; i < 100; i++)
        many.push_back(std::make_unique<Nodes>("eagain", 0));
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
    EXPECT_EQ(quire_stats_write(ends[1], QUIRE_STATS_JSON), -1);
    EXPECT_EQ(errno, EAGAIN);
    close(ends[0]);
    close(ends[1]);
}

/* ---- interrupted, slow ---- */

namespace {
/* Writes into a pipe that holds one page, from a thread of its own, until it is read to the end. */
struct Slow {
    int ends[2], result = -2;
    pthread_t thread;
    uint32_t format;
    explicit Slow(uint32_t format_) : format(format_)
    {
        EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
        fcntl(ends[1], F_SETPIPE_SZ, 4096);
        pthread_create(&thread, nullptr, write, this);
    }
    ~Slow() { close(ends[0]); }
    static void *write(void *arg)
    {
        Slow *slow = static_cast<Slow *>(arg);
        slow->result = quire_stats_write(slow->ends[1], slow->format);
        close(slow->ends[1]);
        return nullptr;
    }
    bool wait_full()
    {
        struct pollfd can_write = {ends[1], POLLOUT, 0};
        for (int tries = 0; tries < 5000 && poll(&can_write, 1, 0) == 1; tries++)
            usleep(1000);
        return poll(&can_write, 1, 0) == 0;
    }
    template <class Between> std::string read_all(size_t bytes, Between between)
    {
        std::string text, part(bytes, 0);
        for (ssize_t got; (got = ::read(ends[0], &part[0], bytes)) > 0; between())
            text.append(part, 0, static_cast<size_t>(got));
        pthread_join(thread, nullptr);
        return text;
    }
};
} // namespace

TEST(Stats, short_writes_and_interrupted_ones_go_on)
{
    struct sigaction action = {}, before;
    action.sa_handler = [](int) {}; /* without SA_RESTART: a write that waits fails with EINTR, or is short */
    sigaction(SIGUSR1, &action, &before);
    std::vector<std::unique_ptr<Nodes>> many;
    for (int i = 0; i < 40; i++)
        many.push_back(std::make_unique<Nodes>(("slow " + std::to_string(i)).c_str(), 0));
    Slow slow(QUIRE_STATS_JSON);
    ASSERT_TRUE(slow.wait_full());
    std::string text = slow.read_all(700, [&] { pthread_kill(slow.thread, SIGUSR1); });
    EXPECT_EQ(slow.result, 0);
    Json all = Json::parse(text);
    for (int i = 0; i < 40; i++)
        EXPECT_EQ(named(all, "slabs", "slow " + std::to_string(i)).size(), 1u);
    sigaction(SIGUSR1, &before, nullptr);
}

TEST(Stats, a_reader_who_is_slow_stops_nobody_else)
{
    std::vector<std::unique_ptr<Nodes>> many;
    for (int i = 0; i < 100; i++)
        many.push_back(std::make_unique<Nodes>("waiting", 1));
    for (uint32_t format : formats) {
        Slow slow(format);
        ASSERT_TRUE(slow.wait_full());
        Nodes nodes("meanwhile");
        Counters counters("meanwhile");
        std::thread([&] { quire_slab_free(nodes.slab, quire_slab_alloc(nodes.slab)); }).join(); /* its end takes the registry's lock */
        quire_slab_trim(nodes.slab);
        many.pop_back();
        many.erase(many.begin());
        slow.read_all(4096, [] {});
        EXPECT_EQ(slow.result, 0);
    }
}

/* ---- nothing is allocated, nothing is held ---- */

TEST(Stats, nothing_is_allocated)
{
    Nodes nodes("frugal");
    Counters counters("frugal");
    int fd = memfd_create("stats", MFD_CLOEXEC);
    for (uint32_t format : formats)
        EXPECT_EQ(quire_stats_write(fd, format), 0);
    quire_source_set_decay(quire_source_default(), 0); /* the reaper is still */
    for (uint32_t format : formats) {
        struct quire_source_stats before, after;
        quire_source_stats(quire_source_default(), &before);
        os_fault_set(OS_MAP, 0, false);
        os_fault_set(OS_LIBC, 0, false);
        EXPECT_EQ(quire_stats_write(fd, format), 0);
        EXPECT_EQ(os_fault_set(OS_MAP, 0, false), 0u);
        EXPECT_EQ(os_fault_set(OS_LIBC, 0, false), 0u);
        quire_source_stats(quire_source_default(), &after);
        EXPECT_EQ(after.takes, before.takes);
        EXPECT_EQ(after.taken_bytes, before.taken_bytes);
    }
    quire_source_set_decay(quire_source_default(), 1000000000u);
    close(fd);
}

TEST(Stats, when_there_is_no_memory_all_is_still_written)
{
    Nodes nodes("poor");
    Fault map(OS_MAP, 1, true), libc(OS_LIBC, 1, true);
    int fd = memfd_create("stats", MFD_CLOEXEC);
    for (uint32_t format : formats)
        EXPECT_EQ(quire_stats_write(fd, format), 0);
    close(fd);
}

TEST(Stats, a_walks_function_may_write_them)
{
    Nodes nodes("walked", 3);
    int fd = memfd_create("stats", MFD_CLOEXEC);
    auto visit = [](void *, void *arg) { return quire_stats_write(*static_cast<int *>(arg), QUIRE_STATS_TEXT); };
    EXPECT_EQ(quire_slab_walk(nodes.slab, visit, &fd), 0);
    close(fd);
}

TEST(Stats, the_child_of_a_fork_writes_its_own)
{
    Nodes nodes("parent's");
    int fd = memfd_create("stats", MFD_CLOEXEC);
    pid_t child = fork();
    if (child == 0)
        _exit(quire_stats_write(fd, QUIRE_STATS_JSON) != 0);
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    Json all = Json::parse(contents(fd));
    EXPECT_EQ(all["process"].number, static_cast<uint64_t>(child));
    EXPECT_EQ(named(all, "slabs", "parent's").size(), 1u);
    close(fd);
}

TEST(Stats, objects_may_come_go_and_be_used_meanwhile)
{
    struct Threads : std::vector<std::thread> {
        std::atomic<bool> stop{false};
        ~Threads()
        {
            stop = true;
            for (std::thread &thread : *this)
                thread.join();
        }
    };
    Nodes shared("shared");
    Threads threads;
    for (int t = 0; t < 3; t++)
        threads.emplace_back([&, t] {
            while (!threads.stop) {
                Nodes nodes(t == 0 ? "coming" : nullptr, 50);
                Counters counters("going", 5);
                void *element = quire_slab_alloc(shared.slab);
                quire_slab_free(shared.slab, element);
            }
        });
    for (int round = 0; round < (test_long() ? 2000 : 60); round++) {
        Json all = Json::parse(written(QUIRE_STATS_JSON));
        Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
        Table::parse(written(QUIRE_STATS_TEXT));
        ASSERT_EQ(named(all, "slabs", "shared").size(), 1u) << "it was there from beginning to end";
        for (const Json &slab : all["slabs"].items)
            ASSERT_EQ(slab["mapped_bytes"].number, slab["live_bytes"].number + slab["free_bytes"].number + slab["meta_bytes"].number);
    }
}
