// SPDX-License-Identifier: MIT
/*
 * Two threads free one block at the same moment: one wins, the other stops the process, at once or when what strangers freed comes home.
 *
 * Every race has a child of its own.  A child first runs races that are none (the two free neighbours), in which nothing may be found, then the
 * double free, then whatever brings home what strangers freed.  Looking is what a hook may do: it must find nothing held.
 */
#include "race/heap_race.h"

#include <fcntl.h>

namespace {
enum Outcome { AT_ONCE = 40, LATER, SILENT, TWO_OWNERS, FALSE_ALARM, WRONG_LINE, BYSTANDER_HARMED };
enum Who { OWNER_AND_OTHER, OTHER_AND_OTHER, OWNER_ENDED, WHO_COUNT };
enum After { ALLOC_FIRST, TRIM_FIRST, STATS_FIRST, CHECK_FIRST, WALK_FIRST, END_FIRST, AFTER_COUNT };

struct Race {
    Who who;
    After after;
    uint64_t seed;
};

/* In the child. */
std::atomic<void *> doubled{nullptr};
std::atomic<bool> over{false};
quire_heap *bystander;
const char *name_said = "quire: heap \"race\": ";
int to_parent = STDERR_FILENO; /* for what is wrong; the line of every panic goes nowhere */

void on_panic(const char *message, const void *address)
{
    if (!doubled.load())
        exit_now(FALSE_ALARM);
    /* Its page or span may be gone; and the two may have written their links over one another: then a block that is on its way with it may come twice (E1). */
    bool expected = strstr(message, "E6 ") || strstr(message, "E1 ") || ((strstr(message, "E2 ") || strstr(message, "E3 ")) && address == doubled.load());
    if (!expected || strncmp(message, name_said, strlen(name_said)) != 0)
        dprintf(to_parent, "got: %s, for %p\n", message, doubled.load()), exit_now(WRONG_LINE);
    const char *wrong = quire_heap_check(bystander);
    size_t live = stats_of(bystander).live_blocks;
    if (live != 3 || wrong)
        dprintf(to_parent, "in the hook: another heap has %zu blocks, not 3; check: %s\n", live, wrong ? wrong : "sound"), exit_now(BYSTANDER_HARMED);
    exit_now(over ? LATER : AT_ONCE);
}

class Duel {
public:
    explicit Duel(const Race &race_) : race(race_), random(race_.seed + 1)
    {
        static const size_t sizes[] = {16, 64, 500, 3000, 60000};
        bytes = sizes[race.seed % 5];
        quire_heap_opts opts = {};
        opts.name = "race";
        heap = race.seed % 10 == 9 ? quire_heap_default() : quire_heap_create(&opts); /* there threads keep large blocks */
        if (heap == quire_heap_default())
            name_said = "quire: heap: ";
        bystander = quire_heap_create(nullptr);
        if (race.who == OWNER_ENDED)
            std::thread([this] { fill(); }).join();
        else
            fill();
    }
    int run()
    {
        if (race.who == OWNER_AND_OTHER) {
            std::thread other([this] { side(1); });
            side(0);
            other.join();
        } else {
            std::thread a([this] { side(0); }), b([this] { side(1); });
            a.join(), b.join();
        }
        over = true;
        bring_home();
        unsigned times = handed_out() + handed_out();
        std::thread([&] { times += handed_out(); }).join();
        return times > 1 ? TWO_OWNERS : SILENT;
    }

private:
    void fill()
    {
        quire_heap_alloc(bystander, 100);
        for (int i = 0; i < 100; i++)
            blocks.push_back(quire_heap_alloc(heap, bytes));
        for (int i = 0; i < 20; i++) /* the pages are not all full */
            quire_heap_free(heap, take());
        victim = take();
    }
    void *take()
    {
        size_t k = random.below(blocks.size());
        void *p = blocks[k];
        blocks.erase(blocks.begin() + long(k));
        return p;
    }
    /* Both threads are here. */
    void meet()
    {
        unsigned turn = arrived.fetch_add(1) / 2;
        for (int spins = 0; arrived.load() / 2 <= turn; spins++)
            if (spins > 2000)
                sched_yield();
    }
    void side(unsigned me)
    {
        quire_heap_alloc(bystander, 100);
        for (unsigned i = 0; i < 8; i++) {
            meet();
            quire_heap_free(heap, blocks[2 * i + me]);
        }
        meet();
        if (me == 0)
            doubled = victim;
        meet();
        quire_heap_free(heap, victim);
        if (race.after != END_FIRST) /* else only the end of the thread sends it home */
            quire_heap_trim(bystander);
        meet();
    }
    void bring_home()
    {
        switch (race.after) {
        case TRIM_FIRST: quire_heap_trim(heap); break;
        case STATS_FIRST: stats_of(heap); break;
        case CHECK_FIRST: quire_heap_check(heap); break;
        case WALK_FIRST: heap_visited(heap); break;
        default: break;
        }
    }
    /* What a program does: it writes into what it gets.  How often that was the victim. */
    unsigned handed_out()
    {
        unsigned times = 0;
        for (int i = 0; i < 100; i++) {
            void *p = quire_heap_alloc(heap, bytes);
            heap_paint(p, bytes, 3);
            times += p == victim;
        }
        quire_heap_trim(heap);
        return times;
    }

    Race race;
    Random random;
    quire_heap *heap;
    size_t bytes;
    std::vector<void *> blocks;
    void *victim = nullptr;
    std::atomic<unsigned> arrived{0};
};

int outcome_of(const Race &race)
{
    return status_of_child([&] {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        to_parent = dup(STDERR_FILENO);
        dup2(null, STDERR_FILENO);
        quire_on_panic(on_panic);
        if (race.seed % 4 == 0)
            set_noise(noise);
        return Duel(race).run();
    });
}

std::string words(const Race &race, int outcome)
{
    static const char *whos[] = {"owner and other", "other and other", "two others, owner ended"}, *afters[] = {"alloc", "trim", "stats", "check", "walk", "the thread's end"};
    static const char *ends[] = {"at once", "later", "never seen", "handed out twice", "false alarm", "wrong line", "the hook found another heap harmed"};
    std::string end = outcome >= AT_ONCE && outcome <= BYSTANDER_HARMED ? ends[outcome - AT_ONCE] : "status " + std::to_string(outcome);
    return std::string(whos[race.who]) + ", then " + afters[race.after] + ", seed " + std::to_string(race.seed) + ": " + end;
}
} // namespace

TEST(HeapDoubleFreeRace, of_two_frees_at_the_same_moment_one_stops_the_process)
{
    const unsigned races = BUILT_WITH_TSAN || under_asan() ? 18 : test_long() ? 100000 : once_more() ? 54 : 180;
    unsigned at_once = 0, later = 0, silent = 0, missed = 0;
    for (unsigned i = 0; i < races; i++) {
        Race race = {Who(i % WHO_COUNT), After(i / WHO_COUNT % AFTER_COUNT), i / 7};
        int outcome = outcome_of(race);
        at_once += outcome == AT_ONCE, later += outcome == LATER, silent += outcome == SILENT;
        if (outcome != AT_ONCE && outcome != LATER && outcome != SILENT && ++missed <= 5)
            ADD_FAILURE() << words(race, outcome);
    }
    EXPECT_EQ(missed, 0u);
    EXPECT_EQ(silent, 0u);
    RecordProperty("races", int(races));
    RecordProperty("seen_at_once", int(at_once));
    RecordProperty("seen_later", int(later));
    RecordProperty("never_seen", int(silent));
}
