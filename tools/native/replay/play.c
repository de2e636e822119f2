// SPDX-License-Identifier: MIT
/*
 * play.c - threads, windows and the clock.
 *
 *   main thread, lane 0:  prepare | reset peak | clock | go | steps | all done | clock | next window ... | peak
 *   lane k:               parked at the go gate -----------> steps | parked --------------> ...
 *
 * The clock stands while the next window is compiled; threads and objects stay as they are.
 *
 * Invariants:
 *   Y1  nothing is mapped, started or printed between the two clocks but what the steps ask for
 *   Y2  one lane: no second thread exists, so libc takes single-threaded paths as in the program
 *   Y3  the replayer's own memory is resident before the base is taken, and grows no more
 *
 * Locks: gates only (gate.h).
 * Not here: the steps themselves (carry.c), deciding anything about them (compile.c).
 */
#include "replay/carry.h"

#include <quire/slab.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { WARM_SLACK_BYTES = 8 << 20, WARM_BYTES_MAX = 1 << 30 };
enum { LANE_STACK_BYTES = 256 << 10 };

/* The lane's part of one window. */
static void run_lane(struct lane *lane) {
    struct player *player = lane->player;
    const struct outlook *ahead = &player->compiled->ahead;
    for (uint32_t i = 0; i < ahead->turns; i++) {
        uint32_t thread = ahead->turn[i];
        if (ahead->lane[thread] != lane->idx)
            continue;
        // A thread that ended may have a step yet: it starts the next one.
        const struct step *first = player->compiled->lists[thread].first;
        if (first) {
            gate_await(&player->start_gates[thread], 1);
            carry_out(lane, first);
        }
        if (!player->ended[thread] && ahead->last[thread] <= player->compiled->position) {
            player->ended[thread] = true;
            gate_post(&player->end_gates[thread], 1);
        }
    }
    gate_add(&player->done);
}

static void *lane_main(void *arg) {
    struct lane *lane = arg;
    for (uint32_t window = 1;; window++) {
        gate_await(&lane->player->go, window);
        if (lane->player->over)
            return NULL;
        run_lane(lane);
    }
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
    uint32_t instances = compiled->ahead.instances;
    player->objects = stream_memory(compiled->slots, sizeof *player->objects);
    memset(player->objects, 0, compiled->slots * sizeof *player->objects);
    player->arenas = stream_memory(instances, sizeof *player->arenas);
    player->slabs = stream_memory(compiled->slabs, sizeof *player->slabs);
    player->death_gates = stream_memory(instances, sizeof *player->death_gates);
    player->start_gates = stream_memory(compiled->threads, sizeof *player->start_gates);
    player->end_gates = stream_memory(compiled->threads, sizeof *player->end_gates);
    player->ended = stream_memory(compiled->threads, sizeof *player->ended);
    if (compiled->ahead.slots_shared) {
        player->slot_gates = stream_memory(compiled->slots, sizeof *player->slot_gates);
        memset(player->slot_gates, 0, compiled->slots * sizeof *player->slot_gates);
    }
    if (player->opts->backend == PLAY_NULL) {
        uint64_t region_bytes = compiled->ahead.largest_bytes;
        if (region_bytes > REGION_BYTES_MAX)
            region_bytes = REGION_BYTES_MAX;
        region_bytes += REGION_SHIFTS * LINE_BYTES;
        player->region = stream_memory((size_t)region_bytes, 1);
        memset(player->region, 1, (size_t)region_bytes);
    }
    for (uint32_t i = 0; i < compiled->ahead.turns; i++)
        if (i == 0 || compiled->all_start)
            gate_post(&player->start_gates[compiled->ahead.turn[i]], 1);
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

static struct lane *make_lanes(struct player *player, uint32_t count) {
    struct lane *lanes = stream_memory(count, sizeof *lanes);
    for (uint32_t i = 0; i < count; i++) {
        lanes[i] = (struct lane){.player = player, .idx = i};
        if (player->opts->backend == PLAY_NULL) {
            lanes[i].ring = stream_memory(RING_BYTES + LINE_BYTES, 1);
            memset(lanes[i].ring, 1, RING_BYTES + LINE_BYTES);
        }
    }
    return lanes;
}

/* As a program would at its start: under the clock, and in the peak of memory. */
static void create_slabs(struct player *player) {
    const struct compiled *compiled = player->compiled;
    for (uint32_t i = 0; i < compiled->slabs; i++) {
        if (compiled->ahead.slab_objects[i] == 0)
            continue;
        player->slabs[i] = quire_slab_create(compiled->element_bytes[i], NULL);
        if (player->slabs[i] == NULL) {
            dprintf(2, "out of memory: a slab could not be created\n");
            exit(1);
        }
    }
}

/* One window under the clock. */
static void run_window(struct player *player, struct lane *lanes, struct play_result *result) {
    uint32_t window = (uint32_t)player->compiled->windows;
    uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID), wall_ns = clock_ns(CLOCK_MONOTONIC);
    if (window == 1 && player->opts->backend != PLAY_NULL)
        create_slabs(player);
    gate_post(&player->go, window);
    run_lane(&lanes[0]);
    gate_await(&player->done, player->compiled->ahead.lanes * window);
    result->wall_ns += clock_ns(CLOCK_MONOTONIC) - wall_ns;
    result->cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
}

/* NULL, or why a later window cannot be replayed. */
static const char *run_all(struct player *player, struct lane *lanes, struct play_result *result) {
    const char *wrong = NULL;
    warm_machine(player->compiled->peak_live_bytes);
    reset_peak();
    result->base_rss_bytes = status_bytes("VmRSS:");
    timeline_base(player->opts->timeline);
    run_window(player, lanes, result);
    while (!wrong && player->compiled->more) {
        wrong = compile_window(player->compiled);
        if (!wrong)
            run_window(player, lanes, result);
    }
    uint64_t peak_bytes = status_bytes("VmHWM:");
    result->peak_rss_bytes =
        peak_bytes > result->base_rss_bytes ? peak_bytes - result->base_rss_bytes : 0;
    return wrong;
}

const char *play(struct play_result *result, struct compiled *compiled,
                 const struct play_opts *opts) {
    uint32_t lanes_count = compiled->ahead.lanes;
    *result = (struct play_result){0};
    struct player player = {.compiled = compiled, .opts = opts};
    prepare(&player);
    struct lane *lanes = make_lanes(&player, lanes_count);
    const char *wrong = start_lanes(lanes, lanes_count);
    if (!wrong)
        wrong = run_all(&player, lanes, result);
    if (wrong)
        return wrong;
    player.over = true;
    gate_post(&player.go, (uint32_t)compiled->windows + 1);
    for (uint32_t i = 0; i < lanes_count; i++) {
        if (i > 0)
            pthread_join(lanes[i].handle, NULL);
        result->failures += lanes[i].failures;
        result->corrupt += lanes[i].corrupt;
    }
    return NULL;
}
