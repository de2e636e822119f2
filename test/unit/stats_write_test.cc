// SPDX-License-Identifier: MIT
/* How quire_stats_write() writes: what its caller is told, slow readers, no memory, other threads. */
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>

#include <quire/quire.h>

#include "look/look_out.h"
#include "support.h"
#include "unit/stats_scope.h"

using namespace stats_kit;

/* ---- what the caller is told ---- */

TEST(StatsWrite, errno_is_left_as_it_was)
{
    for (uint32_t format : stats_formats) {
        int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        errno = 77;
        EXPECT_EQ(quire_stats_write(fd, format), 0);
        EXPECT_EQ(errno, 77);
        close(fd);
    }
}

TEST(StatsWrite, a_format_that_is_none_is_einval_and_nothing_is_written)
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

TEST(StatsWrite, what_write_refuses_is_the_callers_to_see)
{
    signal(SIGPIPE, SIG_IGN);
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC), read_only = open("/dev/null", O_RDONLY | O_CLOEXEC), ends[2];
    ASSERT_EQ(pipe(ends), 0);
    close(ends[0]);
    struct {
        int fd, error;
    } table[] = {{-1, EBADF}, {read_only, EBADF}, {full, ENOSPC}, {ends[1], EPIPE}};
    for (const auto &row : table)
        for (uint32_t format : stats_formats) {
            errno = 0;
            EXPECT_EQ(quire_stats_write(row.fd, format), -1);
            EXPECT_EQ(errno, row.error);
        }
    close(full);
    close(read_only);
    close(ends[1]);
    signal(SIGPIPE, SIG_DFL);
}

TEST(StatsWrite, a_descriptor_that_does_not_wait_is_eagain_when_it_is_full)
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

TEST(StatsWrite, after_the_first_failure_nothing_is_written_also_if_it_could_be)
{
    int ends[2];
    char drain[8192];
    ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
    struct out out;
    out_begin(&out, ends[1]);
    for (int i = 0; i < 3 * OUT_BYTES; i++)
        out_char(&out, 'a'); /* the first buffer fills the pipe, the second is refused */
    EXPECT_EQ(read(ends[0], drain, sizeof drain), 4096);
    for (int i = 0; i < 3 * OUT_BYTES; i++)
        out_char(&out, 'b');
    EXPECT_EQ(out_end(&out), -EAGAIN);
    EXPECT_EQ(read(ends[0], drain, sizeof drain), -1) << "a hole in the middle would be worse than an end";
    close(ends[0]);
    close(ends[1]);
}

/* ---- interrupted, slow ---- */

