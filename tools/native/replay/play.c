// SPDX-License-Identifier: MIT
/*
 * play.c - threads, the clock, and one switch over step kinds.
 *
 *   main thread, lane 0:  prepare | reset peak | clock | go | steps | wait for lanes | clock | peak
 *   lane k:               parked at the go gate ------------> steps
 *
 * Compiled twice, with an allocator and without: the difference is what allocation costs.
 *
 * Invariants:
 *   Y1  nothing is mapped, started or printed between the two clocks but what the steps ask for
 *   Y2  one lane: no second thread exists, so libc takes single-threaded paths as in the program
 *
 * Locks: gates only (gate.h).
 * Not here: deciding anything about steps (compile.c).
 */
#include "replay/play.h"
#include "replay/gate.h"
#include "replay/touch.h"

#include <quire/arena.h>
#include <quire/heap.h>
#include <quire/slab.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

// PLAY_NULL: the ring stays in the first-level cache; larger objects share one warm region.
enum { RING_BYTES = 32 << 10, REGION_BYTES_MAX = 64 << 20 };
enum { WARM_SLACK_BYTES = 8 << 20, WARM_BYTES_MAX = 1 << 30 };
enum { LANE_STACK_BYTES = 256 << 10 };

struct player {
    const struct compiled *compiled;
    const struct play_opts *opts;
    void **objects;              // by slot
    struct quire_arena **arenas; // by instance
    struct quire_slab **slabs;   // by slab; only those that have objects
    struct gate *slot_gates;     // by slot, only when slots are shared
    struct gate *death_gates;    // by instance
    struct gate *start_gates;    // by recorded thread
    struct gate *end_gates;      // by recorded thread
    struct gate go;
    struct gate done; // counts lanes
    unsigned char *ring;
    unsigned char *region;
};

/* What one lane writes. */
struct lane {
    struct player *player;
    uint64_t failures;
    uint64_t corrupt;
    uint32_t ring_cursor;
    uint32_t idx;
    pthread_t handle;
};

ALWAYS_INLINE unsigned char *null_address(struct lane *lane, uint64_t bytes) {
    if (bytes > RING_BYTES / 2)
        return lane->player->region;
    if (lane->ring_cursor + bytes > RING_BYTES)
        lane->ring_cursor = 0;
    unsigned char *at = lane->player->ring + lane->ring_cursor;
    lane->ring_cursor += ((uint32_t)bytes + 15) & ~15u;
    return at;
}

/* What a program does with memory that it asked for: an object, or what it grew by. */
ALWAYS_INLINE void use(struct lane *lane, const struct step *step, uint64_t from_bytes,
                       uint64_t to_bytes) {
    unsigned char *object = lane->player->objects[step->slot];
    touch_each(object, from_bytes, to_bytes, TOUCH_PAGE_BYTES);
    if (lane->player->opts->verify) {
        touch_each(object, from_bytes, to_bytes, TOUCH_LINE_BYTES);
        touch_sign_end(object, to_bytes, step->slot);
    }
    touch_sign(object, to_bytes, step->slot);
}

ALWAYS_INLINE void born(struct lane *lane, const struct step *step, uint64_t bytes, void *object) {
    lane->player->objects[step->slot] = object;
    if (__builtin_expect(object == NULL, 0)) {
        lane->failures++;
        return;
    }
    use(lane, step, 0, bytes);
}

ALWAYS_INLINE void step_birth(struct lane *lane, const struct step *step, uint64_t bytes,
                              bool null) {
    struct player *player = lane->player;
    void *object = NULL;
    if (null) {
        bytes = bytes < REGION_BYTES_MAX ? bytes : REGION_BYTES_MAX;
        born(lane, step, bytes, null_address(lane, bytes));
        return;
    }
    switch (step->kind) {
    case STEP_ALLOC:
        object = malloc((size_t)bytes);
        break;
    case STEP_CALLOC:
        object = calloc(1, (size_t)bytes);
        break;
    case STEP_ALIGNED:
        if (posix_memalign(&object, step->align_log2 > 3 ? (size_t)1 << step->align_log2 : 8,
                           (size_t)bytes) != 0)
            object = NULL;
        break;
    case STEP_ARENA_ALLOC:
        object = quire_arena_alloc(player->arenas[step->old], bytes ? (size_t)bytes : 1);
        break;
    case STEP_SLAB_ALLOC:
        object = quire_slab_alloc(player->slabs[step->slab]);
        break;
    case STEP_SLAB_CALLOC:
        object = quire_slab_alloc_zero(player->slabs[step->slab]);
        break;
    case STEP_HEAP_ALLOC:
        object = quire_heap_alloc(quire_heap_default(), (size_t)bytes);
        break;
    case STEP_HEAP_CALLOC:
        object = quire_heap_alloc_zero(quire_heap_default(), 1, (size_t)bytes);
        break;
    case STEP_HEAP_ALIGNED:
        object = quire_heap_alloc_aligned(quire_heap_default(), (size_t)bytes,
                                          (size_t)1 << step->align_log2);
        break;
    case STEP_ARENA_CALLOC:
        object = quire_arena_alloc_zero(player->arenas[step->old], 1, bytes ? (size_t)bytes : 1);
        break;
    default:
        object = quire_arena_alloc_aligned(player->arenas[step->old], bytes ? (size_t)bytes : 1,
                                           (size_t)1 << step->align_log2);
        break;
    }
    born(lane, step, bytes, object);
}

