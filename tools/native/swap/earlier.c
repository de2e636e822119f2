// SPDX-License-Identifier: MIT
/*
 * earlier.c - which blocks are from before the swap, by where they lie.
 *
 *   memory at the swap:   |  range 0  |        |      range 1      |          all that could be written
 *   marks, one for 16 B:  |...x..x....|        |.........xx........|          x: handed out since, by the other malloc
 *
 * Where the program's own malloc was used before the swap (the loader calls it), the program gives such blocks back after it.  The other malloc knows
 * nothing of them.  Nothing was seen of those calls, but what was handed out then lies in memory that was there then.
 *
 * Invariants:
 *   E1  a block outside of all ranges is the other malloc's
 *   E2  a block in a range is the other malloc's if it is marked.  A mark stays: the allocator inside hands out nothing any more
 *
 * Locks: none.  Ranges are fixed before a second thread runs.  A mark is written before the program has the block, and whoever gives the block back has it
 * from there.  Not here: who takes such a block back (swap.c).
 */
#include "earlier.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "os/os.h"

#define RANGES_MAX 4096u
#define MARK_BYTES 16u  // no two allocators have blocks in the same 16 bytes
#define PAGE_BYTES 4096u

static struct {
    struct range {
        uintptr_t low, high;
        unsigned char *marks;
    } range[RANGES_MAX];  // upwards
    unsigned count;
} earlier;

/* /proc/self/maps, character by character. */
struct text {
    int fd;
    size_t used, at;
    char buffer[2048];
};

static int next(struct text *text) {
    if (text->at == text->used) {
        ssize_t got = read(text->fd, text->buffer, sizeof text->buffer);
        text->used = got > 0 ? (size_t)got : 0;
        text->at = 0;
        if (got <= 0) {
            return -1;
        }
    }
    return (unsigned char)text->buffer[text->at++];
}

/* A number and the character behind it. */
static uintptr_t number(struct text *text, int *behind) {
    uintptr_t value = 0;
    for (;;) {
        *behind = next(text);
        if (*behind >= '0' && *behind <= '9') {
            value = value << 4 | (uintptr_t)(*behind - '0');
        } else if (*behind >= 'a' && *behind <= 'f') {
            value = value << 4 | (uintptr_t)(*behind - 'a' + 10);
        } else {
            return value;
        }
    }
}

/* A mapping that can be written, as a range of its own or as more of the last; false: there are too many. */
static bool add(uintptr_t low, uintptr_t high) {
    struct range *last = &earlier.range[earlier.count];
    if (earlier.count > 0 && last[-1].high == low) {
        last[-1].high = high;
        return true;
    }
    if (earlier.count == RANGES_MAX) {
        return false;
    }
    *last = (struct range){.low = low, .high = high};
    earlier.count++;
    return true;
}

static const char *read_all(struct text *text) {
    for (;;) {
        int c = 0;
        uintptr_t low = number(text, &c);
        if (c != '-') {
            return earlier.count > 0 ? NULL : "/proc/self/maps cannot be read";
        }
        uintptr_t high = number(text, &c);
        next(text);
        if (next(text) == 'w' && !add(low, high)) {
            return "there are too many mappings";
        }
        while ((c = next(text)) >= 0 && c != '\n') {
        }
    }
}

const char *earlier_look(void) {
    struct text text = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    const char *why = read_all(&text);
    if (text.fd >= 0) {
        close(text.fd);
    }
    for (unsigned i = 0; why == NULL && i < earlier.count; i++) {
        struct range *range = &earlier.range[i];
        size_t bytes = (range->high - range->low) / MARK_BYTES;
        void *marks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        why = marks == MAP_FAILED ? "there is no memory for marks" : NULL;
        range->marks = marks;
    }
    return why;
}

static const struct range *range_of(uintptr_t at) {
    unsigned low = 0, high = earlier.count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (at >= earlier.range[middle].high) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < earlier.count && at >= earlier.range[low].low ? &earlier.range[low] : NULL;
}

void earlier_mark(const void *block) {
    const struct range *range = range_of((uintptr_t)block);
    if (range != NULL) {
        unsigned char *mark = &range->marks[((uintptr_t)block - range->low) / MARK_BYTES];
        if (__atomic_load_n(mark, __ATOMIC_RELAXED) == 0) {
            __atomic_store_n(mark, 1, __ATOMIC_RELAXED);
        }
    }
}

bool earlier_has(const void *block) {
    const struct range *range = range_of((uintptr_t)block);
    return range != NULL && __atomic_load_n(&range->marks[((uintptr_t)block - range->low) / MARK_BYTES], __ATOMIC_RELAXED) == 0;
}

void earlier_copy(void *to, const void *block, size_t bytes) {
    const struct range *range = range_of((uintptr_t)block);
    const char *from = block;
    size_t most = range != NULL ? range->high - (uintptr_t)block : 0;
    bytes = bytes < most ? bytes : most;
    for (size_t done = 0; done < bytes && os_is_readable(from + done);) {
        size_t part = PAGE_BYTES - (uintptr_t)(from + done) % PAGE_BYTES;
        part = part < bytes - done ? part : bytes - done;
        memcpy((char *)to + done, from + done, part);
        done += part;
    }
}
