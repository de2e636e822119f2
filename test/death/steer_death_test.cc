// SPDX-License-Identifier: MIT
/* Misuse of a block of an arena stops the process with the line that the heap has for it. */
#include "steer_kit.h"

#include <thread>

namespace {
const char e1[] = "quire: heap: E1 the block is free already", e3[] = "quire: heap: E3 inside a block";

char *keep, *p, *behind;

/* Three blocks behind each other, then the statements. */
#define STOPS(line, ...)                                                                                                           \
    EXPECT_DEATH(                                                                                                                  \
        ([] {                                                                                                                      \
            steer_up();                                                                                                            \
            for (char **one : {&keep, &p, &behind})                                                                                \
                *one = static_cast<char *>(alloc_at(1, 100));                                                                      \
            __VA_ARGS__;                                                                                                           \
        })(),                                                                                                                      \
        line)

void free_there(void *block)
{
    std::thread([=] { steer_free(block); }).join();
}
} // namespace

TEST(SteerDeathTest, freed_twice_by_its_thread)
{
    STOPS(e1, steer_free(p); steer_free(p));
}

TEST(SteerDeathTest, freed_twice_where_the_place_is_the_next_blocks_again)
{
    STOPS(e1, steer_free(behind); steer_free(p); steer_free(keep); steer_free(behind));
    STOPS(e1, steer_free(behind); steer_free(behind));
}

TEST(SteerDeathTest, freed_twice_by_others)
{
    STOPS(e1, free_there(p); free_there(p));
}

TEST(SteerDeathTest, freed_by_its_thread_then_by_another_and_the_other_way_round)
{
    STOPS(e1, steer_free(p); free_there(p));
    STOPS(e1, free_there(p); steer_free(p));
}

TEST(SteerDeathTest, freed_twice_after_its_thread_has_ended)
{
    STOPS(e1, std::thread([] { keep = static_cast<char *>(alloc_at(2, 100)), p = static_cast<char *>(alloc_at(2, 100)); }).join(); steer_free(p);
          steer_free(p));
}

TEST(SteerDeathTest, freed_inside_a_block)
{
    STOPS(e3, steer_free(p + 16));
    STOPS(e3, steer_free(p + 1));
    STOPS(e3, free_there(p + 48));
}

TEST(SteerDeathTest, freed_where_no_block_was_ever_handed_out)
{
    STOPS(e1, steer_free(behind + 4096));
    STOPS(e3, steer_free(reinterpret_cast<char *>(owner_object(pagemap_find(p))))) /* the header */;
}

TEST(SteerDeathTest, resized_or_asked_for_its_size_after_it_was_freed)
{
    STOPS(e1, steer_free(p); (void)steer_realloc(p, 10));
    STOPS(e1, steer_free(p); (void)steer_usable_bytes(p));
    STOPS(e3, (void)steer_realloc(p + 16, 10));
    STOPS(e3, (void)steer_usable_bytes(p + 16));
}

TEST(SteerDeathTest, freed_after_its_chunk_has_gone)
{
    STOPS("quire: heap: E[12] ", steer_free(keep); steer_free(behind); steer_free(p); std::vector<void *> many; for (int i = 0; i < 9000; i++) many.push_back(alloc_at(1, 100));
          for (void *one : many) steer_free(one);
          steer_free(many[100]));
}
