// SPDX-License-Identifier: MIT
/* Slabs over every kind of source, each for real: files appear and vanish, disks fill up, directories are not what they should be. */
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <memory>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "model/slab_worker.h"
#include "unit/own_source.h"
#include "unit/slab_scope.h"
#include "unit/source_kit.h"

namespace {

const size_t page = os_page_bytes(), mib = 1 << 20;

/* Everything an ordinary slab does, over one source, from two threads; 0 when all of it went well, else the line. */
int life_of(struct quire_source *source, size_t element_bytes)
{
    quire_slab_opts opts = {};
    opts.name = "mode", opts.source = source;
    quire_slab *slab = quire_slab_create(element_bytes, &opts);
    OR_LINE(slab);
    Worker other;
    for (int round = 0; round < 3; round++) {
        Elements elements(400, nullptr);
        for (size_t i = 0; i < 200; i++)
            OR_LINE((elements[i] = quire_slab_alloc_zero(slab)) && holds_only(elements[i], element_bytes, 0));
        OR_LINE(quire_slab_alloc_batch(slab, &elements[200], 200) == 200);
        for (size_t i = 0; i < 400; i++)
            memset(elements[i], int(i), element_bytes);
        for (size_t i = 0; i < 400; i++)
            OR_LINE(holds_only(elements[i], element_bytes, char(i)));
        struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
        quire_slab_stats(slab, &stats);
        OR_LINE(stats.live_elements == 400 && stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes);
        OR_LINE(quire_slab_owns(slab, elements[399]));
        other.run([&] { quire_slab_free_batch(slab, elements.data(), 100); });
        for (size_t i = 100; i < 400; i++)
            quire_slab_free(slab, elements[i]);
        quire_slab_trim(slab);
        quire_slab_stats(slab, &stats);
        OR_LINE(stats.live_elements == 0 && stats.empty_pages <= 1);
        OR_LINE(quire_slab_check(slab) == nullptr);
    }
    quire_slab_destroy(slab);
    return 0;
}

/* Two sizes, then everything is back. */
void works_over(struct quire_source *source)
{
    ASSERT_NE(source, nullptr) << "errno " << errno;
    struct quire_source *count = quire_source_count(source);
    EXPECT_EQ(life_of(count, 64), 0) << source->name;
    EXPECT_EQ(life_of(count, 3000), 0) << source->name;
    EXPECT_EQ(stats_of(count).taken_bytes, 0u) << source->name;
    EXPECT_GT(stats_of(count).takes, 0u) << source->name << ": its memory came from there";
    EXPECT_EQ(stats_of(count).takes, stats_of(count).gives) << source->name;
    EXPECT_EQ(quire_source_check(source), nullptr) << source->name;
    quire_source_destroy(count);
    quire_source_destroy(source);
}

class SlabFile : public testing::Test {
protected:
    /* The spans' files in the directory now. */
    size_t files() const
    {
        Names names = directory.list();
        return names.size() - size_t(std::count(names.begin(), names.end(), "array.lock"));
    }
    quire_source *make() { return quire_source_file(directory.path.c_str(), "array"); }
    Directory directory;
};

} // namespace

TEST(SlabMode, every_source_feeds_a_slab)
{
    works_over(quire_source_default());
    works_over(quire_source_anon());
    works_over(quire_source_malloc());
    works_over(quire_source_memfd("slab"));
    works_over(quire_source_limit(quire_source_anon(), 16 << 20));
    works_over(quire_source_fail(quire_source_default(), 1000000));
    std::unique_ptr<char[]> buffer(new char[8 << 20]);
    works_over(quire_source_fixed(buffer.get(), 8 << 20));
}

TEST(SlabMode, one_thread_at_a_time_is_enough_for_every_source)
{
    for (struct quire_source *source : {quire_source_default(), quire_source_anon(), quire_source_malloc()}) {
        Slab slab(100, {.source = source, .flags = QUIRE_SLAB_SINGLE_THREAD});
        for (int round = 0; round < 5; round++) {
            Elements elements = slab.alloc(2000);
            slab.free(elements);
        }
        EXPECT_EQ(slab.stats().live_elements, 0u);
    }
}

