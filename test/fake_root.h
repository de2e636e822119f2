// SPDX-License-Identifier: MIT
/*
 * fake_root.h - a directory in which /proc and /sys say about memory what a test wants, as long as it lives.
 */
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <unistd.h>

#include "os/os.h"

class FakeRoot {
public:
    using Files = std::map<std::string, std::string>; /* by their paths, without the first slash */

    explicit FakeRoot(const Files &files)
    {
        char name[] = "/tmp/quire-root-XXXXXX";
        root = mkdtemp(name);
        for (auto &[path, text] : files)
            write(path, text);
        os_root_set(root.c_str());
    }
    ~FakeRoot()
    {
        os_root_set("");
        std::filesystem::remove_all(root);
    }
    FakeRoot(const FakeRoot &) = delete;
    FakeRoot &operator=(const FakeRoot &) = delete;

    void write(const std::string &path, const std::string &text) const
    {
        std::filesystem::create_directories((root / path).parent_path());
        std::ofstream(root / path) << text;
    }

private:
    std::filesystem::path root;
};
