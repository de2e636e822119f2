// SPDX-License-Identifier: MIT
/*
 * memcached_load.c - a load for memcached that tells how long each request took: one set in ten, gets else.
 *
 *     memcached_load PORT CLIENTS REQUESTS        REQUESTS of each client, a thread with a connection
 *
 * Into the folder $QUIRE_LATENCIES it writes a file for each client: microseconds, a line a request.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 5000, VALUE_BYTES_MAX = 4000, CLIENTS_MAX = 64 };

static int port;
static long requests;

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* One answer: up to the line that ends it. */
static void answered(int at, const char *end)
{
    static _Thread_local char answer[VALUE_BYTES_MAX + 200];
    size_t bytes = 0, tail = strlen(end);
    do {
        ssize_t more = read(at, answer + bytes, sizeof answer - bytes);
        must(more > 0, "read");
        bytes += (size_t)more;
    } while (bytes < tail || memcmp(answer + bytes - tail, end, tail) != 0);
}

static void *client(void *number)
{
    char text[VALUE_BYTES_MAX + 200], path[4096];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int at = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    must(connect(at, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    setsockopt(at, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    snprintf(path, sizeof path, "%s/memcached_load.%ld", getenv("QUIRE_LATENCIES") ? getenv("QUIRE_LATENCIES") : "/tmp", (long)(intptr_t)number);
    FILE *log = getenv("QUIRE_LATENCIES") ? fopen(path, "w") : NULL;
    uint32_t chance = 1 + (uint32_t)(intptr_t)number;
    for (long i = 0; i < requests; i++) {
        chance = chance * 1664525 + 1013904223;
        unsigned key = (chance >> 8) % KEYS, bytes = 10 + (chance >> 4) % (VALUE_BYTES_MAX - 10);
        int is_set = i % 10 == 0, length = is_set ? snprintf(text, sizeof text, "set k%u 0 0 %u\r\n", key, bytes) : snprintf(text, sizeof text, "get k%u\r\n", key);
        if (is_set) {
            memset(text + length, 'v', bytes);
            memcpy(text + length + bytes, "\r\n", 2);
            length += (int)bytes + 2;
        }
        long began_ns = now_ns();
        must(write(at, text, (size_t)length) == length, "write");
        answered(at, is_set ? "STORED\r\n" : "END\r\n");
        if (log)
            fprintf(log, "%ld\n", (now_ns() - began_ns + 500) / 1000);
    }
    must(!log || fclose(log) == 0, path);
    close(at);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[CLIENTS_MAX];
    must(argc == 4, "PORT CLIENTS REQUESTS");
    port = atoi(argv[1]);
    int clients = atoi(argv[2]);
    requests = atol(argv[3]);
    must(clients > 0 && clients <= CLIENTS_MAX, "CLIENTS");
    for (intptr_t i = 0; i < clients; i++)
        must(pthread_create(&threads[i], NULL, client, (void *)i) == 0, "pthread_create");
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    printf("requests: %ld\n", requests * clients);
    return 0;
}
