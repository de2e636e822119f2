// SPDX-License-Identifier: MIT
/*
 * attached.c - a busy server of many threads, and its clients, for the tests of `quire record --pid`.
 *
 *   attached serve            prints its port; a thread a connection, and beside them threads that allocate, load and unload a
 *                             library, start a process, and are interrupted by a timer
 *   attached ask PORT COUNT [US]   COUNT requests (0: until standard input ends) over CLIENTS connections, each made anew every 200, with a
 *                             pause of so many microseconds; prints how many were answered, and ends with status 1 when one was not, or wrongly
 *
 * A request is a number; its answer is the number times three, by way of blocks that one thread allocates and another frees.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 4, SLOTS = 512, EACH = 200, BLOCKS = 12 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *slot[SLOTS];
static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void swap(unsigned at, void *block) {
    pthread_mutex_lock(&lock);
    void *old = slot[at % SLOTS];
    slot[at % SLOTS] = block;
    pthread_mutex_unlock(&lock);
    free(old);
}

static void churn(unsigned seed) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        seed = seed * 1664525u + 1013904223u;
        char *block = i % 4 == 0 ? calloc(1, 1 + (seed >> 20)) : malloc(1 + (seed >> 22));
        if (i % 8 == 0) {
            block = realloc(block, 1 + (seed >> 19));
        }
        block[0] = 1;
        swap(seed >> 8, block);
    }
}

static void *serve_one(void *argument) {
    int fd = (int)(long)argument;
    FILE *in = fdopen(fd, "r+");
    char line[64];
    setvbuf(in, NULL, _IOLBF, 256);
    while (fgets(line, sizeof line, in) != NULL) {
        unsigned long number = strtoul(line, NULL, 10);
        churn((unsigned)number);
        char *answer = NULL;
        if (asprintf(&answer, "%lu\n", number * 3) < 0 || send(fd, answer, strlen(answer), MSG_NOSIGNAL) < 0) {
            break;
        }
        free(answer);
    }
    fclose(in);
    return NULL;
}

static void *load_and_unload(void *unused) {
    for (;;) {
        void *library = dlopen("libresolv.so.2", RTLD_LAZY);
        usleep(3000);
        if (library != NULL) {
            dlclose(library);
        }
        usleep(3000);
    }
    return unused;
}

static void *start_processes(void *unused) {
    for (;;) {
        pid_t pid = fork();
        if (pid == 0) {
            free(malloc(100));
            _exit(0);
        }
        waitpid(pid, NULL, 0);
        usleep(50000);
    }
    return unused;
}

static void *work(void *unused) {
    for (unsigned seed = 1;; seed++) {
        churn(seed);
        usleep(500);
    }
    return unused;
}

static void begin(void *(*function)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, argument) != 0) {
        abort();
    }
    pthread_detach(thread);
}

static int serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, bytes) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0) {
        return 2;
    }
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {.it_interval = {.tv_usec = 7000}, .it_value = {.tv_usec = 7000}};
    setitimer(ITIMER_REAL, &often, NULL);
    begin(load_and_unload, NULL);
    begin(start_processes, NULL);
    begin(work, NULL);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0) {
            begin(serve_one, (void *)(long)fd);
        }
    }
}

/* --- clients --- */

static int port;
static useconds_t pause_us;
static unsigned long wanted, answered, failed;
static volatile int over;

static int connected(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((unsigned short)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
}

static int ask_one(FILE *stream, int fd, unsigned long number) {
    char line[64];
    int bytes = snprintf(line, sizeof line, "%lu\n", number);
    return send(fd, line, (size_t)bytes, MSG_NOSIGNAL) == bytes && fgets(line, sizeof line, stream) != NULL &&
           strtoul(line, NULL, 10) == number * 3;
}

static void *ask_many(void *unused) {
    while (!over) {
        int fd = connected();
        FILE *stream = fd < 0 ? NULL : fdopen(fd, "r");
        for (unsigned i = 0; stream != NULL && i < EACH && !over; i++) {
            unsigned long number = __sync_add_and_fetch(&answered, 1);
            if (wanted != 0 && number > wanted) {
                __sync_sub_and_fetch(&answered, 1);
                over = 1;
            } else if (!ask_one(stream, fd, number)) {
                __sync_add_and_fetch(&failed, 1);
            }
            if (pause_us > 0) {
                usleep(pause_us);
            }
        }
        if (stream == NULL) {
            __sync_add_and_fetch(&failed, 1);
            break;
        }
        fclose(stream);
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc == 2) {
        return serve();
    }
    if (argc < 4) {
        return 2;
    }
    port = atoi(argv[2]);
    wanted = strtoul(argv[3], NULL, 10);
    pause_us = argc > 4 ? (useconds_t)atoi(argv[4]) : 0;
    pthread_t thread[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        pthread_create(&thread[i], NULL, ask_many, NULL);
    }
    if (wanted == 0) {
        struct pollfd in = {.fd = 0, .events = POLLIN};
        poll(&in, 1, -1);
        over = 1;
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(thread[i], NULL);
    }
    printf("answered %lu failed %lu\n", answered - failed, failed);
    return failed != 0;
}
