// SPDX-License-Identifier: MIT
/*
 * stats_server.c - 100,000 counters that 8 threads update, served over HTTP on localhost while they do.
 *
 *     updater 0 --\                                          /metrics
 *        ...       >--add--> 100,000 counters --sum--> server ------> curl, Prometheus, or --selftest
 *     updater 7 --/                                     |
 *                                                       '--record--> histogram of its own request times
 *
 *     stats_server [--port N] [--seconds N] [--selftest]      until Ctrl-C, or for N seconds; port 0 (the default): any free one
 *     curl -s 127.0.0.1:PORT/metrics | head                   Prometheus text format
 *
 * At the end it compares every counter with what the updaters say they added: exit status 0 when all are exact.  --selftest also reads itself over its
 * socket all the time, sees that no counter ever goes back, and compares what the last reading says.
 */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <quire/counter.h>
#include <quire/histogram.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { COUNTERS = 100000, UPDATERS = 8, ROUTES = 100, STATUSES = 10 };

/* What the threads share. */
static struct {
    struct quire_percpu *pool;
    struct quire_counter counters[COUNTERS];
    struct quire_histogram request_ns;
    struct quire_histogram_snapshot *times; /* the server's */
    int listener;
    unsigned stop; /* atomic */
} server;

struct updater {
    pthread_t thread;
    uint64_t random;
    uint32_t added[COUNTERS]; /* its own account, to compare with at the end */
};

