// SPDX-License-Identifier: MIT
/*
 * percpu_model.h - random operation programs on a pool, against a plain model: of each object an array with a copy for each CPU.
 *
 *     a copy:  | word, or the head of a list (8 bytes, in some objects) | one byte's value, over and over ... |
 *
 * Choices gives the program: below(n) is a number under n.  The tests draw them from a seed, the fuzzer from its bytes.  A difference throws.
 *
 * Threads take turns, as in slab_model.h, and each runs on a CPU that the program chooses, so that it is known which copy an operation changes.
 * Copies are read by their address, which leaves no mark in the pool as quire_percpu_at() does.
 */
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "model/must.h"
#include "model/percpu_figures.h"
#include "model/percpu_setup.h"
#include "model/slab_worker.h"

using PercpuRef = struct quire_percpu_ref;

template <typename Choices> class PercpuModel {
public:
    explicit PercpuModel(const PercpuSetup &setup_, Choices &random) : setup(setup_), places(setup.mode), source(setup.source, setup.source_number)
    {
        setup.opts.source = source.source();
        errno = 0;
        pool = quire_percpu_create(&setup.opts);
        MUST(pool || (errno == ENOMEM && may_refuse()));
        if (!pool)
            return;
        window = reinterpret_cast<const struct quire_percpu_window *>(pool);
        cpus = quire_percpu_cpus(pool);
        MUST(cpus == setup.opts.cpus);
        while (workers.size() < setup.workers)
            workers.push_back(std::make_unique<Worker>());
        cpu_of.resize(workers.size() + 1);
        for (size_t who = 0; who < cpu_of.size(); who++)
            migrate(random, who);
    }
    PercpuModel(const PercpuModel &) = delete;
    PercpuModel &operator=(const PercpuModel &) = delete;

    /* False: the pool could not be had, and there is nothing to step through. */
    bool alive() const { return pool != nullptr; }

    /* The end of a program: every copy is as it was, the figures agree, and all memory is back. */
    void end()
    {
        if (!pool)
            return;
        verify();
        agree(true);
        if (live.size() % 2 == 0)
            while (!live.empty())
                quire_percpu_free(pool, forget(live.size() - 1)), frees++;
        agree(true);
        quire_percpu_destroy(pool);
        pool = nullptr;
        MUST(source.taken_bytes() == 0);
    }

    void step(Choices &random)
    {
        unsigned op = unsigned(random.below(100));
        if (op < 28)
            allocate(random);
        else if (op < 46)
            give_back(random, op);
        else if (op < 80)
            operate(random, op);
        else if (op < 88)
            write(random);
        else if (op < 91)
            ask(random);
        else if (op < 93)
            trim(random);
        else if (op < 99)
            migrate(random, random.below(cpu_of.size()));
        else if (!workers.empty())
            replace(random, random.below(workers.size()));
        steps++;
        if (steps % 4 == 0)
            agree(steps % 32 == 0);
    }

    void verify()
    {
        for (const Object &object : live)
            verify_object(object);
    }

private:
    struct Node {
        Node *link;
        uint64_t number;
    };
    struct Copy {
        intptr_t word = 0;
        uint8_t fill = 0;
        std::vector<Node *> list;
    };
    enum Kind { PLAIN, COUNTER, LIST };
    struct Object {
        PercpuRef ref;
        size_t bytes, align;
        Kind kind;
        std::vector<Copy> copies; /* the last is what CPUs without a copy share */
    };
    using Who = size_t; /* 0: the caller's thread, else a worker */

    bool may_refuse() const { return setup.opts.limit_bytes || source.may_refuse(); }
    char *address(const Object &object, unsigned copy) const
    {
        return reinterpret_cast<char *>(object.ref.bits + (uintptr_t(copy) << window->unit_shift));
    }
    unsigned copy_of(Who who) const { return std::min(cpu_of[who], cpus); }

    template <typename Work> void at(Who who, const Work &work)
    {
        if (who == 0)
            work();
        else
            workers[who - 1]->run(work);
    }
    template <typename Work> Who by(Choices &random, const Work &work)
    {
        Who who = Who(random.below(cpu_of.size()));
        at(who, [&] { work(who); });
        return who;
    }
    Object *choose(Choices &random, Kind kind)
    {
        for (int tries = 0; tries < 4 && !live.empty(); tries++) {
            Object &object = live[random.below(live.size())];
            if (object.kind == kind)
                return &object;
        }
        return nullptr;
    }

    /* ---- allocating ---- */

    void allocate(Choices &random)
    {
        size_t unit = size_t(1) << window->unit_shift, most = unit - os_page_bytes();
        if (live.size() >= 1200 || live_words * 4 > 6 * unit)
            return free_some(random, live.size() / 2);
        size_t bytes = random.below(5) == 0 ? 4 : random.below(4) ? random.below(200) : random.below(8) ? random.below(most / 8) : random.below(most + 1);
        size_t align = random.below(3) ? 0 : size_t(1) << random.below(os_page_shift() + 1);
        bool nowait = random.below(4) == 0;
        PercpuRef ref = {0};
        int error = 0;
        by(random, [&](Who) {
            errno = 77;
            ref = nowait ? quire_percpu_alloc_nowait(pool, bytes, align) : quire_percpu_alloc(pool, bytes, align);
            error = errno;
        });
        MUST(error == (ref.bits ? 77 : ENOMEM) && (ref.bits || nowait || may_refuse()));
        if (!ref.bits)
            return;
        add(ref, bytes, align ? align : bytes < 8 ? 4 : 8);
        allocs++;
        if (live.back().bytes >= 8 && ref.bits % 8 == 0)
            live.back().kind = Kind(random.below(3));
    }

    void add(PercpuRef ref, size_t asked_bytes, size_t align)
    {
        size_t bytes = std::max<size_t>(asked_bytes, 1);
        MUST(ref.bits % 4 == 0 && ref.bits % align == 0);
        auto after = index.lower_bound(ref.bits);
        MUST(after == index.end() || after->first >= ref.bits + bytes); /* overlaps the object after it */
        MUST(after == index.begin() || live[std::prev(after)->second].ref.bits + live[std::prev(after)->second].bytes <= ref.bits); /* before */
        uintptr_t unit = ref.bits & window->unit_mask;
        MUST(ref.bits > unit && ref.bits + bytes <= unit + (uintptr_t(1) << window->unit_shift));
        index[ref.bits] = live.size();
        live.push_back({ref, bytes, align, PLAIN, std::vector<Copy>(cpus + 1)});
        live_words += (bytes + 3) / 4;
        peak = std::max(peak, live.size());
        verify_object(live.back()); /* zero on every CPU */
    }

    /* ---- freeing ---- */

    void give_back(Choices &random, unsigned op)
    {
        if (live.empty())
            return;
        if (op < 44)
            free_some(random, 1);
        else
            free_some(random, random.below(random.below(8) ? 20 : live.size() + 1));
    }

    /* One thread frees `count` of them: neighbours, or any. */
    void free_some(Choices &random, size_t count)
    {
        std::vector<PercpuRef> refs;
        bool neighbours = random.below(2);
        for (size_t first = live.empty() ? 0 : random.below(live.size()), i = 0; i < count && !live.empty(); i++)
            refs.push_back(forget(neighbours ? std::min(first, live.size() - 1) : random.below(live.size())));
        by(random, [&](Who) {
            errno = 77;
            for (PercpuRef ref : refs)
                quire_percpu_free(pool, ref);
            quire_percpu_free(pool, {0});
            MUST(errno == 77);
        });
        frees += refs.size();
        if (!refs.empty())
            freed = refs.back();
    }

    PercpuRef forget(size_t k)
    {
        Object gone = live[k];
        verify_object(gone);
        index.erase(gone.ref.bits);
        live_words -= (gone.bytes + 3) / 4;
        if (k != live.size() - 1) {
            live[k] = live.back();
            index[live[k].ref.bits] = k;
        }
        live.pop_back();
        for (Copy &copy : gone.copies)
            for (Node *node : copy.list)
                idle.push_back(node);
        return gone.ref;
    }

    /* ---- what copies hold ---- */

    void verify_object(const Object &object) const
    {
        for (unsigned k = 0; k <= cpus; k++) {
            const Copy &copy = object.copies[k];
            const char *p = address(object, k);
            size_t from = object.kind == PLAIN ? 0 : 8;
            if (object.kind == COUNTER)
                MUST(memcmp(p, &copy.word, 8) == 0);
            if (object.kind == LIST) {
                const Node *head = copy.list.empty() ? nullptr : copy.list.back();
                MUST(memcmp(p, &head, 8) == 0);
            }
            if (object.bytes <= 600)
                MUST(filled_with(p + from, copy.fill, object.bytes - from));
            for (size_t i = from; i < object.bytes; i += 61)
                MUST(uint8_t(p[i]) == copy.fill);
            MUST(object.bytes == from || uint8_t(p[object.bytes - 1]) == copy.fill);
        }
    }

    void write(Choices &random)
    {
        if (live.empty())
            return;
        Object &object = live[random.below(live.size())];
        unsigned cpu = unsigned(random.below(cpus));
        uint8_t fill = uint8_t(random.below(256));
        intptr_t word = intptr_t(random.next());
        size_t from = object.kind == PLAIN ? 0 : 8;
        by(random, [&](Who) {
            char *p = static_cast<char *>(quire_percpu_at(pool, object.ref, cpu));
            MUST(p == address(object, cpu));
            memset(p + from, fill, object.bytes - from);
            if (object.kind == COUNTER)
                memcpy(p, &word, 8);
            errno = 0;
            MUST(quire_percpu_at(pool, object.ref, cpus + cpu) == nullptr && errno == EINVAL);
        });
        object.copies[cpu].fill = fill;
        if (object.kind == COUNTER)
            object.copies[cpu].word = word;
    }

    /* ---- this CPU's copy ---- */

    void operate(Choices &random, unsigned op)
    {
        if (op < 60)
            count(random);
        else if (op < 68)
            exchange(random);
        else if (op < 74)
            push(random);
        else
            pop(random);
    }

    void count(Choices &random)
    {
        Object *object = choose(random, COUNTER);
        if (!object)
            return;
        intptr_t value = random.below(3) ? intptr_t(random.below(1000)) - 500 : intptr_t(random.next() << 20);
        uint64_t times = 1 + random.below(4);
        Who who = by(random, [&](Who) {
            for (uint64_t i = 0; i < times; i++)
                quire_percpu_add(pool, object->ref, value);
        });
        Copy &copy = object->copies[copy_of(who)];
        copy.word = intptr_t(uintptr_t(copy.word) + uintptr_t(value) * times);
        uintptr_t sum = 0;
        for (const Copy &each : object->copies)
            sum += uintptr_t(each.word);
        by(random, [&](Who) { MUST(quire_percpu_sum(pool, object->ref) == intptr_t(sum)); });
    }

    void exchange(Choices &random)
    {
        Object *object = choose(random, COUNTER);
        if (!object)
            return;
        bool right = random.below(2), done = false;
        intptr_t off = right ? 0 : 1 + intptr_t(random.below(9)), desired = intptr_t(random.below(100)), expected = 0, was = 0;
        Who who = by(random, [&](Who here) {
            was = object->copies[copy_of(here)].word;
            expected = intptr_t(uintptr_t(was) + uintptr_t(off));
            done = quire_percpu_cmpxchg(pool, object->ref, &expected, desired);
        });
        MUST(done == right && expected == was);
        if (done)
            object->copies[copy_of(who)].word = desired;
    }

    void push(Choices &random)
    {
        Object *object = choose(random, LIST);
        if (!object)
            return;
        if (idle.empty()) {
            nodes.push_back(std::make_unique<Node>());
            idle.push_back(nodes.back().get());
        }
        Node *node = idle.back();
        idle.pop_back();
        node->number = ++pushes;
        Who who = by(random, [&](Who) { quire_percpu_push(pool, object->ref, node); });
        std::vector<Node *> &list = object->copies[copy_of(who)].list;
        MUST(node->link == (list.empty() ? nullptr : list.back()) && node->number == pushes);
        list.push_back(node);
    }

    void pop(Choices &random)
    {
        Object *object = choose(random, LIST);
        if (!object)
            return;
        void *got = nullptr;
        Who who = by(random, [&](Who) { got = quire_percpu_pop(pool, object->ref); });
        std::vector<Node *> &list = object->copies[copy_of(who)].list;
        MUST(got == (list.empty() ? nullptr : list.back()));
        if (list.empty())
            return;
        idle.push_back(list.back());
        list.pop_back();
    }

    /* ---- all else ---- */

    void ask(Choices &random)
    {
        uintptr_t bits = freed.bits;
        if (!live.empty()) {
            const Object &object = live[random.below(live.size())];
            MUST(quire_percpu_owns(pool, object.ref));
            bits = object.ref.bits + random.below(object.bytes + 8);
        }
        MUST(quire_percpu_owns(pool, {bits}) == (index.count(bits) == 1));
        MUST(quire_percpu_owns(pool, freed) == (index.count(freed.bits) == 1));
        bits += uintptr_t(1) << window->unit_shift;
        MUST(quire_percpu_owns(pool, {bits}) == (index.count(bits) == 1));
        for (uintptr_t wild : {uintptr_t(0), uintptr_t(this), uintptr_t(pool), uintptr_t(random.below(65536) << 47)})
            MUST(!quire_percpu_owns(pool, {wild}));
    }

    void trim(Choices &random)
    {
        by(random, [&](Who) {
            errno = 77;
            quire_percpu_trim(pool);
            MUST(errno == 77);
        });
        if (setup.opts.reserve_bytes == 0)
            MUST(stats().empty_chunks == 0);
    }

    void migrate(Choices &random, Who who)
    {
        cpu_of[who] = places.choose(random, cpus);
        at(who, [&] { places.go(cpu_of[who]); });
    }

    void replace(Choices &random, size_t k)
    {
        workers[k] = nullptr; /* it ends first: the next may find what it left */
        workers[k] = std::make_unique<Worker>();
        migrate(random, k + 1);
    }

    struct quire_percpu_stats stats() const
    {
        struct quire_percpu_stats out = {.struct_bytes = sizeof out};
        quire_percpu_stats(pool, &out);
        return out;
    }

    void agree(bool thoroughly)
    {
        struct quire_percpu_stats seen = stats();
        PercpuFigures figures(size_t(1) << window->unit_shift, cpus + 1);
        for (const auto &[bits, k] : index)
            figures.add(bits, live[k].bytes, live[k].align);
        figures.agree(seen, setup.opts.reserve_bytes);
        MUST(seen.allocs == allocs && seen.frees == frees);
        MUST(seen.live_objects_peak >= peak);
        MUST(seen.live_objects_peak == peak || !workers.empty() || setup.opts.reserve_bytes);
        MUST(seen.limit_bytes == setup.opts.limit_bytes && (seen.limit_bytes == 0 || seen.peak_bytes <= seen.limit_bytes));
        MUST(seen.cpus == cpus && seen.caches <= workers.size() + 3);
        if (source.source())
            MUST(source.taken_bytes() == seen.chunks * (size_t(cpus + 1) << window->unit_shift));
        const char *error = thoroughly ? quire_percpu_check(pool) : nullptr;
        if (error)
            fprintf(stderr, "%s\n", error);
        MUST(error == nullptr);
    }

    PercpuSetup setup;
    PercpuPlaces places;
    SlabSource source;
    quire_percpu *pool = nullptr;
    const struct quire_percpu_window *window = nullptr;
    unsigned cpus = 0;
    std::vector<Object> live;
    std::map<uintptr_t, size_t> index; /* of what lives: bits -> place in `live` */
    size_t live_words = 0, peak = 0;
    uint64_t allocs = 0, frees = 0, steps = 0, pushes = 0;
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<unsigned> cpu_of; /* by thread */
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<Node *> idle;
    PercpuRef freed = {0};
};
