// SPDX-License-Identifier: MIT
/*
 * swap.c - libquire-swap.so: another malloc in the place of the allocator that a program has inside, for measuring.
 *
 *   LD_PRELOAD=libjemalloc.so.2:libquire-swap.so QUIRE_SWAP=/usr/lib/.../libjemalloc.so.2 QUIRE_SWAP_IN=/usr/bin/program program
 *
 *   program -> mi_malloc (patched: ../own) -> own_before() -> malloc of that library -> program
 *   program -> mi_free(p) -------------------> own_before() -> free of that library;  p from before the swap (earlier.c): mi_free as it was
 *
 * QUIRE_SWAP=inside: the allocator inside, by the same way; what the way costs is then in all that is compared.
 * QUIRE_SWAP_IN: the program that is measured, which must have one. Another that it starts, or that starts it, may have none: what is preloaded serves that.
 *
 * Runs before the constructors of all other libraries (-z initfirst): the loader heeds that for one, the last, and runs the constructors of what is
 * preloaded last first.  libquire-malloc.so asks in its own who the process's malloc is: asked before the swap, it would serve by its long way only.
 * So no constructor may be run from here (library.c).
 * Where the program ends otherwise than it does by itself all the same, whoever measures sees that.
 * Locks: none.  Not here: finding and patching (../own), who preloads this (tools/quire/own.py).
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../own/plant.h"
#include "earlier.h"
#include "library.h"

__thread unsigned rec_busy __attribute__((tls_model("initial-exec"), visibility("hidden")));

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    size_t (*usable)(void *);
    void *(*heap_of)(const void *);  // libquire-malloc.so's, else NULL: whether it has a block
} other;

static bool is_inside;

/* The result, as the allocator inside would give it. */
typedef uint64_t inside_call(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

static uint64_t call_inside(const struct own_frame *frame) {
    inside_call *original = (inside_call *)(uintptr_t)frame->hook->original;
    rec_busy = 1;
    own_place = (uintptr_t)frame;
    const uint64_t *argument = frame->argument;
    uint64_t result = original(argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
    own_place = 0;
    rec_busy = 0;
    return result;
}

static void *alloc(const struct own_request *request) {
    void *block = NULL;
    if (request->align_bytes <= _Alignof(max_align_t)) {
        return request->zeroed ? other.calloc(1, request->bytes) : other.malloc(request->bytes);
    }
    if (other.posix_memalign(&block, request->align_bytes, request->bytes) != 0) {
        return NULL;
    }
    return request->zeroed ? memset(block, 0, request->bytes) : block;
}

/* realloc keeps no alignment beyond the usual one. */
static void *resize(const struct own_request *request) {
    void *old = (void *)request->block;
    if (old == NULL) {
        return alloc(request);
    }
    if (request->align_bytes <= _Alignof(max_align_t)) {
        return other.realloc(old, request->bytes);
    }
    void *block = alloc(request);
    size_t had = other.usable(old);
    if (block != NULL) {
        memcpy(block, old, had < request->bytes ? had : request->bytes);
        other.free(old);
    }
    return block;
}

static bool takes_block(const struct own_kind *kind) {
    return kind->call == OWN_FREE || kind->call == OWN_RESIZE || kind->call == OWN_RESIZE_HERE || kind->call == OWN_USABLE;
}

/* Whether the block that is given back or asked about is from before the swap, and not the other malloc's own from then. */
static bool is_earlier(const struct own_frame *frame, const struct own_request *request) {
    const void *block = (const void *)request->block;
    return takes_block(&frame->hook->kind) && earlier_has(block) && (other.heap_of == NULL || other.heap_of(block) == NULL);
}

/* To the allocator inside, which hands out nothing new; a block of it that moves stays there: they are few. */
static uint64_t call_earlier(const struct own_frame *frame, const struct own_request *request) {
    if (frame->hook->kind.call != OWN_RESIZE) {
        return call_inside(frame);
    }
    void *block = alloc(request);
    if (block != NULL) {
        earlier_copy(block, (const void *)request->block, request->bytes);
    }
    return (uint64_t)block;
}

static void mark(const struct own_frame *frame, const struct own_request *request) {
    switch (frame->hook->kind.call) {
    case OWN_ALLOC:
    case OWN_ZEROED:
    case OWN_RESIZE:
        earlier_mark((void *)frame->rax);
        break;
    case OWN_POSIX:
        if ((int)frame->rax == 0) {
            earlier_mark(*(void **)request->block);
        }
        break;
    default:
        break;
    }
}

static uint64_t call_other(const struct own_frame *frame, const struct own_request *request) {
    void *block = (void *)request->block;
    switch (frame->hook->kind.call) {
    case OWN_ALLOC:
    case OWN_ZEROED:
        return (uint64_t)alloc(request);
    case OWN_RESIZE:
        return (uint64_t)resize(request);
    case OWN_FREE:
        other.free(block);
        return 0;
    case OWN_POSIX:
        return (uint64_t)other.posix_memalign(block, request->align_bytes, request->bytes);
    default:  // OWN_RESIZE_HERE: no other grows a block in its place
        return block == NULL ? 0 : other.usable(block);
    }
}

enum own_way own_before(struct own_frame *frame) {
    if (is_inside && rec_busy != 0 && (uintptr_t)frame <= own_place) {
        return OWN_PASS;
    }
    struct own_request request = own_request_of(frame);
    bool earlier = is_earlier(frame, &request);
    __asm__ volatile("" : : "m"(request), "m"(earlier));  // also for the allocator inside: the way costs all the same
    frame->rax = is_inside ? call_inside(frame) : earlier ? call_earlier(frame, &request) : call_other(frame, &request);
    mark(frame, &request);
    return OWN_DONE;
}

void own_after(struct own_frame *frame) {
    (void)frame;
}

static void find(void *to, const struct library *library, const char *name) {
    void *symbol = library_function(library, name);
    memcpy(to, &symbol, sizeof symbol);
}

static void say(const char *function, const char *path, const char *why) {
    const char *const words[] = {"quire swap: ", function, " in ", path, ": ", why, "\n"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        ssize_t ignored = write(STDERR_FILENO, words[i], strlen(words[i]));
        (void)ignored;
    }
    _exit(70);  // measured as what it is not, it would be worse than not measured
}

/* libc's own constructor has not run: getenv would find nothing. */
static const char *environment_get(char **environment, const char *name) {
    size_t bytes = strlen(name);
    for (; *environment != NULL; environment++) {
        if (strncmp(*environment, name, bytes) == 0 && (*environment)[bytes] == '=') {
            return *environment + bytes + 1;
        }
    }
    return NULL;
}

/* Whether this is the program that is measured. */
static bool is_measured(char **environment) {
    const char *path = environment_get(environment, "QUIRE_SWAP_IN");
    struct stat measured, here;
    return path == NULL || (stat(path, &measured) == 0 && stat("/proc/self/exe", &here) == 0 && measured.st_ino == here.st_ino && measured.st_dev == here.st_dev);
}

static bool find_other(const char *path) {
    struct library library;
    if (!library_find(&library, path)) {
        return false;
    }
    find(&other.malloc, &library, "malloc");
    find(&other.calloc, &library, "calloc");
    find(&other.realloc, &library, "realloc");
    find(&other.free, &library, "free");
    find(&other.posix_memalign, &library, "posix_memalign");
    find(&other.usable, &library, "malloc_usable_size");
    find(&other.heap_of, &library, "quire_heap_of");
    return other.malloc != NULL && other.calloc != NULL && other.realloc != NULL && other.free != NULL && other.posix_memalign != NULL &&
           other.usable != NULL;
}

__attribute__((constructor)) static void start(int count, char **arguments, char **environment) {
    const char *path = environment_get(environment, "QUIRE_SWAP");
    (void)count;
    (void)arguments;
    if (path == NULL) {
        return;
    }
    int saved_errno = errno;
    is_inside = strcmp(path, "inside") == 0;
    if (!is_inside && !find_other(path)) {
        say("malloc", path, "it is not preloaded, or has no such function");
    }
    void *spared = NULL;
    memcpy(&spared, &other.malloc, sizeof spared);
    bool is_planted = own_plant(&(struct own_options){.say = say, .reads = true, .spared = spared}) != 0;
    if (!is_planted && is_measured(environment)) {
        say("malloc", "/proc/self/exe", "no allocator was found inside");
    }
    const char *why = is_planted ? earlier_look() : NULL;
    if (why != NULL) {
        say("malloc", "/proc/self/exe", why);
    }
    errno = saved_errno;
}
