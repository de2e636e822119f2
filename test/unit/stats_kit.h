// SPDX-License-Identifier: MIT
/*
 * stats_kit.h - what quire_stats_write() wrote, read by strict readers of each format that know nothing of Quire.
 *
 *     Json         RFC 8259: UTF-8, no raw control character, no member twice, nothing behind the end
 *     Prometheus   the text exposition format 0.0.4: HELP, TYPE, samples; a metric's lines stand together, no series twice
 *     Table        the text: columns end where their headings end
 *
 * A reader that finds something wrong throws std::runtime_error with the place.
 */
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <quire/stats.h>

namespace stats_kit { /* other tests have tables and heaps of their own */

inline std::string contents(int fd)
{
    std::string text(static_cast<size_t>(lseek(fd, 0, SEEK_END)), 0);
    if (pread(fd, &text[0], text.size(), 0) != static_cast<ssize_t>(text.size()))
        throw std::runtime_error("cannot be read back");
    return text;
}

inline std::string written(uint32_t format)
{
    int fd = memfd_create("stats", MFD_CLOEXEC);
    if (fd < 0 || quire_stats_write(fd, format) != 0)
        throw std::runtime_error("not written");
    std::string text = contents(fd);
    close(fd);
    return text;
}

/* One character of UTF-8 at text[at], which is moved behind it. */
inline uint32_t utf8_next(const std::string &text, size_t &at)
{
    unsigned char lead = static_cast<unsigned char>(text.at(at++));
    unsigned more = lead < 0x80 ? 0 : lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2 : lead >= 0xf0 && lead < 0xf5 ? 3 : 9;
    if (more == 9)
        throw std::runtime_error("not UTF-8 at " + std::to_string(at - 1));
    uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
    for (unsigned i = 0; i < more; i++) {
        unsigned char c = static_cast<unsigned char>(text.at(at++));
        if ((c & 0xc0) != 0x80)
            throw std::runtime_error("not UTF-8 at " + std::to_string(at - 1));
        code = code << 6 | (c & 0x3f);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && code < 0x10000) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        throw std::runtime_error("not UTF-8 at " + std::to_string(at - 1));
    return code;
}

/* ---- JSON: objects, arrays, strings and whole numbers; of what is written nothing else is meant to be there ---- */

struct Json {
    enum Type { OBJECT, ARRAY, STRING, NUMBER } type = NUMBER;
    std::map<std::string, Json> members;
    std::vector<Json> items;
    std::string string;
    uint64_t number = 0;

    const Json &operator[](const std::string &name) const
    {
        auto found = members.find(name);
        if (found == members.end())
            throw std::runtime_error("no member " + name);
        return found->second;
    }
    static Json parse(const std::string &text);
};

class JsonReader {
public:
    explicit JsonReader(const std::string &text_) : text(text_) {}
    Json whole()
    {
        Json value = any();
        space();
        if (at != text.size())
            fail("something behind the end");
        return value;
    }

private:
    const std::string &text;
    size_t at = 0;

