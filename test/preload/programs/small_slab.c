// SPDX-License-Identifier: MIT
/* Elements of a slab that come and go; then what the process holds of libquire.so, with which it is linked. */
#include <fcntl.h>
#include <unistd.h>

#include <quire/slab.h>

enum { COUNT = 100000 };

int main(int argc, char **argv)
{
    static void *elements[COUNT];
    static char text[1 << 16];
    struct quire_slab *slab = argc > 1 ? quire_slab_create(64, NULL) : NULL;
    for (int round = 0; slab && round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            if (!(elements[i] = quire_slab_alloc(slab)))
                return 1;
        for (int i = 0; i < COUNT; i++)
            quire_slab_free(slab, elements[i]);
    }
    int fd = open("/proc/self/smaps", O_RDONLY);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        if (write(1, text, (size_t)n) != n)
            return 1;
    return fd < 0;
}