/* What the self-test has read. */
struct reading {
    size_t counters;
    long long value[COUNTERS];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static int stopping(void)
{
    return (int)__atomic_load_n(&server.stop, __ATOMIC_RELAXED);
}

static void *update(void *arg)
{
    struct updater *updater = arg;
    while (!stopping())
        for (int i = 0; i < 1000; i++) {
            updater->random = updater->random * 6364136223846793005U + 1442695040888963407U;
            size_t which = (size_t)((updater->random >> 32) * COUNTERS >> 32);
            quire_counter_add(&server.counters[which], 1);
            updater->added[which]++;
        }
    return NULL;
}

/* ---- what is served ---- */

/* Text on its way to a socket. */
struct out {
    int fd, failed;
    size_t used;
    char text[65536];
};

static void out_flush(struct out *out)
{
    for (size_t sent = 0; sent < out->used && !out->failed;) {
        ssize_t n = send(out->fd, out->text + sent, out->used - sent, MSG_NOSIGNAL);
        if (n > 0)
            sent += (size_t)n;
        else if (n == 0 || errno != EINTR)
            out->failed = 1; /* the reader is gone, or too slow */
    }
    out->used = 0;
}

__attribute__((format(printf, 2, 3))) static void out_print(struct out *out, const char *format, ...)
{
    enum { LINE_BYTES_MAX = 256 };
    if (out->used > sizeof out->text - LINE_BYTES_MAX)
        out_flush(out);
    va_list arguments;
    va_start(arguments, format);
    out->used += (size_t)vsnprintf(out->text + out->used, LINE_BYTES_MAX, format, arguments);
    va_end(arguments);
}

static void print_metrics(struct out *out)
{
    out_print(out, "# HELP demo_requests_total Requests that the updaters pretend to have served.\n# TYPE demo_requests_total counter\n");
    for (int i = 0; i < COUNTERS && !out->failed; i++)
        out_print(out, "demo_requests_total{service=\"s%d\",route=\"r%d\",status=\"%d\"} %lld\n", i / STATUSES / ROUTES, i / STATUSES % ROUTES,
                  200 + i % STATUSES, (long long)quire_counter_sum(&server.counters[i]));

    quire_histogram_snapshot_take(server.times, &server.request_ns);
    struct quire_histogram_stats stats = {.struct_bytes = sizeof stats};
    quire_histogram_snapshot_stats(server.times, &stats);
    out_print(out, "# HELP stats_server_request_seconds How long this server took for a request.\n# TYPE stats_server_request_seconds summary\n");
    const double quantiles[] = {0.5, 0.9, 0.99, 1};
    for (int i = 0; i < 4; i++)
        out_print(out, "stats_server_request_seconds{quantile=\"%g\"} %.9f\n", quantiles[i],
                  (double)quire_histogram_snapshot_percentile(server.times, quantiles[i] * 100) / 1e9);
    out_print(out, "stats_server_request_seconds_sum %.9f\n", stats.sum / 1e9);
    out_print(out, "stats_server_request_seconds_count %llu\n", (unsigned long long)stats.count);

    struct quire_percpu_stats pool = {.struct_bytes = sizeof pool};
    quire_percpu_stats(server.pool, &pool);
    out_print(out, "# TYPE stats_server_pool_objects gauge\nstats_server_pool_objects %zu\n", pool.live_objects);
    out_print(out, "# TYPE stats_server_pool_bookkeeping_bytes gauge\nstats_server_pool_bookkeeping_bytes %zu\n", pool.meta_bytes);
}

static void answer(int fd)
{
    char request[4096] = "";
    size_t used = 0;
    while (used < sizeof request - 1 && !strstr(request, "\r\n\r\n")) {
        ssize_t n = recv(fd, request + used, sizeof request - 1 - used, 0);
        if (n <= 0)
            return; /* gone, or too slow */
        used += (size_t)n;
    }
    static struct out out; /* one request at a time */
    out.fd = fd, out.failed = 0, out.used = 0;
    if (strncmp(request, "GET /metrics ", 13) == 0) {
        out_print(&out, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n");
        print_metrics(&out);
    } else {
        out_print(&out, "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThere is /metrics.\n");
    }
    out_flush(&out);
}

static void *serve(void *arg)
{
    (void)arg;
    for (int fd; (fd = accept(server.listener, NULL, NULL)) >= 0 || errno == EINTR || errno == ECONNABORTED;) {
        if (fd < 0)
            continue;
        uint64_t begin_ns = now_ns();
        const struct timeval patience = {.tv_sec = 5};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        answer(fd);
        close(fd);
        quire_histogram_record(&server.request_ns, now_ns() - begin_ns);
    }
    return NULL; /* the listener was shut down */
}

/* A socket on localhost, listening; *port becomes the one it has. */
static int listen_on(uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        listen(fd, 16) != 0 || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return -1;
    *port = ntohs(address.sin_port);
    return fd;
}

/* ---- the self-test ---- */

/* Ask the server as anybody would; NULL when it does not answer. */
static FILE *ask(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    FILE *file = NULL;
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        send(fd, request, sizeof request - 1, MSG_NOSIGNAL) == (ssize_t)sizeof request - 1)
        file = fdopen(fd, "r");
    if (!file && fd >= 0)
        close(fd);
    return file;
}

/* Read all counters over the socket.  0, or -1: no answer, one is missing, or one has gone back since the last time. */
static int read_counters(uint16_t port, struct reading *reading)
{
    FILE *file = ask(port);
    char line[256];
    int went_back = 0;
    reading->counters = 0;
    while (file && fgets(line, sizeof line, file)) {
        int service, route, status;
        long long value;
        if (sscanf(line, "demo_requests_total{service=\"s%d\",route=\"r%d\",status=\"%d\"} %lld", &service, &route, &status, &value) != 4)
            continue;
        long which = ((long)service * ROUTES + route) * STATUSES + status - 200;
        if (which != (long)reading->counters || which >= COUNTERS)
            break;
        went_back |= value < reading->value[which];
        reading->value[which] = value;
        reading->counters++;
    }
    if (file)
        fclose(file);
    return reading->counters == COUNTERS && !went_back ? 0 : -1;
}

/* ---- beginning and end ---- */

struct options {
    uint16_t port;
    unsigned seconds;
    int selftest;
};

static int parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        unsigned long number = i + 1 < argc ? strtoul(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--selftest") == 0)
            options->selftest = 1;
        else if (strcmp(argv[i], "--seconds") == 0 && number > 0 && number <= 86400)
            options->seconds = (unsigned)number, i++;
        else if (strcmp(argv[i], "--port") == 0 && i + 1 < argc && number <= 65535)
            options->port = (uint16_t)number, i++;
        else
            return fprintf(stderr, "usage: stats_server [--port N] [--seconds N] [--selftest]\n"), -1;
    }
    if (options->selftest && options->seconds == 0)
        options->seconds = 2;
    return 0;
}

