// SPDX-License-Identifier: MIT
/* The file source: names, leftovers, who lives, and everything that others may have planted in its directory. */
#include "source_kit.h"

#include <csignal>
#include <cstring>
#include <random>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

namespace {

class SourceFile : public testing::Test {
protected:
    quire_source *make(const char *name = "span") { return quire_source_file(directory.path.c_str(), name); }
    /* The errno with which it is refused. */
    int refusal(const char *path, const char *name)
    {
        errno = 0;
        quire_source *source = quire_source_file(path, name);
        int error = errno;
        quire_source_destroy(source);
        return source ? 0 : error;
    }
    Directory directory;
    quire_span span = {}, other = {};
    size_t page = os_page_bytes();
};

bool am_root()
{
    return geteuid() == 0;
}

} // namespace

TEST_F(SourceFile, keeps_one_private_file_for_each_span_and_removes_it_with_the_span)
{
    quire_source *source = make();
    ASSERT_NE(source, nullptr);
    EXPECT_STREQ(source->name, "span");
    ASSERT_EQ(take(source, 4 * page, &span), 0);
    ASSERT_EQ(take(source, 8 * page, &other), 0);
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.1", "span.lock"}));
    struct stat st;
    ASSERT_EQ(stat(directory.at("span.1").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0600u);
    EXPECT_EQ(st.st_size, (off_t)(8 * page));
    EXPECT_GE(size_t(st.st_blocks) * 512, 8 * page) << "its space is reserved before anybody writes";
    strcpy(static_cast<char *>(span.start), "shared with whoever maps the file");
    char text[64] = "";
    int fd = open(directory.at("span.0").c_str(), O_RDONLY);
    EXPECT_GT(read(fd, text, sizeof text), 0);
    close(fd);
    EXPECT_STREQ(text, "shared with whoever maps the file");
    give(source, span);
    EXPECT_EQ(directory.list(), (Names{"span.1", "span.lock"}));
    give(source, other);
    quire_source_destroy(source);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SourceFile, refuses_bad_names_and_places_with_the_errno_that_says_why)
{
    const char *path = directory.path.c_str();
    EXPECT_EQ(refusal(nullptr, "span"), EINVAL);
    EXPECT_EQ(refusal("", "span"), EINVAL);
    EXPECT_EQ(refusal(path, nullptr), EINVAL);
    EXPECT_EQ(refusal(path, ""), EINVAL);
    EXPECT_EQ(refusal(path, "../span"), EINVAL);
    EXPECT_EQ(refusal(path, std::string(245, 'n').c_str()), ENAMETOOLONG);
    EXPECT_EQ(refusal(path, std::string(244, 'n').c_str()), 0) << "the longest";
    EXPECT_EQ(refusal(directory.at("missing").c_str(), "span"), ENOENT);
    directory.put("file");
    EXPECT_EQ(refusal(directory.at("file").c_str(), "span"), ENOTDIR);
    ASSERT_EQ(symlink(path, directory.at("link").c_str()), 0);
    EXPECT_EQ(refusal(directory.at("link").c_str(), "span"), ELOOP);
    EXPECT_EQ(refusal(directory.at("link//").c_str(), "span"), ELOOP);
    EXPECT_EQ(refusal((path + std::string("/")).c_str(), "span"), 0);
    EXPECT_EQ(refusal(std::string(5000, 'd').c_str(), "span"), ENAMETOOLONG);
    EXPECT_EQ(refusal("/proc", "span"), ENOENT) << "it takes no files";
    ASSERT_EQ(mkdir(directory.at("dir.lock").c_str(), 0700), 0);
    EXPECT_EQ(refusal(path, "dir"), EACCES);
    ASSERT_EQ(rmdir(directory.at("dir.lock").c_str()), 0);
    EXPECT_EQ(directory.list(), (Names{"file", "link"}));
}

TEST_F(SourceFile, removes_at_creation_what_the_dead_left_under_exactly_its_name)
{
    Names kept = {"other.5", "span", "span.", "span.05", "span.12345678901", "span.4294967296", "span.5x", "span.x", "spanner.5"};
    for (const std::string &name : kept)
        directory.put(name);
    directory.put("span.5"), directory.put("span.0"), directory.put("span.4294967295");
    ASSERT_EQ(mkdir(directory.at("span.7").c_str(), 0700), 0);
    kept.push_back("span.7"), kept.push_back("span.lock");
    std::sort(kept.begin(), kept.end());
    quire_source *source = make();
    ASSERT_NE(source, nullptr);
    EXPECT_EQ(directory.list(), kept);
    quire_source_destroy(source);
    rmdir(directory.at("span.7").c_str());
}

TEST_F(SourceFile, never_touches_what_planted_links_point_to)
{
    directory.put("victim", "precious");
    ASSERT_EQ(symlink(directory.at("victim").c_str(), directory.at("span.0").c_str()), 0);
    quire_source *source = make();
    ASSERT_EQ(symlink(directory.at("victim").c_str(), directory.at("span.1").c_str()), 0);
    ASSERT_EQ(take(source, page, &span), 0);
    memset(span.start, 'x', page);
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.1", "span.2", "span.lock", "victim"}));
    struct stat st;
    ASSERT_EQ(stat(directory.at("victim").c_str(), &st), 0);
    EXPECT_EQ(st.st_size, 8);
    give(source, span);
    quire_source_destroy(source);
    ASSERT_EQ(symlink(directory.at("victim").c_str(), directory.at("span.lock").c_str()), 0);
    EXPECT_EQ(refusal(directory.path.c_str(), "span"), ELOOP) << "the lock file neither";
}

TEST_F(SourceFile, does_not_wait_at_planted_fifos)
{
    ASSERT_EQ(mkfifo(directory.at("span.0").c_str(), 0600), 0);
    alarm(100);
    quire_source *source = make();
    ASSERT_EQ(take(source, page, &span), 0);
    EXPECT_EQ(span.cookie, 1u);
    give(source, span);
    quire_source_destroy(source);
    EXPECT_EQ(directory.list(), Names{"span.0"});
    ASSERT_EQ(mkfifo(directory.at("span.lock").c_str(), 0600), 0);
    EXPECT_EQ(refusal(directory.path.c_str(), "span"), EACCES);
    alarm(0);
}

TEST_F(SourceFile, leaves_the_files_of_another_user_alone)
{
    if (!am_root())
        GTEST_SKIP() << "only root can give a file to another user";
    directory.put("span.0");
    ASSERT_EQ(chown(directory.at("span.0").c_str(), 12345, 12345), 0);
    quire_source *source = make();
    ASSERT_EQ(take(source, page, &span), 0);
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.1", "span.lock"}));
    give(source, span);
    quire_source_destroy(source);
    directory.put("span.lock");
    ASSERT_EQ(chown(directory.at("span.lock").c_str(), 12345, 12345), 0);
    EXPECT_EQ(refusal(directory.path.c_str(), "span"), EACCES) << "nor trusts their lock";
}

TEST_F(SourceFile, needs_a_directory_that_it_may_write)
{
    chmod(directory.path.c_str(), 0555);
    int status = in_child([&] {
        if (am_root() && (setgid(65534) != 0 || setuid(65534) != 0))
            return int(CHILD_SKIPS);
        return refusal(directory.path.c_str(), "span") == EACCES ? 0 : 1;
    });
    chmod(directory.path.c_str(), 0777);
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "root here cannot become another user";
    EXPECT_EQ(status, 0);
    status = in_child([&] { /* 0777, and not root */
        if (am_root() && (setgid(65534) != 0 || setuid(65534) != 0))
            return int(CHILD_SKIPS);
        quire_source *source = make();
        if (!source || take(source, page, &span) != 0)
            return 1;
        struct stat st;
        bool private_file = stat(directory.at("span.0").c_str(), &st) == 0 && (st.st_mode & 07777) == 0600 && st.st_uid == geteuid();
        give(source, span);
        quire_source_destroy(source);
        return private_file ? 0 : 2;
    });
    EXPECT_EQ(status, 0);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SourceFile, fails_a_take_that_the_disk_has_no_room_for_and_never_by_a_signal)
{
    int status = in_child([&] {
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("tmpfs", directory.path.c_str(), "tmpfs", 0, "size=1m") != 0)
            return int(CHILD_SKIPS);
        quire_source *source = make();
        quire_span a, b, c;
        if (!source || take(source, 512 << 10, &a) != 0)
            return 1;
        if (take(source, 1 << 20, &b) != -ENOMEM || directory.list() != Names{"span.0", "span.lock"})
            return 2;
        memset(a.start, 1, a.bytes);
        /* Idle pages give their blocks back; when somebody else has them, busy says so. */
        source->verbs->idle(source, a.start, 256 << 10);
        if (take(source, 640 << 10, &b) != 0)
            return int(CHILD_SKIPS) + 1; /* a kernel that cannot reserve by address does not punch either */
        memset(b.start, 1, b.bytes);
        if (source->verbs->busy(source, a.start, 256 << 10) != -ENOMEM)
            return 3;
        give(source, b);
        if (source->verbs->busy(source, a.start, 256 << 10) != 0)
            return 4;
        memset(a.start, 2, a.bytes);
        give(source, a);
        if (take(source, 960 << 10, &c) != 0)
            return 5;
        give(source, c);
        quire_source_destroy(source);
        return directory.list().empty() ? 0 : 6;
    });
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "no file system can be mounted here";
    if (status == CHILD_SKIPS + 1)
        GTEST_SKIP() << "a kernel older than 5.14";
    EXPECT_EQ(status, 0);
}