TEST(SlabMode, elements_lie_in_the_source_that_was_given)
{
    std::vector<char> buffer(1 << 20);
    struct quire_source *fixed = quire_source_fixed(buffer.data(), buffer.size());
    {
        Slab slab(64, {.source = fixed});
        for (void *p : slab.alloc(2000))
            ASSERT_TRUE(p >= buffer.data() && p < buffer.data() + buffer.size());
    }
    {
        Slab slab(64, {.source = fixed});
        Elements elements = slab.alloc_until_refused();
        if (!memory_is_watched()) {
            EXPECT_GE(elements.size() * 64, buffer.size() / 2) << "its end is reached by elements";
        }
        slab.free(elements);
        quire_slab_trim(slab);
    }
    EXPECT_EQ(stats_of(fixed).taken_bytes, 0u);
    quire_source_destroy(fixed);
}

TEST(SlabMode, a_counting_source_sees_one_tenants_memory)
{
    struct quire_source *a = quire_source_count(quire_source_default()), *b = quire_source_count(quire_source_default());
    {
        Slab of_a(64, {.source = a}), of_b(64, {.source = b});
        of_a.alloc(100000), of_b.alloc(10);
        EXPECT_GE(stats_of(a).taken_bytes, 6400000u);
        EXPECT_LE(stats_of(a).taken_bytes, of_a.stats().mapped_bytes);
        EXPECT_LE(stats_of(b).taken_bytes, of_b.stats().mapped_bytes);
    }
    EXPECT_EQ(stats_of(a).taken_bytes + stats_of(b).taken_bytes, 0u);
    quire_source_destroy(a), quire_source_destroy(b);
}

TEST(SlabMode, elements_over_memfd_are_shared_with_the_child_of_a_fork)
{
    struct quire_source *source = quire_source_memfd("shared");
    {
        Slab slab(64, {.source = source});
        char *p = static_cast<char *>(slab.alloc(100)[50]);
        strcpy(p, "parent");
        EXPECT_EQ(in_child([&] {
                      if (strcmp(p, "parent") != 0)
                          return 1;
                      strcpy(p, "child");
                      return 0;
                  }),
                  0);
        EXPECT_STREQ(p, "child");
    }
    quire_source_destroy(source);
}

TEST(SlabMode, a_source_of_the_users_own_with_five_verbs_is_enough)
{
    static const struct quire_source_verbs verbs = {sizeof verbs,
        own_take, own_give, [](struct quire_source *, void *, size_t) {}, [](struct quire_source *, void *, size_t) { return 0; },
        [](struct quire_source *) {}, nullptr, nullptr, nullptr};
    OwnSource own = {{&verbs, "own"}, 0, 1 << 20};
    EXPECT_EQ(life_of(&own.base, 64), 0);
    EXPECT_EQ(life_of(&own.base, 1000), 0);
    EXPECT_EQ(own.taken_bytes, 0u);
    {
        Slab slab(64, {.source = &own.base});
        EXPECT_GT(slab.alloc_until_refused().size(), 1000u) << "and errno is ENOMEM, whatever the source said";
    }
    EXPECT_EQ(own.taken_bytes, 0u);
}

/* ---- files ---- */

