// SPDX-License-Identifier: MIT
/*
 * explorer.h - every execution of a small program of threads that a memory model with acquire and release allows.
 *
 *     word "open":   [ 0 | view ] -> [ 1 | view ] -> [ 0 | view ]      its stores, in their order of modification; each with what it publishes
 *     thread:        now       how far it has seen each word: it reads that store, or a later one
 *                    acquired  what the relaxed loads so far would publish to it, at its next acquire fence
 *                    released  what a relaxed store of it publishes: what it had seen at its last release fence
 *
 * The model is the one of views, as in Kang et al., "A Promising Semantics for Relaxed-Memory Concurrency" (2017), without its promises: stores may be put
 * anywhere in a word's order that the thread has not seen, an RMW stands directly behind what it read and carries on its release, fences of
 * sequential consistency pass on one view of all.  Without promises no thread reads what a later step of it makes possible: C11's load buffering is not
 * explored (RC11 forbids it, a processor may show it).  Loads and stores of order seq_cst are not part of it; fences are.
 *
 * Plain words have no orders: two accesses of one, one of them a write, of which neither happens before the other, are a race, and a failure.
 *
 * A thread's function is run again from its start for each step, and is given the results that it had: so it must do nothing but steps, and hold nothing
 * that needs a destructor.  A state is known again by a hash of 64 bits: two
 * of a hundred thousand are taken for one once in four thousand million runs.
 */
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/atomic.h"

namespace orders {

struct Word {
    const char *name;
    const void *address;
    uint64_t initial;
};

/* One kind of step of the program: the same word, kind and order; a fence or barrier by its thread. */
struct Site {
    int thread, word;
    orders_kind kind;
    orders_order order;
    bool operator<(const Site &b) const
    {
        return std::array<int, 4>{thread, word, kind, order} < std::array<int, 4>{b.thread, b.word, b.kind, b.order};
    }
    bool operator==(const Site &b) const { return !(*this < b) && !(b < *this); }
};

using Notes = std::vector<uint64_t>;

struct Program {
    std::vector<Word> words;                   /* all that the threads' steps are at, atomic or plain */
    std::vector<std::function<void()>> threads; /* four at most */
    std::function<bool(const Notes &)> is_good; /* of the words' last values, when all threads have ended; none: always */
};

struct Result {
    std::string wrong; /* empty: nothing is */
    std::set<Notes> outcomes; /* what the threads have noted, in the threads' order */
    std::set<Site> sites;
    size_t states = 0;
};

/* `weakened`: steps of this site are relaxed, a fence or barrier of it is none. */
Result explore(const Program &program, const Site *weakened = nullptr);
std::string name_of(const Program &program, const Site &site);

/* ---- for threads' functions ---- */

uint64_t read(const void *word);          /* plain */
void write(void *word, uint64_t value);   /* plain */
void barrier();                           /* os_barrier() */
void note(uint64_t value);
void must(bool condition, const char *what);

} // namespace orders