TEST_F(SourceFile, heeds_the_file_size_limit_without_the_signal)
{
    EXPECT_EQ(in_child([&] {
                  struct rlimit limit = {64 << 10, RLIM_INFINITY};
                  setrlimit(RLIMIT_FSIZE, &limit);
                  quire_source *source = make();
                  return take(source, 128 << 10, &span) == -ENOMEM && take(source, 64 << 10, &span) == 0 ? 0 : 1;
              }),
              0);
    quire_source *source = make(); /* clears up what that child left */
    quire_source_destroy(source);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SourceFile, runs_out_of_descriptors_with_an_error)
{
    EXPECT_EQ(in_child([&] {
                  quire_source *source = make();
                  struct rlimit limit = {0, 0};
                  setrlimit(RLIMIT_NOFILE, &limit);
                  return take(source, page, &span) == -ENOMEM && refusal(directory.path.c_str(), "more") == EMFILE ? 0 : 1;
              }),
              0);
}

TEST_F(SourceFile, two_sources_of_one_name_share_a_directory)
{
    quire_source *a = make(), *b = make();
    ASSERT_EQ(take(a, page, &span), 0);
    ASSERT_EQ(take(b, page, &other), 0);
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.1", "span.lock"}));
    give(a, span);
    quire_source_destroy(a);
    EXPECT_EQ(directory.list(), (Names{"span.1", "span.lock"})) << "the last one removes the lock";
    give(b, other);
    quire_source_destroy(b);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SourceFile, a_living_process_loses_nothing_to_another_that_starts_and_ends)
{
    quire_source *source = make();
    ASSERT_EQ(take(source, page, &span), 0);
    EXPECT_EQ(in_child([&] { /* a process of its own by exec would do the same: it makes its own source */
                  quire_source *mine = make();
                  quire_span theirs;
                  if (!mine || take(mine, page, &theirs) != 0 || theirs.cookie == span.cookie)
                      return 1;
                  give(mine, theirs);
                  quire_source_destroy(mine);
                  return 0;
              }),
              0);
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.lock"}));
    give(source, span);
    quire_source_destroy(source);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SourceFile, parent_and_child_of_a_fork_go_on_each_by_itself)
{
    quire_source *source = make();
    ASSERT_EQ(take(source, page, &span), 0);
    int ready[2], go[2];
    ASSERT_EQ(pipe(ready) | pipe(go), 0);
    pid_t child = fork();
    if (child == 0) {
        char c;
        quire_span mine;
        give(source, span); /* its copy: the file is the parent's to remove */
        if (access(directory.at("span.0").c_str(), F_OK) != 0 || take(source, page, &mine) != 0)
            _exit(1);
        if (write(ready[1], "r", 1) != 1 || read(go[0], &c, 1) != 1) /* meanwhile the parent ends, and another comes */
            _exit(2);
        if (access(directory.at("span." + std::to_string(mine.cookie)).c_str(), F_OK) != 0)
            _exit(3);
        memset(mine.start, 1, mine.bytes);
        give(source, mine);
        quire_source_destroy(source);
        _exit(0);
    }
    char c;
    ASSERT_EQ(read(ready[0], &c, 1), 1);
    *static_cast<char *>(span.start) = 1;
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.1", "span.lock"}));
    give(source, span);
    quire_source_destroy(source);
    quire_source *third = make();
    EXPECT_EQ(directory.list(), (Names{"span.1", "span.lock"})) << "the child lives";
    ASSERT_EQ(write(go[1], "g", 1), 1);
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    quire_source_destroy(third);
    EXPECT_EQ(directory.list(), Names{});
    for (int fd : {ready[0], ready[1], go[0], go[1]})
        close(fd);
}

