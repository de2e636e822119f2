// SPDX-License-Identifier: MIT
/* Headers of pages: which are handed out, and which of their OS pages go back. */
#include <gtest/gtest.h>

#include <vector>

#include "os/os.h"
#include "owner/headers.h"
#include "support.h"

namespace {
const size_t page = os_page_bytes(), chunk_pages = 8;
const uint32_t stride = 192;

/* A chunk with all of its headers in use, each filled. */
class Chunk : public testing::Test {
protected:
    void SetUp() override
    {
        void *start;
        ASSERT_EQ(os_reserve(chunk_pages * page, page, &start), 0);
        ASSERT_EQ(os_commit(start, chunk_pages * page), 0);
        const quire_span span = {start, chunk_pages * page, QUIRE_SPAN_ZERO, 0};
        chunk = headers_add(&headers, &span, 0, stride);
        header_chunk *out;
        while (void *header = headers_take(&headers, 0, &out)) {
            memset(header, 0x5a, stride);
            all.push_back(static_cast<unsigned char *>(header));
        }
        ASSERT_EQ(all.size(), chunk->count);
        touched = os_pages_used();
    }
    void TearDown() override { (void)os_unmap(chunk, chunk_pages * page); }

    void give(size_t from, size_t to)
    {
        for (size_t i = from; i < to; i++)
            headers_give(&headers, chunk, all[i]);
    }
    size_t os_page(const void *p) { return size_t(static_cast<const char *>(p) - reinterpret_cast<char *>(chunk)) / page; }
    /* Its OS pages that a header in use lies in, and the first, by bits. */
    uint32_t os_pages_used()
    {
        uint32_t used = 1;
        for (size_t i = 0; i < all.size(); i++)
            if (chunk->taken[i / 64] >> i % 64 & 1)
                used |= 1u << os_page(all[i]) | 1u << os_page(all[i] + stride - 1);
        return used;
    }
    struct headers headers = {};
    header_chunk *chunk = nullptr;
    std::vector<unsigned char *> all;
    uint32_t touched = 0;
};
} // namespace

TEST_F(Chunk, gives_back_the_os_pages_without_a_header_in_use_and_no_other)
{
    const size_t kept = all.size() / 2;
    give(0, kept);
    give(kept + 1, all.size());
    headers_discard(&headers);
    EXPECT_NE(chunk->given, 0u);
    EXPECT_EQ(chunk->given, touched & ~os_pages_used());
    EXPECT_EQ(chunk->used, 1u);
    for (size_t i = 0; i < stride; i++)
        ASSERT_EQ(all[kept][i], 0x5a) << "one that is in use stays as it is";
    for (unsigned char *header : all)
        for (unsigned char *p : {header, header + stride - 1})
            if (chunk->given >> os_page(p) & 1) {
                ASSERT_EQ(*p, 0) << "as if it had never been used";
            }
}

TEST_F(Chunk, in_use_gives_nothing_back)
{
    headers_discard(&headers);
    EXPECT_EQ(chunk->given, 0u);
    for (unsigned char *header : all)
        ASSERT_EQ(*header, 0x5a);
}

TEST_F(Chunk, that_a_walk_stands_on_gives_nothing_back)
{
    give(0, all.size());
    chunk->pins = 1;
    headers_discard(&headers);
    EXPECT_EQ(chunk->given, 0u);
}

TEST_F(Chunk, has_its_os_pages_again_as_headers_there_are_used)
{
    give(0, all.size());
    headers_discard(&headers);
    header_chunk *out;
    for (size_t i = 0; i < all.size(); i++) {
        void *header = headers_take(&headers, 0, &out);
        ASSERT_EQ(header, all[i]);
        ASSERT_EQ(chunk->given & os_pages_used(), 0u) << i;
        memset(header, 0x5a, stride);
    }
    EXPECT_EQ(chunk->given, 0u);
    give(0, all.size());
    headers_discard(&headers);
    EXPECT_NE(chunk->given, 0u) << "and gives them back again";
}
