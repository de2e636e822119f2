// SPDX-License-Identifier: MIT
/*
 * explorer.cc - the search, and what a step does to a state (explorer.h).
 *
 *     state --thread 0's step, reading this--> state
 *           --thread 0's step, reading that--> state
 *           --thread 1's step----------------> state        depth first, each state once
 *
 * Steps that no other thread can see the moment of (plain accesses, release fences) are taken at once: their place among others' steps changes nothing,
 * unless there are barriers, which tell what a thread has done so far.
 */
#include "explorer.h"
#include "state.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_set>

namespace orders {
namespace {

/* The run of one thread's function, up to its first step without a result. */
struct Run {
    const Program *program;
    Thread *thread;
    uint8_t at;
    const char *broken;
    jmp_buf out;
} run;

struct Search {
    const Program *program;
    const Site *weakened;
    Result result;
    std::unordered_set<uint64_t> seen;
    std::vector<std::string> path;
    int words, threads;
    bool has_barriers; /* once one was met, all begins anew */
};

[[noreturn]] void unfit(const char *what)
{
    fprintf(stderr, "explorer: %s\n", what);
    abort();
}

/* ---- threads ---- */

/* -1: a setting that the program does not name; it stays as it is. */
int word_of(const Program &program, const void *address)
{
    for (size_t w = 0; w < program.words.size(); w++)
        if (program.words[w].address == address)
            return int(w);
    return -1;
}

/* The thread's next step; what it says is wrong, or NULL. */
const char *advance(const Program &program, Thread &thread, int number)
{
    run.program = &program;
    run.thread = &thread;
    run.at = 0;
    run.broken = nullptr;
    thread.notes = 0;
    if (setjmp(run.out) == 0) {
        program.threads[size_t(number)]();
        thread.has_ended = true;
    }
    return run.broken;
}

/* ---- views ---- */

void seen_by(Thread &thread, int w, int at)
{
    thread.now.at[w] = uint8_t(std::max<int>(thread.now.at[w], at));
    thread.acquired.join(thread.now);
}

void fence(State &state, Thread &thread)
{
    thread.now.join(thread.acquired);
    state.all.join(thread.now);
    thread.now = thread.acquired = thread.released = state.all;
}

void shift(uint8_t &at, int place) { at = uint8_t(at + (at >= place)); }

/* A store at `place` of the word's order; all that stand there or behind move up. */
void insert(State &state, int w, int place, const Store &store)
{
    Memory &memory = state.memory[w];
    if (memory.count == STORES_MAX)
        unfit("too many stores to one word");
    memmove(&memory.store[place + 1], &memory.store[place], size_t(memory.count - place) * sizeof store);
    memory.store[place] = store;
    memory.count++;
    shift(state.all.at[w], place);
    for (Thread &thread : state.thread) {
        shift(thread.now.at[w], place), shift(thread.acquired.at[w], place), shift(thread.released.at[w], place);
        thread.at_least[w] = uint8_t(thread.at_least[w] + (thread.at_least[w] > place));
    }
    for (Memory &each : state.memory)
        for (int i = 0; i < each.count; i++)
            if (&each.store[i] != &memory.store[place])
                shift(each.store[i].view.at[w], place);
}

bool acquires(orders_order order) { return order == ORDERS_ACQUIRE || order >= ORDERS_ACQ_REL; }
bool releases(orders_order order) { return order >= ORDERS_RELEASE; }

/* `read`: what an RMW has read, whose release it carries on. */
void put(State &state, Thread &thread, const Step &step, int place, uint64_t value, const View *read)
{
    Store store = {value, {}, read != nullptr};
    View carried = read ? *read : View{};
    insert(state, step.word, place, Store{});
    if (read)
        shift(carried.at[step.word], place);
    seen_by(thread, step.word, place);
    store.view = releases(step.order) ? thread.now : thread.released;
    store.view.join(carried);
    store.view.at[step.word] = uint8_t(place);
    state.memory[step.word].store[place] = store;
}

void take(Thread &thread, const Step &step, const Store &store, int at)
{
    seen_by(thread, step.word, at);
    thread.acquired.join(store.view);
    if (acquires(step.order))
        thread.now.join(store.view);
}

/* ---- the search ---- */

class Explorer {
public:
    explicit Explorer(Search &search_) : search(search_) {}

    void begin()
    {
        auto state = std::make_unique<State>();
        memset(static_cast<void *>(state.get()), 0, sizeof(State));
        for (int w = 0; w < search.words; w++) {
            state->memory[w].count = 1;
            state->memory[w].store[0].value = search.program->words[size_t(w)].initial;
            state->memory[w].writer = THREADS_MAX;
        }
        for (int t = 0; t < search.threads; t++)
            if (const char *broken = advance(*search.program, state->thread[t], t))
                return fail(broken);
        visit(*state);
    }

private:
    void fail(const std::string &what)
    {
        if (!search.result.wrong.empty())
            return;
        search.result.wrong = what;
        for (const std::string &step : search.path)
            search.result.wrong += "\n  " + step;
    }

