# SPDX-License-Identifier: MIT
"""test_sampling - the share of allocation, by looking at the program: what is inside malloc, children, clocks, manners."""

import os

import pytest
from toolkit import BUILD, build

import launch
import rounds
import sampling
import target as targets

LIBRARY = BUILD / "tools" / sampling.LIBRARY
WORK = """
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static volatile uint64_t sink;
static void burn(double s) { for (double end = now() + s; now() < end;) for (int i = 0; i < 1000; i++) sink += i; }
static void allocate(double s) {
    for (double end = now() + s; now() < end;) for (int i = 0; i < 20; i++) { char *p = calloc(1, 60000); free(p); }
}
static void handler(int n) { (void)n; }
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "burn")) burn(0.2);
        if (!strcmp(argv[i], "allocate")) allocate(0.2);
        if (!strcmp(argv[i], "fork")) { pid_t p = fork(); if (p) { int s; waitpid(p, &s, 0); return s != 0; } }
        if (!strcmp(argv[i], "exec")) { execl("/proc/self/exe", "again", "burn", (char *)0); return 9; }
        if (!strcmp(argv[i], "urgent")) signal(SIGURG, handler);
        if (!strcmp(argv[i], "fd")) printf("%d\\n", dup(0));
    }
    return 0;
}
"""

THREADS = """
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static void *work(void *unused) { free(malloc(100)); return unused; }
int main(void) {
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0) return 1;
        pthread_join(thread, NULL);
    }
    for (int fd = 3, open = 0; fd < 2000; fd++) if (dup2(fd, fd) == fd && ++open > 100) return 2;
    return 0;
}
"""

SPINNERS = """
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *spin(void *unused) { for (double end = now() + 0.2; now() < end;) { } return unused; }
int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, spin, NULL);
    for (double end = now() + 0.2; now() < end;) free(calloc(1, 60000));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("work"), WORK)


def looked(program, folder, *words, **environment):
    file = folder / "looks"
    file.write_bytes(bytes(16))
    target = targets.resolve([str(program), *words])
    env = {**os.environ, "LD_PRELOAD": str(LIBRARY), "QUIRE_SAMPLE": str(file), **environment}
    ran = launch.hidden(target, launch.Input(), env)
    assert ran.status == 0, ran.stderr
    return sampling.Looks._read(file)


def test_threads_that_have_ended_leave_no_descriptor(tmp_path):
    looked(build(tmp_path, THREADS, "threads", ["-pthread"]), tmp_path)


@pytest.mark.by_turns
def test_threads_that_never_allocate_are_looked_at_too(tmp_path):
    all_looks, inside = looked(build(tmp_path, SPINNERS, "spinners", ["-pthread"]), tmp_path)
    assert all_looks >= 50 and 0.1 * all_looks <= inside <= 0.4 * all_looks  # a quarter; it was all


@pytest.mark.by_turns
@pytest.mark.parametrize("tick", [{}, {"QUIRE_SAMPLE_TICK": "1"}])
def test_time_in_malloc_and_below_is_inside_and_other_time_is_not(program, tmp_path, tick):
    all_looks, inside = looked(program, tmp_path, "burn", "burn", "burn", **tick)
    assert all_looks >= 50 and inside <= 0.02 * all_looks
    all_looks, inside = looked(program, tmp_path, "allocate", "allocate", "allocate", **tick)
    assert all_looks >= 50 and inside >= 0.8 * all_looks
    all_looks, inside = looked(program, tmp_path, "burn", "allocate", "burn", "allocate", **tick)
    assert 0.3 * all_looks <= inside <= 0.65 * all_looks


@pytest.mark.long
@pytest.mark.parametrize("tick", [{}, {"QUIRE_SAMPLE_TICK": "1"}])
def test_forked_and_executed_processes_are_looked_at_too(program, tmp_path, tick):
    alone = looked(program, tmp_path, "burn", **tick)[0]
    forked = looked(program, tmp_path, "fork", "burn", "allocate", **tick)
    executed = looked(program, tmp_path, "burn", "exec", **tick)[0]
    assert forked[0] >= 1.3 * alone and forked[1] > 0
    assert executed >= 1.3 * alone


def test_the_programs_own_descriptors_have_the_numbers_they_would_have(program):
    plain = native_output(program, {})
    assert native_output(program, {"LD_PRELOAD": str(LIBRARY), "QUIRE_SAMPLE": "/dev/null"}) == plain


def native_output(program, environment):
    import subprocess

    env = {**os.environ, **environment}
    return subprocess.run([str(program), "fd"], env=env, capture_output=True, stdin=subprocess.DEVNULL, check=True).stdout


def test_a_program_without_the_variable_is_not_touched(program, tmp_path):
    target = targets.resolve([str(program), "burn"])
    ran = launch.hidden(target, launch.Input(), {**os.environ, "LD_PRELOAD": str(LIBRARY)})
    assert ran.status == 0


def test_looks_stop_with_the_time_and_with_enough_of_them(program):
    contest = rounds.Contest(targets.resolve([str(program), "burn"]), launch.Input())
    looks = sampling.Looks(contest).run(0.01)
    assert 0 < looks.all < sampling.LOOKS_WANTED and looks.share_percent.value < 3
    few = sampling.Looks(rounds.Contest(targets.resolve(["true"]), launch.Input())).run(0.5)
    assert few.share_percent is None


@pytest.mark.parametrize("inside, looks, low, high", [(0, 100, 0, 5), (50, 100, 40, 60), (100, 100, 95, 100)])
def test_a_share_has_the_interval_of_a_count(inside, looks, low, high):
    found = sampling.share(inside, looks)
    assert low - 0.5 <= found.low <= found.value <= found.high <= high + 0.5


def test_a_signal_handler_of_the_programs_own_is_left_alone(program, tmp_path):
    assert looked(program, tmp_path, "burn", "urgent", "burn")[0] > 0
