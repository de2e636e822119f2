// SPDX-License-Identifier: MIT
/* What a profile counts: births, deaths, new sizes, of any thread, in any order. */
#include "os/sanitize.h"
#include "prof_kit.h"

#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>

namespace {

constexpr uint64_t every = 4096;

TEST(Prof, what_was_allocated_is_told_to_a_stretch_and_what_is_freed_is_live_no_more)
{
    Profile profile(every);
    std::vector<void *> blocks;
    uint64_t bytes = 0;
    for (size_t i = 0; i < 20000; i++, bytes += 30 + i % 100)
        blocks.push_back(profiled_malloc(30 + i % 100));
    struct prof_stats stats = Profile::stats();
    EXPECT_NEAR(double(stats.all_bytes), double(bytes), every);
    EXPECT_EQ(stats.live_bytes, stats.all_bytes);
    EXPECT_NEAR(double(stats.live_blocks), 20000, 1500);
    EXPECT_EQ(stats.lost, 0u);
    EXPECT_EQ(prof_check(), nullptr);
    for (void *p : blocks)
        profiled_free(p);
    stats = Profile::stats();
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.live_blocks, 0u);
    EXPECT_NEAR(double(stats.all_bytes), double(bytes), every);
    EXPECT_EQ(prof_check(), nullptr);
    EXPECT_EQ(quire_heap_check(quire_heap_default()), nullptr);
}

TEST(Prof, a_sampled_block_is_a_block_as_any_other)
{
    Profile profile(1024);
    for (size_t bytes : {1u, 24u, 1000u, 5000u, 40000u, 1u << 20}) {
        for (int i = 0; i < 200; i++) {
            auto *p = static_cast<unsigned char *>(profiled_malloc(bytes));
            ASSERT_NE(p, nullptr);
            EXPECT_GE(quire_heap_usable_bytes(p), bytes);
            EXPECT_TRUE(heap_size_fits(p, bytes, 0));
            memset(p, 0xab, bytes);
            profiled_free(p);
        }
    }
    EXPECT_GT(Profile::stats().samples, 700u);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
}

TEST(Prof, what_is_to_be_zero_and_is_no_sample_takes_no_memory_before_it_is_written)
{
    if (sanitize_watched())
        GTEST_SKIP() << "shadow memory is resident, too";
    Profile profile(UINT64_C(1) << 50);
    constexpr size_t bytes = size_t{64} << 20;
    size_t before = rss_bytes();
    auto *p = static_cast<unsigned char *>(prof_alloc_zero(bytes, PROF_CALLER));
    ASSERT_NE(p, nullptr);
    EXPECT_LT(rss_bytes(), before + (1 << 20));
    EXPECT_EQ(p[bytes / 2], 0);
    profiled_free(p);
}

TEST(Prof, a_walk_shows_a_sampled_block_with_the_bytes_that_may_be_used)
{
    Profile profile(1024);
    void *p = profiled_malloc(3000);
    size_t seen = 0;
    struct Arg {
        void *p;
        size_t *seen;
    } arg = {p, &seen};
    (void)quire_heap_walk(quire_heap_default(), [](void *block, size_t bytes, void *arg_) {
        auto *looked = static_cast<Arg *>(arg_);
        if (block == looked->p)
            *looked->seen = bytes;
        return 0;
    }, &arg);
    EXPECT_EQ(seen, quire_heap_usable_bytes(p));
    profiled_free(p);
}

TEST(Prof, zeroed_and_aligned_samples_are_zeroed_and_aligned)
{
    Profile profile(1024);
    for (int i = 0; i < 500; i++) {
        auto *p = static_cast<unsigned char *>(prof_alloc_zero(700, PROF_CALLER));
        EXPECT_TRUE(std::all_of(p, p + 700, [](unsigned char c) { return c == 0; }));
        memset(p, 1, 700);
        profiled_free(p);
        for (size_t align : {size_t(16), size_t(64), size_t(4096), size_t(65536)}) {
            void *q = prof_alloc_aligned(700, align, PROF_CALLER);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(q) % align, 0u);
            profiled_free(q);
        }
    }
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
}

constexpr size_t small_max = 32768;

/* Where a block lies that was asked for with so many bytes: in a slot of so many (heap_size.h), or on OS pages. */
/* Of each small block a sanitizer's. */
size_t watched_bytes()
{
    return sanitize_watched() ? size_t(REDZONE_BYTES) : 0;
}

size_t room_of(size_t bytes)
{
    size_t tail = bytes > small_max - watched_bytes() ? 0 : watched_bytes(), all = bytes + tail;
    size_t step = all <= 512 ? 16 : (size_t(1) << (63 - __builtin_clzll(all - 1))) / 8;
    step = all > small_max ? os_page_bytes() : step;
    return (all + step - 1) / step * step - tail;
}

