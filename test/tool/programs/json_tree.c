// SPDX-License-Identifier: MIT
/*
 * json_tree.c - reads JSON text into a tree of nodes and strings, counts, and frees it by recursion; six times.
 *
 *     json_tree FILE
 *
 * An object per value, a string per key and text, children as a list: how most hand-written readers do it.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMES = 6 };

struct node {
    char kind; /* { [ " or 0 for a number or a word */
    char *key, *text;
    double number;
    struct node *first, *next;
};

static const char *at;

static char *take_string(void) {
    const char *end = strchr(++at, '"');
    size_t length = (size_t)(end - at);
    char *text = malloc(length + 1);
    memcpy(text, at, length);
    text[length] = 0;
    at = end + 1;
    return text;
}

static void skip(const char *set) { at += strspn(at, set); }

static struct node *read_node(void) {
    struct node *node = calloc(1, sizeof *node), **tail = &node->first;
    skip(" \n");
    if (*at == '"') {
        node->kind = '"';
        node->text = take_string();
    } else if (*at == '{' || *at == '[') {
        node->kind = *at++;
        for (skip(" \n,"); *at != '}' && *at != ']'; skip(" \n,")) {
            char *key = NULL;
            if (node->kind == '{') {
                key = take_string();
                skip(" :");
            }
            *tail = read_node();
            (*tail)->key = key;
            tail = &(*tail)->next;
        }
        at++;
    } else {
        char *end;
        node->number = strtod(at, &end);
        at = end > at ? end : at + strcspn(at, ",]} \n");
    }
    return node;
}

static double sum(const struct node *node) {
    double total = node->number + (node->text ? (double)strlen(node->text) : 0);
    for (const struct node *child = node->first; child; child = child->next)
        total += sum(child);
    return total;
}

static void drop(struct node *node) {
    for (struct node *child = node->first, *next; child; child = next) {
        next = child->next;
        drop(child);
    }
    free(node->key);
    free(node->text);
    free(node);
}

static char *whole(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file)
        exit(1);
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    char *text = malloc(bytes + 1);
    rewind(file);
    text[fread(text, 1, bytes, file)] = 0;
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    char *text = whole(argv[argc - 1]);
    double total = 0;
    for (int i = 0; i < TIMES; i++) {
        at = text;
        struct node *tree = read_node();
        total += sum(tree);
        drop(tree);
    }
    printf("%.0f\n", total);
    free(text);
}
