// SPDX-License-Identifier: MIT
/* The kinds of misuse that only a secure heap stops (heap_death_test.cc numbers them), and random corruptions, which no heap may survive wrongly. */
#include "death/heap_death.h"

#include <csignal>
#include <map>
#include <set>
#include <sys/mman.h>
#include <sys/wait.h>
#include <utility>

#include "base/bias.h"
#include "os/os.h"
#include "pages/pagemap.h"
#include "unit/heap_inside.h"

namespace {

const HeapWay secure = {"secure", QUIRE_HEAP_SECURE, false};
const std::string e7 = heap_line("E7 written past the end of the block");

/* Two blocks beside each other, the lower one first. */
std::pair<char *, char *> neighbours(HeapScene &s, size_t bytes)
{
    std::map<char *, bool> blocks;
    for (char *p : s.alloc_many(2000, bytes))
        blocks[p] = true;
    size_t slot = SIZE_MAX;
    for (auto at = std::next(blocks.begin()); at != blocks.end(); ++at)
        slot = std::min(slot, size_t(at->first - std::prev(at)->first));
    for (auto &[p, live] : blocks)
        if (blocks.count(p + slot))
            return {p, p + slot};
    return {nullptr, nullptr};
}

} // namespace

TEST(HeapSecureDeathTest, kind_27_written_past_its_end)
{
    if (memory_is_watched() && !BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch say it themselves, at the write";
    for (size_t bytes : std::vector<size_t>{1, 8, 9, 23, 24, 25, 31, 32, 33, 40, 100, 1000, 1001, 5000, 20000}) /* from no slack to much */
        for (ptrdiff_t past : {0, 1, 7})
            EXPECT_DEATH(
                {
                    HeapScene s(secure);
                    char *p = s.alloc(bytes);
                    stray_change(p, ptrdiff_t(quire_heap_usable_bytes(p)) + past);
                    s.free(p);
                },
                e7);
    auto past_its_end = [](HeapScene &s) {
        char *p = s.alloc(100);
        stray_change(p, ptrdiff_t(quire_heap_usable_bytes(p)));
        return p;
    };
    EXPECT_DEATH(
        {
            HeapScene s(secure);
            s.free_there(past_its_end(s));
        },
        e7);
    EXPECT_DEATH(
        {
            HeapScene s(secure);
            quire_heap_realloc(s.heap, past_its_end(s), 5000);
        },
        e7);
}

TEST(HeapSecureDeathTest, kind_28_written_before_its_start)
{
    if (memory_is_watched() && !BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch say it themselves, at the write";
    EXPECT_DEATH(
        {
            HeapScene s(secure);
            auto pair = neighbours(s, 56);
            for (int at = 1; at <= 8; at++)
                stray_change(pair.second, -at);
            s.free(pair.second);
            s.free(pair.first);
        },
        e7);
}

TEST(HeapSecureDeathTest, kind_29_a_block_of_no_bytes_is_touched)
{
    if (memory_is_watched() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch say it themselves, at the write";
    for (ptrdiff_t at : {0, 15}) {
        auto touch = [at](bool write) {
            HeapScene s(secure);
            char *p = s.alloc(0);
            if (write)
                stray_write(p, at, 'A');
            else
                stray_read(p, at);
        };
        EXPECT_EXIT(touch(true), testing::KilledBySignal(SIGSEGV), "^$") << at;
        EXPECT_EXIT(touch(false), testing::KilledBySignal(SIGSEGV), "^$") << at;
    }
}

TEST(HeapSecureDeathTest, kind_30_written_after_it_was_freed)
{
    if (memory_is_watched() && !BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch say it themselves, at the write";
    for (ptrdiff_t at : {0, 1, 50, 99})
        EXPECT_DEATH(
            {
                HeapScene s(secure);
                char *p = s.alloc(100);
                s.free(p);
                stray_write(p, at, 'A');
                for (int i = 0; i < 5000; i++) /* it is seen at the latest when the slot is used again */
                    s.free(s.alloc(100));
                s.alloc_many(5000, 100);
            },
            heap_line("E[67] [a-z ]+"));
}

/* One free of a check, or of statistics, must not be the end of what is kept back. */
TEST(HeapSecureDeathTest, kind_30_also_when_somebody_looks_between)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch say it themselves, at the write";
    const std::function<void(HeapScene &)> looks[] = {
        [](HeapScene &s) { quire_heap_check(s.heap); }, [](HeapScene &s) { s.settle(); }, [](HeapScene &s) { quire_heap_trim(s.heap); },
        [](HeapScene &s) { quire_heap_walk(s.heap, [](void *, size_t, void *) { return 0; }, nullptr); }};
    for (auto &look : looks)
        for (bool before : {true, false})
            for (bool there : {true, false})
                EXPECT_DEATH(
                    {
                        HeapScene s(secure);
                        char *p = s.alloc(100);
                        if (there)
                            s.free_there(p);
                        else
                            s.free(p);
                        if (before)
                            look(s);
                        stray_write(p, 50, 'A');
                        look(s);
                        for (int i = 0; i < 5000; i++)
                            s.free(s.alloc(100));
                        s.alloc_many(5000, 100);
                    },
                    heap_line("E6 [a-z ]+"));
}

TEST(HeapSecureDeathTest, a_large_block_cannot_be_touched_after_its_free_or_where_it_was)
{
    if (memory_is_watched() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch say it themselves";
    auto touch = [](bool moved, bool write) {
        HeapScene s(secure);
        char *p = s.alloc(1 << 20), *stay = s.alloc(1 << 20);
        uintptr_t at = uintptr_t(p) + 5000;
        if (moved)
            p = static_cast<char *>(quire_heap_realloc(s.heap, p, size_t(64) << 20));
        else
            s.free(p);
        s.alloc_many(20, 1 << 20);
        if (write)
            stray_write(reinterpret_cast<char *>(at), 0, 'A');
        else
            stray_read(reinterpret_cast<char *>(at), 0);
        s.free(stay);
    };
    for (bool moved : {false, true})
        for (bool write : {false, true})
            EXPECT_EXIT(touch(moved, write), testing::KilledBySignal(SIGSEGV), "^$") << moved << write;
}

TEST(HeapSecureDeathTest, large_blocks_have_pages_round_them_that_cannot_be_touched)
{
    if (BUILT_WITH_ASAN || BUILT_WITH_TSAN)
        GTEST_SKIP() << "sanitizers say something else";
    for (size_t bytes : {size_t(40000), size_t(1) << 20}) {
        auto touch = [bytes](bool behind) {
            HeapScene s(secure);
            char *p = s.alloc(bytes);
            stray_write(p, behind ? ptrdiff_t(quire_heap_usable_bytes(p)) : -1, 'A');
        };
        EXPECT_EXIT(touch(true), testing::KilledBySignal(SIGSEGV), "^$") << bytes;
        EXPECT_EXIT(touch(false), testing::KilledBySignal(SIGSEGV), "^$") << bytes;
    }
}

/* A stray write that runs over the pages beside comes to no header of a page. */
TEST(HeapSecureDeathTest, the_bookkeeping_has_pages_round_it_that_cannot_be_touched)
{
    if (BUILT_WITH_ASAN || BUILT_WITH_TSAN)
        GTEST_SKIP() << "sanitizers say something else";
    for (size_t nth : {0, 1, 2}) {
        auto touch = [nth](bool behind) {
            HeapScene s(secure);
            std::set<struct header_chunk *> chunks; /* the later ones lie beside others, as the system maps */
            for (size_t i = 0; chunks.size() <= nth && i < 100000; i++) {
                auto *page = static_cast<struct heap_page *>(owner_object(pagemap_find(s.alloc(20000))));
                auto *chunk = reinterpret_cast<struct header_chunk *>(reinterpret_cast<char *>(page) - page->chunk_at);
                if (chunks.insert(chunk).second && chunks.size() > nth)
                    stray_write(chunk->span.start, behind ? ptrdiff_t(chunk->span.bytes) : -1, 'A');
            }
        };
        EXPECT_EXIT(touch(true), testing::KilledBySignal(SIGSEGV), "^$") << nth;
        EXPECT_EXIT(touch(false), testing::KilledBySignal(SIGSEGV), "^$") << nth;
    }
}

/* ---- stray writes into free memory: sound afterwards, or stopped; never a block in another's place ---- */

namespace {

struct Progress {
    uint64_t next_seed, overlaps, tried[2]; /* heaps: not secure, secure */
    bool is_secure;
};

struct Corruption {
    explicit Corruption(uint64_t seed) : random(seed)
    {
        quire_heap_opts opts = {};
        is_secure = random.below(4) == 0;
        opts.flags = is_secure ? QUIRE_HEAP_SECURE : 0;
        heap = quire_heap_create(&opts);
    }

    bool is_secure;

    /* Blocks come and go; some of the freed ones are written to.  Returns false when a block lies in another. */
    bool run(Worker &other)
    {
        for (int i = 0; i < 60; i++)
            if (!alloc())
                return false;
        bool by_another = random.below(16) == 0; /* then what is written to may be on its way, and mostly stops the process */
        for (int i = 0; i < 30; i++) {
            auto victim = std::next(live.begin(), long(random.below(live.size())));
            freed.push_back(*victim);
            live.erase(victim);
        }
        auto free_all = [&] {
            for (auto &[p, bytes] : freed)
                quire_heap_free(heap, p);
        };
        if (by_another)
            other.run(free_all);
        else
            free_all();
        for (uint64_t i = 0, writes = 1 + random.below(20); i < writes; i++) {
            auto &[p, bytes] = freed[random.below(freed.size())];
            if (bytes > 0 && bytes < 20000) /* the memory of large ones is gone, and those of no bytes have none */
                stray_write(p, ptrdiff_t(random.below(bytes)), char(random.next()));
        }
        for (int i = 0; i < 120; i++)
            if (!alloc())
                return false;
        const char *wrong = quire_heap_check(heap);
        bool sound = !wrong || (!bias_works() && !strcmp(wrong, "heap P1")); /* without magazines what is free lies in its page, where a check looks at it */
        quire_heap_destroy(heap);
        return sound;
    }

private:
    bool alloc()
    {
        size_t bytes = random.below(10) ? random.below(200) : random.below(20000);
        char *p = static_cast<char *>(quire_heap_alloc(heap, bytes));
        if (!p || !quire_heap_owns(heap, p))
            return false;
        auto after = live.lower_bound(p);
        if ((after != live.end() && after->first < p + bytes) || (after != live.begin() && std::prev(after)->first + std::prev(after)->second > p))
            return false;
        live[p] = quire_heap_usable_bytes(p);
        memset(p, 1, live[p]);
        return true;
    }

    Random random;
    quire_heap *heap;
    std::map<char *, size_t> live; /* start -> usable bytes */
    std::vector<std::pair<char *, size_t>> freed;
};

} // namespace

/* Nobody asks for a block of its size any more, and its page, where others live, goes with the heap. */
TEST(HeapCorruptionDeathTest, a_write_after_free_is_found_when_the_secure_heap_ends)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch stop every such write themselves";
    for (size_t bytes : {16, 100, 1024, 20000}) {
        auto end = [bytes](bool written) {
            HeapScene s(secure);
            char *p = s.alloc(bytes);
            s.alloc_many(50, bytes);
            char *far = s.alloc(bytes); /* freed by another thread: it may be on its way still */
            s.free_there(far);
            s.free(p);
            if (written)
                stray_change(p, 0);
            quire_heap_destroy(s.heap);
            _exit(0);
        };
        EXPECT_DEATH(end(true), heap_line("E6 a freed block was written to")) << bytes;
        EXPECT_EXIT(end(false), testing::ExitedWithCode(0), "") << bytes;
    }
}

/* Its memory may be there still, as zeros: what is told of it is told in a line. */
TEST(HeapDeathTest, a_block_of_a_heap_that_was_destroyed_is_refused_when_its_memory_went)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch stop at the look";
    auto free_in = [](bool other) {
        struct quire_heap_opts opts = {};
        struct quire_heap *h = quire_heap_create(&opts), *gone = quire_heap_create(&opts);
        void *mine = quire_heap_alloc(h, 1), *its = quire_heap_alloc(gone, 1);
        quire_heap_destroy(gone);
        quire_source_trim(quire_source_default());
        quire_heap_free(gone, other ? mine : its);
    };
    EXPECT_DEATH(free_in(false), heap_line("E2 [a-z ,]+", false));
    EXPECT_DEATH(free_in(true), heap_line("E4 [a-z ,]+", false));
}

/* The link of a freed block that is on its way leads to where nobody can look: a block of no bytes.  The last one freed is looked at by the next free,
 * one behind it by its owner. */
TEST(HeapCorruptionDeathTest, a_link_that_leads_to_a_block_of_no_bytes_is_refused)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch stop every such write themselves";
    auto touch = [](bool last) {
        HeapScene s(secure);
        char *nothing = s.alloc(0);
        std::vector<char *> blocks = s.alloc_many(40, 100); /* more than a thread keeps before it sends them */
        char *at = blocks[last ? 2 : 1], *next = blocks[last ? 1 : 0];
        for (size_t i = 0; i < 3; i++)
            s.free_there(blocks[i]);
        uintptr_t link;
        memcpy(&link, at + sizeof link, sizeof link);
        link ^= uintptr_t(next) ^ uintptr_t(nothing);
        for (size_t i = 0; i < sizeof link; i++)
            stray_write(at, ptrdiff_t(sizeof link + i), reinterpret_cast<const char *>(&link)[i]);
        for (size_t i = 3; i < blocks.size(); i++)
            s.free_there(blocks[i]);
        s.alloc_many(5000, 100); /* their owner fetches them when it needs a page */
    };
    for (bool last : {false, true})
        EXPECT_DEATH(touch(last), heap_line("E6 [a-z ]+")) << last;
}

/* Freed, written to and freed again by one thread: it is in the thread's magazine twice.  The page goes with the one; what the other leads to is nobody's. */
TEST(HeapCorruptionDeathTest, a_second_free_after_a_write_hands_out_nothing_of_a_page_that_is_gone)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch stop every such write themselves";
    auto touch = [] {
        HeapScene s({"", 0, false});
        std::vector<char *> blocks = s.alloc_many(10, 32768); /* eight fill a page */
        for (size_t i = 0; i < 4; i++)
            s.free(blocks[i]);
        quire_heap_trim(s.heap);
        for (size_t i = 4; i < 8; i++)
            s.free(blocks[i]);
        for (ptrdiff_t at = 0; at < 16; at++)
            stray_write(blocks[7], at, 0);
        s.free(blocks[7]);
        s.free(blocks[8]);
        s.free(blocks[9]);
        for (char *p : s.alloc_many(10, 32768))
            if (!quire_heap_owns(s.heap, p))
                _exit(0);
    };
    EXPECT_DEATH(touch(), heap_line(bias_works() ? "E[16] [a-z ]+" : "E2 [a-z ]+")); /* without magazines it is gone by then */
}