/* The element's contents go to a block of libc's, and the element back to its slab. */
static void *leave_slab(struct quire_slab *slab, const struct step *step, void *element,
                        uint64_t bytes) {
    void *moved = malloc((size_t)bytes);
    if (moved == NULL)
        return NULL;
    memcpy(moved, element, step->old);
    quire_slab_free(slab, element);
    return moved;
}

ALWAYS_INLINE void *resized(struct player *player, const struct step *step, uint64_t bytes,
                            uint64_t old_bytes) {
    void *object = player->objects[step->slot];
    switch (step->kind) {
    case STEP_REALLOC:
        return realloc(object, bytes ? (size_t)bytes : 1);
    case STEP_HEAP_REALLOC:
        return quire_heap_realloc(quire_heap_default(), object, (size_t)bytes);
    case STEP_SLAB_KEEP:
        return object;
    case STEP_SLAB_LEAVE:
        return leave_slab(player->slabs[step->slab], step, object, bytes);
    default:
        return quire_arena_resize(player->arenas[step->old], object, (size_t)old_bytes,
                                  bytes ? (size_t)bytes : 1);
    }
}

/* `old_bytes` is exact up to 4 GiB, and a lower bound beyond. */
ALWAYS_INLINE void step_resize(struct lane *lane, const struct step *step, uint64_t bytes,
                               uint64_t old_bytes, bool null) {
    struct player *player = lane->player;
    unsigned char *object = player->objects[step->slot];
    if (object == NULL)
        return;
    if (null) {
        bytes = bytes < REGION_BYTES_MAX ? bytes : REGION_BYTES_MAX;
        object = null_address(lane, bytes);
    } else {
        void *moved = resized(player, step, bytes, old_bytes);
        if (__builtin_expect(moved == NULL, 0)) {
            lane->failures++;
            return;
        }
        object = moved;
        uint64_t kept_bytes = old_bytes < bytes ? old_bytes : bytes;
        // A stamp cut short keeps its first byte, which is what short objects carry.
        if (player->opts->verify && !touch_start_intact(object, kept_bytes, step->slot))
            lane->corrupt++;
    }
    player->objects[step->slot] = object;
    use(lane, step, old_bytes, bytes);
}

ALWAYS_INLINE void step_free(struct lane *lane, const struct step *step, bool null) {
    unsigned char *object = lane->player->objects[step->slot];
    if (object == NULL)
        return;
    if (null)
        return;
    if (lane->player->opts->verify &&
        !(touch_start_intact(object, step->old, step->slot) &&
          (step->old == UINT32_MAX || touch_end_intact(object, step->old, step->slot))))
        lane->corrupt++;
    if (step->kind == STEP_SLAB_FREE)
        quire_slab_free(lane->player->slabs[step->slab], object);
    else if (step->kind == STEP_HEAP_FREE)
        quire_heap_free(quire_heap_default(), object);
    else
        free(object);
}

ALWAYS_INLINE void step_arena(struct lane *lane, const struct step *step, bool null) {
    struct quire_arena **arena = &lane->player->arenas[step->slot];
    if (null)
        return;
    if (step->kind == STEP_ARENA_DESTROY) {
        quire_arena_destroy(*arena);
        *arena = NULL;
        return;
    }
    *arena = quire_arena_create(NULL);
    if (*arena == NULL) {
        dprintf(2, "out of memory: an arena could not be created\n");
        exit(1);
    }
}

