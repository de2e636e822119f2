# SPDX-License-Identifier: MIT
"""
test_attach - `quire record --pid`: a process that runs is recorded, and goes on as it was, whatever becomes of us.

Two hundred times, what it costs, and every step at which we may be killed: QUIRE_TEST_LONG=1.
"""

import ctypes
import os
import random
import signal
import statistics
import subprocess
import time

import pytest
from attachkit import Process, Recording, Server, mappings, patched, programs, record, wait_until
from toolkit import BUILD, NOBODY, build, native_json, quire

import attaching
from errors import EnvironmentLacks

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
STEPS = ["stopped", "safe", "written", "sent", "alone", *(f"inside:{n}" for n in (1, 2, 3, 5, 8, 13, 21, 34, 55)), "reported", "home", "recording", "end-told"]
END_STEPS = ["end-told", "end-stopped", "end-safe", "end-written", "end-sent", "end-alone", "end-inside:2", "end-reported", "end-home"]
GENTLE_US = 4000
PR_CAPBSET_DROP, CAP_SYS_PTRACE = 24, 19

SHUT_IN = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    write(1, "x", 1);
    for (;;) pause();
}
"""
BATCHES = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static char *volatile kept[64];
int main(void) {
    for (int go = getchar(); go != EOF; go = getchar()) {
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        for (unsigned i = 0; i < 200000; i++) { free(kept[i % 64]); kept[i % 64] = malloc(16 + i % 500); }
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        printf("%ld\\n", (to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec);
        fflush(stdout);
    }
    return 0;
}
"""
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
static int visit(struct dl_phdr_info *info, size_t bytes, void *unused) { return 0; }
static void *work(void *unused) { for (;;) free(malloc(100)); }
int main(int argc, char **argv) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    for (;;) {
        void *handle = dlopen(argv[1], RTLD_NOW);
        for (int i = 0; i < 30; i++) {
            if (fork() == 0) {
                alarm(5);
                dl_iterate_phdr(visit, NULL);
                _exit(0);
            }
            int status = 0;
            wait(&status);
            if (status != 0) return 1;
        }
        dlclose(handle);
    }
}
"""
PAUSES = """
#include <unistd.h>
int main(void) { for (;;) pause(); }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return programs(tmp_path_factory.mktemp("attached"))


@pytest.fixture
def server(built):
    with Server(built) as one:
        yield one


def facts(path):
    return native_json("quire-analyse", path, "--sites", "-")["trace"]


def root_alone():
    if os.geteuid() != 0:
        pytest.skip("needs root: to be somebody else, or to lose a capability")


