# SPDX-License-Identifier: MIT
"""
test_attach_odd - `quire record --pid` of processes that do something else meanwhile: unload, fork, shut threads in, fill disks, wait for events.
"""

import os
import signal
import subprocess
import time

import pytest
from attachkit import Process, Recording, killed_at, record, wait_until
from toolkit import build, native_json

import attaching

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
WAITS = """
#include <sys/epoll.h>
#include <unistd.h>
int main(void) {
    struct epoll_event event;
    int all = epoll_create1(0);
    write(1, "x", 1);
    return epoll_wait(all, &event, 1, -1) < 0;
}
"""
UNLOADS = """
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
static void *turn(void *path) {
    for (;;) {
        void *handle = dlopen(path, RTLD_NOW);
        usleep(300);
        dlclose(handle);
        usleep(300);
    }
    return 0;
}
int main(int argc, char **argv) {
    pthread_t thread;
    pthread_create(&thread, 0, turn, argv[1]);
    for (;;) pause();
}
"""
WORKER_SHUT_IN = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void *work(void *unused) {
    struct sock_filter most[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, most};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    write(1, "x", 1);
    for (;;) {
        free(malloc(100));
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    for (;;) pause();
}
"""
NEW_STACKS = """
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
static void (*volatile way[4])(uint64_t, int);
static void go(uint64_t path, int depth) {
    if (depth == 0) free(malloc(100));
    else way[path & 3](path >> 2, depth - 1);
    __asm__ volatile("");
}
static void a(uint64_t path, int depth) { go(path, depth); __asm__ volatile("" ::"i"(1)); }
static void b(uint64_t path, int depth) { go(path, depth); __asm__ volatile("" ::"i"(2)); }
static void c(uint64_t path, int depth) { go(path, depth); __asm__ volatile("" ::"i"(3)); }
static void d(uint64_t path, int depth) { go(path, depth); __asm__ volatile("" ::"i"(4)); }
static void *work(void *seed) {
    for (uint64_t at = (uintptr_t)seed;;) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        go(at >> 32, 6);
    }
}
int main(void) {
    way[0] = a, way[1] = b, way[2] = c, way[3] = d;
    for (uintptr_t i = 1; i <= 4; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    for (;;) pause();
}
"""
MANY_SLOTS = """
#include <unistd.h>
#define TEN(x) x, x, x, x, x, x, x, x, x, x
void *table[] = {TEN(TEN(TEN(TEN(getpid))))};
"""
FORKS_ON = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_barrier_t all;
static int visit(struct dl_phdr_info *info, size_t bytes, void *unused) { return 0; }
static void *work(void *unused) { for (;;) free(malloc(100)); }
static void *forks(void *unused) {
    for (;;) {
        pthread_barrier_wait(&all);
        for (int i = 0; i < 20; i++) {
            int status = 0, child = fork();
            if (child == 0) {
                alarm(5);
                dl_iterate_phdr(visit, NULL);
                _exit(0);
            }
            waitpid(child, &status, 0);
            if (status != 0) _exit(1);
        }
        pthread_barrier_wait(&all);
    }
}
int main(int argc, char **argv) {
    pthread_t thread;
    int count = atoi(argv[2]);
    pthread_barrier_init(&all, NULL, count + 1);
    pthread_create(&thread, NULL, work, NULL);
    while (access("go", F_OK) != 0) usleep(1000);
    while (count-- > 0) pthread_create(&thread, NULL, forks, NULL);
    while (access("go", F_OK) == 0) {
        void *handle = dlopen(argv[1], RTLD_NOW);
        pthread_barrier_wait(&all);
        pthread_barrier_wait(&all);
        dlclose(handle);
    }
    _exit(0);
}
"""
VFORKS = """
#include <pthread.h>
#include <unistd.h>
static void *work(void *unused) {
    for (;;) {
        if (vfork() == 0) { usleep(700000); _exit(0); }
        write(1, "v", 1);
        usleep(300000);
    }
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    for (;;) pause();
}
"""
PAUSES = """
#include <unistd.h>
int main(void) { for (;;) pause(); }
"""


@pytest.mark.long
def test_a_library_that_comes_and_goes_is_no_place_to_run_in(tmp_path):
    plugin = build(tmp_path, "int value(int x) { return x + 1; }", "plugin.so", ["-shared", "-fPIC", "-nostartfiles"])  # nothing has more room behind its code
    with Process(build(tmp_path, UNLOADS, "unloads", ["-pthread"]), plugin) as unloads:
        for _ in range(8):
            done = record(tmp_path, unloads.pid, "--duration", "20ms", "-f", "-o", "t.qtr")
            assert done.returncode == 0 and unloads.lives, done.stderr


@pytest.mark.long
def test_stacks_that_are_met_while_a_recording_ends_are_known_in_the_next(tmp_path):
    with Process(build(tmp_path, NEW_STACKS, "stacks", ["-pthread"])) as stacks:
        for i in range(3):
            assert record(tmp_path, stacks.pid, "--duration", "20ms", "-f", "-o", "t.qtr").returncode == 0
            found = native_json("quire-analyse", tmp_path / "t.qtr", "--sites", "-")
            unknown = sum(site["count"] for site in found["sites"] if not site["stack"])
            assert found["trace"]["allocations"] > 0 and unknown == found["trace"]["unknown_stacks"], i


@pytest.mark.by_turns
@pytest.mark.parametrize("threads", [1, 3])
def test_no_child_that_is_forked_while_slots_are_looked_at_waits_for_the_loaders_lock_for_ever(tmp_path, threads):
    plugin = build(tmp_path, MANY_SLOTS, "plugin.so", ["-shared", "-fPIC"])
    with Process(build(tmp_path, FORKS_ON, "forks", ["-pthread"]), plugin, threads, cwd=tmp_path) as forks:
        recording = Recording(tmp_path, forks.pid, "-o", "t.qtr").until("until Ctrl-C")
        (tmp_path / "go").touch()
        time.sleep(3 if LONG else 1)
        recording.popen.send_signal(signal.SIGINT)
        assert recording.end() == 0
        time.sleep(1 if LONG else 0.3)  # and it forks on when all is over
        (tmp_path / "go").unlink()
        assert forks.popen.wait(60) == 0  # 1: a child waited for 5 s


@pytest.mark.parametrize("step", ["stopped", "sent"])
def test_killed_while_all_stand_still_we_interrupt_no_wait_for_events(tmp_path, step):
    with Process(build(tmp_path, WAITS), stdout=subprocess.PIPE) as waiting:
        assert waiting.popen.stdout.read(1) == b"x"
        killed_at(waiting, tmp_path, step)


def test_an_ignored_signal_that_comes_while_all_stand_still_interrupts_no_wait_for_events(tmp_path):
    with Process(build(tmp_path, WAITS), stdout=subprocess.PIPE) as waiting:
        assert waiting.popen.stdout.read(1) == b"x"
        recording = Recording(tmp_path, waiting.pid, "-o", "t.qtr", halt="stopped").until("at stopped")
        waiting.popen.send_signal(signal.SIGURG)
        recording.kill()
        wait_until(lambda: attaching.Process(waiting.pid).status["State"][0] == "S")
        assert waiting.lives


@pytest.mark.by_turns
def test_a_thread_that_did_not_stop_in_time_goes_on_while_the_process_is_recorded(tmp_path):
    with Process(build(tmp_path, VFORKS, "vforks", ["-pthread"]), stdout=subprocess.PIPE) as vforks:
        for _ in range(3):
            assert vforks.popen.stdout.read(1) == b"v"
            time.sleep(0.35)  # a child runs
            recording = Recording(tmp_path, vforks.pid, "-f", "-o", "t.qtr").until("until Ctrl-C")
            os.set_blocking(vforks.popen.stdout.fileno(), False)
            vforks.popen.stdout.read()
            time.sleep(2.5)
            assert vforks.popen.stdout.read()
            os.set_blocking(vforks.popen.stdout.fileno(), True)
            recording.popen.send_signal(signal.SIGINT)
            assert recording.end() == 0 and vforks.lives


def test_a_disk_that_is_nearly_full_is_named_as_what_forbids_the_trace(tmp_path):
    (tmp_path / "disk").mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path / "disk"], check=False).returncode != 0:
        pytest.skip("needs a small disk, which root alone can make")
    try:
        with Process(build(tmp_path, PAUSES)) as idle:
            done = record(tmp_path, idle.pid, "-o", "disk/t.qtr")
            assert done.returncode == 3 and "No space left" in done.stderr and not os.listdir(tmp_path / "disk"), done.stderr
    finally:
        subprocess.run(["umount", "--lazy", tmp_path / "disk"], check=True)


def test_a_process_one_of_whose_threads_has_shut_itself_in_is_refused_and_lives(tmp_path):
    with Process(build(tmp_path, WORKER_SHUT_IN, "worker", ["-pthread"]), stdout=subprocess.PIPE) as worker:
        assert worker.popen.stdout.read(1) == b"x"
        done = record(tmp_path, worker.pid, "--duration", "300ms", "-o", "t.qtr")
        assert worker.lives and done.returncode == 3 and "seccomp" in done.stderr, done.stderr
