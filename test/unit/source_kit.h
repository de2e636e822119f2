// SPDX-License-Identifier: MIT
/*
 * source_kit.h - for the tests of page sources: every kind of source by name, a directory of its own, a forked child.
 */
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <quire/source.h>

#include "os/os.h"

/* A directory that is gone, with what is in it, at the end of the test. */
class Directory {
public:
    Directory()
    {
        char name[] = "/tmp/quire-test-XXXXXX";
        path = mkdtemp(name);
        chmod(path.c_str(), 0700);
    }
    ~Directory()
    {
        for (const std::string &name : list())
            unlink(at(name).c_str());
        rmdir(path.c_str());
    }
    std::string at(const std::string &name) const { return path + "/" + name; }
    std::vector<std::string> list() const
    {
        std::vector<std::string> names;
        DIR *dir = opendir(path.c_str());
        for (struct dirent *entry; dir && (entry = readdir(dir));)
            if (std::string(entry->d_name) != "." && std::string(entry->d_name) != "..")
                names.push_back(entry->d_name);
        if (dir)
            closedir(dir);
        std::sort(names.begin(), names.end());
        return names;
    }
    void put(const std::string &name, const std::string &text = "x") const
    {
        int fd = open(at(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ssize_t put = write(fd, text.data(), text.size());
        close(fd);
        ASSERT_EQ(put, (ssize_t)text.size());
    }
    std::string path;
};

using Names = std::vector<std::string>;

inline int take(quire_source *source, size_t bytes, quire_span *out, size_t align_bytes = 0)
{
    return source->verbs->take(source, bytes, align_bytes ? align_bytes : os_page_bytes(), out);
}

inline void give(quire_source *source, const quire_span &span)
{
    source->verbs->give(source, &span);
}

using Stats = struct quire_source_stats; /* the function has the same name */

inline Stats stats_of(quire_source *source)
{
    Stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    return stats;
}

/* In what returns 0 when all went well: else the line. */
#define OR_LINE(condition)                                                                                                         \
    if (!(condition))                                                                                                              \
    return __LINE__

/* Run in a forked child; its exit status, or 128 + the signal that ended it. A status has eight bits, a line may have more: it does not become 0. */
inline int in_child(const std::function<int()> &body)
{
    pid_t pid = fork();
    if (pid == 0) {
        int said = body();
        _exit(said < 256 ? said : said % 127 + 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline size_t fd_count()
{
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

enum { CHILD_SKIPS = 77 };
