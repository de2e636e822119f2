// SPDX-License-Identifier: MIT
/* What `free` goes by without a look at the page's header (heap_note.h), and the OS pages that are carved for it. */
#include <gtest/gtest.h>

#include <sys/single_threaded.h>
#include <sys/wait.h>

#include <thread>

#include "unit/heap_scope.h"

#define class class_ /* a parameter's name there */
#include "heap/heap_quick.h"
#undef class
#include "os/os.h"
#include "pages/region.h"

namespace {
const size_t os_page = os_page_bytes();
quire_heap *const process = quire_heap_default();

heap_page *page_of(const void *p)
{
    return heap_page_find(p);
}
const struct heap_note &note_of(const void *p)
{
    return *heap_note(pagemap_near_page(p));
}
bool frees(void *p)
{
    return heap_quick_free_noted(heap_tls.self, p, false, 0);
}
char *alloc(size_t bytes)
{
    return static_cast<char *>(quire_heap_alloc(process, bytes));
}

class HeapNote : public testing::Test {
protected:
    void SetUp() override
    {
        if (memory_is_watched())
            GTEST_SKIP() << "no block has a short way";
        quire_heap_free(process, alloc(16));
        if (pagemap_noted() == 0 || !bias_works())
            GTEST_SKIP() << "so little address space that no page is noted, or no short way";
    }
};

/* Blocks of one class until one begins a page that has no other: that page. */
heap_page *fresh_page(size_t bytes, Blocks &all)
{
    for (;;) {
        all.push_back(alloc(bytes));
        heap_page *page = page_of(all.back());
        if (all.back() == page->span.start && u32_load_relaxed(&page->carved) <= std::max<size_t>(os_page, page->slot_bytes))
            return page;
    }
}
void free_all(Blocks &all)
{
    for (void *p : all)
        quire_heap_free(process, p);
    all.clear();
}
} // namespace

/* Every byte of a page of each size: in blocks, between them, behind the last slot, not carved yet. */
TEST_F(HeapNote, nothing_is_freed_but_what_is_a_block)
{
    for (unsigned c = 0; c < HEAP_CLASSES; c++) {
        size_t bytes = heap_class_bytes(c);
        Blocks all;
        heap_page *page = fresh_page(bytes, all);
        char *start = static_cast<char *>(page->span.start);
        for (size_t at = 1; at < page->span.bytes; at += at % 16 == 1 || bytes < 200 ? 1 : 15)
            ASSERT_FALSE(frees(start + at)) << bytes << " bytes: " << at;
        ASSERT_FALSE(heap_quick_free_noted(heap_tls.self, start, true, bytes + 1)) << "of another size";
        free_all(all);
    }
}

/* All slots of a page: each is found by its note, once. */
TEST_F(HeapNote, each_slot_is_freed_and_not_twice)
{
    for (unsigned c = 0; c < HEAP_CLASSES; c += c < 8 || c + 8 > HEAP_CLASSES ? 1 : 5) {
        size_t bytes = heap_class_bytes(c), taken = 0;
        Blocks all;
        heap_page *page = fresh_page(bytes, all);
        const size_t slots = page->slots;
        for (char *p = static_cast<char *>(page->span.start); taken < slots; all.push_back(alloc(bytes)))
            taken += size_t(static_cast<char *>(all.back()) - p) < page->span.bytes;
        for (void *p : all) {
            if (!frees(p)) /* a magazine is full */
                quire_heap_free(process, p);
            ASSERT_FALSE(frees(p)) << "it bears a mark";
        }
    }
}

TEST_F(HeapNote, an_os_page_after_the_other_is_carved)
{
    for (size_t bytes : {16, 48, 1024, 3072, 12288}) {
        Blocks all;
        heap_page *page = fresh_page(bytes, all);
        char *start = static_cast<char *>(page->span.start);
        const size_t carved = u32_load_relaxed(&page->carved);
        EXPECT_EQ(carved, std::min<size_t>(os_page, page->slots * bytes)) << bytes;
        EXPECT_EQ(u32_load_relaxed(&note_of(start).before), 0u);
        EXPECT_EQ(u32_load_relaxed(&note_of(start).bin_at), page->bin_at);
        for (size_t at = bytes; at < carved && at < page->span.bytes; at += bytes)
            EXPECT_TRUE(heap_has_mark(start + at, slots_mark(start + at, slots_key))) << at;
        for (size_t at = os_page; at < page->span.bytes; at += os_page)
            EXPECT_EQ(u32_load_relaxed(&note_of(start + at).bin_at), 0u) << bytes << ": " << at;
        free_all(all);
    }
}