static void step_order(struct player *player, const struct step *step) {
    switch (step->kind) {
    case STEP_SLOT_AWAIT:
        gate_await(&player->slot_gates[step->slot], step->size);
        break;
    case STEP_SLOT_POST:
        gate_post(&player->slot_gates[step->slot], step->size);
        break;
    case STEP_DEATH_AWAIT:
        gate_await(&player->death_gates[step->slot], step->size);
        break;
    case STEP_DEATH_POST:
        gate_add(&player->death_gates[step->slot]);
        break;
    case STEP_THREAD_START:
        gate_post(&player->start_gates[step->slot], 1);
        break;
    case STEP_SAMPLE:
        timeline_take(player->opts->timeline, step->slot);
        break;
    default:
        gate_await(&player->end_gates[step->slot], 1);
        break;
    }
}

ALWAYS_INLINE void run_steps(struct lane *lane, const struct steps *steps, bool null) {
    const struct step *end = steps->at + steps->count;
    for (const struct step *step = steps->at; step < end; step++) {
        uint64_t bytes = step->size, old_bytes = step->old;
        if (__builtin_expect(step->kind == STEP_WIDE, 0)) {
            bytes = bytes << 32 | step[1].size;
            step++;
        }
        switch (step->kind) {
        case STEP_ALLOC:
        case STEP_CALLOC:
        case STEP_ALIGNED:
        case STEP_ARENA_ALLOC:
        case STEP_ARENA_CALLOC:
        case STEP_ARENA_ALIGNED:
        case STEP_SLAB_ALLOC:
        case STEP_SLAB_CALLOC:
        case STEP_HEAP_ALLOC:
        case STEP_HEAP_CALLOC:
        case STEP_HEAP_ALIGNED:
            step_birth(lane, step, bytes, null);
            break;
        case STEP_REALLOC:
        case STEP_ARENA_RESIZE:
        case STEP_SLAB_KEEP:
        case STEP_SLAB_LEAVE:
        case STEP_HEAP_REALLOC:
            step_resize(lane, step, bytes, old_bytes, null);
            break;
        case STEP_FREE:
        case STEP_SLAB_FREE:
        case STEP_HEAP_FREE:
            step_free(lane, step, null);
            break;
        case STEP_ARENA_CREATE:
        case STEP_ARENA_DESTROY:
            step_arena(lane, step, null);
            break;
        default:
            step_order(lane->player, step);
            break;
        }
    }
}

static __attribute__((noinline)) void run_steps_malloc(struct lane *lane,
                                                       const struct steps *steps) {
    run_steps(lane, steps, false);
}

static __attribute__((noinline)) void run_steps_null(struct lane *lane, const struct steps *steps) {
    run_steps(lane, steps, true);
}

static void run_lane(struct lane *lane) {
    struct player *player = lane->player;
    const struct compiled *compiled = player->compiled;
    for (uint32_t i = 0; i < compiled->turns; i++) {
        uint32_t thread = compiled->turn[i];
        if (compiled->lane[thread] != lane->idx)
            continue;
        gate_await(&player->start_gates[thread], 1);
        if (player->opts->backend == PLAY_NULL)
            run_steps_null(lane, &compiled->steps[thread]);
        else
            run_steps_malloc(lane, &compiled->steps[thread]);
        gate_post(&player->end_gates[thread], 1);
    }
    gate_add(&player->done);
}

static void *lane_main(void *arg) {
    struct lane *lane = arg;
    gate_await(&lane->player->go, 1);
    run_lane(lane);
    return NULL;
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A "Vm...:  123 kB" line of /proc/self/status, in bytes; stdio would allocate. */
static uint64_t status_bytes(const char *name) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    const char *line = strstr(text, name);
    return line ? strtoull(line + strlen(name) + 1, NULL, 10) * 1024 : 0;
}

static void reset_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "5", 1) != 1) {
        // Old kernels: the peak then includes loading, too high for every allocator alike.
    }
    close(fd);
}

static const char *start_lanes(struct lane *lanes, uint32_t count) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, LANE_STACK_BYTES);
    const char *wrong = NULL;
    for (uint32_t i = 1; i < count && !wrong; i++)
        if (pthread_create(&lanes[i].handle, &attr, lane_main, &lanes[i]) != 0)
            wrong = "cannot have as many threads as the recorded program";
    pthread_attr_destroy(&attr);
    return wrong;
}

