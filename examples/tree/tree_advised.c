// SPDX-License-Identifier: MIT
/*
 * tree_advised.c - builds, walks and drops trees: formulas are parsed, differentiated and evaluated, one after the other.
 *
 *   text -> tree of nodes -> tree of its derivative -> both evaluated at some points -> both dropped -> next text
 *
 *     cc -O2 tree_advised.c -lquire -o tree_advised && ./tree_advised 20000
 *
 * This is tree_malloc.c with the advice of `./quire try` carried out: the nodes and names of a formula are born and die together, so
 * one arena holds them.  The two differ in new_node, new_name, solve and main; drop_all, and the list that
 * it needs, are gone.
 */
#include <quire/arena.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMULAS_DEFAULT = 20000, TERMS = 60, POINTS = 5, TEXT_BYTES = 8 << 10, NAMES = 4 };

struct node {
    char kind; // + - * for two branches, n a number, x y z w a name
    double number;
    char *name;
    struct node *left, *right;
};

static struct quire_arena *arena; // of the formula at hand: small, so it is kept and reset

static struct node *new_node(char kind, struct node *left, struct node *right) {
    struct node *node = quire_arena_alloc(arena, sizeof *node);
    if (!node)
        exit(1);
    *node = (struct node){.kind = kind, .left = left, .right = right};
    return node;
}

static char *new_name(const char *from, size_t bytes) {
    char *name = quire_arena_alloc(arena, bytes + 1);
    if (!name)
        exit(1);
    memcpy(name, from, bytes);
    name[bytes] = '\0';
    return name;
}

static struct node *number_node(double number) {
    struct node *node = new_node('n', NULL, NULL);
    node->number = number;
    return node;
}

static struct node *copy_tree(const struct node *from) {
    if (!from)
        return NULL;
    struct node *node = new_node(from->kind, copy_tree(from->left), copy_tree(from->right));
    node->number = from->number;
    if (from->name)
        node->name = new_name(from->name, strlen(from->name));
    return node;
}

/* A number, or a name such as x_17. */
static struct node *parse_leaf(const char **at) {
    char *end;
    if (**at >= '0' && **at <= '9') {
        struct node *node = number_node(strtod(*at, &end));
        *at = end;
        return node;
    }
    size_t bytes = strcspn(*at, "+-*;");
    struct node *node = new_node(**at, NULL, NULL);
    node->name = new_name(*at, bytes);
    *at += bytes;
    return node;
}

static struct node *parse_product(const char **at) {
    struct node *node = parse_leaf(at);
    while (**at == '*') {
        ++*at;
        node = new_node('*', node, parse_leaf(at));
    }
    return node;
}

/* Halves, so that the tree is not as deep as the sum is long. */
static struct node *sum_up(struct node **terms, const char *signs, size_t count) {
    if (count == 1)
        return terms[0];
    size_t half = count / 2;
    struct node *left = sum_up(terms, signs, half);
    return new_node(signs[half], left, sum_up(terms + half, signs + half, count - half));
}

static struct node *parse_formula(const char *at) {
    struct node *terms[TERMS];
    char signs[TERMS] = "+";
    size_t count = 0;
    for (;;) {
        terms[count++] = parse_product(&at);
        if (*at == ';')
            return sum_up(terms, signs, count);
        signs[count] = '+';
        ++at;
    }
}

static struct node *derive(const struct node *of, const char *by) {
    switch (of->kind) {
    case '+':
        return new_node(of->kind, derive(of->left, by), derive(of->right, by));
    case '*': {
        struct node *first = new_node('*', derive(of->left, by), copy_tree(of->right));
        return new_node('+', first, new_node('*', copy_tree(of->left), derive(of->right, by)));
    }
    default:
        return number_node(of->name && strcmp(of->name, by) == 0 ? 1 : 0);
    }
}

static double evaluate(const struct node *node, const double *values) {
    switch (node->kind) {
    case '+':
        return evaluate(node->left, values) + evaluate(node->right, values);
    case '*':
        return evaluate(node->left, values) * evaluate(node->right, values);
    case 'n':
        return node->number;
    default:
        return values[(node->kind - 'w') % NAMES] + (double)strlen(node->name) / 8;
    }
}

static unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* "x_17*3*y_2+w_5*..." and a semicolon. */
static void write_formula(char *text, unsigned *random) {
    char *at = text;
    for (int i = 0; i < TERMS; i++) {
        if (i > 0)
            *at++ = '+';
        unsigned factors = 1 + next_random(random) % 4;
        for (unsigned f = 0; f < factors; f++) {
            unsigned drawn = next_random(random);
            if (f > 0)
                *at++ = '*';
            if (drawn % 3 == 0) {
                *at++ = (char)('1' + drawn / 3 % 9);
                continue;
            }
            *at++ = (char)('w' + drawn / 3 % NAMES);
            *at++ = '_';
            for (unsigned digits = 1 + drawn / 32 % 16; digits; digits--)
                *at++ = (char)('0' + (drawn >> digits) % 10);
        }
    }
    strcpy(at, ";");
}

static double solve(const char *text) {
    struct node *formula = parse_formula(text);
    struct node *slope = derive(formula, "x_1");
    double sum = 0;
    for (int point = 0; point < POINTS; point++) {
        double values[NAMES] = {0.25 * point, 0.5, 0.125 * point, 0.75};
        sum += evaluate(formula, values) + evaluate(slope, values);
    }
    quire_arena_reset(arena);
    return sum;
}

int main(int argc, char **argv) {
    long formulas = argc > 1 ? strtol(argv[1], NULL, 10) : FORMULAS_DEFAULT;
    static char text[TEXT_BYTES];
    unsigned random = 42;
    double sum = 0;
    arena = quire_arena_create(NULL);
    if (!arena)
        exit(1);
    for (long i = 0; i < formulas; i++) {
        write_formula(text, &random);
        sum += solve(text);
    }
    quire_arena_destroy(arena);
    printf("%ld formulas, sum %.6f\n", formulas, sum);
    return 0;
}
