// SPDX-License-Identifier: MIT
/* heap.c - a heap for each session: text of any size, a budget that one session cannot exceed, and an end that frees all of it at once. */
#include <quire/heap.h>
#include <stdio.h>
#include <string.h>

/* Add a word to a session's history; what it had if there is no memory left in the budget. */
static char *remember(struct quire_heap *session, char *history, const char *word)
{
    size_t length = history ? strlen(history) : 0;
    char *longer = quire_heap_realloc(session, history, length + strlen(word) + 2);
    if (!longer)
        return history;
    sprintf(longer + length, "%s%s", length ? " " : "", word);
    return longer;
}

int main(void)
{
    struct quire_heap *session = quire_heap_create(&(struct quire_heap_opts){.name = "session", .limit_bytes = 1 << 20});
    if (!session)
        return perror("heap"), 1;
    char *history = NULL;
    for (int i = 0; i < 1000; i++)
        history = remember(session, history, i % 2 ? "any" : "size");
    printf("%zu characters\n", strlen(history));

    size_t blocks = 0; /* nobody keeps their addresses: the heap does */
    while (quire_heap_alloc(session, 1000))
        blocks++;
    struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
    quire_heap_stats(session, &stats);
    printf("%zu blocks of 1000 bytes, then the budget is used up: %s\n", blocks, stats.mapped_bytes <= stats.limit_bytes ? "within it" : "over it");
    printf("%s\n", quire_heap_of(history) == session ? "the text is the session's" : "whose text is this?");
    quire_heap_destroy(session);
    return 0;
}