    Step weakened(const Step &step, int t)
    {
        Site site = {step.word < 0 ? t : -1, step.word, step.kind, step.order};
        if (step.kind == ORDERS_BARRIER && !search.has_barriers) {
            search.has_barriers = true;
            fail("begins anew");
        }
        bool has_order = step.order != ORDERS_RELAXED || step.kind == ORDERS_BARRIER;
        if (has_order)
            search.result.sites.insert(site);
        Step weak = step;
        if (has_order && search.weakened && site == *search.weakened) {
            weak.order = ORDERS_RELAXED;
            if (step.word < 0)
                weak.kind = ORDERS_FENCE;
        }
        return weak;
    }

    /* Goes on from what `state` has become: thread t's step has had its effect, and this result. */
    void go(State &state, int t, uint64_t result)
    {
        Thread &thread = state.thread[t];
        const Step step = thread.next;
        if (thread.steps == STEPS_MAX)
            unfit("too many steps");
        thread.result[thread.steps++] = result;
        thread.now.clock[t] = thread.steps;
        if (step.word >= 0)
            thread.last_word = uint8_t(step.word);
        static const char *const kinds[] = {"load", "store", "exchange", "add", "cas", "fence", "barrier", "pause", "wait", "wake", "read", "write"};
        const char *word = step.word < 0 ? "" : search.program->words[size_t(step.word)].name;
        search.path.push_back("thread " + std::to_string(t) + ": " + kinds[step.kind] + " " + word + " " + std::to_string(step.value) + ", had " +
                              std::to_string(result));
        if (const char *broken = advance(*search.program, thread, t))
            fail(broken);
        else
            visit(state);
        search.path.pop_back();
    }

    void visit(State &state)
    {
        if (!search.result.wrong.empty() || !search.seen.insert(hash_of(state, search.words, search.threads)).second)
            return;
        search.result.states++;
        bool all_ended = true;
        for (int t = 0; t < search.threads; t++) {
            const Thread &thread = state.thread[t];
            bool unseen = thread.next.kind == ORDERS_READ || thread.next.kind == ORDERS_WRITE || (thread.next.kind == ORDERS_FENCE && thread.next.order != ORDERS_SEQ_CST);
            if (!thread.has_ended && unseen && !search.has_barriers)
                return (void)step(state, t);
            all_ended &= thread.has_ended;
        }
        if (all_ended)
            return end(state);
        bool moved = false;
        for (int t = 0; t < search.threads && search.result.wrong.empty(); t++)
            if (!state.thread[t].has_ended && !state.thread[t].sleeps)
                moved |= step(state, t);
        if (!moved && search.result.wrong.empty())
            fail("stuck: every thread waits");
    }

    void end(const State &state)
    {
        Notes notes;
        for (int t = 0; t < search.threads; t++)
            notes.insert(notes.end(), state.thread[t].note, state.thread[t].note + state.thread[t].notes);
        search.result.outcomes.insert(notes);
        Notes last;
        for (int w = 0; w < search.words; w++)
            last.push_back(state.memory[w].store[state.memory[w].count - 1].value);
        if (search.program->is_good && !search.program->is_good(last))
            fail("not a good end");
    }

    /* All that thread t's next step can come to.  False: it has to wait. */
    bool step(const State &state, int t)
    {
        const Step next = weakened(state.thread[t].next, t);
        switch (next.kind) {
        case ORDERS_LOAD: case ORDERS_EXCHANGE: case ORDERS_ADD: case ORDERS_CAS: return loads(state, t, next);
        case ORDERS_STORE: return stores(state, t, next);
        case ORDERS_READ: case ORDERS_WRITE: return touches(state, t, next);
        case ORDERS_WAKE: return wakes(state, t, next);
        default: return rests(state, t, next);
        }
    }

    bool loads(const State &state, int t, const Step &next)
    {
        const Memory &memory = state.memory[next.word];
        bool moved = false;
        for (int at = std::max(state.thread[t].now.at[next.word], state.thread[t].at_least[next.word]); at < memory.count; at++) {
            uint64_t value = memory.store[at].value;
            bool writes = next.kind != ORDERS_LOAD && (next.kind != ORDERS_CAS || value == next.expected);
            if (writes && at + 1 < memory.count && memory.store[at + 1].is_bound)
                continue;
            auto after = std::make_unique<State>(state);
            Step done = next;
            if (next.kind == ORDERS_CAS && !writes)
                done.order = ORDERS_RELAXED;
            View read = memory.store[at].view;
            take(after->thread[t], done, memory.store[at], at);
            if (writes)
                put(*after, after->thread[t], done, at + 1, next.kind == ORDERS_ADD ? value + next.value : next.value, &read);
            go(*after, t, value);
            moved = true;
        }
        return moved;
    }

    bool stores(const State &state, int t, const Step &next)
    {
        const Memory &memory = state.memory[next.word];
        for (int at = state.thread[t].now.at[next.word] + 1; at <= memory.count; at++) {
            if (at < memory.count && memory.store[at].is_bound)
                continue;
            auto after = std::make_unique<State>(state);
            put(*after, after->thread[t], next, at, next.value, nullptr);
            go(*after, t, 0);
        }
        return true;
    }

