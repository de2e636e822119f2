// SPDX-License-Identifier: MIT
/*
 * misuse - one misuse of malloc for each name, a few lines each; `ends` are the programs that are right and must go on.
 *
 *     misuse KIND      a `caught` one never comes to its end: it is stopped, by a line or by a fault; one of `ends` prints "done"
 */
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <malloc.h>
#include <new>

#include "must.h"

extern "C" void free_sized(void *p, size_t bytes) __attribute__((weak));
extern "C" void free_aligned_sized(void *p, size_t align_bytes, size_t bytes) __attribute__((weak));

namespace {

const size_t small = 128, large = 256 << 10;
volatile char sink;

char *get(size_t bytes)
{
    auto *p = static_cast<char *>(malloc(bytes));
    MUST(p, "malloc(%zu)", bytes);
    return p;
}

void use(volatile char *p, char value) { *p = value; }
/* Another byte than was there: a canary's may be any, and one in 256 is what `use` would write. */
void change(volatile char *p) { *p = char(*p ^ 1); }
void look(const volatile char *p) { sink = *p; }
size_t unknown(size_t n)
{
    volatile size_t hidden = n;
    return hidden;
}

/* Whatever was freed last is handed out again in the course of it. */
void churn(size_t bytes)
{
    for (int i = 0; i < 50000; i++)
        free(malloc(bytes));
}

struct Four {
    uint64_t word[4];
};
struct alignas(4096) Wide {
    char bytes[64 << 10];
};

/* ---- must be caught ---- */

void read_of_no_bytes() { look(get(0)); }
void write_of_no_bytes() { use(get(0), 1); }
void read_of_no_aligned_bytes() { look(static_cast<char *>(aligned_alloc(64, unknown(0)))); }
void write_of_no_aligned_bytes() { use(static_cast<char *>(aligned_alloc(32768, unknown(0))), 1); }

void overflow(size_t bytes, ptrdiff_t past)
{
    char *p = get(bytes);
    change(p + malloc_usable_size(p) + past);
    free(p);
}
void overflow_small_1() { overflow(8, 0); }
void overflow_small_8() { overflow(8, 7); }
/* What is written past the end would be the block's own then. */
void overflow_before_a_realloc_in_place()
{
    char *p = get(20);
    change(p + 20);
    free(realloc(p, 23));
}
void overflow_large_1() { overflow(large, 0); }
void overflow_large_8() { overflow(large, 7); }
void underflow_large()
{
    char *p = get(large);
    use(p - 1, 1);
    free(p);
}
/* It is the neighbour's end that is broken: one is looked for, and both are freed. */
void underflow_small()
{
    char *p[2000];
    for (char *&q : p)
        q = get(small - 8);
    for (char *upper : p)
        for (char *lower : p)
            if (lower + small == upper) {
                change(upper - 1);
                free(upper);
                free(lower);
                return;
            }
}

void twice(size_t bytes, bool later)
{
    char *p = get(bytes), *q = get(bytes);
    free(p);
    if (later)
        free(q);
    free(p);
}
void twice_small() { twice(16, false); }
void twice_small_delayed() { twice(16, true); }
void twice_pages_delayed() { twice(64 << 10, true); }
void twice_large() { twice(large, false); }
void twice_large_delayed() { twice(large, true); }
void twice_by_realloc()
{
    char *p = get(small);
    free(p);
    sink = *static_cast<char *>(realloc(p, 4000));
}

void free_of_the_stack()
{
    char here[64];
    free(here + 16 - reinterpret_cast<uintptr_t>(here) % 16);
}
void free_of_a_static()
{
    static char there[64] __attribute__((aligned(16)));
    free(there);
}
void free_of_nothing() { free(reinterpret_cast<void *>(1)); }
void free_of_a_number() { free(reinterpret_cast<void *>(uintptr_t(1) << 46)); }
void free_far_from_a_block() { free(get(16) + (uintptr_t(1) << 34)); }
void free_near_a_block() { free(get(16) + (4 << 20)); }
void free_of_a_slot_never_handed_out()
{
    char *p = get(32);
    uintptr_t page = reinterpret_cast<uintptr_t>(p) & ~uintptr_t(4095);
    for (uintptr_t at = page; at < page + 4096; at += 32)
        if (reinterpret_cast<char *>(at) != p)
            free(reinterpret_cast<void *>(at));
}
void free_inside_small() { free(get(16) + 1); }
void free_inside_large() { free(get(large) + 16); }

void read_after_free_large()
{
    char *p = get(large);
    free(p);
    look(p + 64);
}
void write_after_free_large()
{
    char *p = get(large);
    free(p);
    use(p + 64, 1);
}
void write_after_free_large_reuse()
{
    char *p = get(large);
    free(p);
    char *q = get(large);
    use(p + 64, 1);
    free(q);
}
void write_after_free_small()
{
    char *p = get(small);
    free(p);
    use(p + 65, 1);
    churn(small);
}
void write_after_free_small_at_the_end()
{
    char *p = get(small);
    free(p);
    use(p + 65, 1);
}
void write_after_free_small_reuse()
{
    char *p = get(small);
    free(p);
    char *q = get(small);
    use(p + 65, 1);
    free(q);
    churn(small);
}

void size_of_a_freed_block()
{
    char *p = get(16);
    free(p);
    sink = char(malloc_usable_size(p));
}
void size_of_a_freed_block_later()
{
    char *p = get(16);
    free(p);
    churn(small);
    sink = char(malloc_usable_size(p));
}
void size_of_freed_pages()
{
    char *p = get(32 << 10);
    free(p);
    sink = char(malloc_usable_size(p));
}
void size_of_nothing() { sink = char(malloc_usable_size(reinterpret_cast<void *>(16))); }
void size_inside() { sink = char(malloc_usable_size(get(16) + 1)); }
void realloc_of_nothing() { sink = *static_cast<char *>(realloc(reinterpret_cast<void *>(1), 16)); }

void delete_of_another_type() { operator delete(operator new(1), sizeof(Four)); }
void delete_with_too_small_a_size() { operator delete(operator new(256), size_t(128)); }
void delete_large_with_another_size() { operator delete(operator new(large), large - 8192); }
void delete_aligned_with_another_size() { operator delete(operator new(sizeof(Wide), std::align_val_t(4096)), sizeof(Wide) / 2, std::align_val_t(4096)); }
void delete_with_an_alignment_that_is_none() { operator delete(operator new(128, std::align_val_t(64)), std::align_val_t(48)); }
void delete_with_a_larger_alignment()
{
    const auto one = std::align_val_t(64), other = std::align_val_t(1 << 20);
    void *block = operator new(128, one);
    while (uintptr_t(block) % size_t(other) == 0) // as two in a row may be: such a delete is right
        block = operator new(128, one);
    operator delete(block, size_t(128), other);
}
void delete_array_with_another_size() { operator delete[](operator new[](1000), size_t(400)); }
void free_with_another_size()
{
    if (free_sized)
        free_sized(malloc(1000), 100);
    else
        abort();
}
void delete_with_a_size_that_is_none() { operator delete(operator new(40), unknown(SIZE_MAX)); }
void free_of_a_static_with_a_size_that_is_none()
{
    static char ours[64];
    if (free_sized)
        free_sized(ours, unknown(SIZE_MAX));
    else
        abort();
}
void free_with_an_alignment_that_is_none()
{
    if (free_aligned_sized)
        free_aligned_sized(aligned_alloc(16, 64), 3, 64);
    else
        abort();
}
void free_with_a_larger_alignment()
{
    char *block = static_cast<char *>(aligned_alloc(16, 48));
    while (uintptr_t(block) % 4096 == 0)
        block = static_cast<char *>(aligned_alloc(16, 48));
    if (free_aligned_sized)
        free_aligned_sized(block, 4096, 48);
    else
        abort();
}

/* ---- must go on ---- */

void string_to_the_end()
{
    for (size_t bytes : {size_t(8), size_t(16), size_t(100), size_t(1000)}) {
        char *p = get(bytes);
        size_t usable = malloc_usable_size(p);
        memset(p, 'a', usable);
        MUST(strlen(p) == usable, "%zu bytes of %zu", strlen(p), usable); /* what is behind ends it */
        free(p);
    }
}
void freed_small_reads_as_zero()
{
    char *p = get(16);
    memset(p, 'a', 16);
    free(p);
    for (int i = 0; i < 16; i++)
        MUST(p[i] == 0, "byte %d is %d", i, p[i]);
}
void fresh_small_reads_as_zero()
{
    char *p = get(16);
    for (int i = 0; i < 16; i++)
        MUST(p[i] == 0, "byte %d is %d", i, p[i]);
    free(p);
}
void fresh_large_reads_as_zero()
{
    char *p = get(large);
    for (size_t i = 0; i < large; i++)
        MUST(p[i] == 0, "byte %zu is %d", i, p[i]);
    free(p);
}
void realloc_of_null_allocates()
{
    void *p = realloc(nullptr, 16);
    MUST(p, "realloc(NULL, 16)");
    p = realloc(p, 100000);
    p = realloc(p, 20);
    free(p);
}
void array_grows()
{
    char *p = nullptr;
    for (size_t bytes = 1 << 10; bytes <= 32 << 20; bytes = bytes * 3 / 2) {
        p = static_cast<char *>(realloc(p, bytes));
        MUST(p, "realloc to %zu", bytes);
        memset(p + bytes - 1, 1, 1);
    }
    free(p);
}
void impossible_sizes_are_refused()
{
    volatile size_t most = SIZE_MAX;
    for (size_t minus : {size_t(0), size_t(8), size_t(4096), size_t(65536), most / 2})
        MUST(malloc(most - minus) == nullptr && errno == ENOMEM, "SIZE_MAX - %zu", minus);
}
void no_bytes_are_different_blocks()
{
    char *p[300];
    for (char *&q : p)
        q = get(0);
    for (size_t i = 1; i < 300; i++)
        MUST(p[i] != p[i - 1] && p[i] != p[0], "block %zu again", i);
    for (char *q : p)
        free(q);
    free(realloc(get(0), 100));
    free(calloc(0, 8));
    operator delete(operator new(0));
}
void freed_large_is_not_reused_at_once()
{
    char *p = get(large);
    auto at = reinterpret_cast<uintptr_t>(p);
    free(p);
    p = get(large);
    MUST(reinterpret_cast<uintptr_t>(p) != at, "the same again");
    free(p);
}
void freed_small_is_not_reused_at_once()
{
    char *p = get(small);
    auto at = reinterpret_cast<uintptr_t>(p);
    free(p);
    for (int i = 0; i < 60; i++) {
        p = get(small);
        MUST(reinterpret_cast<uintptr_t>(p) != at, "after %d others", i);
        free(p);
    }
}
void statistics_answer()
{
    struct mallinfo2 wide = mallinfo2();
    MUST(wide.arena + wide.hblkhd > 0 || wide.uordblks == 0, "arena %zu", wide.arena);
    struct mallinfo narrow = mallinfo();
    MUST(narrow.arena >= 0, "arena %d", narrow.arena);
    FILE *null = fopen("/dev/null", "w");
    MUST(malloc_info(0, null) == 0, "malloc_info");
    fclose(null);
}
void right_sizes_are_right()
{
    for (size_t bytes = 1; bytes < 200000; bytes = bytes * 9 / 8 + 1) {
        operator delete(operator new(bytes), bytes);
        operator delete[](operator new[](bytes), bytes);
        for (size_t align = 16; align <= 8192; align *= 2)
            operator delete(operator new(bytes, std::align_val_t(align)), bytes, std::align_val_t(align));
        if (free_sized)
            free_sized(realloc(malloc(bytes), bytes - bytes / 4), bytes - bytes / 4);
        for (size_t align = 1; align <= 8192 && free_aligned_sized; align *= 2)
            free_aligned_sized(aligned_alloc(align, bytes), align, bytes);
    }
    if (free_aligned_sized)
        free_aligned_sized(NULL, 3, 64);
}
void usable_bytes_are_usable()
{
    for (size_t bytes = 1; bytes < 100000; bytes = bytes * 9 / 8 + 1) {
        char *p = get(bytes);
        memset(p, 1, malloc_usable_size(p));
        free(p);
    }
}
void blocks_come_in_no_order() /* of a hundred, some lie before the one that came before */
{
    int back = 0;
    for (char *p = get(64), *q; back < 100; p = q)
        if ((q = get(64)) < p)
            return;
        else if (++back == 99)
            MUST(false, "all of them upwards");
}

const struct {
    const char *name;
    void (*run)();
} kinds[] = {
#define KIND(name) {#name, name}
    KIND(read_of_no_bytes), KIND(write_of_no_bytes), KIND(read_of_no_aligned_bytes), KIND(write_of_no_aligned_bytes),
    KIND(overflow_small_1), KIND(overflow_small_8), KIND(overflow_before_a_realloc_in_place), KIND(overflow_large_1),
    KIND(overflow_large_8),
    KIND(underflow_small), KIND(underflow_large), KIND(twice_small), KIND(twice_small_delayed), KIND(twice_pages_delayed), KIND(twice_large), KIND(twice_large_delayed),
    KIND(twice_by_realloc), KIND(free_of_the_stack), KIND(free_of_a_static), KIND(free_of_nothing), KIND(free_of_a_number), KIND(free_far_from_a_block),
    KIND(free_near_a_block), KIND(free_of_a_slot_never_handed_out), KIND(free_inside_small), KIND(free_inside_large), KIND(read_after_free_large),
    KIND(write_after_free_large), KIND(write_after_free_large_reuse), KIND(write_after_free_small), KIND(write_after_free_small_reuse),
    KIND(write_after_free_small_at_the_end),
    KIND(size_of_a_freed_block), KIND(size_of_a_freed_block_later), KIND(size_of_freed_pages), KIND(size_of_nothing), KIND(size_inside), KIND(realloc_of_nothing),
    KIND(delete_of_another_type), KIND(delete_with_too_small_a_size), KIND(delete_large_with_another_size), KIND(delete_aligned_with_another_size),
    KIND(delete_with_an_alignment_that_is_none), KIND(delete_with_a_larger_alignment), KIND(delete_array_with_another_size), KIND(free_with_another_size), KIND(delete_with_a_size_that_is_none),
    KIND(free_of_a_static_with_a_size_that_is_none),
    KIND(free_with_an_alignment_that_is_none), KIND(free_with_a_larger_alignment), KIND(string_to_the_end), KIND(freed_small_reads_as_zero),
    KIND(fresh_small_reads_as_zero), KIND(fresh_large_reads_as_zero), KIND(realloc_of_null_allocates), KIND(array_grows), KIND(impossible_sizes_are_refused),
    KIND(no_bytes_are_different_blocks), KIND(freed_large_is_not_reused_at_once), KIND(freed_small_is_not_reused_at_once), KIND(statistics_answer),
    KIND(right_sizes_are_right), KIND(usable_bytes_are_usable), KIND(blocks_come_in_no_order),
#undef KIND
};

} // namespace

int main(int count, char **words)
{
    for (auto &kind : kinds)
        if (count == 2 && strcmp(words[1], kind.name) == 0) {
            kind.run();
            puts("done");
            return must_end();
        }
    return 2;
}