TEST(HeapCorruptionDeathTest, random_writes_into_freed_blocks_leave_the_heap_sound_or_stop_it)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch stop every such write themselves";
    const uint64_t seeds = test_long() ? 100000 : 2000;
    auto *progress = static_cast<Progress *>(mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(progress, MAP_FAILED);
    uint64_t stopped[2] = {};
    while (progress->next_seed < seeds) {
        pid_t child = fork(); /* goes on until it is stopped; the next one begins behind */
        if (child == 0) {
            Worker *other = new Worker;
            if (!freopen("/dev/null", "w", stderr))
                _exit(1);
            while (progress->next_seed < seeds) {
                Corruption one(progress->next_seed++);
                progress->tried[progress->is_secure = one.is_secure]++;
                if (!one.run(*other))
                    progress->overlaps++;
            }
            _exit(0);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) {
            stopped[progress->is_secure]++;
            EXPECT_TRUE(WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP) << "seed " << progress->next_seed - 1 << ": signal " << WTERMSIG(status);
        } else {
            ASSERT_EQ(WEXITSTATUS(status), 0);
        }
    }
    EXPECT_EQ(progress->overlaps, 0u);
    EXPECT_LT(stopped[0], progress->tried[0] / 10 * 9) << "many do no harm: those behind the first 16 bytes, or into what is in its page";
    EXPECT_GT(stopped[1], progress->tried[1] / 20 * 19) << "a secure heap looks at all that is free, at the latest when it ends";
    RecordProperty("stopped", std::to_string(stopped[0] + stopped[1]));
    munmap(progress, sizeof(Progress));
}