bool needs_other_memory(size_t room, size_t wanted)
{
    size_t small_most = small_max - watched_bytes();
    if ((room > small_most) != (wanted > small_most))
        return true;
    return room > small_most ? room_of(wanted) != room : wanted > room || (wanted < room / 2 && room > 16);
}

TEST(Prof, a_new_size_that_needs_other_memory_is_a_death_and_a_birth_and_keeps_what_is_in_it)
{
    Profile profile(2048);
    Random random(3);
    struct Block {
        unsigned char *p;
        size_t had, room;
    };
    std::vector<Block> blocks(64, {nullptr, 0, 0});
    uint64_t bytes = 0;
    for (int i = 0; i < 20000; i++) {
        auto &[p, had, room] = blocks[random.below(64)];
        size_t wanted = 1 + random.below(random.below(20) == 0 ? 200000 : 900);
        auto *fresh = static_cast<unsigned char *>(p ? profiled_realloc(p, wanted) : profiled_malloc(wanted));
        ASSERT_NE(fresh, nullptr);
        for (size_t at = 0; at < std::min(had, wanted); at += 97)
            ASSERT_EQ(fresh[at], (unsigned char)(had + at));
        for (size_t at = 0; at < wanted; at += 97)
            fresh[at] = (unsigned char)(wanted + at);
        if (!p || needs_other_memory(room, wanted)) {
            bytes += wanted;
            room = room_of(wanted);
        }
        p = fresh;
        had = wanted;
    }
    EXPECT_NEAR(double(Profile::stats().all_bytes), double(bytes), double(bytes) / 50);
    EXPECT_EQ(prof_check(), nullptr);
    for (auto &block : blocks)
        profiled_free(block.p);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
    EXPECT_EQ(Profile::stats().live_blocks, 0u);
}

TEST(Prof, a_block_that_grows_by_small_steps_is_counted_when_it_moves_and_stays_sampled_between)
{
    constexpr size_t count = 300, step = 7;
    const size_t most = sanitize_watched() ? 4000 : 6000; /* a sampled block has whole OS pages, which end where a slot does; a watched slot ends before */
    Profile profile(every);
    std::vector<unsigned char *> blocks(count, nullptr);
    uint64_t bytes = 0, last = 0;
    size_t had = 1, room = room_of(1);
    for (auto &p : blocks)
        p = static_cast<unsigned char *>(profiled_malloc(1));
    bytes += last = 1;
    for (size_t wanted = 1 + step; wanted <= most; wanted += step) {
        for (auto &p : blocks) {
            p[had - 1] = (unsigned char)had;
            p = static_cast<unsigned char *>(profiled_realloc(p, wanted));
            ASSERT_EQ(p[had - 1], (unsigned char)had);
            ASSERT_TRUE(heap_size_may_fit(p, wanted));
        }
        had = wanted;
        if (needs_other_memory(room, wanted)) {
            bytes += last = wanted;
            room = room_of(wanted);
        }
    }
    struct prof_stats stats = Profile::stats();
    EXPECT_NEAR(double(stats.all_bytes), double(count * bytes), every) << "one stretch, however often each block was resized";
    EXPECT_NEAR(double(stats.live_bytes), double(count * last), double(count * last) / 5);
    EXPECT_NEAR(double(stats.live_blocks), count, count / 4);
    for (auto *p : blocks)
        profiled_free(p);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
    EXPECT_EQ(Profile::stats().live_blocks, 0u);
    EXPECT_EQ(prof_check(), nullptr);
}

TEST(Prof, what_is_written_behind_a_sampled_block_is_found_when_it_gets_another_size_on_its_pages)
{
    for (size_t behind : {0, 1, 2, 31, 63})
        EXPECT_DEATH(
            {
                Profile profile(1024);
                auto *p = static_cast<unsigned char *>(profiled_malloc(3000)); /* of 3,000 bytes one is a point, always */
                p[3000 + behind] = 1;
                (void)profiled_realloc(p, 2900);
            },
            "E7")
            << behind;
    for (size_t room : {0, 1, 2}) { /* behind it, on its last page */
        Profile profile(1024);
        void *p = profiled_malloc(os_page_bytes() - room);
        p = profiled_realloc(p, os_page_bytes() - 2 * room);
        profiled_free(p);
        EXPECT_EQ(Profile::stats().live_bytes, 0u) << room;
    }
}

