// SPDX-License-Identifier: MIT
/*
 * demo.c - quire-demo: a small server without a network, for a first `quire try`.
 *
 *   request text -> fields (nodes and strings) -> the session -> answer -> free it all -> log
 *                                                    \-> visits, summed up 32 at a time
 *
 * Three ways of using memory on purpose: fields and answers die with their request (an arena's
 * case), sessions and visits are of one size and come and go (a slab's case), log lines are there
 * one at a time, between the requests (a recycling slot).
 *
 * Not here: anything of quire; this is a plain program that calls malloc and free.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SESSIONS = 4096, REQUESTS_DEFAULT = 20000, FIELDS_MAX = 24 };
enum { REMEMBERED_EACH = 3, VISITS_KEPT = 32, LOG_LINE_BYTES = 160, LOG_LINES = 4 };

struct field {
    struct field *next;
    char *key;
    char *value;
};

struct visit {
    struct visit *older;
    unsigned long long digest;
    unsigned number;
};

struct session {
    unsigned user;
    unsigned visits;
    struct visit *newest;
    unsigned kept;
    char token[48];
};

static struct session *sessions[SESSIONS];
static unsigned long long checksum;

static void *must(void *memory) {
    if (!memory) {
        fputs("quire-demo: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

static unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static char *copy_text(const char *from, size_t bytes) {
    char *text = must(malloc(bytes + 1));
    memcpy(text, from, bytes);
    text[bytes] = '\0';
    return text;
}

static void write_request(char *text, size_t room_bytes, unsigned *random) {
    unsigned fields = 8 + next_random(random) % (FIELDS_MAX - 8);
    size_t used = 0;
    for (unsigned i = 0; i < fields && used + 64 < room_bytes; i++)
        used += (size_t)snprintf(text + used, room_bytes - used, "field%u=value-%u-%u&", i,
                                 next_random(random), next_random(random) % 1000);
}

static struct field *parse_request(const char *text) {
    struct field *first = NULL;
    while (*text) {
        size_t key_bytes = strcspn(text, "="), value_bytes = strcspn(text + key_bytes, "&");
        struct field *field = must(malloc(sizeof *field));
        field->key = copy_text(text, key_bytes);
        field->value = copy_text(text + key_bytes + 1, value_bytes - 1);
        field->next = first;
        first = field;
        text += key_bytes + value_bytes + 1;
    }
    return first;
}

static void sum_up(struct session *session) {
    while (session->newest) {
        struct visit *older = session->newest->older;
        checksum += session->newest->digest;
        free(session->newest);
        session->newest = older;
    }
    session->kept = 0;
}

static void end_session(struct session *session) {
    sum_up(session);
    free(session);
}

static void remember(struct session *session, const struct field *field) {
    if (session->kept == VISITS_KEPT)
        sum_up(session);
    struct visit *visit = must(malloc(sizeof *visit));
    *visit = (struct visit){.older = session->newest, .number = ++session->visits};
    for (const char *c = field->key; *c; c++)
        visit->digest = visit->digest * 31 + (unsigned char)*c;
    session->newest = visit;
    session->kept++;
}

static struct session *find_session(unsigned user) {
    struct session **at = &sessions[user % SESSIONS];
    if (*at && (*at)->user != user) {
        end_session(*at);
        *at = NULL;
    }
    if (!*at) {
        *at = must(calloc(1, sizeof **at));
        (*at)->user = user;
    }
    return *at;
}

/* A line for each of the latest visits. */
static void write_log(const struct session *session) {
    const struct visit *visit = session->newest;
    for (int i = 0; i < LOG_LINES && visit; i++, visit = visit->older) {
        char *line = must(malloc(LOG_LINE_BYTES));
        memset(line, '-', LOG_LINE_BYTES);
        memcpy(line, &visit->digest, sizeof visit->digest);
        checksum += (unsigned char)line[visit->number % 8];
        free(line);
    }
}

static void answer(const struct field *fields) {
    for (const struct field *field = fields; field; field = field->next) {
        size_t bytes = strlen(field->key) + strlen(field->value) + 3;
        char *part = must(malloc(bytes));
        memcpy(part, field->key, strlen(field->key) + 1);
        for (const char *c = field->value; *c; c++)
            checksum = checksum * 31 + (unsigned char)*c;
        free(part);
    }
}

static void free_request(struct field *field) {
    while (field) {
        struct field *next = field->next;
        free(field->key);
        free(field->value);
        free(field);
        field = next;
    }
}

int main(int argc, char **argv) {
    long requests = argc > 1 ? strtol(argv[1], NULL, 10) : REQUESTS_DEFAULT;
    unsigned random = 42;
    char text[2048];
    for (long i = 0; i < requests; i++) {
        write_request(text, sizeof text, &random);
        struct field *fields = parse_request(text);
        struct session *session = find_session(next_random(&random) % (SESSIONS * 2));
        unsigned number = 0;
        for (const struct field *field = fields; field; field = field->next)
            if (number++ % REMEMBERED_EACH == 0)
                remember(session, field);
        answer(fields);
        free_request(fields);
        write_log(session);
    }
    printf("%ld requests served, checksum %llu\n", requests, checksum);
    return 0;
}
