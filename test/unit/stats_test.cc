// SPDX-License-Identifier: MIT
/* What quire_stats_write() shows: every object, in each format, under its name, with sums that add up. */
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "os/sanitize.h"
#include "unit/stats_scope.h"

using namespace stats_kit;

namespace {
const char *const kinds[] = {"sources", "slabs", "percpu", "heaps", "heap_classes"};
const std::map<std::string, std::string> singular = {{"sources", "source"}, {"slabs", "slab"}, {"percpu", "percpu"}, {"heaps", "heap"}, {"heap_classes", "heap_class"}};

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
    struct quire_slab_stats slab = {.struct_bytes = sizeof slab};
    quire_slab_stats(nodes.slab, &slab);
    const Json &a = *named(all, "slabs", "numbers").at(0);
    EXPECT_EQ(a["live_elements"].number, 1234u);
    EXPECT_EQ(a["mapped_bytes"].number, slab.mapped_bytes);
    EXPECT_EQ(a["slot_bytes"].number, slab.slot_bytes);
    EXPECT_EQ(a["caches"].number, slab.caches);
    struct quire_percpu_stats pool = {.struct_bytes = sizeof pool};
    quire_percpu_stats(counters.pool, &pool);
    const Json &b = *named(all, "percpu", "numbers").at(0);
    EXPECT_EQ(b["live_objects"].number, 77u);
    EXPECT_EQ(b["live_bytes"].number, pool.live_bytes);
    EXPECT_EQ(b["cpus"].number, 2u);
    EXPECT_EQ(b["object_bytes_max"].number, 8u);
    EXPECT_EQ(b["caches"].number, pool.caches);
    EXPECT_EQ(all["schema"].string, "quire.stats/1");
    EXPECT_EQ(all["process"].number, static_cast<uint64_t>(getpid()));
}

TEST(Stats, a_heap_is_shown_with_the_blocks_of_each_size)
{
    Heap heap("sizes");
    for (int i = 0; i < 100; i++)
        heap.alloc(48);
    for (int i = 0; i < 30; i++)
        heap.alloc(1000);
    heap.alloc(100000);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
    quire_heap_stats(heap.heap, &stats);
    const Json &whole = *named(all, "heaps", "sizes").at(0);
    EXPECT_EQ(whole["live_blocks"].number, 131u);
    EXPECT_EQ(whole["mapped_bytes"].number, stats.mapped_bytes);
    EXPECT_EQ(whole["large_bytes"].number, stats.large_bytes);
    std::map<uint64_t, uint64_t> live;
    uint64_t pages_bytes = 0;
    for (const Json *line : named(all, "heap_classes", "sizes")) {
        EXPECT_TRUE(live.emplace((*line)["slot_bytes"].number, (*line)["live_blocks"].number).second) << "a size twice";
        EXPECT_EQ((*line)["id"].number, whole["id"].number);
        pages_bytes += (*line)["page_bytes"].number;
    }
    uint64_t small = sanitize_watched() ? 64 : 48; /* red zones */
    EXPECT_EQ(live, (std::map<uint64_t, uint64_t>{{small, 100}, {1024, 30}})) << "a size that never had a page has no line";
    EXPECT_EQ(pages_bytes + whole["large_bytes"].number, whole["live_bytes"].number + whole["free_bytes"].number);
    EXPECT_EQ(prometheus_count("quire_heap_class_live_blocks", "sizes"), 2u);
    EXPECT_EQ(text_count("sizes"), 3u) << "the heap and two sizes";
}

TEST(Stats, the_heap_of_the_process_is_called_default_and_is_always_there)
{
    void *p = quire_heap_alloc(quire_heap_default(), 3000);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    ASSERT_EQ(named(all, "heaps", "default").size(), 1u);
    EXPECT_EQ((*named(all, "heaps", "default")[0])["id"].number, 1u);
    uint64_t live = 0;
    for (const Json *line : named(all, "heap_classes", "default"))
        live += (*line)["slot_bytes"].number == 3072 ? (*line)["live_blocks"].number : 0;
    EXPECT_EQ(live, 1u);
    quire_heap_free(quire_heap_default(), p);
}

TEST(Stats, more_sizes_and_heaps_than_are_looked_at_together_are_each_shown_once)
{
    std::vector<std::unique_ptr<Heap>> heaps;
    for (int i = 0; i < 40; i++)
        heaps.push_back(std::make_unique<Heap>(("heap " + std::to_string(i)).c_str()));
    const size_t sizes = sanitize_watched() ? 79 : 80; /* all, in two of them; behind a block of 16 bytes may be a red zone */
    for (size_t bytes = 16; bytes <= 32768; bytes += 16) {
        heaps[3]->alloc(bytes);
        heaps[30]->alloc(bytes);
    }
    heaps[20]->alloc(1);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    Prometheus::parse(written(QUIRE_STATS_PROMETHEUS)); /* throws when a series is there twice */
    for (int i = 0; i < 40; i++) {
        std::string name = "heap " + std::to_string(i);
        EXPECT_EQ(named(all, "heaps", name).size(), 1u) << name;
        auto lines = named(all, "heap_classes", name);
        ASSERT_EQ(lines.size(), i == 3 || i == 30 ? sizes : i == 20 ? 1u : 0u) << name;
        for (size_t c = 1; c < lines.size(); c++)
            EXPECT_LT((*lines[c - 1])["slot_bytes"].number, (*lines[c])["slot_bytes"].number);
    }
    EXPECT_EQ(prometheus_count("quire_heap_class_page_bytes", "heap 30"), sizes);
    EXPECT_EQ(named(all, "heaps", "default").size(), 1u);
    EXPECT_EQ(prometheus_count("quire_heap_pages", "default"), 1u);
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
    Heap e("sum e"), f("sum f");
    for (size_t bytes = 1; bytes < 100000; bytes += bytes / 2 + 1) {
        e.alloc(bytes);
        quire_heap_free(f.heap, f.alloc(bytes));
    }
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
    Heap d("row d");
    d.alloc(100);
    d.alloc(1000);
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
    Heap heap("fields");
    heap.alloc(1);
    Json all = Json::parse(written(QUIRE_STATS_JSON));
    Prometheus metrics = Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
    for (const char *kind : kinds) {
        std::string prefix = "quire_" + singular.at(kind) + "_";
        std::set<std::string> states;
        for (const auto &sample : metrics.metrics[prefix + "bytes"].samples) /* classes have none */
            states.insert(sample.labels.at("state") + "_bytes");
        for (const auto &member : all[kind].items.at(0).members)
            if (member.first != "name" && member.first != "id" && member.first != "mapped_bytes" && member.first != "slot_bytes" && !states.count(member.first)) {
                bool is_there = metrics.metrics.count(prefix + member.first) || metrics.metrics.count(prefix + member.first + "_total");
                EXPECT_TRUE(is_there) << kind << " " << member.first;
            }
    }
    metrics.metrics.erase("quire_heap_class_bytes");
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
        {"a\xc2\x85z", "a\xc2\x85z", "a?z", "a?z"}, /* a control character in two bytes */
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
