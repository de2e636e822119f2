// SPDX-License-Identifier: MIT
/*
 * heap_model.h - random operation programs on a few heaps, against a plain model: what lives, where, of which heap, with which bytes.
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
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "model/heap_setup.h"
#include "model/must.h"
#include "model/slab_worker.h"

template <typename Choices> class HeapModel {
public:
    explicit HeapModel(const HeapSetup &setup_) : setup(setup_), source(new SlabSource(setup.source, setup.source_number))
    {
        heaps.resize(setup.heaps.size());
        for (size_t h = 0; h < heaps.size(); h++)
            create(h);
        while (workers.size() < setup.workers)
            workers.push_back(std::make_unique<Worker>());
    }

    /* The end of a program: every block is as it was, and all memory is back. */
    void end()
    {
        verify();
        if (live.size() % 2 == 0)
            while (!live.empty()) {
                quire_heap *heap = heaps[live.back().heap];
                quire_heap_free(heap, forget(live.size() - 1));
            }
        for (size_t h = 0; h < heaps.size(); h++)
            agree(h);
        for (quire_heap *heap : heaps)
            quire_heap_destroy(heap);
        MUST(source->taken_bytes() == 0);
        delete source;
    }

    void step(Choices &random)
    {
        size_t h = random.below(heaps.size());
        unsigned op = unsigned(random.below(100));
        if (op < 44)
            allocate(random, h, op);
        else if (op < 58)
            reallocate(random);
        else if (op < 86)
            give_back(random, op);
        else if (op < 89)
            by(random, [&] { quire_heap_trim(heaps[h]); });
        else if (op < 92)
            walk(random, h);
        else if (op < 96)
            ask(random);
        else if (op < 98)
            replace_heap(random, h);
        else if (!workers.empty())
            replace_worker(random.below(workers.size()));
        agree(h);
    }

    void verify()
    {
        for (const Block &block : live)
            verify_block(block, block.bytes);
        for (size_t h = 0; h < heaps.size(); h++)
            agree(h);
    }