    [[noreturn]] void fail(const std::string &what) const { throw std::runtime_error("JSON, byte " + std::to_string(at) + ": " + what); }
    void space()
    {
        while (at < text.size() && strchr(" \t\r\n", text[at]))
            at++;
    }
    char peek()
    {
        space();
        return at < text.size() ? text[at] : 0;
    }
    void expect(char c)
    {
        if (peek() != c)
            fail(std::string("no ") + c);
        at++;
    }
    bool more(char end) /* a comma, or the end */
    {
        if (peek() == ',') {
            at++;
            return true;
        }
        expect(end);
        return false;
    }
    std::string string()
    {
        std::string out;
        expect('"');
        while (text.at(at) != '"') {
            size_t from = at;
            uint32_t code = utf8_next(text, at);
            if (code < 0x20)
                fail("a raw control character");
            if (code == '\\')
                out += escape();
            else
                out.append(text, from, at - from);
        }
        at++;
        return out;
    }
    std::string escape()
    {
        char c = text.at(at++);
        if (c == '"' || c == '\\' || c == '/')
            return {c};
        if (c != 'u')
            fail("an escape that is not needed here");
        unsigned long code = std::stoul(text.substr(at, 4), nullptr, 16);
        at += 4;
        if (code >= 0x80)
            return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
        return {static_cast<char>(code)};
    }
    Json any()
    {
        Json value;
        char c = peek();
        if (c == '{') {
            value.type = Json::OBJECT;
            at++;
            for (bool go = peek() != '}' || more('}'); go; go = more('}')) {
                space();
                std::string name = string();
                expect(':');
                if (!value.members.emplace(name, any()).second)
                    fail("the member " + name + " twice");
            }
        } else if (c == '[') {
            value.type = Json::ARRAY;
            at++;
            for (bool go = peek() != ']' || more(']'); go; go = more(']'))
                value.items.push_back(any());
        } else if (c == '"') {
            value.type = Json::STRING;
            value.string = string();
        } else {
            number(value);
        }
        return value;
    }
    void number(Json &value)
    {
        size_t from = at;
        while (at < text.size() && isdigit(static_cast<unsigned char>(text[at])))
            at++;
        if (at == from || (text[from] == '0' && at > from + 1))
            fail("no value");
        value.number = std::stoull(text.substr(from, at - from));
    }
};

inline Json Json::parse(const std::string &text) { return JsonReader(text).whole(); }

/* ---- Prometheus ---- */

struct Prometheus {
    struct Sample {
        std::map<std::string, std::string> labels;
        uint64_t value;
    };
    struct Metric {
        std::string type, help;
        std::vector<Sample> samples;
    };
    std::map<std::string, Metric> metrics;

    static Prometheus parse(const std::string &text)
    {
        Prometheus all;
        std::string current, line;
        for (size_t at = 0, end; at < text.size(); at = end + 1) {
            end = text.find('\n', at);
            if (end == std::string::npos)
                throw std::runtime_error("the last line has no end");
            line = text.substr(at, end - at);
            try {
                if (line.compare(0, 2, "# ") == 0)
                    all.comment(line, current);
                else
                    all.sample(line, current);
            } catch (const std::exception &wrong) {
                throw std::runtime_error(std::string(wrong.what()) + ": " + line);
            }
        }
        return all;
    }

private:
    static std::string word(const std::string &line, size_t &at, bool colons)
    {
        size_t from = at;
        while (at < line.size() && (isalnum(static_cast<unsigned char>(line[at])) || line[at] == '_' || (colons && line[at] == ':')))
            at++;
        if (at == from || isdigit(static_cast<unsigned char>(line[from])))
            throw std::runtime_error("no name");
        return line.substr(from, at - from);
    }
    void comment(const std::string &line, std::string &current)
    {
        bool is_type = line.compare(0, 7, "# TYPE ") == 0;
        if (!is_type && line.compare(0, 7, "# HELP ") != 0)
            throw std::runtime_error("a comment that says nothing");
        size_t at = 7;
        std::string name = word(line, at, true), rest = line.substr(at + 1);
        if (!is_type && metrics.count(name))
            throw std::runtime_error("a metric in two places");
        current = name;
        std::string &field = is_type ? metrics[name].type : metrics[name].help;
        if (!field.empty() || !metrics[name].samples.empty())
            throw std::runtime_error("HELP or TYPE twice, or behind samples");
        if (is_type && rest != "gauge" && rest != "counter")
            throw std::runtime_error("no such type");
        field = rest;
    }
    static std::string label_value(const std::string &line, size_t &at)
    {
        std::string out;
        if (line.at(at++) != '"')
            throw std::runtime_error("no quote");
        while (line.at(at) != '"') {
            size_t from = at;
            uint32_t code = utf8_next(line, at);
            if (code == '\\') {
                char c = line.at(at++);
                if (c != '\\' && c != '"' && c != 'n')
                    throw std::runtime_error("no such escape");
                out += c == 'n' ? '\n' : c;
            } else {
                out.append(line, from, at - from);
            }
        }
        at++;
        return out;
    }
    void sample(const std::string &line, const std::string &current)
    {
        size_t at = 0;
        Sample sample;
        std::string name = word(line, at, true);
        if (name != current || metrics[name].type.empty())
            throw std::runtime_error("a sample away from its TYPE");
        if (line.at(at) == '{')
            do {
                at++;
                std::string label = word(line, at, false);
                if (line.at(at++) != '=' || !sample.labels.emplace(label, label_value(line, at)).second)
                    throw std::runtime_error("a label without value, or twice");
            } while (line.at(at) == ',');
        if (line.compare(at, 2, "} ") != 0)
            throw std::runtime_error("no value");
        size_t used;
        sample.value = std::stoull(line.substr(at + 2), &used);
        if (at + 2 + used != line.size())
            throw std::runtime_error("something behind the value");
        for (const Sample &other : metrics[name].samples)
            if (other.labels == sample.labels)
                throw std::runtime_error("a series twice");
        metrics[name].samples.push_back(sample);
    }
};

/* ---- text ---- */

struct Table {
    std::vector<std::string> columns;
    struct Row {
        std::string name;
        std::map<std::string, std::string> cells;
    };
    std::vector<Row> rows; /* the last one is the sum */