def test_a_busy_server_is_recorded_and_goes_on_as_it_was(server, tmp_path):
    with server.load(GENTLE_US) as load:
        began_s = time.monotonic()
        done = record(tmp_path, server.pid, "--duration", "400ms", "-o", "t.qtr")
        took_s = time.monotonic() - began_s
        assert done.returncode == 0 and "trace: t.qtr" in done.stderr, done.stderr
        again = record(tmp_path, server.pid, "--duration", "100ms", "-o", "again.qtr")
        assert again.returncode == 0, again.stderr
    assert server.lives and load.failed == 0 and load.answered > 0
    assert patched(server.pid) == 0 and not [path for _, _, _, path in mappings(server.pid) if path.endswith(".qtr")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.qtr", "t.qtr"]  # nothing of the children it starts
    about = facts(tmp_path / "t.qtr")
    assert about["attached"] and about["complete"] and not about["exited"] and about["note"] == ""
    assert about["allocations"] > 1000 and about["unknown_frees"] > 0 and about["threads"] > 2 and about["lost_events"] == 0
    assert 0.3 < about["wall_s"] < took_s and about["cpu_s"] < about["wall_s"] * 4
    assert facts(tmp_path / "again.qtr")["allocations"] < about["allocations"]


def test_an_attached_trace_is_read_by_replay_report_and_advise_which_say_what_it_holds(tmp_path):
    with Process("perl", "-e", 'while (1) { my @a = map { "x" x $_ } 1 .. 20; select(undef, undef, undef, 0.002) }') as perl:
        assert record(tmp_path, perl.pid, "--duration", "150ms", "-o", "t.qtr").returncode == 0
    for words in (["replay", "--rounds", 1, "--allocator", "libc"], *([["advise"]] if LONG else [])):
        done = quire(tmp_path, *words, "t.qtr")
        assert done.returncode == 0 and "a process that ran before and after" in done.stdout, done.stderr + done.stdout
    if LONG:
        assert quire(tmp_path, "report", "--no-replay", "-o", "r.html", "t.qtr").returncode == 0
        assert "The trace holds" in (tmp_path / "r.html").read_text()


def test_a_process_that_was_started_with_the_library_is_recorded_for_a_while_and_again_and_keeps_its_heap(tmp_path):
    library = os.path.realpath(BUILD / "libquire-malloc.so")
    env = {**os.environ, "LD_PRELOAD": library, "QUIRE_CONF": f"stats:exit={tmp_path}/report"}
    script = 'while (!-e "end") { my @a = map { "x" x $_ } 1 .. 200; select(undef, undef, undef, 0.002) }'
    with Process("perl", "-e", script, env=env, cwd=tmp_path) as perl:
        for name in ("one.qtr", "two.qtr"):
            done = record(tmp_path, perl.pid, "--duration", "150ms", "-o", name)
            assert done.returncode == 0, done.stderr
            about = facts(tmp_path / name)
            assert about["complete"] and about["allocations"] > 100 and about["lost_events"] == 0
            assert patched(perl.pid) == 0 and perl.lives and any(path == library for _, _, _, path in mappings(perl.pid))
        (tmp_path / "end").touch()
        assert perl.popen.wait(timeout=20) == 0
    assert "heap" in (tmp_path / "report").read_text()  # its blocks were the library's all the time


def test_a_process_that_never_allocates_has_its_slots_back_too_and_control_c_ends_the_recording(tmp_path):
    with Process(build(tmp_path, PAUSES)) as idle:
        recording = Recording(tmp_path, idle.pid, "-o", "t.qtr").until("until Ctrl-C")
        assert patched(idle.pid) > 0
        recording.popen.send_signal(signal.SIGINT)
        assert recording.end() == 0 and "trace: t.qtr" in recording.said
        assert patched(idle.pid) == 0 and idle.lives and facts(tmp_path / "t.qtr")["complete"]


def test_a_process_that_ends_meanwhile_leaves_its_trace(tmp_path):
    with Process("cat", stdin=subprocess.PIPE) as brief:
        recording = Recording(tmp_path, brief.pid, "-o", "t.qtr").until("until Ctrl-C")
        brief.popen.stdin.close()
        assert recording.end() == 0 and "has ended" in recording.said, recording.said
        assert brief.popen.wait() == 0
    assert facts(tmp_path / "t.qtr")["exited"]


def killed_at(server, folder, step):
    """Everything of ours is killed at that step; then another recording works, and leaves nothing."""
    recording = Recording(folder, server.pid, "--duration", "300ms", "-o", "t.qtr", "-f", halt=step).until(f"at {step}")
    recording.kill()
    wait_until(lambda: not attaching.Process(server.pid).number("TracerPid"))  # the kernel has let it go
    done = record(folder, server.pid, "--duration", "100ms", "-o", "after.qtr", "-f")
    assert server.lives and done.returncode == 0, f"{step}: {done.stderr}"
    assert patched(server.pid) == 0, step


@pytest.mark.parametrize("step", STEPS if LONG else ["stopped", "inside:21"])
def test_killed_at_any_step_we_leave_a_server_that_answers_on(server, tmp_path, step):
    with server.load(GENTLE_US) as load:
        killed_at(server, tmp_path, step)
    assert load.failed == 0 and load.answered > 0


@pytest.mark.parametrize("step", END_STEPS if LONG else ["end-sent"])
def test_killed_while_the_slots_are_put_back_we_leave_an_idle_process_that_can_be_recorded(tmp_path, step):
    with Process(build(tmp_path, PAUSES)) as idle:
        killed_at(idle, tmp_path, step)


def test_a_library_that_comes_and_goes_is_no_place_to_run_in(tmp_path):
    plugin = build(tmp_path, "int value(int x) { return x + 1; }", "plugin.so", ["-shared", "-fPIC", "-nostartfiles"])  # nothing has more room behind its code
    with Process(build(tmp_path, UNLOADS, "unloads", ["-pthread"]), plugin) as unloads:
        for _ in range(8):
            done = record(tmp_path, unloads.pid, "--duration", "20ms", "-f", "-o", "t.qtr")
            assert done.returncode == 0 and unloads.lives, done.stderr


def test_stacks_that_are_met_while_a_recording_ends_are_known_in_the_next(tmp_path):
    with Process(build(tmp_path, NEW_STACKS, "stacks", ["-pthread"])) as stacks:
        for i in range(3):
            assert record(tmp_path, stacks.pid, "--duration", "20ms", "-f", "-o", "t.qtr").returncode == 0
            found = native_json("quire-analyse", tmp_path / "t.qtr", "--sites", "-")
            unknown = sum(site["count"] for site in found["sites"] if not site["stack"])
            assert found["trace"]["allocations"] > 0 and unknown == found["trace"]["unknown_stacks"], i


def test_no_child_that_is_forked_while_slots_are_looked_at_waits_for_the_loaders_lock_for_ever(tmp_path):
    plugin = build(tmp_path, MANY_SLOTS, "plugin.so", ["-shared", "-fPIC"])
    with Process(build(tmp_path, FORKS_ON, "forks", ["-pthread"]), plugin) as forks:
        assert record(tmp_path, forks.pid, "--duration", "3s", "-o", "t.qtr").returncode == 0
        time.sleep(6)  # longer than a child waits
        assert forks.lives


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


def test_a_recording_that_nobody_looks_after_ends_by_itself(server, tmp_path):
    recording = Recording(tmp_path, server.pid, "-o", "t.qtr").until("until Ctrl-C")
    assert patched(server.pid) > 0
    recording.kill()
    wait_until(lambda: patched(server.pid) == 0)
    assert server.lives and facts(tmp_path / "t.qtr")["complete"]


def refused(pid):
    with pytest.raises(EnvironmentLacks) as error:
        attaching.check(pid)
    assert error.value.exit_code == 3 and error.value.fix
    return error.value.what


def test_what_cannot_be_recorded_is_refused_before_anything_is_done_to_it(tmp_path, monkeypatch):
    with Process("sleep", "100") as plain:
        plain.popen.send_signal(signal.SIGSTOP)
        wait_until(lambda: attaching.Process(plain.pid).status["State"][0] == "T")
        assert "it is stopped" in refused(plain.pid)
        plain.popen.send_signal(signal.SIGCONT)
        wait_until(lambda: attaching.Process(plain.pid).status["State"][0] == "S")
        attaching.check(plain.pid)
        monkeypatch.setattr(attaching.Process, "machine", lambda _: (b"\2", 183))
        assert "no x86-64" in refused(plain.pid)
        monkeypatch.undo()
        os.kill(plain.pid, signal.SIGKILL)
        wait_until(lambda: attaching.Process(plain.pid).status["State"][0] == "Z")
        assert "has ended" in refused(plain.pid)
    assert "there is no process" in refused(plain.pid)
    assert "this command" in refused(os.getpid())
    with Process(build(tmp_path, PAUSES, "static", ["-static"])) as static:
        wait_until(lambda: "static" in os.readlink(f"/proc/{static.pid}/exe"))
        assert "static program" in refused(static.pid)
    with Process(build(tmp_path, SHUT_IN, "shut"), stdout=subprocess.PIPE) as shut:
        assert shut.popen.stdout.read(1) == b"x" and "seccomp" in refused(shut.pid)
    with Process("sleep", "100", env={**os.environ, "LD_PRELOAD": str(BUILD / "tools" / "libquire-record.so")}) as preloaded:
        wait_until(lambda: "libquire-record.so" in attaching.Process(preloaded.pid).mapped())
        assert "being recorded already" in refused(preloaded.pid)


def test_a_process_one_of_whose_threads_has_shut_itself_in_is_refused_and_lives(tmp_path):
    with Process(build(tmp_path, WORKER_SHUT_IN, "worker", ["-pthread"]), stdout=subprocess.PIPE) as worker:
        assert worker.popen.stdout.read(1) == b"x"
        done = record(tmp_path, worker.pid, "--duration", "300ms", "-o", "t.qtr")
        assert worker.lives and done.returncode == 3 and "seccomp" in done.stderr, done.stderr


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


@pytest.mark.skipif(not os.path.exists("/proc/2/stat"), reason="no threads of the kernel are seen here")
def test_a_thread_of_the_kernel_is_refused():
    if attaching.Process(2).flags & attaching.KERNEL_THREAD:
        assert "thread of the kernel" in refused(2)


def test_a_program_on_musl_is_refused(tmp_path):
    subprocess.run(["cp", "/lib64/ld-linux-x86-64.so.2", tmp_path / "ld-musl-x86_64.so.1"], check=True)
    program = build(tmp_path, PAUSES, "musl", [f"-Wl,--dynamic-linker={tmp_path}/ld-musl-x86_64.so.1"])
    with Process(program) as musl:
        wait_until(lambda: os.readlink(f"/proc/{musl.pid}/exe") == str(program))
        assert "musl" in refused(musl.pid)


def test_who_is_recorded_or_traced_already_is_refused_and_nothing_is_left(server, tmp_path):
    recording = Recording(tmp_path, server.pid, "-o", "first.qtr", halt="recording").until("at recording")
    owner = Recording(tmp_path, server.pid, "-o", "second.qtr")
    assert owner.until("recording").popen.poll() is None  # the first one's beats have stopped: it is taken for dead
    other = record(tmp_path, server.pid, "-o", "third.qtr")
    assert other.returncode == 3 and "it is being recorded already" in other.stderr and not (tmp_path / "third.qtr").exists()
    owner.popen.send_signal(signal.SIGTERM)
    assert owner.end() == 0
    recording.kill()
    tracing = Recording(tmp_path, server.pid, "-o", "fourth.qtr", halt="stopped").until("at stopped")
    assert "traces it already" in refused(server.pid)
    tracing.kill()
    assert server.lives and patched(server.pid) == 0


def test_another_users_process_is_refused_and_where_tracing_is_forbidden_the_line_that_allows_it_is_said(tmp_path, monkeypatch):
    root_alone()
    with Process("sleep", "100") as roots:
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: NOBODY)
            assert "another user's" in refused(roots.pid)

        def without_the_capability():
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)

        forbidden = record(tmp_path, roots.pid, preexec_fn=without_the_capability)
        assert forbidden.returncode == 3 and "SYS_PTRACE" in forbidden.stderr, forbidden.stderr
        nowhere = record(tmp_path, roots.pid, "-o", tmp_path / "no" / "t.qtr")
        assert nowhere.returncode == 3 and roots.lives
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scope, root, said, fix", [
    (1, False, "lets nobody trace but parents", "sudo sysctl kernel.yama.ptrace_scope=0"),
    (2, False, "lets nobody trace but parents", "sudo quire record --pid"),
    (3, True, "lets nobody trace", "start it under quire record"),
    (0, False, "the kernel forbids it", "--cap-add=SYS_PTRACE"),
    (None, False, "the kernel forbids it", "--cap-add=SYS_PTRACE"),
])  # fmt: skip
def test_yamas_refusal_names_its_setting_and_the_line_that_allows_it(tmp_path, monkeypatch, scope, root, said, fix):
    setting = tmp_path / "ptrace_scope"
    if scope is not None:
        setting.write_text(f"{scope}\n")
    monkeypatch.setattr(attaching, "YAMA", str(setting))
    monkeypatch.setattr(attaching, "process_may_trace", lambda: root)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(EnvironmentLacks) as refused:
        attaching._forbidden(attaching.Process(os.getpid()))
    error = refused.value
    assert error.exit_code == 3 and said in str(error) and fix in error.fix
    assert not scope or f"kernel.yama.ptrace_scope is {scope}" in error.why


