# SPDX-License-Identifier: MIT
"""test_try_threads - `quire try` on a program whose threads hand blocks to each other."""

import pytest
from test_try import check_whole
from toolkit import build, try_json

THREADED = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; char text[40]; };
static struct node *mail; static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *work(void *arg) {
    for (int round = 0; round < 40; round++) {
        struct node *list = NULL;
        for (int i = 0; i < 100; i++) { struct node *n = malloc(sizeof *n); memset(n->text, i, 40); n->next = list; list = n; }
        for (int i = 0; list; i++) {
            struct node *next = list->next;
            if (i % 10) { free(list); }
            else { pthread_mutex_lock(&lock); list->next = mail; mail = list; pthread_mutex_unlock(&lock); }
            list = next;
        }
    }
    return NULL;
}
int main(void) {
    for (int wave = 0; wave < 2; wave++) {
        pthread_t t[4];
        for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, work, NULL);
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
        while (mail) { struct node *next = mail->next; free(mail); mail = next; }
    }
    return 0;
}
"""


@pytest.mark.long
def test_a_threaded_program_is_replayed_with_its_threads(tmp_path):
    document = try_json(tmp_path, build(tmp_path, THREADED, flags=["-pthread"]))
    check_whole(document)
    assert document["trace"]["threads"] == 9
    site = next(s for s in document["sites"] if s["function"] == "work")
    assert site["allocations"] == 2 * 4 * 40 * 100
    assert site["freed_by_other_threads"] == site["allocations"] / 10