namespace {
/* Writes into a pipe that holds one page, or into a socket that holds less and takes a part of a write, from a thread of its own, until it is
 * read to the end. */
struct Slow {
    int ends[2], result = -2;
    pthread_t thread;
    uint32_t format;
    explicit Slow(uint32_t format_, bool is_socket = false) : format(format_)
    {
        int least = 1;
        EXPECT_EQ(is_socket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) : pipe2(ends, O_CLOEXEC), 0);
        if (is_socket)
            setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
        else
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

TEST(StatsWrite, short_writes_and_interrupted_ones_go_on)
{
    struct sigaction action = {}, before;
    action.sa_handler = [](int) {}; /* without SA_RESTART: a write that waits fails with EINTR, or is short */
    sigaction(SIGUSR1, &action, &before);
    std::vector<std::unique_ptr<Nodes>> many;
    for (int i = 0; i < 40; i++)
        many.push_back(std::make_unique<Nodes>(("slow " + std::to_string(i)).c_str(), 0));
    for (bool is_socket : {false, true}) {
        Slow slow(QUIRE_STATS_JSON, is_socket);
        ASSERT_TRUE(slow.wait_full());
        std::string text = slow.read_all(700, [&] { pthread_kill(slow.thread, SIGUSR1), usleep(100); });
        EXPECT_EQ(slow.result, 0);
        Json all = Json::parse(text);
        for (int i = 0; i < 40; i++)
            EXPECT_EQ(named(all, "slabs", "slow " + std::to_string(i)).size(), 1u);
    }
    sigaction(SIGUSR1, &before, nullptr);
}

TEST(StatsWrite, a_reader_who_is_slow_stops_nobody_else)
{
    std::vector<std::unique_ptr<Nodes>> many;
    for (int i = 0; i < 100; i++)
        many.push_back(std::make_unique<Nodes>("waiting", 1));
    for (uint32_t format : stats_formats) {
        Slow slow(format);
        ASSERT_TRUE(slow.wait_full());
        Nodes nodes("meanwhile");
        Counters counters("meanwhile");
        Heap heap("meanwhile");
        std::thread([&] { /* its end takes the registries' locks */
            quire_slab_free(nodes.slab, quire_slab_alloc(nodes.slab));
            quire_heap_free(heap.heap, heap.alloc(10));
        }).join();
        quire_slab_trim(nodes.slab);
        many.pop_back();
        many.erase(many.begin());
        slow.read_all(4096, [] {});
        EXPECT_EQ(slow.result, 0);
    }
}

/* ---- nothing is allocated, nothing is held ---- */

TEST(StatsWrite, nothing_is_allocated)
{
    Nodes nodes("frugal");
    Counters counters("frugal");
    Heap heap("frugal");
    heap.alloc(100);
    int fd = memfd_create("stats", MFD_CLOEXEC);
    for (uint32_t format : stats_formats)
        EXPECT_EQ(quire_stats_write(fd, format), 0);
    quire_source_set_decay(quire_source_default(), 0); /* the reaper is still */
    for (uint32_t format : stats_formats) {
        struct quire_source_stats before = {.struct_bytes = sizeof before}, after = {.struct_bytes = sizeof after};
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
    quire_source_set_decay(quire_source_default(), DECAY_STILL_NS);
    close(fd);
}

TEST(StatsWrite, when_there_is_no_memory_all_is_still_written)
{
    Nodes nodes("poor");
    Fault map(OS_MAP, 1, true), libc(OS_LIBC, 1, true);
    int fd = memfd_create("stats", MFD_CLOEXEC);
    for (uint32_t format : stats_formats)
        EXPECT_EQ(quire_stats_write(fd, format), 0);
    close(fd);
}

TEST(StatsWrite, a_walks_function_may_write_them)
{
    Nodes nodes("walked", 3);
    int fd = memfd_create("stats", MFD_CLOEXEC);
    auto visit = [](void *, void *arg) { return quire_stats_write(*static_cast<int *>(arg), QUIRE_STATS_TEXT); };
    EXPECT_EQ(quire_slab_walk(nodes.slab, visit, &fd), 0);
    close(fd);
}

namespace {
int hook_fd;

/* What a child does that must end by a trap, with the statistics written by the hook. */
template <class Misuse> std::string written_by_the_hook(Misuse misuse)
{
    hook_fd = memfd_create("stats", MFD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        alarm(100); /* a hook that waits for a lock would wait for ever */
        close(2);  /* the line of the refusal is the death tests' */
        quire_on_panic([](const char *, const void *) {
            struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
            quire_heap_stats(quire_heap_default(), &stats);
            dprintf(hook_fd, "looked elsewhere\n");
            for (uint32_t format : stats_formats)
                if (quire_stats_write(hook_fd, format) != 0)
                    _exit(1);
        });
        misuse();
        _exit(2);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM) << status;
    std::string text = contents(hook_fd);
    close(hook_fd);
    return text;
}
} // namespace

TEST(StatsWrite, the_hook_of_a_refusal_may_write_them)
{
    Nodes nodes("refused", 1);
    Heap heap("refused");
    void *element = quire_slab_alloc(nodes.slab), *block = heap.alloc(100);
    std::vector<std::function<void()>> misuses = {
        [&] { quire_slab_free(nodes.slab, element), quire_slab_free(nodes.slab, element); },
        [&] { quire_heap_free(heap.heap, block), quire_heap_free(heap.heap, block); },
        [&] { quire_heap_free(heap.heap, &element); },
    };
    for (const auto &misuse : misuses) {
        std::string text = written_by_the_hook(misuse);
        EXPECT_NE(text.find("\"refused\""), std::string::npos);
        EXPECT_NE(text.find("quire.stats/1"), std::string::npos);
    }
}

/* What is broken is found once more when it is looked at again; the lock that it was found under is let go. */
TEST(StatsWrite, the_hook_of_a_refusal_amid_them_may_look_at_other_heaps)
{
    if (memory_is_watched())
        GTEST_SKIP() << "the write to a freed block is the sanitizer's";
    Heap heap("refused");
    void *first = heap.alloc(200), *second = heap.alloc(200);
    std::string text = written_by_the_hook([&] {
        std::thread([&] {
            quire_heap_free(heap.heap, first);
            quire_heap_free(heap.heap, second);
            memset(second, 1, 16); /* on its way to its thread */
            quire_stats_write(2, QUIRE_STATS_TEXT);
        }).join();
    });
    EXPECT_EQ(text.substr(0, 17), "looked elsewhere\n");
}

TEST(StatsWrite, the_child_of_a_fork_writes_its_own)
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

namespace {
/* Threads that go on until the end of a scope, however it ends. */
struct Threads : std::vector<std::thread> {
    std::atomic<bool> stop{false};
    ~Threads()
    {
        stop = true;
        for (std::thread &thread : *this)
            thread.join();
    }
};
} // namespace

TEST(StatsWrite, objects_may_come_go_and_be_used_meanwhile)
{
    quire_slab_opts alone = {};
    alone.name = "alone";
    alone.flags = QUIRE_SLAB_SINGLE_THREAD;
    Nodes unlocked(alone);
    Nodes shared("shared");
    Threads threads;
    threads.emplace_back([&] { /* promises one thread to the slab; who looks is none that uses it */
        std::vector<void *> elements(300);
        while (!threads.stop) {
            for (void *&element : elements)
                element = quire_slab_alloc(unlocked.slab);
            for (void *element : elements)
                quire_slab_free(unlocked.slab, element);
        }
    });
    for (int t = 0; t < 3; t++)
        threads.emplace_back([&, t] {
            while (!threads.stop) {
                Nodes nodes(t == 0 ? "coming" : nullptr, 50);
                Counters counters("going", 5);
                Heap heap("passing");
                heap.alloc(100);
                quire_heap_free(quire_heap_default(), quire_heap_alloc(quire_heap_default(), 200));
                void *element = quire_slab_alloc(shared.slab);
                quire_slab_free(shared.slab, element);
            }
        });
    for (int round = 0; round < (test_long() ? 2000 : memory_is_watched() ? 20 : 60); round++) {
        Json all = Json::parse(written(QUIRE_STATS_JSON));
        Prometheus::parse(written(QUIRE_STATS_PROMETHEUS));
        Table::parse(written(QUIRE_STATS_TEXT));
        ASSERT_EQ(named(all, "slabs", "shared").size(), 1u) << "it was there from beginning to end";
        for (const Json &slab : all["slabs"].items)
            ASSERT_EQ(slab["mapped_bytes"].number, slab["live_bytes"].number + slab["free_bytes"].number + slab["meta_bytes"].number);
        ASSERT_EQ(named(all, "heaps", "default").size(), 1u);
    }
}

TEST(StatsWrite, the_child_of_a_fork_writes_whatever_others_were_doing)
{
    Nodes nodes("busy", 0);
    Counters counters("busy", 0);
    Heap heap("busy");
    std::atomic<void *> passed{nullptr}; /* blocks and elements go from thread to thread */
    Threads threads;
    for (int t = 0; t < 3; t++)
        threads.emplace_back([&, t] {
            Random random(static_cast<uint64_t>(t));
            std::vector<void *> blocks(64), elements(64);
            std::vector<quire_percpu_ref> refs(64);
            while (!threads.stop) {
                size_t i = random.below(64);
                quire_heap_free(heap.heap, blocks[i]);
                blocks[i] = passed.exchange(heap.alloc(16 + random.below(2000)));
                quire_slab_free(nodes.slab, elements[i]);
                elements[i] = quire_slab_alloc(nodes.slab);
                quire_percpu_free(counters.pool, refs[i]);
                refs[i] = quire_percpu_alloc(counters.pool, 8, 0);
                if (random.below(100) == 0) {
                    Nodes passing("passing", 3);
                    Heap also("passing");
                    also.alloc(10);
                }
            }
        });
    for (int round = 0; round < (test_long() ? 500 : 15); round++) {
        int fd = memfd_create("stats", MFD_CLOEXEC), status;
        pid_t child = fork();
        if (child == 0) {
            alarm(100);
            for (uint32_t format : stats_formats)
                if (quire_stats_write(fd, format) != 0)
                    _exit(1);
            _exit(ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0 || quire_stats_write(fd, QUIRE_STATS_JSON) != 0);
        }
        waitpid(child, &status, 0);
        ASSERT_EQ(status, 0);
        Json all = Json::parse(contents(fd));
        for (const char *kind : {"slabs", "percpu", "heaps"})
            EXPECT_EQ(named(all, kind, "busy").size(), 1u);
        close(fd);
    }
}