@pytest.mark.parametrize("words", [["--pid", "1", "--", "true"], ["--ready-line", "x", "--", "true"], ["--pid", "x"], ["--pid", "1", "--duration", "0"]])
def test_a_command_line_that_makes_no_sense_is_a_usage_error(tmp_path, words):
    done = quire(tmp_path, "record", *words)
    assert done.returncode == 2 and "fix:" in done.stderr


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: two hundred times")
def test_two_hundred_times_at_random_moments_a_server_under_load_lives_and_loses_no_request(server, tmp_path):
    dice = random.Random(15)
    with server.load() as load:
        for i in range(200):
            time.sleep(dice.uniform(0, 0.05))
            done = record(tmp_path, server.pid, "--duration", f"{dice.randint(5, 200)}ms", "-f", "-o", "t.qtr")
            assert server.lives and done.returncode == 0, f"{i}: {done.stderr}"
    assert load.failed == 0 and load.answered > 10000 and patched(server.pid) == 0
    print(f"200 of 200 alive, {load.answered} requests answered, {load.failed} lost")


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: what it costs")
def test_recording_a_server_takes_at_most_twice_the_cpu_time(built, tmp_path):
    with Server(built) as plain, Server(built) as other:

        def against_plain(rounds):
            """CPU time of the same requests, the one's by the other's; in turn, and each first every other time."""
            ratios = []
            for i in range(rounds):
                order = (plain, other) if i % 2 else (other, plain)
                used_s = {one: one.cpu_of(5000) for one in order}
                ratios.append(used_s[other] / used_s[plain])
            return statistics.median(ratios)

        against_plain(6)  # heaps have grown
        before = against_plain(31)
        recording = Recording(tmp_path, other.pid, "-o", "t.qtr").until("until Ctrl-C")
        during = against_plain(31) / before
        recording.popen.send_signal(signal.SIGINT)
        assert recording.end() == 0
    print(f"CPU time while recording {during:.2f}")
    assert during < 2


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: what it costs")
def test_nothing_is_left_of_the_cost_afterwards(tmp_path):
    program = build(tmp_path, BATCHES, "batches")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([program], **pipes) as run, subprocess.Popen([program], **pipes) as other:

        def batch_ns(one):
            one.stdin.write("x")
            one.stdin.flush()
            return int(one.stdout.readline())

        def against_other():
            """A batch's time by one's of a process that is left alone; in turn, the least of three each."""
            return statistics.median(min(batch_ns(run) for _ in range(3)) / min(batch_ns(other) for _ in range(3)) for _ in range(100))

        against_other()
        before = against_other()
        for i in range(10):
            assert record(tmp_path, run.pid, "--duration", "20ms", "-o", f"{i}.qtr").returncode == 0
        after = against_other()
        for one in (run, other):
            one.stdin.close()
    print(f"a batch takes {before:.3f} of the other's before, {after:.3f} afterwards: {after / before:.3f}")
    assert after < 1.03 * before
