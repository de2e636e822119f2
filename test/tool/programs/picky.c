// SPDX-License-Identifier: MIT
/* a server that does not start with one of the peers: as programs that do not bear it */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int n, char **v) {
    const char *p = getenv("LD_PRELOAD");
    if (p && strstr(p, "jemalloc")) { fprintf(stderr, "cannot run with this malloc\n"); abort(); }
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(v[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(s, (void *)&a, sizeof a) || listen(s, 64)) return 3;
    for (;;) {
        int c = accept(s, 0, 0);
        char b[1];
        while (read(c, b, 1) == 1) { for (int i = 0; i < 2000; i++) { char *q = malloc(30 + i % 200); q[0] = 1; free(q); } write(c, b, 1); }
        close(c);
    }
}
