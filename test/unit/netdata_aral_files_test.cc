// SPDX-License-Identifier: MIT
/* Arrays in files: names, leftovers, and everything that keeps a page from being a file. */
#include "netdata_aral_kit.h"
#include "source_kit.h"

#include <algorithm>
#include <csignal>
#include <cstring>

namespace {

/* A cache directory, and what lies in its array_alloc.mmap; all gone at the end. */
class AralFiles : public testing::Test {
protected:
    ~AralFiles() override
    {
        for (const std::string &name : list())
            unlink((folder + "/" + name).c_str());
        rmdir(folder.c_str());
    }
    Names list() const
    {
        Names names;
        DIR *dir = opendir(folder.c_str());
        for (struct dirent *entry; dir && (entry = readdir(dir));)
            if (entry->d_name[0] != '.')
                names.push_back(entry->d_name);
        if (dir)
            closedir(dir);
        std::sort(names.begin(), names.end());
        return names;
    }
    /* Of pages alone: without the lock of those who live. */
    Names pages() const
    {
        Names names = list();
        names.erase(std::remove_if(names.begin(), names.end(), [](auto &name) { return name.find(".lock") != std::string::npos; }), names.end());
        return names;
    }
    ARAL *create(const char *filename = "metrics", AralStats *stats = nullptr)
    {
        const char *path = directory.path.c_str();
        return aral_create("files", 1000, 0, 16 << 10, stats, filename, &path, true, false, false);
    }
    /* Create, use and destroy an array that cannot have files; the line that it writes. */
    std::string complaint(const char *filename, const char **cache_dir)
    {
        testing::internal::CaptureStderr();
        AralStats stats = {};
        ARAL *ar = aral_create("files", 1000, 0, 0, &stats, filename, cache_dir, true, false, false);
        std::vector<void *> all;
        for (int i = 0; i < 100; i++)
            memset(all.emplace_back(aral_mallocz(ar)), i, 1000);
        EXPECT_EQ(stats.malloc.used_bytes, 100000u);
        EXPECT_EQ(stats.mmap.allocations, 0u);
        for (void *p : all)
            aral_freez(ar, p);
        aral_destroy(ar);
        EXPECT_TRUE(is_zero(stats));
        return testing::internal::GetCapturedStderr();
    }
    Directory directory;
    std::string folder = directory.at("array_alloc.mmap");
};

const char advice[] = ": the directory has to be there, writable and no link, and \"metrics\" a file name\n";

} // namespace