/* Of a page that went back, zeros: the next owner of the addresses says nothing of blocks. */
TEST_F(HeapNote, what_went_back_is_noted_no_more)
{
    Blocks all;
    for (int i = 0; i < 2000; i++)
        all.push_back(alloc(1500));
    std::vector<std::pair<char *, size_t>> pages;
    for (void *p : all)
        pages.emplace_back(static_cast<char *>(page_of(p)->span.start), page_of(p)->span.bytes);
    free_all(all);
    quire_heap_trim(process);
    size_t gone = 0;
    for (auto &[start, bytes] : pages)
        if (pagemap_find(start) == 0) {
            gone++;
            for (size_t at = 0; at < bytes; at += os_page)
                ASSERT_EQ(u32_load_relaxed(&note_of(start + at).before) | u32_load_relaxed(&note_of(start + at).bin_at), 0u);
        }
    EXPECT_GT(gone, pages.size() / 2);
}

/* Other heaps' pages, large blocks and what is no heap's has none. */
TEST_F(HeapNote, of_other_memory_says_nothing)
{
    Heap other;
    void *p = quire_heap_alloc(other, 100), *large = alloc(200000);
    for (void *q : {p, large}) {
        EXPECT_TRUE(pagemap_near_page(q) >= pagemap_noted() || u32_load_relaxed(&note_of(q).bin_at) == 0);
        EXPECT_FALSE(frees(q));
    }
    quire_heap_free(other, p);
    quire_heap_free(process, large);
}

/* A class that has filled many pages fills the next one, too: it is had at once.  One that has not is touched as far as it is used. */
TEST_F(HeapNote, pages_of_a_size_of_which_there_are_many_come_with_their_memory)
{
    Blocks all;
    void *probe;
    ASSERT_EQ(os_map(os_page, os_page, &probe), 0);
    bool can = os_populate(probe, os_page) == 0 && os_resident_bytes(probe, os_page) == os_page;
    (void)os_unmap(probe, os_page);
    if (!can)
        GTEST_SKIP() << "not by this system";
    (void)quire_source_trim(quire_source_default()); /* what is warm need not come */
    size_t whole = 0, part = 0;
    for (int i = 0; i < 40000; i++) {
        all.push_back(alloc(100));
        heap_page *page = page_of(all.back());
        if (all.back() == page->span.start)
            (os_resident_bytes(page->span.start, page->span.bytes) == page->span.bytes ? whole : part)++;
    }
    EXPECT_GT(whole, 200u);
    EXPECT_GT(part, 4u);
    size_t first = 0, bytes = 0;
    (void)quire_source_trim(quire_source_default()); /* and what was filled ahead is warm */
    std::thread([&] {
        void *p = alloc(100);
        bytes = page_of(p)->span.bytes;
        first = os_resident_bytes(page_of(p)->span.start, bytes);
        quire_heap_free(process, p);
    }).join();
    EXPECT_LT(first, bytes) << "a thread that has filled none may not fill its first";
    free_all(all);
    quire_heap_trim(process);
    (void)quire_source_trim(quire_source_default());
    whole = 0;
    for (int i = 0; i < 1000; i++) { /* a slot larger than an OS page need not be filled */
        all.push_back(alloc(6000));
        heap_page *page = page_of(all.back());
        if (all.back() == page->span.start)
            whole += os_resident_bytes(page->span.start, page->span.bytes) == page->span.bytes;
    }
    EXPECT_LT(whole, 10u) << "what was warm";
    free_all(all);
}

/* The addresses of most notes go back before a limit on addresses: nobody looks for a note there any more. */
TEST_F(HeapNote, goes_with_the_addresses_that_are_let_go)
{
    pid_t child = fork();
    if (child == 0) {
        quire_heap_free(process, alloc(16));
        void *p = alloc(16);
        size_t before = pagemap_noted();
        __libc_single_threaded = true; /* as it is; glibc says so only where there never was another thread */
        heap_few_addresses();
        bool fewer = pagemap_noted() < before && size_load_relaxed(&heap_tls.self->door.noted) == pagemap_noted();
        char *last = static_cast<char *>(p) + (before - 1 - pagemap_near_page(p)) * os_page;
        bool is_none = !frees(last), is_free = frees(p);
        _exit((fewer ? 0 : 1) + (is_none ? 0 : 2) + (is_free ? 0 : 4));
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}