TEST(Prof, a_sampled_block_that_shrinks_on_its_pages_is_no_more_blocks_alive_than_were_ever_made)
{
    Profile profile(1024);
    auto *p = static_cast<unsigned char *>(profiled_malloc(8000)); /* of 8,000 bytes some are points, always */
    ASSERT_EQ(profiled_realloc(p, 4500), p);
    EXPECT_EQ(prof_check(), nullptr);
    EXPECT_LE(Profile::stats().live_blocks, Profile::stats().all_blocks);
    void *grown = profiled_realloc(p, 4600);
    EXPECT_TRUE(grown == p || memory_is_watched()) << "where somebody watches it has shrunk for good";
    EXPECT_EQ(prof_check(), nullptr);
    profiled_free(grown);
    EXPECT_EQ(Profile::stats().live_blocks, 0u);
}

TEST(Prof, a_resize_that_cannot_be_leaves_the_block_and_its_count)
{
    Profile profile(1024);
    void *p = profiled_malloc(1 << 20);
    uint64_t live = Profile::stats().live_bytes;
    EXPECT_EQ(profiled_realloc(p, PTRDIFF_MAX - 100000), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(Profile::stats().live_bytes, live);
    EXPECT_EQ(prof_check(), nullptr);
    profiled_free(p);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
}

TEST(Prof, a_block_may_be_freed_by_another_thread_and_after_its_own_has_ended)
{
    Profile profile(1024);
    std::vector<void *> blocks;
    std::thread([&] {
        for (int i = 0; i < 5000; i++)
            blocks.push_back(profiled_malloc(100));
    }).join();
    EXPECT_NEAR(double(Profile::stats().live_bytes), 500000, 1024);
    std::thread([&] {
        for (void *p : blocks)
            profiled_free(p);
    }).join();
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
}

TEST(Prof, the_child_of_a_fork_goes_on_with_what_it_has)
{
    Profile profile(1024);
    void *p = profiled_malloc(10000);
    uint64_t live = Profile::stats().live_bytes;
    pid_t child = fork();
    if (child == 0) {
        prof_after_fork();
        bool same = Profile::stats().live_bytes == live;
        profiled_free(p);
        bool none = Profile::stats().live_bytes == 0;
        void *q = profiled_malloc(20000);
        bool some = Profile::stats().live_bytes >= 18 * 1024 && prof_check() == nullptr;
        profiled_free(q);
        _exit(same && none && some ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(Profile::stats().live_bytes, live);
    profiled_free(p);
}

TEST(Prof, it_is_due_whenever_so_much_more_is_live)
{
    Profile profile(1024, 100 << 10);
    std::vector<void *> blocks;
    int due = 0;
    for (int i = 0; i < 1000; i++) {
        blocks.push_back(profiled_malloc(1000));
        due += prof_due();
    }
    EXPECT_NEAR(due, 9, 1); /* a million bytes */
    for (void *p : blocks)
        profiled_free(p);
    EXPECT_FALSE(prof_due());
    profiled_free(profiled_malloc(100000));
    EXPECT_FALSE(prof_due()); /* as much was live before */
}

TEST(Prof, a_block_that_no_memory_can_be_had_for_is_not_counted_and_leaves_the_threshold_where_it_is)
{
    Profile profile(4096, 1 << 20);
    void *kept = profiled_malloc(100000);
    ASSERT_NE(kept, nullptr);
    uint64_t live = Profile::stats().live_bytes, all = Profile::stats().all_bytes;
    const size_t impossible = size_t(PTRDIFF_MAX) - 100000;
    EXPECT_EQ(profiled_malloc(impossible), nullptr);
    EXPECT_EQ(profiled_realloc(kept, impossible), nullptr);
    EXPECT_EQ(prof_alloc_zero(impossible, PROF_CALLER), nullptr);
    EXPECT_EQ(prof_alloc_aligned(impossible, 4096, PROF_CALLER), nullptr);
    EXPECT_FALSE(prof_due());
    EXPECT_EQ(Profile::stats().samples, 1u);
    EXPECT_EQ(Profile::stats().live_bytes, live);
    EXPECT_EQ(Profile::stats().all_bytes, all);
    void *large = profiled_malloc(3 << 20);
    EXPECT_TRUE(prof_due());
    EXPECT_EQ(Profile::text().find("\n0: 0 [ 0: 0] @ 0x"), std::string::npos);
    EXPECT_EQ(prof_check(), nullptr);
    profiled_free(large);
    profiled_free(kept);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
}

TEST(Prof, the_text_says_what_the_counters_say)
{
    Profile profile(1024);
    void *p = profiled_malloc(100 << 10);
    std::string text = Profile::text();
    struct prof_stats stats = Profile::stats();
    EXPECT_EQ(text.find("heap profile: " + std::to_string(stats.live_blocks) + ": " + std::to_string(stats.live_bytes) + " [ "), 0u) << text;
    EXPECT_NE(text.find("] @ heapprofile\n# quire.heap/1 period 1024 samples 1 lost 0 stacks 1 "), std::string::npos) << text;
    EXPECT_NE(text.find("1: " + std::to_string(stats.live_bytes) + " [ 1: " + std::to_string(stats.all_bytes) + "] @ 0x"), std::string::npos) << text;
    EXPECT_NE(text.find("\nMAPPED_LIBRARIES:\n"), std::string::npos);
    EXPECT_NE(text.find(std::string(program_invocation_short_name) + "\n"), std::string::npos);
    profiled_free(p);
}

/* The lines of a text about code that can be run; what stands between two words is one space. */
std::string code_of(std::istream &&maps)
{
    std::string all, line, word;
    while (std::getline(maps, line) && line[0] != '#')
        if (line.size() > 4 && line[line.find(' ') + 3] == 'x' && line.find("[vsyscall]") == std::string::npos) { /* of older systems' list alone */
            std::istringstream words(line);
            while (words >> word)
                all += word + " ";
            all += "\n";
        }
    return all;
}

TEST(Prof, the_text_names_all_code_as_the_system_does_and_nothing_else)
{
    Profile profile(1024);
    std::string folder = "/tmp/quire-" + std::to_string(getpid()) + std::string(200, 'x'), file = folder + "/" + std::string(200, 'y');
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    int fd = open(file.c_str(), O_RDWR | O_CREAT, 0600);
    size_t page = os_page_bytes();
    ASSERT_EQ(ftruncate(fd, off_t(2 * page)), 0);
    void *code = mmap(nullptr, page, PROT_READ | PROT_EXEC, MAP_SHARED, fd, off_t(page)), *bare = mmap(nullptr, page, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (bool is_old : {false, true}) { /* the text is made of the list of all mappings then, in pieces that end anywhere */
        std::string text;
        {
            Fault fault(OS_OPEN, is_old ? 1 : 0);
            text = Profile::text();
        }
        std::string said = text.substr(text.find("\nMAPPED_LIBRARIES:\n") + strlen("\nMAPPED_LIBRARIES:\n"));
        EXPECT_EQ(code_of(std::istringstream(said)), code_of(std::ifstream("/proc/self/maps"))) << is_old;
        EXPECT_NE(said.find(file), std::string::npos);
    }
    munmap(code, page);
    munmap(bare, page);
    close(fd);
    unlink(file.c_str());
    rmdir(folder.c_str());
}

TEST(Prof, a_heap_beside_mallocs_stands_in_the_text_by_its_name_and_mallocs_own_never)
{
    Profile profile(1024);
    quire_heap_opts opts = {};
    opts.name = "beside";
    quire_heap *heap = quire_heap_create(&opts);
    void *p = quire_heap_alloc(heap, 100);
    std::string text = Profile::text();
    size_t at = text.find("# object heap ");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_NE(text.find(" beside\n", at), std::string::npos) << text;
    EXPECT_EQ(text.find(" default\n"), std::string::npos) << text;
    quire_heap_free(heap, p);
    quire_heap_destroy(heap);
    EXPECT_EQ(Profile::text().find(" beside\n"), std::string::npos);
}

TEST(Prof, thousands_of_stacks_are_told_apart_and_cost_little)
{
    Profile profile(1024);
    const uintptr_t count = 20000;
    uintptr_t ips[PROF_FRAMES_MAX];
    lock_take(&prof_lock);
    for (uintptr_t turn = 0; turn < 2 * count; turn++) { /* the second time each comes again after many others */
        uintptr_t i = turn % count;
        for (uintptr_t at = 0; at < 40; at++)
            ips[at] = at < 3 ? 0x1000 + (i >> (at * 5) & 31) : 0x2000 + at;
        uint32_t number = prof_site_locked(ips, 40);
        ASSERT_NE(number, 0u);
        ASSERT_EQ(prof_site_locked(ips, 40), number);
        ASSERT_EQ(number, i + 1);
        uintptr_t back[PROF_FRAMES_MAX];
        ASSERT_EQ(prof_site_ips(prof_site_at(number), back), 40u);
        ASSERT_EQ(memcmp(ips, back, 40 * sizeof *ips), 0);
    }
    lock_drop(&prof_lock);
    struct prof_stats stats = Profile::stats();
    EXPECT_EQ(stats.stacks, count);
    EXPECT_LT(stats.held_bytes, count * 120);
    EXPECT_EQ(prof_check(), nullptr);
}

} // namespace
