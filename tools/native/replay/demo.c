// SPDX-License-Identifier: MIT
/*
 * demo.c - quire-demo: a small server without a network, for a first `quire try`.
 *
 *   request text -> fields (list of nodes and strings) -> the session -> answer -> free it all
 *
 * Two ways of using memory on purpose: fields, answers and log lines die with their request (an
 * arena's case), sessions are of one size and come and go (a slab's case).
 *
 * Not here: anything of quire; this is a plain program that calls malloc and free.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SESSIONS = 4096, REQUESTS_DEFAULT = 20000, FIELDS_MAX = 24, LOG_LINE_BYTES = 160 };

struct field {
    struct field *next;
    char *key;
    char *value;
};

struct session {
    unsigned user;
    unsigned visits;
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

static struct session *find_session(unsigned user) {
    struct session **at = &sessions[user % SESSIONS];
    if (*at && (*at)->user != user) {
        free(*at);
        *at = NULL;
    }
    if (!*at) {
        *at = must(calloc(1, sizeof **at));
        (*at)->user = user;
    }
    (*at)->visits++;
    return *at;
}

static void write_log(const struct session *session) {
    char *line = must(malloc(LOG_LINE_BYTES));
    checksum += (unsigned)snprintf(line, LOG_LINE_BYTES, "user %u visit %u", session->user,
                                   session->visits);
    free(line);
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
        write_log(find_session(next_random(&random) % (SESSIONS * 2)));
        answer(fields);
        free_request(fields);
    }
    printf("%ld requests served, checksum %llu\n", requests, checksum);
    return 0;
}
