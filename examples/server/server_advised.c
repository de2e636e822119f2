// SPDX-License-Identifier: MIT
/*
 * server_advised.c - a request server without its sockets: requests are parsed and answered, sessions kept, one request after the other.
 *
 *   "GET /cart?item=17&note=a%20b ... Cookie: sid=4711"
 *        | parse                              session (found by its cookie, or new; ended when idle too long)
 *        v                                        v
 *   request: path, parameters, headers  ->  answer: a list of parts  ->  sent (summed up)  ->  request and answer dropped
 *
 *     cc -O2 server_advised.c -lquire -o server_advised && ./server_advised 100000
 *
 * This is server_malloc.c with the advice of `./quire try` carried out: what is made for a request and its answer dies with the
 * request, so an arena holds it.  The two differ in xmalloc and main, and drop is gone.  Sessions stay with malloc.
 */
#include <quire/arena.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS_DEFAULT = 100000, SESSIONS = 1024, USERS = 2048, TEXT_BYTES = 4096, IDLE_MAX = 3000 };

struct pair {
    struct pair *next;
    char *key, *value;
};

struct part {
    struct part *next;
    size_t bytes;
    char text[];
};

struct request {
    char *path;
    struct pair *parameters, *headers;
    struct part *first, **last;
};

struct session {
    struct session *next;
    unsigned user, requests;
    long seen;
    char basket[160];
};

static struct session *sessions[SESSIONS];
static unsigned long long checksum;
static struct quire_arena *arena; // of the request at hand: small, so it is kept and reset

static void *xmalloc(size_t bytes) {
    void *memory = quire_arena_alloc(arena, bytes);
    if (!memory)
        exit(1);
    return memory;
}

static char *copy_text(const char *from, size_t bytes) {
    char *text = xmalloc(bytes + 1);
    memcpy(text, from, bytes);
    text[bytes] = '\0';
    return text;
}

static int digit(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

/* %41 becomes A. */
static char *decoded(const char *from, size_t bytes) {
    char *text = xmalloc(bytes + 1), *to = text;
    for (const char *end = from + bytes; from < end; from++) {
        if (*from == '%' && end - from > 2) {
            *to++ = (char)(digit(from[1]) << 4 | digit(from[2]));
            from += 2;
        } else {
            *to++ = *from == '+' ? ' ' : *from;
        }
    }
    *to = '\0';
    return text;
}

static struct pair *new_pair(char *key, char *value, struct pair *next) {
    struct pair *pair = xmalloc(sizeof *pair);
    *pair = (struct pair){.next = next, .key = key, .value = value};
    return pair;
}

static const char *parse_parameters(struct request *request, const char *at) {
    while (*at == '?' || *at == '&') {
        at++;
        size_t key = strcspn(at, "="), value = strcspn(at + key + 1, "& ");
        char *text = decoded(at + key + 1, value);
        request->parameters = new_pair(copy_text(at, key), text, request->parameters);
        at += key + 1 + value;
    }
    return at;
}

static struct request *parse(const char *at) {
    struct request *request = xmalloc(sizeof *request);
    *request = (struct request){.last = &request->first};
    at += strcspn(at, " ") + 1;
    size_t path = strcspn(at, "? ");
    request->path = copy_text(at, path);
    at = parse_parameters(request, at + path);
    for (at = strchr(at, '\n') + 1; *at; at = strchr(at, '\n') + 1) {
        size_t key = strcspn(at, ":"), value = strcspn(at + key + 2, "\n");
        char *text = copy_text(at + key + 2, value);
        request->headers = new_pair(copy_text(at, key), text, request->headers);
    }
    return request;
}

static const char *header(const struct request *request, const char *key) {
    for (const struct pair *pair = request->headers; pair; pair = pair->next)
        if (strcmp(pair->key, key) == 0)
            return pair->value;
    return "";
}

static void end_idle(struct session **at, long now) {
    while (*at) {
        struct session *session = *at;
        if (now - session->seen <= IDLE_MAX) {
            at = &session->next;
            continue;
        }
        *at = session->next;
        checksum += session->requests;
        free(session);
    }
}

static struct session *session_of(const struct request *request, long now) {
    unsigned user = (unsigned)strtoul(header(request, "Cookie") + strlen("sid="), NULL, 10);
    struct session **bucket = &sessions[user % SESSIONS];
    end_idle(bucket, now);
    for (struct session *session = *bucket; session; session = session->next)
        if (session->user == user)
            return session;
    struct session *session = malloc(sizeof *session);
    if (!session)
        exit(1);
    *session = (struct session){.next = *bucket, .user = user};
    *bucket = session;
    return session;
}

static void say(struct request *request, const char *format, const char *a, const char *b) {
    char text[512];
    int bytes = snprintf(text, sizeof text, format, a, b);
    struct part *part = xmalloc(sizeof *part + (size_t)bytes);
    *part = (struct part){.bytes = (size_t)bytes};
    memcpy(part->text, text, part->bytes);
    *request->last = part;
    request->last = &part->next;
}

static void answer(struct request *request, struct session *session, long now) {
    session->seen = now;
    session->requests++;
    say(request, "<html><h1>%s</h1>for %s<ul>", request->path, header(request, "User-Agent"));
    for (const struct pair *pair = request->parameters; pair; pair = pair->next) {
        say(request, "<li>%s: <b>%s</b></li>", pair->key, pair->value);
        snprintf(session->basket, sizeof session->basket, "%s %.100s", pair->key, pair->value);
    }
    say(request, "</ul>%s%s</html>\n", "last: ", session->basket);
}

static void send_off(const struct request *request) {
    for (const struct part *part = request->first; part; part = part->next)
        for (size_t i = 0; i < part->bytes; i++)
            checksum = checksum * 31 + (unsigned char)part->text[i];
}

static unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void write_request(char *text, unsigned *random) {
    char *at = text + sprintf(text, "GET /shelf/%u", next_random(random) % 50);
    unsigned parameters = 8 + next_random(random) % 12;
    for (unsigned i = 0; i < parameters; i++)
        at += sprintf(at, "%citem%u=size%%20%u%%2C%.*s", i ? '&' : '?', i, next_random(random) % 99,
                      (int)(next_random(random) % 40), "a+note+of+the+buyer+to+the+seller+of+it");
    at += sprintf(at, " HTTP/1.1\nHost: shop.example\nUser-Agent: browser/%u\nAccept: text/html\n",
                  next_random(random) % 9);
    at += sprintf(at, "Accept-Language: en\nReferer: /shelf/%u\n", next_random(random) % 50);
    sprintf(at, "Cookie: sid=%u\n", next_random(random) % USERS);
}

int main(int argc, char **argv) {
    long requests = argc > 1 ? strtol(argv[1], NULL, 10) : REQUESTS_DEFAULT;
    static char text[TEXT_BYTES];
    unsigned random = 42;
    arena = quire_arena_create(NULL);
    if (!arena)
        exit(1);
    for (long now = 0; now < requests; now++) {
        write_request(text, &random);
        struct request *request = parse(text);
        answer(request, session_of(request, now), now);
        send_off(request);
        quire_arena_reset(arena);
    }
    quire_arena_destroy(arena);
    printf("%ld requests, checksum %llu\n", requests, checksum);
    return 0;
}