TEST_F(SlabFile, works_and_leaves_nothing)
{
    works_over(make());
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SlabFile, each_page_is_a_private_file_that_vanishes_with_it)
{
    quire_source *source = make();
    {
        Slab slab(1000, {.source = source});
        Elements elements = slab.alloc(2000);
        for (void *p : elements)
            memset(p, 1, 1000);
        EXPECT_GE(files(), 10u);
        EXPECT_LE(files(), slab.stats().pages);
        size_t bytes = 0;
        for (const std::string &name : directory.list()) {
            struct stat st;
            ASSERT_EQ(stat(directory.at(name).c_str(), &st), 0);
            EXPECT_EQ(st.st_mode & 07777, 0600u) << name;
            bytes += size_t(st.st_blocks) * 512;
        }
        EXPECT_GE(bytes, 2000u * 1000) << "the space is there";
        slab.free(elements);
        quire_slab_trim(slab);
        EXPECT_LE(files(), 1u);
        slab.alloc(100);
    }
    EXPECT_EQ(files(), 0u) << "destroy";
    quire_source_destroy(source);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SlabFile, elements_can_be_read_in_the_file)
{
    quire_source *source = make();
    {
        Slab slab(64, {.source = source});
        strcpy(static_cast<char *>(slab.alloc(1)[0]), "written by the program, found in the file");
        std::string found;
        for (const std::string &name : directory.list()) {
            char text[65536];
            int fd = open(directory.at(name).c_str(), O_RDONLY);
            ssize_t bytes = read(fd, text, sizeof text);
            close(fd);
            found += std::string(text, size_t(std::max<ssize_t>(bytes, 0)));
        }
        EXPECT_NE(found.find("written by the program, found in the file"), std::string::npos);
    }
    quire_source_destroy(source);
}

TEST_F(SlabFile, a_full_disk_is_enomem_and_never_a_signal)
{
    int status = in_child([&] {
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("tmpfs", directory.path.c_str(), "tmpfs", 0, "size=1m") != 0)
            return int(CHILD_SKIPS);
        quire_source *source = make();
        quire_slab_opts opts = {.source = source};
        quire_slab *slab = quire_slab_create(500, &opts);
        if (!slab)
            return 1;
        for (int round = 0; round < 3; round++) {
            Elements elements;
            errno = 0;
            for (void *p; elements.size() < 10000 && (p = quire_slab_alloc(slab));) {
                memset(p, 1, 500); /* a SIGBUS here if its space were not reserved */
                elements.push_back(p);
            }
            if (errno != ENOMEM || elements.size() * 500 > 1 << 20 || elements.size() * 500 < 1 << 19)
                return 2;
            if (quire_slab_check(slab))
                return 3;
            quire_slab_free(slab, elements.back());
            if (!(elements.back() = quire_slab_alloc(slab)))
                return 4;
            memset(elements.back(), 1, 500); /* what the others hold is there still */
            for (void *p : elements)
                if (!holds_only(p, 499, 1))
                    return 5;
            quire_slab_free_batch(slab, elements.data(), elements.size());
            quire_slab_trim(slab);
        }
        quire_slab_destroy(slab);
        quire_source_destroy(source);
        return directory.list().empty() ? 0 : 6;
    });
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "no file system can be mounted here";
    EXPECT_EQ(status, 0);
}

TEST_F(SlabFile, two_processes_use_one_directory)
{
    quire_source *source = make();
    {
        Slab slab(500, {.source = source});
        Elements elements = slab.alloc(1000);
        for (void *p : elements)
            memset(p, 1, 500);
        EXPECT_EQ(in_child([&] { /* makes a source and a slab of its own, as a process of its own would */
                      quire_source *mine = make();
                      return mine ? life_of(mine, 500) : 1;
                  }),
                  0);
        for (void *p : elements)
            ASSERT_TRUE(holds_only(p, 500, 1)) << "theirs is not ours";
        EXPECT_GT(files(), 0u) << "ours were not taken for leftovers";
    }
    quire_source_destroy(source);
    EXPECT_EQ(files(), 0u);
}

TEST_F(SlabFile, what_a_killed_run_left_is_cleared_by_the_next)
{
    pid_t child = fork();
    if (child == 0) {
        quire_slab_opts opts = {.source = make()};
        quire_slab *slab = quire_slab_create(3000, &opts);
        for (int i = 0; i < 1000; i++)
            quire_slab_alloc(slab);
        kill(getpid(), SIGKILL);
    }
    int status;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_GE(files(), 5u) << "left behind";
    quire_source *source = make();
    EXPECT_EQ(files(), 0u);
    works_over(source);
    EXPECT_EQ(directory.list(), Names{});
}