/* ---- a page of the heap's own bookkeeping, each byte of it wrong once ---- */

namespace {

enum Damage { HARMLESS, HANDED_OUT_TWICE, FOUND_BY_CHECK };

/* What a heap does whose bookkeeping has one wrong byte: everything that it is for, in one process that may be stopped. */
int use_damaged(uint32_t flags, size_t at)
{
    quire_heap_opts opts = {};
    opts.flags = flags;
    quire_heap *heap = quire_heap_create(&opts);
    std::vector<char *> blocks;
    for (size_t i = 0; i < 400; i++)
        blocks.push_back(static_cast<char *>(quire_heap_alloc(heap, i % 40 == 39 ? 50000 : 16 + i % 7 * 100)));
    for (size_t i = 0; i < blocks.size(); i += 3)
        quire_heap_free(heap, std::exchange(blocks[i], nullptr));
    auto page = reinterpret_cast<uintptr_t>(owner_object(pagemap_find(blocks[1]))) & ~(os_page_bytes() - 1);
    *reinterpret_cast<volatile unsigned char *>(page + at) ^= 0xff;
    std::set<char *> live(blocks.begin(), blocks.end());
    live.erase(nullptr);
    int seen = HARMLESS;
    for (size_t i = 0; i < 400; i++) {
        auto *p = static_cast<char *>(quire_heap_alloc(heap, i % 40 == 39 ? 50000 : 16 + i % 7 * 100));
        if (p && !live.insert(p).second)
            seen = HANDED_OUT_TWICE;
    }
    if (seen == HARMLESS && quire_heap_check(heap))
        seen = FOUND_BY_CHECK;
    struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
    quire_heap_stats(heap, &stats);
    for (char *p : live)
        quire_heap_free(heap, p);
    quire_heap_trim(heap);
    quire_heap_destroy(heap);
    return seen;
}

} // namespace