private:
    struct Block {
        char *p;
        size_t bytes, usable;
        size_t heap;
        uint8_t seed;
    };

    bool may_refuse(size_t h) const { return setup.heaps[h].limit_bytes || source->may_refuse(); }

    void create(size_t h)
    {
        quire_heap_opts opts = setup.heaps[h];
        opts.source = source->source();
        errno = 0;
        heaps[h] = quire_heap_create(&opts);
        MUST(heaps[h] || (errno == ENOMEM && may_refuse(h)));
    }

    template <typename Work> void by(Choices &random, const Work &work)
    {
        size_t who = random.below(workers.size() + 1);
        if (who == 0)
            work();
        else
            workers[who - 1]->run(work);
    }

    /* ---- the bytes of a block: all of a small one; of a large one its last, and some: of each page of one in eight, for most of a fuzzer's time would go
     * into page faults ---- */

    static size_t stride(const Block &block) { return block.usable <= 2048 ? 1 : block.usable <= 8192 || block.seed % 8 == 0 ? 509 : 32749; }
    static uint8_t byte_at(uint8_t seed, size_t at) { return uint8_t(seed + at * 31); }

    static void write_block(const Block &block)
    {
        for (size_t at = 0; at < block.usable; at += stride(block))
            block.p[at] = char(byte_at(block.seed, at));
        if (block.usable > 0)
            block.p[block.usable - 1] = char(byte_at(block.seed, block.usable - 1));
    }

    /* What was written of the first `bytes`, wherever they are now. */
    static void verify_bytes(const Block &block, const char *p, size_t bytes)
    {
        for (size_t at = 0; at < bytes; at += stride(block))
            MUST(uint8_t(p[at]) == byte_at(block.seed, at));
        if (block.usable > 0 && bytes >= block.usable)
            MUST(uint8_t(p[block.usable - 1]) == byte_at(block.seed, block.usable - 1));
    }
    static void verify_block(const Block &block, size_t bytes) { verify_bytes(block, block.p, std::max(bytes, block.usable)); }

    /* ---- allocating ---- */

    void allocate(Choices &random, size_t h, unsigned op)
    {
        if (!heaps[h] || live.size() >= 2000 || live_bytes > (8u << 20))
            return free_range(random, 0, live.size() / 2);
        size_t bytes = heap_bytes(random), align = 16, count = op < 20 && random.below(4) == 0 ? random.below(60) : 1;
        for (size_t i = 0; i < count; i++) {
            void *p = nullptr;
            int error = 0;
            by(random, [&] {
                errno = 77;
                if (op < 26)
                    p = quire_heap_alloc(heaps[h], bytes);
                else if (op < 34)
                    p = quire_heap_alloc_zero(heaps[h], 1, bytes);
                else
                    p = quire_heap_alloc_aligned(heaps[h], bytes, align = size_t(1) << random.below(random.below(4) ? 9 : 18));
                error = errno;
            });
            if (!p) {
                MUST(error == ENOMEM && may_refuse(h));
                return;
            }
            MUST(uintptr_t(p) % align == 0);
            MUST(op < 26 || op >= 34 || filled_with(p, 0, bytes));
            add(p, bytes, h);
        }
    }

    void add(void *p, size_t bytes, size_t h)
    {
        char *start = static_cast<char *>(p);
        size_t usable = quire_heap_usable_bytes(p);
        MUST(uintptr_t(p) % 16 == 0 && usable >= bytes);
        auto after = places.lower_bound(start);
        MUST(after == places.end() || after->first >= start + std::max<size_t>(usable, 1)); /* overlaps the block after it */
        MUST(after == places.begin() || std::prev(after)->first + live[std::prev(after)->second].usable <= start); /* overlaps the one before it */
        places[start] = live.size();
        live.push_back({start, bytes, usable, h, seed += 37});
        live_bytes += usable;
        write_block(live.back());
    }

    void reallocate(Choices &random)
    {
        if (live.empty())
            return;
        size_t k = random.below(live.size()), bytes = random.below(3) ? heap_bytes(random) : live[k].bytes + random.below(live[k].bytes / 2 + 33);
        Block old = live[k];
        verify_block(old, old.bytes);
        void *p = nullptr;
        int error = 0;
        by(random, [&] {
            errno = 77;
            p = quire_heap_realloc(heaps[old.heap], old.p, bytes);
            error = errno;
        });
        if (!p) {
            MUST(error == ENOMEM && may_refuse(old.heap));
            verify_block(old, old.bytes); /* as it was */
            return;
        }
        verify_bytes(old, static_cast<char *>(p), std::min({bytes, old.bytes}));
        drop(k);
        add(p, bytes, old.heap);
    }

    /* ---- freeing ---- */

    void give_back(Choices &random, unsigned op)
    {
        if (live.empty())
            return;
        if (op < 76)
            free_range(random, random.below(live.size()), 1);
        else if (op < 85)
            free_range(random, random.below(live.size()), random.below(200));
        else if (random.below(4) == 0)
            free_range(random, 0, live.size()); /* all */
    }

    /* `count` blocks from the one at `first` on, by one thread, as they came or as neighbours. */
    void free_range(Choices &random, size_t first, size_t count)
    {
        std::vector<std::pair<char *, size_t>> batch;
        for (size_t i = 0; i < count && !live.empty(); i++) {
            size_t k = std::min(first, live.size() - 1), h = live[k].heap;
            batch.push_back({forget(k), h});
        }
        if (random.below(2))
            std::sort(batch.begin(), batch.end());
        by(random, [&] {
            errno = 77;
            for (auto &[p, h] : batch)
                quire_heap_free(heaps[h], p);
            MUST(errno == 77);
        });
        if (!batch.empty())
            freed = batch[0].first;
    }

    char *forget(size_t k)
    {
        char *p = live[k].p;
        verify_block(live[k], live[k].bytes);
        drop(k);
        return p;
    }

    void drop(size_t k)
    {
        places.erase(live[k].p);
        live_bytes -= live[k].usable;
        if (k != live.size() - 1) {
            live[k] = live.back();
            places[live[k].p] = k;
        }
        live.pop_back();
    }

    /* ---- all else ---- */

    struct Walk {
        HeapModel *model;
        size_t heap, seen, stop_after;
        std::set<void *> visited;
    };
    static int visit(void *p, size_t bytes, void *arg)
    {
        Walk *walk = static_cast<Walk *>(arg);
        auto place = walk->model->places.find(static_cast<char *>(p));
        MUST(place != walk->model->places.end());
        const Block &block = walk->model->live[place->second];
        MUST(block.heap == walk->heap && block.usable == bytes);
        MUST(walk->visited.insert(p).second); /* each once */
        return ++walk->seen == walk->stop_after ? 7 : 0;
    }

    void walk(Choices &random, size_t h)
    {
        if (!heaps[h])
            return;
        Walk walk = {this, h, 0, random.below(3) ? 0 : 1 + random.below(live.size() + 1), {}};
        int result = 0;
        by(random, [&] { result = quire_heap_walk(heaps[h], visit, &walk); });
        if (result == 7)
            MUST(walk.seen == walk.stop_after);
        else
            MUST(result == 0 && walk.seen == count_of(h));
    }

    size_t count_of(size_t h) const
    {
        return size_t(std::count_if(live.begin(), live.end(), [h](const Block &block) { return block.heap == h; }));
    }

    void ask(Choices &random)
    {
        if (!live.empty()) {
            const Block &block = live[random.below(live.size())];
            const char *inside = block.p + random.below(std::max<size_t>(block.bytes, 1));
            MUST(quire_heap_of(block.p) == heaps[block.heap] && quire_heap_usable_bytes(block.p) == block.usable);
            for (size_t h = 0; h < heaps.size(); h++)
                MUST(!heaps[h] || quire_heap_owns(heaps[h], inside) == (h == block.heap));
        }
        for (quire_heap *heap : heaps)
            if (heap) {
                const void *wild = reinterpret_cast<const void *>(uintptr_t(random.below(65536) << 47));
                MUST(!quire_heap_owns(heap, this) && !quire_heap_owns(heap, nullptr) && !quire_heap_owns(heap, heap) && !quire_heap_owns(heap, wild));
                if (freed && !places.count(freed)) { /* arrived, it is nobody's, or of somebody who begins before it */
                    MUST(quire_heap_check(heap) == nullptr);
                    auto after = places.lower_bound(freed);
                    bool inside = after != places.begin() && std::prev(after)->first + live[std::prev(after)->second].usable + 64 > freed;
                    MUST(inside || !quire_heap_owns(heap, freed));
                }
            }
    }

    /* With all that is left in it. */
    void replace_heap(Choices &random, size_t h)
    {
        for (size_t k = live.size(); k-- > 0;)
            if (live[k].heap == h) {
                verify_block(live[k], live[k].bytes);
                drop(k);
            }
        freed = nullptr;
        by(random, [&] {
            quire_heap_destroy(heaps[h]);
            create(h);
        });
    }

    void replace_worker(size_t k)
    {
        workers[k] = nullptr; /* it ends first: the next may find what it left */
        workers[k] = std::make_unique<Worker>();
    }

    void agree(size_t h)
    {
        if (!heaps[h])
            return;
        const char *error = quire_heap_check(heaps[h]);
        if (error)
            fprintf(stderr, "%s\n", error);
        MUST(error == nullptr);
        struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
        quire_heap_stats(heaps[h], &stats);
        MUST(stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes);
        size_t count = 0, usable_bytes = 0;
        for (const Block &block : live)
            if (block.heap == h)
                count++, usable_bytes += block.usable;
        MUST(stats.live_blocks == count);
        MUST(stats.live_bytes >= usable_bytes && stats.large_bytes <= stats.live_bytes && stats.large_blocks <= count);
        MUST(stats.peak_bytes >= stats.mapped_bytes);
        MUST(stats.limit_bytes == setup.heaps[h].limit_bytes);
        MUST(stats.limit_bytes == 0 || stats.peak_bytes <= stats.limit_bytes);
        MUST(heaps.size() > 1 || source->taken_bytes() <= stats.mapped_bytes); /* as somebody else counts it */
    }

    HeapSetup setup;
    SlabSource *source; /* after a difference it is left alone, with what the heaps have of it */
    std::vector<quire_heap *> heaps;
    std::vector<Block> live;
    size_t live_bytes = 0;
    std::map<char *, size_t> places; /* of what lives: address -> index */
    std::vector<std::unique_ptr<Worker>> workers;
    char *freed = nullptr;
    uint8_t seed = 0;
};