    /* The tables by their titles; one that says "none" has no rows. */
    static std::map<std::string, Table> parse(const std::string &text)
    {
        std::map<std::string, Table> tables;
        std::vector<std::string> lines = lines_of(text);
        for (size_t i = 1; i < lines.size(); i++) {
            if (!lines[i].empty())
                throw std::runtime_error("no empty line before a table: " + lines[i]);
            std::string title = lines.at(++i);
            Table &table = tables[title.substr(0, title.find(':'))];
            if (title.find(": none") != std::string::npos)
                continue;
            std::vector<size_t> ends = table.heading(lines.at(++i));
            while (i + 1 < lines.size() && !lines[i + 1].empty())
                table.row(lines[++i], ends);
        }
        return tables;
    }

private:
    static std::vector<std::string> lines_of(const std::string &text)
    {
        std::vector<std::string> lines;
        for (size_t at = 0, end; at < text.size(); at = end + 1) {
            end = text.find('\n', at);
            lines.push_back(text.substr(at, end - at));
        }
        return lines;
    }
    std::vector<size_t> heading(const std::string &line)
    {
        std::vector<size_t> ends;
        for (size_t at = 0; (at = line.find_first_not_of(' ', at)) != std::string::npos;) {
            size_t end = std::min(line.find(' ', at), line.size());
            columns.push_back(line.substr(at, end - at));
            ends.push_back(end);
            at = end;
        }
        if (columns.back() != "name")
            throw std::runtime_error("the name is not last: " + line);
        columns.pop_back();
        ends.pop_back();
        return ends;
    }
    void row(const std::string &line, const std::vector<size_t> &ends)
    {
        Row row;
        size_t from = 0;
        for (size_t c = 0; c < columns.size(); from = ends[c++]) {
            std::string cell = line.substr(from, ends[c] - from);
            size_t blank = cell.find_last_of(' ');
            if (cell.size() != ends[c] - from || cell.back() == ' ' || blank == std::string::npos)
                throw std::runtime_error("a cell out of its column: " + line);
            row.cells[columns[c]] = cell.substr(blank + 1);
        }
        if (line.compare(from, 2, "  ") != 0)
            throw std::runtime_error("a cell out of its column: " + line);
        row.name = line.substr(from + 2);
        rows.push_back(row);
    }
};

} // namespace stats_kit