TEST_F(SourceFile, nothing_is_left_of_200_processes_killed_at_random_points)
{
    quire_source *living = make("living");
    ASSERT_EQ(take(living, page, &span), 0);
    std::mt19937 random(1);
    for (int round = 0; round < 200; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (;;) {
                quire_source *source = make();
                quire_span spans[3];
                for (auto &each : spans)
                    if (!source || take(source, page, &each) != 0)
                        _exit(1);
                for (auto &each : spans)
                    give(source, each);
                quire_source_destroy(source);
            }
        }
        usleep(random() % 2000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << WEXITSTATUS(status);
        quire_source *source = make();
        ASSERT_NE(source, nullptr) << errno;
        ASSERT_EQ(directory.list(), (Names{"living.0", "living.lock", "span.lock"})) << "round " << round;
        quire_source_destroy(source);
    }
    give(living, span);
    quire_source_destroy(living);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SourceFile, processes_that_come_and_go_at_once_never_remove_what_lives)
{
    pid_t children[4];
    for (auto &child : children) {
        child = fork();
        if (child == 0) {
            for (int i = 0; i < 150; i++) {
                quire_source *source = make();
                if (!source || take(source, page, &span) != 0)
                    _exit(1);
                sched_yield();
                if (access(directory.at("span." + std::to_string(span.cookie)).c_str(), F_OK) != 0)
                    _exit(2); /* somebody took it for a leftover */
                give(source, span);
                quire_source_destroy(source);
            }
            _exit(0);
        }
    }
    for (pid_t child : children) {
        int status;
        waitpid(child, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    quire_source_destroy(make());
    EXPECT_EQ(directory.list(), Names{});
}