/* Wait for Ctrl-C or the end of the time; the self-test reads meanwhile.  Returns how often it has read, or -1. */
static long run(const struct options *options, const sigset_t *signals, struct reading *reading)
{
    uint64_t end_ns = now_ns() + options->seconds * 1000000000ULL;
    long readings = 0;
    for (;;) {
        const struct timespec moment = {.tv_nsec = options->selftest ? 1000000 : 100000000};
        int ended = sigtimedwait(signals, NULL, &moment) > 0 || (options->seconds != 0 && now_ns() >= end_ns);
        if (ended && (readings > 0 || !options->selftest))
            return readings;
        if (options->selftest && read_counters(options->port, reading) != 0)
            return fprintf(stderr, "stats_server: %zu counters read, one is missing or went back\n", reading->counters), -1;
        readings++;
    }
}

/* Compare every counter with what the updaters added.  0 when all are exact. */
static int compare(const struct updater *updaters, const struct reading *reading)
{
    long long added_sum = 0, counted_sum = 0;
    size_t exact = 0;
    for (size_t i = 0; i < COUNTERS; i++) {
        long long added = 0, counted = reading ? reading->value[i] : (long long)quire_counter_sum(&server.counters[i]);
        for (int t = 0; t < UPDATERS; t++)
            added += updaters[t].added[i];
        exact += added == counted && counted == quire_counter_read(&server.counters[i]);
        added_sum += added;
        counted_sum += counted;
    }
    printf("%d threads added %lld, the counters say %lld: %zu of %d are exact\n", UPDATERS, added_sum, counted_sum, exact, COUNTERS);
    return exact == COUNTERS ? 0 : -1;
}

static int make_metrics(void)
{
    server.pool = quire_percpu_create(&(struct quire_percpu_opts){.name = "stats"});
    server.times = quire_histogram_snapshot_create(7);
    if (!server.pool || !server.times || quire_histogram_init(&server.request_ns, server.pool, 7) != 0)
        return -1;
    for (int i = 0; i < COUNTERS; i++)
        if (quire_counter_init(&server.counters[i], server.pool) != 0)
            return -1;
    return 0;
}

static void end_metrics(void)
{
    for (int i = 0; i < COUNTERS; i++)
        quire_counter_fini(&server.counters[i]);
    quire_histogram_fini(&server.request_ns);
    quire_histogram_snapshot_destroy(server.times);
    quire_percpu_destroy(server.pool);
}

int main(int argc, char **argv)
{
    struct options options = {0};
    if (parse(argc, argv, &options) != 0)
        return 2;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    struct updater *updaters = calloc(UPDATERS, sizeof *updaters);
    struct reading *reading = calloc(1, sizeof *reading);
    if (!updaters || !reading || make_metrics() != 0 || (server.listener = listen_on(&options.port)) < 0)
        return perror("stats_server"), 1;
    pthread_t serving;
    int failed = pthread_create(&serving, NULL, serve, NULL);
    for (unsigned t = 0; t < UPDATERS && !failed; t++) {
        updaters[t].random = t;
        failed = pthread_create(&updaters[t].thread, NULL, update, &updaters[t]);
    }
    if (failed)
        return fprintf(stderr, "stats_server: no thread: %s\n", strerror(failed)), 1;
    fprintf(stderr, "http://127.0.0.1:%u/metrics\n", options.port);

    long readings = run(&options, &signals, reading);
    __atomic_store_n(&server.stop, 1, __ATOMIC_RELAXED);
    for (int t = 0; t < UPDATERS; t++)
        pthread_join(updaters[t].thread, NULL);
    int wrong = readings < 0 || (options.selftest && read_counters(options.port, reading) != 0);
    if (options.selftest)
        printf("read %ld times over the socket while they ran\n", readings);
    wrong |= compare(updaters, options.selftest ? reading : NULL) != 0;
    shutdown(server.listener, SHUT_RDWR);
    pthread_join(serving, NULL);
    close(server.listener);
    end_metrics();
    free(reading);
    free(updaters);
    return wrong ? 1 : 0;
}
