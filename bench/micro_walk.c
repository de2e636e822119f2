// SPDX-License-Identifier: MIT
/*
 * micro_walk.c - what an allocator's placement costs who walks over his data: only the walks are timed.
 *
 *   churn (an interpreter's objects come and go, half of them stay)  -->  lists, a tree, or the objects themselves  -->  walked 8 to 160 times
 *
 * Nodes are made after the churn, in the holes it left and between other allocations, as in a program that has run for a while.
 */
#include "micro_driver.h"

enum { CHURN_LIVE = 200000, CHURN_COUNT = 2000000, LISTS = 500, NODES = 300000, WALKS = 8, SWEEPS = 160, NODE_BYTES = 48 };

struct node {
    struct node *left, *right;
    uint64_t key, mark;
    char payload[NODE_BYTES - 32];
};

/* Objects that lived through it; every second one is freed where `thin`. */
static uint64_t **churn(const struct micro_config *config, bool thin)
{
    uint64_t **live = bench_scratch(CHURN_LIVE, sizeof *live), state = 88172645463325252u;
    for (size_t i = micro_count(config, CHURN_COUNT); i > 0; i--) {
        uint64_t random = bench_random(&state);
        uint64_t **place = &live[(random >> 24) % CHURN_LIVE];
        size_t bytes = micro_object_bytes(random);
        free(*place);
        *place = micro_block(bytes < sizeof(uint64_t) ? sizeof(uint64_t) : bytes);
        **place = random;
    }
    for (size_t i = 0; thin && i < CHURN_LIVE; i += 2) {
        free(live[i]);
        live[i] = NULL;
    }
    return live;
}

static struct node *node(uint64_t key)
{
    struct node *made = micro_block(sizeof *made);
    *made = (struct node){.key = key, .mark = key};
    return made;
}

void micro_lists(const struct micro_config *config)
{
    static struct node *heads[LISTS];
    uint64_t state = 362436069, sum = 0;
    churn(config, true);
    for (size_t i = 0; i < NODES; i++) {
        struct node **head = &heads[bench_random(&state) % LISTS], *made = node(i);
        made->left = *head;
        *head = made;
    }
    micro_begin();
    for (int walk = 0; walk < WALKS; walk++)
        for (size_t i = 0; i < LISTS; i++)
            for (struct node *at = heads[i]; at; at = at->left)
                sum += at->mark++;
    bench_use(&sum);
    micro_row(config, (uint64_t)WALKS * NODES);
}

static uint64_t walk_tree(struct node *at)
{
    uint64_t sum = 0;
    for (; at; at = at->right)
        sum += at->mark++ + walk_tree(at->left);
    return sum;
}

void micro_trees(const struct micro_config *config)
{
    struct node *root = NULL;
    uint64_t state = 362436069, sum = 0;
    churn(config, true);
    for (size_t i = 0; i < NODES; i++) {
        struct node *made = node(bench_random(&state)), **at = &root;
        while (*at)
            at = made->key < (*at)->key ? &(*at)->left : &(*at)->right;
        *at = made;
    }
    micro_begin();
    for (int walk = 0; walk < WALKS; walk++)
        sum += walk_tree(root);
    bench_use(&sum);
    micro_row(config, (uint64_t)WALKS * NODES);
}

/* In the order of birth, as a collector that has a list of all objects goes over them. */
void micro_objects(const struct micro_config *config)
{
    uint64_t **live = churn(config, true), state = 362436069, sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < CHURN_LIVE; i++) {
        size_t bytes = micro_object_bytes(bench_random(&state));
        if (!live[i])
            *(live[i] = micro_block(bytes < sizeof(uint64_t) ? sizeof(uint64_t) : bytes)) = i;
    }
    micro_begin();
    for (int walk = 0; walk < SWEEPS; walk++)
        for (size_t i = 0; i < CHURN_LIVE; i += 2, count++)
            if (live[i])
                sum += (*live[i])++;
    bench_use(&sum);
    micro_row(config, count);
}
