// SPDX-License-Identifier: MIT
/*
 * Two threads free one element at the same moment: one wins, the other stops the process.  In an exact slab at once or before the element is handed
 * out again; else before it is handed out a second time, when the other copy of it comes out of its magazine.
 *
 * The panic hook may not come back, so every race has a child of its own.  A child first runs races that are none (the two free neighbours),
 * in which nothing may be found, then the double free, then whatever collects what strangers freed.
 */
#include "race/slab_race.h"
#include "race/slab_seam.h"

#include <fcntl.h>
#include <sys/mman.h>

namespace {
enum Outcome { AT_ONCE = 40, LATER, SILENT, HANDED_OUT, FALSE_ALARM, WRONG_LINE, BYSTANDER_HARMED, AFTER_LAST_STEP };
enum Who { OWNER_AND_OTHER, OTHER_AND_OTHER, OWNER_ENDED, WHO_COUNT };
enum How { BOTH_SINGLE, SINGLE_AND_BATCH, BOTH_BATCH, HOW_COUNT };
enum After { ALLOC_FIRST, TRIM_FIRST, STATS_FIRST, CHECK_FIRST, WALK_FIRST, OTHER_ALLOC_FIRST, AFTER_COUNT };

struct Race {
    Who who;
    How how;
    After after;
    uint64_t seed;
    int step = -1; /* A stops at this atomic step; -1: both run at the same moment */
    bool exact = false;
    bool is_lonely() const { return seed % 5 == 4; } /* nothing else lives: the first free empties the page, which may be given back at once */
};

/* In the child: which element is freed twice, how far things are, and a slab that the hook looks at, as it may. */
std::atomic<void *> doubled{nullptr};
std::atomic<bool> over{false};
bool lonely;
int to_parent = STDERR_FILENO; /* for what is wrong; the line of every panic goes nowhere */
std::atomic<quire_slab *> bystander{nullptr};

void on_panic(const char *message, const void *address)
{
    char want[160];
    snprintf(want, sizeof want, "quire: slab \"race\": E1 the element is free already: address 0x%llx", (unsigned long long)(uintptr_t)doubled.load());
    if (!doubled.load())
        exit_now(FALSE_ALARM);
    /* Its page may have been given back after the first free. */
    bool gone = strstr(message, "E2 not an address of a slab") || strstr(message, "E3 not where an element begins") ||
                (over && strstr(message, "E7 written to after it was freed, or freed twice")); /* its other copy was had and written to */
    if (address != doubled.load() || (strcmp(message, want) != 0 && !gone))
        dprintf(to_parent, "wanted: %s\ngot:    %s\n", want, message), exit_now(WRONG_LINE);
    size_t live = stats_of(bystander).live_elements;
    const char *wrong = quire_slab_check(bystander);
    if (live != 3 || wrong) {
        dprintf(to_parent, "in the hook: another slab has %zu elements, not 3; check: %s\n", live, wrong ? wrong : "sound");
        exit_now(BYSTANDER_HARMED);
    }
    exit_now(Seam::is_passed() ? AFTER_LAST_STEP : over ? LATER : AT_ONCE);
}

/* Two threads start together, as nearly as two cores allow. */
class Start {
public:
    void meet()
    {
        unsigned turn = arrived.fetch_add(1) / 2;
        for (int spins = 0; arrived.load() / 2 <= turn; spins++)
            if (spins > 2000)
                sched_yield();
    }

private:
    std::atomic<unsigned> arrived{0};
};

class Duel {
public:
    explicit Duel(const Race &race_) : race(race_), random(race_.seed + 1)
    {
        static const size_t sizes[] = {16, 64, 256, 1024};
        quire_slab_opts opts = {};
        opts.name = "race";
        opts.page_bytes_max = random.below(2) ? os_page_bytes() : 0;
        opts.flags = race.is_lonely() && random.below(2) ? QUIRE_SLAB_KEEP_NOTHING : race.exact ? QUIRE_SLAB_EXACT : 0;
        lonely = race.is_lonely();
        slab = quire_slab_create(sizes[random.below(4)], &opts);
        bystander = quire_slab_create(64, nullptr);
        if (race.who == OWNER_ENDED)
            std::thread([this] { fill(); }).join();
        else
            fill();
    }

    int run()
    {
        unsigned rounds = race.step < 0 ? 8 : 0;
        if (race.who == OWNER_AND_OTHER) {
            std::thread other([=] { side(1, rounds); });
            side(0, rounds);
            other.join();
        } else {
            std::thread a([=] { side(0, rounds); }), b([=] { side(1, rounds); });
            a.join(), b.join();
        }
        over = true;
        collect();
        handed_out();
        std::thread([&] { handed_out(); }).join();
        return out > (race.exact ? 0 : 1) ? HANDED_OUT : SILENT;
    }

private:
    void fill()
    {
        quire_slab_alloc(bystander);
        for (int i = 0; i < 200; i++)
            elements.push_back(quire_slab_alloc(slab));
        for (int i = 0; i < 30; i++) /* the pages are not all full */
            quire_slab_free(slab, take());
        victim = take();
        if (race.is_lonely()) {
            quire_slab_free_batch(slab, elements.data(), elements.size());
            elements.assign(elements.size(), nullptr);
        }
    }
    void *take()
    {
        size_t k = random.below(elements.size());
        void *p = elements[k];
        elements.erase(elements.begin() + long(k));
        return p;
    }

