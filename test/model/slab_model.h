// SPDX-License-Identifier: MIT
/*
 * slab_model.h - random operation programs on a slab, against a plain model: the set of what lives, each with its bytes.
 *
 * Choices gives the program: below(n) is a number under n.  The tests draw them from a seed, the fuzzer from its bytes.  A difference throws.
 *
 * Threads take turns: each operation is done by the caller's thread or by one of its workers while all others wait, so that a free by
 * another thread than the one that allocated, and an end of a thread, come at a place that repeats.
 */
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>
#include <vector>

#include "model/must.h"
#include "model/slab_clock.h"
#include "model/slab_setup.h"
#include "model/slab_worker.h"
#include "os/sanitize.h"
#include "slab/slab_mark.h"

template <typename Choices> class SlabModel {
public:
    explicit SlabModel(const SlabSetup &setup_) : setup(setup_), source(new SlabSource(setup.source, setup.source_number))
    {
        setup.opts.source = source->source();
        errno = 0;
        slab = setup.markable ? slab_create_markable(setup.element_bytes, &setup.opts) : quire_slab_create(setup.element_bytes, &setup.opts);
        MUST(slab || (errno == ENOMEM && may_refuse()));
        element_bytes = std::max<size_t>(setup.element_bytes, 1);
        align_bytes = setup.opts.align_bytes ? setup.opts.align_bytes : 16;
        while (workers.size() < setup.workers)
            workers.push_back(std::make_unique<Worker>());
        for (size_t i = 0; i <= workers.size(); i++)
            threads.push_back(i);
    }

    /* The end of a program: every element is as it was, and all memory is back. */
    void end()
    {
        verify();
        if (live.size() % 2 == 0)
            while (!live.empty())
                quire_slab_free(slab, forget(live.size() - 1));
        agree();
        quire_slab_destroy(slab);
        MUST(source->taken_bytes() == 0);
        delete source;
    }

    void step(Choices &random)
    {
        if (!slab)
            return;
        unsigned op = unsigned(random.below(100));
        if (op < 48)
            allocate(random, op);
        else if (op < 84)
            give_back(random, op);
        else if (op < 88)
            trim(random);
        else if (op < 90)
            by(random, [&](size_t) { quire_slab_set_defrag(slab, uint32_t(op & 1)); });
        else if (op < 93)
            walk(random);
        else if (op < 96)
            ask(random);
        else if (op < 98)
            setup.markable ? unmark(random) : decay(random);
        else if (!workers.empty())
            replace(random.below(workers.size()));
        agree();
    }

    void verify()
    {
        for (const Element &element : live)
            verify_element(element);
    }

private:
    struct Element {
        char *p;
        uint8_t value;
        uint64_t owner; /* the thread that allocated it, as numbered in `threads` */
        bool marked;
    };
    using Who = size_t; /* 0: the caller's thread, else a worker */

    bool may_refuse() const { return setup.opts.limit_bytes || source->may_refuse(); }

    template <typename Work> void at(Who who, const Work &work)
    {
        if (who == 0)
            work(who);
        else
            workers[who - 1]->run([&] { work(who); });
    }
    template <typename Work> Who by(Choices &random, const Work &work)
    {
        Who who = Who(random.below(workers.size() + 1));
        at(who, work);
        return who;
    }

    /* ---- allocating ---- */

    void allocate(Choices &random, unsigned op)
    {
        if (live.size() >= 3000 || live.size() * element_bytes > (4u << 20))
            return free_range(random, 0, live.size() / 2);
        if (op < 30)
            alloc_one(random, false);
        else if (op < 36)
            alloc_one(random, true);
        else
            alloc_batch(random);
    }

    void alloc_one(Choices &random, bool zero)
    {
        bool marked = setup.markable && !zero && random.below(2);
        void *p = nullptr;
        int error = 0;
        Who who = by(random, [&](Who) {
            errno = 77;
            p = marked ? slab_alloc_marked(slab) : zero ? quire_slab_alloc_zero(slab) : quire_slab_alloc(slab);
            error = errno;
        });
        if (!p)
            return refused(random, who, error);
        MUST(!zero || filled_with(p, 0, element_bytes));
        add(p, who, marked);
    }

    void alloc_batch(Choices &random)
    {
        size_t count = random.below(4) ? random.below(20) : random.below(400), got = 0;
        count = std::min(count, 1 + (2u << 20) / element_bytes);
        std::vector<void *> batch(count + 1, this);
        int error = 0;
        Who who = by(random, [&](Who) {
            errno = 77;
            got = quire_slab_alloc_batch(slab, batch.data(), count);
            error = errno;
        });
        MUST(got <= count && batch[count] == this);
        for (size_t i = 0; i < got; i++)
            add(batch[i], who);
        if (got < count)
            refused(random, who, error);
    }

    /* Over the limit; but what anybody frees of a thread's elements is room for that thread at once. */
    void refused(Choices &random, Who who, int error)
    {
        MUST(error == ENOMEM && may_refuse());
        size_t k = live.empty() ? 0 : random.below(live.size());
        if (live.empty() || live[k].owner != threads[who] || setup.markable)
            return;
        free_range(random, k, 1);
        void *p = nullptr;
        at(who, [&](Who) { p = quire_slab_alloc(slab); });
        if (!p && setup.source == SlabSource::FAILING) /* the one take that it fails may be this */
            at(who, [&](Who) { p = quire_slab_alloc(slab); });
        MUST(p != nullptr);
        add(p, who);
    }

    void add(void *p, Who who, bool marked = false)
    {
        char *start = static_cast<char *>(p);
        MUST(start != nullptr && uintptr_t(p) % align_bytes == 0);
        auto after = places.lower_bound(start);
        MUST(after == places.end() || after->first >= start + element_bytes); /* overlaps the element after it */
        MUST(after == places.begin() || std::prev(after)->first + element_bytes <= start); /* overlaps the one before it */
        places[start] = live.size();
        live.push_back({start, ++value, threads[who], marked});
        write_element(live.back());
    }

    void write_element(const Element &element) const
    {
        if (element_bytes <= 4096) {
            memset(element.p, element.value, element_bytes);
            return;
        }
        for (size_t i = 0; i < element_bytes; i += stride(element.value))
            element.p[i] = char(element.value);
        element.p[element_bytes - 1] = char(element.value);
    }

    /* Of a large element, from one byte that is written to the next: every page of one in eight, for most of a fuzzer's time would go into page faults. */
    static size_t stride(uint8_t value) { return value % 8 ? 32749 : 509; }

    /* ---- freeing ---- */

    void give_back(Choices &random, unsigned op)
    {
        if (live.empty())
            return;
        if (op < 70)
            free_range(random, random.below(live.size()), 1);
        else if (op < 82)
            free_range(random, random.below(live.size()), random.below(live.size() < 600 ? live.size() + 1 : 300));
        else if (random.below(4) == 0)
            free_range(random, 0, live.size()); /* all */
    }

    /* `count` elements from the one at `first` on, by one thread: one by one or as a batch, as they came or as neighbours, with NULLs. */
    void free_range(Choices &random, size_t first, size_t count)
    {
        std::vector<void *> batch;
        for (size_t i = 0; i < count && !live.empty(); i++)
            batch.push_back(forget(std::min(first, live.size() - 1)));
        uint64_t how = random.below(8);
        if (how & 1)
            std::sort(batch.begin(), batch.end());
        if (how & 2)
            batch.insert(batch.begin() + long(random.below(batch.size() + 1)), nullptr);
        by(random, [&](Who) {
            errno = 77;
            if (how & 4)
                quire_slab_free_batch(slab, batch.data(), batch.size());
            else
                for (void *p : batch)
                    quire_slab_free(slab, p);
            MUST(errno == 77);
        });
        if (!batch.empty() && batch[0])
            freed = static_cast<char *>(batch[0]);
    }

    char *forget(size_t k)
    {
        Element gone = live[k];
        verify_element(gone);
        places.erase(gone.p);
        if (k != live.size() - 1) {
            live[k] = live.back();
            places[live[k].p] = k;
        }
        live.pop_back();
        return gone.p;
    }

    void verify_element(const Element &element) const
    {
        if (element_bytes <= 4096) {
            MUST(filled_with(element.p, element.value, element_bytes));
            return;
        }
        for (size_t i = 0; i < element_bytes; i += stride(element.value))
            MUST(uint8_t(element.p[i]) == element.value);
        MUST(uint8_t(element.p[element_bytes - 1]) == element.value);
    }

    /* ---- all else ---- */

    void trim(Choices &random)
    {
        struct quire_slab_stats before = {.struct_bytes = sizeof before}, after = {.struct_bytes = sizeof after};
        bool quiet = clock.quiet();
        quire_slab_stats(slab, &before);
        size_t given = 0;
        by(random, [&](Who) { given = quire_slab_trim(slab); });
        quire_slab_stats(slab, &after);
        MUST(after.mapped_bytes + given <= before.mapped_bytes); /* less when the clock gave some back meanwhile */
        MUST(after.mapped_bytes + given == before.mapped_bytes || !quiet);
        MUST(after.empty_pages <= 1);
    }

    struct Walk {
        SlabModel *model;
        std::set<char *> todo;  /* lived when the walk began */
        std::set<char *> born;  /* since */
        size_t stop_after, seen;
        bool meddle;
        Who who;
    };
    static int visit(void *element, void *arg)
    {
        Walk *walk = static_cast<Walk *>(arg);
        SlabModel *model = walk->model;
        char *p = static_cast<char *>(element);
        MUST(walk->todo.erase(p) == 1 || walk->born.count(p)); /* each once */
        auto place = model->places.find(p);
        MUST(place != model->places.end());
        if (walk->meddle && walk->seen % 3 == 0)
            quire_slab_free(model->slab, model->forget(place->second));
        void *q = walk->meddle && walk->seen % 7 == 0 && walk->seen < 700 ? quire_slab_alloc(model->slab) : nullptr;
        if (q) {
            model->add(q, walk->who);
            walk->born.insert(static_cast<char *>(q));
        }
        return ++walk->seen == walk->stop_after ? 7 : 0;
    }

    void walk(Choices &random)
    {
        Walk walk = {this, {}, {}, random.below(3) ? 0 : 1 + random.below(live.size() + 1), 0, random.below(3) == 0, 0};
        for (const Element &element : live)
            walk.todo.insert(element.p);
        size_t expected = live.size();
        int result = 0;
        by(random, [&](Who who) {
            walk.who = who;
            result = quire_slab_walk(slab, visit, &walk);
        });
        if (result == 7)
            MUST(walk.seen == walk.stop_after);
        else
            MUST(result == 0 && walk.todo.empty() && walk.seen >= expected);
    }

    void ask(Choices &random)
    {
        const char *p = freed;
        if (!live.empty()) {
            p = live[random.below(live.size())].p;
            MUST(quire_slab_owns(slab, p + random.below(element_bytes)));
        }
        if (p) {
            p += slot_bytes * random.below(5);
            auto next = places.upper_bound(const_cast<char *>(p));
            size_t offset = next == places.begin() ? SIZE_MAX : size_t(p - std::prev(next)->first);
            MUST(quire_slab_owns(slab, p) == (offset < element_bytes) || (offset >= element_bytes && offset < slot_bytes));
        }
        for (const void *wild : {static_cast<const void *>(this), static_cast<const void *>(nullptr), static_cast<const void *>(slab)})
            MUST(!quire_slab_owns(slab, wild));
        MUST(!quire_slab_owns(slab, reinterpret_cast<const void *>(uintptr_t(random.below(65536) << 47))));
    }

    void unmark(Choices &random)
    {
        MUST(!slab_unmark(slab, nullptr) && !slab_unmark(slab, this) && !slab_unmark(slab, freed && !places.count(freed) ? freed : nullptr));
        for (size_t i = live.empty() ? 0 : random.below(20); i > 0; i--) {
            Element &element = live[random.below(live.size())];
            bool taken_off = false;
            by(random, [&](Who) { taken_off = slab_unmark(slab, element.p); });
            MUST(taken_off == element.marked);
            element.marked = false;
        }
    }

    void decay(Choices &random)
    {
        uint64_t choice = random.below(4);
        if (setup.sets_decay)
            clock.set(choice == 0 ? 0 : choice == 1 ? 1000000 : 1000000000);
        if (setup.sets_decay && choice == 1)
            usleep(2500);
    }

    void replace(size_t k)
    {
        workers[k] = nullptr; /* it ends first: the next may find what it left */
        workers[k] = std::make_unique<Worker>();
        threads[k + 1] = ++thread_count;
    }

    void agree()
    {
        if (!slab)
            return;
        const char *error = quire_slab_check(slab);
        if (error)
            fprintf(stderr, "%s\n", error);
        MUST(error == nullptr);
        struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
        quire_slab_stats(slab, &stats);
        MUST(stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes);
        MUST(stats.live_elements == live.size());
        MUST(stats.live_bytes == stats.live_elements * stats.slot_bytes);
        MUST(stats.peak_bytes >= stats.mapped_bytes && stats.empty_pages <= stats.pages);
        MUST(stats.limit_bytes == setup.opts.limit_bytes);
        MUST(stats.limit_bytes == 0 || stats.peak_bytes <= stats.limit_bytes);
        MUST(stats.slot_bytes >= element_bytes && stats.slot_bytes % align_bytes == 0);
        MUST(sanitize_watched() || stats.slot_bytes < element_bytes + align_bytes);
        if (source->source() && clock.quiet()) /* the sum, as somebody else counts it */
            MUST(source->taken_bytes() == stats.mapped_bytes - stats.meta_bytes);
        slot_bytes = stats.slot_bytes;
        if (workers.empty() && !may_refuse() && setup.opts.flags & QUIRE_SLAB_KEEP_NOTHING)
            MUST(stats.empty_pages <= (setup.markable ? 3 : 2)); /* where the next element comes from, and what is left of the slab's own page */
    }

    SlabSetup setup;
    SlabSource *source; /* after a difference it is left alone, with what the slab has of it */
    quire_slab *slab;
    size_t element_bytes, align_bytes, slot_bytes = 16;
    std::vector<Element> live;
    std::map<char *, size_t> places; /* of what lives: address -> index */
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<uint64_t> threads; /* by place: the number of the thread that has it now */
    uint64_t thread_count = 100;
    char *freed = nullptr;
    SlabClock clock;
    uint8_t value = 0;
};