TEST_F(AralFiles, each_page_is_a_file_that_goes_with_its_page)
{
    mode_t before = umask(022);
    AralStats stats = {};
    ARAL *ar = create("metrics", &stats);
    umask(before);
    struct stat st;
    ASSERT_EQ(stat(folder.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0755u) << "0775 without what the umask takes";
    std::vector<char *> all;
    for (int i = 0; i < 200; i++) {
        all.push_back(static_cast<char *>(aral_callocz(ar)));
        memset(all.back(), 'a' + i % 26, 1000);
    }
    EXPECT_EQ(stats.mmap.allocations, pages().size());
    EXPECT_GE(pages().size(), 200 * 1000 / std::max<size_t>(16 << 10, os_page_bytes()) - 1);
    EXPECT_EQ(stats.mmap.used_bytes, 200000u);
    EXPECT_EQ(stats.malloc.allocated_bytes + stats.malloc.used_bytes, 0u);
    size_t file_bytes = 0;
    for (const std::string &name : pages()) {
        EXPECT_EQ(name.rfind("metrics.", 0), 0u) << name;
        EXPECT_EQ(name.find_first_not_of("0123456789", strlen("metrics.")), std::string::npos) << name;
        ASSERT_EQ(stat((folder + "/" + name).c_str(), &st), 0);
        EXPECT_EQ(st.st_mode & 07777, 0600u);
        EXPECT_GE(st.st_blocks * 512, st.st_size) << "its space is reserved";
        file_bytes += st.st_size;
    }
    EXPECT_EQ(file_bytes, stats.mmap.allocated_bytes + stats.mmap.padding_bytes);
    expect_sound(ar);
    for (int i = 0; i < 200; i++) {
        EXPECT_EQ(all[i][999], 'a' + i % 26);
        aral_freez(ar, all[i]);
    }
    EXPECT_LE(pages().size(), 1u) << "the last stays";
    EXPECT_EQ(stats.mmap.allocations, pages().size());
    aral_mallocz_marked(ar);
    aral_destroy(ar);
    EXPECT_EQ(list(), Names{});
    EXPECT_TRUE(is_zero(stats));
}

TEST_F(AralFiles, name_and_directory_are_copied)
{
    char filename[] = "metrics", path[256];
    snprintf(path, sizeof path, "%s", directory.path.c_str());
    const char *cache_dir = path;
    ARAL *ar = aral_create("files", 5000, 0, 0, nullptr, filename, &cache_dir, true, false, true);
    memset(filename, 'x', sizeof filename - 1), memset(path, 'x', sizeof path - 1);
    cache_dir = nullptr;
    for (int i = 0; i < 100; i++)
        aral_mallocz(ar);
    for (const std::string &name : pages())
        EXPECT_EQ(name.rfind("metrics.", 0), 0u) << name;
    EXPECT_GT(pages().size(), 0u);
    aral_destroy(ar);
}

TEST_F(AralFiles, pages_of_files_grow_past_the_process_wide_largest_page_and_no_further_than_asked)
{
    const char *path = directory.path.c_str();
    for (size_t most : {size_t(0), size_t(16 << 10)}) {
        ARAL *ar = aral_create("files", 1000, 0, most, nullptr, "metrics", &path, true, false, false);
        for (int i = 0; i < 4000; i++)
            aral_mallocz(ar);
        size_t largest = 0;
        for (const std::string &name : pages()) {
            struct stat st;
            ASSERT_EQ(stat((folder + "/" + name).c_str(), &st), 0);
            largest = std::max(largest, size_t(st.st_size));
        }
        if (most)
            EXPECT_EQ(largest, std::max(most, os_page_bytes()));
        else
            EXPECT_GE(largest, size_t(1 << 20));
        aral_destroy(ar);
    }
}

TEST_F(AralFiles, what_a_killed_run_left_is_removed_and_nothing_else)
{
    ARAL *other = create("met"), *living = create("living");
    aral_mallocz(other), aral_mallocz(living);
    Names before = list();
    pid_t child = fork();
    if (child == 0) {
        ARAL *ar = create("metrics");
        for (int i = 0; i < 100; i++)
            aral_mallocz(ar);
        raise(SIGKILL);
    }
    int status;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    size_t left = pages().size() - 2;
    EXPECT_GE(left, os_page_bytes() > (16 << 10) ? 2u : 3u);
    ARAL *ar = create("metrics");
    Names after = list();
    after.erase(std::remove(after.begin(), after.end(), "metrics.lock"), after.end());
    EXPECT_EQ(after, before);
    aral_destroy(ar), aral_destroy(other), aral_destroy(living);
    EXPECT_EQ(list(), Names{});
}

TEST_F(AralFiles, two_arrays_of_one_name_do_not_meet)
{
    ARAL *a = create(), *b = create();
    std::vector<char *> of_a, of_b;
    for (int i = 0; i < 100; i++) {
        memset(of_a.emplace_back(static_cast<char *>(aral_mallocz(a))), 'a', 1000);
        memset(of_b.emplace_back(static_cast<char *>(aral_mallocz(b))), 'b', 1000);
    }
    for (int i = 0; i < 100; i++)
        EXPECT_TRUE(of_a[i][500] == 'a' && of_b[i][500] == 'b');
    aral_destroy(a);
    EXPECT_GT(pages().size(), 0u);
    aral_destroy(b);
    EXPECT_EQ(list(), Names{});
}

TEST_F(AralFiles, without_a_name_or_a_directory_there_is_a_line_and_anonymous_memory)
{
    const char *path = directory.path.c_str(), *none = nullptr, *empty = "";
    EXPECT_EQ(complaint("metrics", nullptr), "quire: aral \"files\": anonymous memory instead of files: no cache directory was given\n");
    EXPECT_EQ(complaint("metrics", &none), "quire: aral \"files\": anonymous memory instead of files: no cache directory was given\n");
    EXPECT_EQ(complaint("metrics", &empty), "quire: aral \"files\": anonymous memory instead of files: no cache directory was given\n");
    EXPECT_EQ(complaint(nullptr, &path), "quire: aral \"files\": anonymous memory instead of files: no file name was given\n");
}

TEST_F(AralFiles, a_directory_that_is_missing_a_link_or_a_file_is_complained_about_with_its_path)
{
    std::string missing = directory.at("missing"), start = "quire: aral \"files\": anonymous memory instead of files: ";
    const char *path = missing.c_str();
    EXPECT_EQ(complaint("metrics", &path), start + missing + "/array_alloc.mmap: No such file or directory" + advice);
    path = directory.path.c_str();
    mkdir(directory.at("elsewhere").c_str(), 0700);
    ASSERT_EQ(symlink(directory.at("elsewhere").c_str(), folder.c_str()), 0);
    EXPECT_EQ(complaint("metrics", &path), start + folder + ": " + strerror(ELOOP) + advice);
    unlink(folder.c_str());
    EXPECT_EQ(rmdir(directory.at("elsewhere").c_str()), 0) << "nothing was written through the link";
    directory.put("array_alloc.mmap");
    EXPECT_EQ(complaint("metrics", &path), start + folder + ": Not a directory" + advice);
    unlink(folder.c_str());
    std::string line = complaint("a/b", &path);
    EXPECT_EQ(line, start + folder + ": Invalid argument: the directory has to be there, writable and no link, and \"a/b\" a file name\n");
    std::string long_path(5000, 'd');
    path = long_path.c_str();
    EXPECT_NE(complaint("metrics", &path).find(std::string(": ") + strerror(ENAMETOOLONG)), std::string::npos);
}

TEST_F(AralFiles, a_directory_that_may_not_be_written_is_complained_about)
{
    ASSERT_EQ(mkdir(folder.c_str(), 0555), 0);
    chmod(directory.path.c_str(), 0755);
    int status = in_child([&] {
        if (geteuid() == 0 && seteuid(65534) != 0)
            return int(CHILD_SKIPS);
        const char *path = directory.path.c_str();
        std::string line = complaint("metrics", &path);
        return line.find(folder + ": Permission denied: ") != std::string::npos && !HasFailure() ? 0 : 1;
    });
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "no other user can be had here";
    EXPECT_EQ(status, 0);
    EXPECT_EQ(list(), Names{});
}

TEST_F(AralFiles, a_full_disk_is_complained_about_once_and_never_a_signal)
{
    AralStats stats = {};
    ARAL *ar = create("metrics", &stats);
    std::vector<char *> all;
    for (int i = 0; i < 100; i++)
        memset(all.emplace_back(static_cast<char *>(aral_mallocz(ar))), i, 1000);
    size_t files = pages().size();
    testing::internal::CaptureStderr();
    {
        Fault full(OS_GROW, 1, true);
        for (int i = 100; i < 400; i++)
            memset(all.emplace_back(static_cast<char *>(aral_mallocz(ar))), i, 1000);
        EXPECT_EQ(pages().size(), files);
        EXPECT_EQ(stats.mmap.used_bytes, 400000u);
        expect_sound(ar);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "quire: aral \"files\": anonymous memory instead of files: no room for another page in a file; is the disk full?\n");
    for (int i = 400; i < 500; i++)
        memset(all.emplace_back(static_cast<char *>(aral_mallocz(ar))), i, 1000);
    EXPECT_GT(pages().size(), files) << "there is room again";
    for (int i = 0; i < 500; i++) {
        EXPECT_EQ(all[i][7], static_cast<char>(i));
        aral_freez(ar, all[i]);
    }
    aral_destroy(ar);
    EXPECT_TRUE(is_zero(stats));
    EXPECT_EQ(list(), Names{});
}

TEST_F(AralFiles, whichever_call_to_the_system_fails_the_array_works_and_nothing_is_lost)
{
    for (os_call kind : {OS_OPEN, OS_FLOCK, OS_GROW, OS_MAP, OS_UNMAP, OS_UNLINK}) {
        uint64_t seen = 1, complaints = 0;
        for (uint64_t nth = 1; seen >= nth || nth == 1; nth++) {
            AralStats stats = {};
            size_t fds = fd_count();
            testing::internal::CaptureStderr();
            {
                Fault fails(kind, nth);
                ARAL *ar = create("metrics", &stats);
                std::vector<void *> all;
                for (int i = 0; i < 60; i++)
                    memset(all.emplace_back(aral_mallocz(ar)), i, 1000);
                EXPECT_EQ(stats.malloc.used_bytes + stats.mmap.used_bytes, 60000u);
                for (int i = 0; i < 60; i++) {
                    EXPECT_EQ(static_cast<char *>(all[i])[999], static_cast<char>(i));
                    aral_freez(ar, all[i]);
                }
                aral_destroy(ar);
                seen = os_fault_set(kind, 0, false);
            }
            std::string line = testing::internal::GetCapturedStderr();
            complaints += !line.empty();
            EXPECT_TRUE(line.empty() || line.rfind("quire: aral \"files\": anonymous memory instead of files: ", 0) == 0) << line;
            EXPECT_TRUE(is_zero(stats)) << "kind " << kind << ", call " << nth;
            EXPECT_EQ(fd_count(), fds) << "kind " << kind << ", call " << nth;
            ASSERT_LT(nth, 200u);
        }
        if (kind == OS_OPEN || kind == OS_FLOCK || kind == OS_GROW) {
            EXPECT_GT(complaints, 0u) << "kind " << kind;
        }
        aral_destroy(create()); /* whoever comes next removes what could not be removed */
        EXPECT_EQ(list(), Names{}) << "kind " << kind;
    }
}