TEST_F(SlabFile, directories_that_cannot_be_used_are_refused_before_there_is_a_slab)
{
    auto refusal = [&](const std::string &path) {
        errno = 0;
        quire_source *source = quire_source_file(path.c_str(), "array");
        int error = errno;
        quire_source_destroy(source);
        return source ? 0 : error;
    };
    EXPECT_EQ(refusal(directory.at("missing")), ENOENT);
    directory.put("file");
    EXPECT_EQ(refusal(directory.at("file")), ENOTDIR);
    ASSERT_EQ(symlink("/tmp", directory.at("elsewhere").c_str()), 0);
    EXPECT_EQ(refusal(directory.at("elsewhere")), ELOOP);
    chmod(directory.path.c_str(), 0555);
    int status = in_child([&] {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            return int(CHILD_SKIPS);
        return refusal(directory.path) == EACCES ? 0 : 1;
    });
    chmod(directory.path.c_str(), 0700);
    EXPECT_TRUE(status == 0 || status == CHILD_SKIPS) << status;
}

TEST_F(SlabFile, a_directory_that_becomes_unusable_later_is_enomem)
{
    EXPECT_EQ(in_child([&] {
                  quire_slab_opts opts = {.source = make()};
                  quire_slab *slab = quire_slab_create(3000, &opts);
                  struct rlimit none = {0, 0};
                  if (!slab || !quire_slab_alloc(slab) || setrlimit(RLIMIT_NOFILE, &none) != 0)
                      return 1;
                  errno = 0;
                  int got = 0;
                  while (got < 10000 && quire_slab_alloc(slab))
                      got++;
                  return errno == ENOMEM && got < 10000 && !quire_slab_check(slab) ? 0 : 2;
              }),
              0);
    quire_source_destroy(make()); /* clears up what that child left */
}

TEST_F(SlabFile, is_kept_out_of_core_dumps_when_asked)
{
    quire_source *source = make();
    {
        Slab slab(64, {.source = source, .flags = QUIRE_SLAB_DONT_DUMP});
        EXPECT_EQ(slab.alloc(10000).size(), 10000u);
        EXPECT_EQ(quire_slab_check(slab), nullptr);
    }
    quire_source_destroy(source);
}

/* Pages of 24 OS pages are refused and halved: 12, 6, 3, and then one, not one and a half. */
TEST(SlabPages, where_memory_is_short_pages_are_whole_and_no_two_elements_overlap)
{
    for (auto [element_bytes, align_bytes, page_bytes_max, elements_of_page] : {std::array<size_t, 4>{24, 8, mib, 4096}, {12, 4, 0, 4096}}) {
        const size_t buffer_bytes = (4 * mib / page + 1) * page;
        void *buffer;
        ASSERT_EQ(os_map(buffer_bytes, page, &buffer), 0);
        quire_source *fixed = quire_source_fixed(buffer, buffer_bytes);
        ASSERT_NE(fixed, nullptr);
        {
            quire_slab_opts opts = {};
            opts.source = fixed, opts.align_bytes = align_bytes, opts.page_bytes_max = page_bytes_max;
            Slab slab(element_bytes, opts);
            std::vector<char *> elements;
            while (void *p = quire_slab_alloc(slab))
                elements.push_back(static_cast<char *>(p));
            EXPECT_GT(elements.size(), elements_of_page) << "several pages";
            std::sort(elements.begin(), elements.end());
            for (size_t i = 1; i < elements.size(); i++)
                ASSERT_GE(size_t(elements[i] - elements[i - 1]), element_bytes) << "element " << i << " of " << element_bytes << " bytes";
            for (char *p : elements)
                quire_slab_free(slab, p);
        }
        quire_source_destroy(fixed);
        os_unmap(buffer, buffer_bytes);
    }
}