TEST(HeapCorruptionDeathTest, a_byte_of_the_bookkeeping_turned_over_stops_the_process_or_does_no_harm_and_never_hangs_it)
{
    if (memory_is_watched())
        GTEST_SKIP() << "the check build's is enough";
    const size_t step = test_long() ? 1 : 61;
    for (uint32_t flags : {uint32_t(0), uint32_t(QUIRE_HEAP_SECURE)}) {
        std::map<std::string, int> ends;
        for (size_t at = 0; at < os_page_bytes(); at += step) {
            pid_t child = fork();
            if (child == 0) {
                alarm(20);
                if (!freopen("/dev/null", "w", stderr))
                    _exit(9);
                _exit(use_damaged(flags, at));
            }
            int status = 0;
            ASSERT_EQ(waitpid(child, &status, 0), child);
            static const char *const harm[] = {"harmless", "handed_out_twice", "found_by_check"};
            bool ended = WIFEXITED(status), refused = !ended && (WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP);
            bool faulted = !ended && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS || WTERMSIG(status) == SIGFPE);
            EXPECT_TRUE(refused || faulted || (ended && WEXITSTATUS(status) <= FOUND_BY_CHECK)) << "byte " << at << ", flags " << flags << ": status " << status;
            ends[ended && WEXITSTATUS(status) <= FOUND_BY_CHECK ? harm[WEXITSTATUS(status)] : refused ? "refused" : faulted ? "fault" : "else"]++;
        }
        EXPECT_EQ(ends["handed_out_twice"], 0) << "flags " << flags;
        EXPECT_GT(ends["refused"] + ends["fault"] + ends["found_by_check"], 0) << "the page is one that is used";
        for (auto &[end, count] : ends)
            RecordProperty(end + "_" + std::to_string(flags), std::to_string(count));
    }
}