    bool touches(const State &state, int t, const Step &next)
    {
        auto after = std::make_unique<State>(state);
        Memory &memory = after->memory[next.word];
        const uint8_t *clock = after->thread[t].now.clock, step = uint8_t(after->thread[t].steps + 1);
        bool races = memory.writer < THREADS_MAX && memory.writer != t && memory.written > clock[memory.writer];
        for (int u = 0; u < search.threads && next.kind == ORDERS_WRITE; u++)
            races |= u != t && memory.read[u] > clock[u];
        if (races)
            fail(std::string("a race at ") + search.program->words[size_t(next.word)].name);
        if (next.kind == ORDERS_WRITE) {
            memory.store[0].value = next.value;
            memory.writer = uint8_t(t);
            memory.written = step;
        } else {
            memory.read[t] = step;
        }
        if (!races)
            go(*after, t, memory.store[0].value);
        return true;
    }

    bool wakes(const State &state, int t, const Step &next)
    {
        bool any = false;
        for (int u = 0; u < search.threads; u++) {
            if (!state.thread[u].sleeps || state.thread[u].last_word != next.word)
                continue;
            auto after = std::make_unique<State>(state);
            after->thread[u].sleeps = false;
            fence(*after, after->thread[t]);
            go(*after, t, 1);
            any = true;
        }
        if (!any) {
            auto after = std::make_unique<State>(state);
            fence(*after, after->thread[t]);
            go(*after, t, 0);
        }
        return true;
    }

    bool rests(const State &state, int t, const Step &next)
    {
        auto after = std::make_unique<State>(state);
        Thread &thread = after->thread[t];
        int w = next.kind == ORDERS_PAUSE ? thread.last_word : next.word;
        if (next.kind == ORDERS_PAUSE) {
            if (thread.now.at[w] + 1 >= after->memory[w].count)
                return false;
            thread.at_least[w] = uint8_t(thread.now.at[w] + 1);
        } else if (next.kind == ORDERS_WAIT) { /* the kernel looks at the word, under a lock of its own */
            fence(*after, thread);
            thread.sleeps = after->memory[w].store[after->memory[w].count - 1].value == next.expected;
            seen_by(thread, w, after->memory[w].count - 1);
        } else if (next.kind == ORDERS_BARRIER) {
            for (int twice = 0; twice < 2; twice++)
                for (int u = 0; u < search.threads; u++)
                    fence(*after, after->thread[u]);
        } else if (next.order == ORDERS_SEQ_CST) {
            fence(*after, thread);
        } else if (next.order == ORDERS_RELEASE) {
            thread.released = thread.now;
        } else if (next.order == ORDERS_ACQUIRE) {
            thread.now.join(thread.acquired);
        }
        go(*after, t, 0);
        return true;
    }

    Search &search;
};

} // namespace

Result explore(const Program &program, const Site *weakened)
{
    run.program = &program;
    Search search = {&program, weakened, {}, {}, {}, int(program.words.size()), int(program.threads.size()), false};
    if (search.words > WORDS_MAX || search.threads > THREADS_MAX)
        unfit("too many words or threads");
    Explorer(search).begin();
    if (search.has_barriers) {
        search.result = {};
        search.seen.clear();
        Explorer(search).begin();
    }
    run.program = nullptr;
    return search.result;
}

std::string name_of(const Program &program, const Site &site)
{
    static const char *const kinds[] = {"load", "store", "exchange", "add", "cas", "fence", "barrier"}, *const ordered[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
    std::string word = site.word < 0 ? "of thread " + std::to_string(site.thread) : program.words[size_t(site.word)].name;
    return std::string(kinds[site.kind]) + " " + word + " " + ordered[site.order];
}

uint64_t read(const void *word) { return orders_step(ORDERS_READ, ORDERS_RELAXED, word, 0, 0); }
void write(void *word, uint64_t value) { orders_step(ORDERS_WRITE, ORDERS_RELAXED, word, value, 0); }
void barrier() { orders_step(ORDERS_BARRIER, ORDERS_RELAXED, nullptr, 0, 0); }

void note(uint64_t value)
{
    if (run.thread->notes == NOTES_MAX)
        unfit("too many notes");
    run.thread->note[run.thread->notes++] = value;
}

void must(bool condition, const char *what)
{
    if (condition)
        return;
    run.broken = what;
    longjmp(run.out, 1);
}

} // namespace orders

uint64_t orders_step(orders_kind kind, orders_order order, const void *word, uint64_t value, uint64_t expected)
{
    using namespace orders;
    int named = run.program && word ? word_of(*run.program, word) : -1;
    if (word && named < 0) {
        uint32_t *setting = static_cast<uint32_t *>(const_cast<void *>(word));
        if (kind == ORDERS_STORE && !run.program)
            *setting = uint32_t(value);
        else if (kind != ORDERS_LOAD)
            unfit("a step at a word that the program does not name");
        return *setting;
    }
    if (run.at < run.thread->steps)
        return run.thread->result[run.at++];
    run.thread->next = {kind, order, named, value, expected};
    longjmp(run.out, 1);
}