    /* Thread `me` of two: neighbours first, then what both free. */
    void side(unsigned me, unsigned rounds)
    {
        quire_slab_alloc(bystander);
        for (unsigned i = 0; i < rounds; i++) {
            start.meet();
            quire_slab_free(slab, elements[2 * i + me]);
        }
        void *batch[] = {elements[100 + me], nullptr, elements[102 + me], victim, elements[104 + me]};
        bool in_batch = race.how == BOTH_BATCH || (race.how == SINGLE_AND_BATCH && me == race.seed % 2);
        start.meet();
        if (me == 0)
            doubled = victim;
        start.meet();
        if (race.step >= 0 && me == 0)
            Seam::arm(race.step);
        else if (race.step >= 0)
            Seam::wait_for_stop();
        if (in_batch)
            quire_slab_free_batch(slab, batch, 5);
        else
            quire_slab_free(slab, victim);
        if (race.step >= 0 && me == 0)
            Seam::disarm();
        else if (race.step >= 0)
            Seam::go_on();
    }

    void collect()
    {
        SlabStats s = {.struct_bytes = sizeof s};
        switch (race.after) {
        case TRIM_FIRST: quire_slab_trim(slab); break;
        case STATS_FIRST: quire_slab_stats(slab, &s); break;
        case CHECK_FIRST: quire_slab_check(slab); break;
        case WALK_FIRST: quire_slab_walk(slab, [](void *, void *) { return 0; }, nullptr); break;
        case OTHER_ALLOC_FIRST: std::thread([this] { handed_out(); }).join(); break;
        default: break;
        }
    }
    void handed_out()
    {
        for (int i = 0; i < 2000; i++)
            out += quire_slab_alloc(slab) == victim;
        if (out > (race.exact ? 0 : 1))
            exit_now(HANDED_OUT);
    }

    Race race;
    Random random;
    quire_slab *slab;
    std::vector<void *> elements;
    void *victim = nullptr;
    std::atomic<int> out{0};
    Start start;
};

int outcome_of(const Race &race)
{
    return status_of_child([&] {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        to_parent = dup(STDERR_FILENO);
        dup2(null, STDERR_FILENO);
        quire_on_panic(on_panic);
        Seam::reset(); /* other tests of this process have passed it */
        if (race.step >= 0)
            set_noise(Seam::step);
        else if (race.seed % 4 == 0)
            set_noise(noise);
        return Duel(race).run();
    });
}

std::string words(const Race &race, int outcome)
{
    static const char *whos[] = {"owner and other", "other and other", "two others, owner ended"}, *hows[] = {"single", "single and batch", "batch"};
    static const char *afters[] = {"alloc", "trim", "stats", "check", "walk", "another's alloc"};
    static const char *ends[] = {"at once", "later", "never seen", "handed out again", "false alarm", "wrong line", "the hook found another slab harmed", "after the last step"};
    std::string end = outcome >= AT_ONCE && outcome <= AFTER_LAST_STEP ? ends[outcome - AT_ONCE] : "status " + std::to_string(outcome);
    return std::string(whos[race.who]) + ", " + hows[race.how] + ", then " + afters[race.after] + ", seed " + std::to_string(race.seed) + ", step " +
           std::to_string(race.step) + (race.exact ? ", exact: " : ": ") + end;
}

class Tally {
public:
    ~Tally()
    {
        ::testing::Test::RecordProperty("races", int(at_once + later + missed));
        ::testing::Test::RecordProperty("seen_at_once", int(at_once));
        ::testing::Test::RecordProperty("seen_later", int(later));
    }
    void add(const Race &race, int outcome)
    {
        at_once += outcome == AT_ONCE, later += outcome == LATER;
        if (outcome == AT_ONCE || outcome == LATER)
            return;
        missed++;
        if (missed <= 5)
            ADD_FAILURE() << words(race, outcome);
    }
    unsigned at_once = 0, later = 0, missed = 0;
};
} // namespace

TEST(SlabDoubleFreeRace, of_two_frees_at_the_same_moment_one_stops_the_process)
{
    unsigned races = BUILT_WITH_TSAN || under_asan() ? 54 : test_long() ? 100000 : once_more() ? 108 : 324;
    Tally tally;
    for (unsigned i = 0; i < races; i++) {
        Race race = {Who(i % WHO_COUNT), How(i / WHO_COUNT % HOW_COUNT), After(i / (WHO_COUNT * HOW_COUNT) % AFTER_COUNT), i};
        race.exact = i / 7 % 2;
        tally.add(race, outcome_of(race));
    }
    EXPECT_EQ(tally.at_once + tally.later, races);
}

TEST(SlabDoubleFreeRace, wherever_the_first_free_is_when_the_second_comes_one_stops_the_process)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build has the steps";
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << "a child takes a quarter of a second under ThreadSanitizer; the races' children are all that is lost";
    Tally tally;
    unsigned pairs = 0;
    for (int kind = 0; kind < 2 * WHO_COUNT; kind++)
        for (int how = 0; how < HOW_COUNT; how++)
            for (unsigned seed = unsigned(kind + how) % 2, seeds = test_long() ? 32 : is_of_this_run(pairs++, 3); seeds > 0; seed++, seeds--)
                for (int step = 0; step < 400; step++) {
                    Race race = {Who(kind % WHO_COUNT), How(how), After((unsigned(step) + seed) % AFTER_COUNT), seed, step, kind >= WHO_COUNT};
                    int outcome = outcome_of(race);
                    if (outcome == AFTER_LAST_STEP)
                        break;
                    tally.add(race, outcome);
                    ASSERT_LE(tally.missed, 20u);
                }
    EXPECT_EQ(tally.missed, 0u);
}