/* Everything the steps will need, resident before the clock starts. */
static void prepare(struct player *player) {
    const struct compiled *compiled = player->compiled;
    player->objects = stream_memory(compiled->slots, sizeof *player->objects);
    // One store a page makes the table resident.
    for (size_t i = 0; i < compiled->slots; i += 512) {
        void *volatile *entry = &player->objects[i];
        *entry = NULL;
    }
    player->arenas = stream_memory(compiled->arenas, sizeof *player->arenas);
    player->slabs = stream_memory(compiled->slabs, sizeof *player->slabs);
    player->death_gates = stream_memory(compiled->arenas, sizeof *player->death_gates);
    player->start_gates = stream_memory(compiled->threads, sizeof *player->start_gates);
    player->end_gates = stream_memory(compiled->threads, sizeof *player->end_gates);
    if (compiled->slots_shared)
        player->slot_gates = stream_memory(compiled->slots, sizeof *player->slot_gates);
    if (player->opts->backend == PLAY_NULL) {
        uint64_t region_bytes = compiled->largest_bytes;
        if (region_bytes > REGION_BYTES_MAX)
            region_bytes = REGION_BYTES_MAX;
        player->ring = stream_memory(RING_BYTES + 16, 1);
        player->region = stream_memory((size_t)region_bytes + 16, 1);
        memset(player->ring, 1, RING_BYTES + 16);
        memset(player->region, 1, (size_t)region_bytes + 16);
    }
    for (uint32_t i = 0; i < compiled->turns; i++)
        if (i == 0 || compiled->all_start)
            gate_post(&player->start_gates[compiled->turn[i]], 1);
}

/*
 * Takes as much memory as the replay will, writes it and gives it back, so that what the kernel hands
 * out next has been backed by the host of a virtual machine already.  Hosts take idle memory back
 * within seconds; without this whoever comes first pays for that, up to ten times its own cost.
 */
static void warm_machine(uint64_t peak_live_bytes) {
    uint64_t bytes = peak_live_bytes + peak_live_bytes / 2 + WARM_SLACK_BYTES;
    if (bytes > WARM_BYTES_MAX)
        bytes = WARM_BYTES_MAX;
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return; // only a comfort
    // Huge where they can be had: whole huge pages are what hosts take back.  Refused: no matter.
    int kept = madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    (void)kept;
    memset(memory, 1, (size_t)bytes);
    __asm__ volatile("" ::"r"(memory) : "memory"); // else the writes could be left out
    munmap(memory, (size_t)bytes);
}

/* As a program would at its start: under the clock, and in the peak of memory. */
static void create_slabs(struct player *player) {
    const struct compiled *compiled = player->compiled;
    for (uint32_t i = 0; i < compiled->slabs; i++) {
        if (compiled->slab_objects[i] == 0)
            continue;
        player->slabs[i] = quire_slab_create(compiled->element_bytes[i], NULL);
        if (player->slabs[i] == NULL) {
            dprintf(2, "out of memory: a slab could not be created\n");
            exit(1);
        }
    }
}

/* The part under the clock. */
static void run_measured(struct player *player, struct lane *lanes, struct play_result *result) {
    warm_machine(player->compiled->peak_live_bytes);
    reset_peak();
    result->base_rss_bytes = status_bytes("VmRSS:");
    timeline_base(player->opts->timeline);
    uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID), wall_ns = clock_ns(CLOCK_MONOTONIC);
    if (player->opts->backend != PLAY_NULL)
        create_slabs(player);
    gate_post(&player->go, 1);
    run_lane(&lanes[0]);
    gate_await(&player->done, player->compiled->lanes);
    result->wall_ns = clock_ns(CLOCK_MONOTONIC) - wall_ns;
    result->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
    uint64_t peak_bytes = status_bytes("VmHWM:");
    result->peak_rss_bytes =
        peak_bytes > result->base_rss_bytes ? peak_bytes - result->base_rss_bytes : 0;
}

const char *play(struct play_result *result, const struct compiled *compiled,
                 const struct play_opts *opts) {
    *result = (struct play_result){0};
    struct player player = {.compiled = compiled, .opts = opts};
    prepare(&player);
    struct lane *lanes = stream_memory(compiled->lanes, sizeof *lanes);
    for (uint32_t i = 0; i < compiled->lanes; i++)
        lanes[i] = (struct lane){.player = &player, .idx = i};
    const char *wrong = start_lanes(lanes, compiled->lanes);
    if (wrong)
        return wrong;
    run_measured(&player, lanes, result);
    for (uint32_t i = 0; i < compiled->lanes; i++) {
        if (i > 0)
            pthread_join(lanes[i].handle, NULL);
        result->failures += lanes[i].failures;
        result->corrupt += lanes[i].corrupt;
    }
    return NULL;
}
