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
import sys
import threading
import time

import pytest
from attachkit import Process, Recording, Server, killed_at, mappings, patched, programs, record, wait_until
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


@pytest.mark.by_turns
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


@pytest.mark.parametrize("name", ["é", "a b", os.fsdecode(b"\xff")])
def test_a_program_and_a_library_of_any_name_are_recorded_whole(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    plug = "#include <stdlib.h>\n__attribute__((noinline)) void plug(void) { free(malloc(100)); free(malloc(200)); }\n"
    main = "#include <unistd.h>\nvoid plug(void);\nint main(void) { write(1, \"x\", 1); for (;;) { plug(); usleep(200); } }\n"
    (folder / "plug.c").write_text(plug)
    (folder / "main.c").write_text(main)
    subprocess.run(["gcc", "-O0", "-fno-builtin", "-shared", "-fPIC", "-Wl,-z,now", "-o", folder / "libplug.so", folder / "plug.c"], check=True)
    subprocess.run(["gcc", "-o", folder / "main", folder / "main.c", folder / "libplug.so"], check=True)
    with subprocess.Popen([folder / "main"], stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        done = quire(tmp_path, "record", "--pid", process.pid, "--duration", "300ms", "-o", "it.qtr")
        short = quire(tmp_path, "record", "--pid", process.pid, "--duration", "0.2ms", "-o", "short.qtr")
        process.kill()
    assert done.returncode == 0 and short.returncode == 0, done.stderr + short.stderr
    sites = native_json("quire-analyse", tmp_path / "it.qtr", "--sites", "-")["sites"]
    counts = sorted(site["count"] for site in sites if site["function"] == "plug")
    assert len(counts) == 2 and counts[0] > 50 and counts[1] - counts[0] <= 1, counts


def test_a_process_that_executes_another_program_meanwhile_has_not_ended(tmp_path):
    code = "import os, sys, time; sys.stdout.write('x'); sys.stdout.flush(); time.sleep(1); os.execvp('sleep', ['sleep', '20'])"
    with subprocess.Popen(["/usr/bin/python3", "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        done = quire(tmp_path, "record", "--pid", process.pid, "--duration", "15s", "-o", "it.qtr")
        process.kill()
    assert done.returncode == 0 and "executes another program now" in done.stderr, done.stderr


def test_a_process_that_ends_meanwhile_leaves_its_trace(tmp_path):
    with Process("cat", stdin=subprocess.PIPE) as brief:
        recording = Recording(tmp_path, brief.pid, "-o", "t.qtr").until("until Ctrl-C")
        brief.popen.stdin.close()
        assert recording.end() == 0 and "has ended" in recording.said, recording.said
        assert brief.popen.wait() == 0
    assert facts(tmp_path / "t.qtr")["exited"]


@pytest.mark.by_turns
@pytest.mark.parametrize("step", STEPS if LONG else ["stopped", "inside:21"])
def test_killed_at_any_step_we_leave_a_server_that_answers_on(server, tmp_path, step):
    with server.load(GENTLE_US) as load:
        killed_at(server, tmp_path, step)
    assert load.failed == 0 and load.answered > 0


@pytest.mark.parametrize("step", END_STEPS if LONG else ["end-sent"])
def test_killed_while_the_slots_are_put_back_we_leave_an_idle_process_that_can_be_recorded(tmp_path, step):
    with Process(build(tmp_path, PAUSES)) as idle:
        killed_at(idle, tmp_path, step)


@pytest.mark.by_turns
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


def test_a_program_whose_loader_has_just_begun_is_waited_for(tmp_path, monkeypatch):
    gate = tmp_path / "gate.so"
    os.mkfifo(gate)
    with Process("sleep", "100", env={**os.environ, "LD_PRELOAD": str(gate)}, stderr=subprocess.DEVNULL) as begun:  # its loader waits for who writes there
        wait_until(lambda: "sleep" in os.readlink(f"/proc/{begun.pid}/exe"))
        monkeypatch.setattr(attaching, "LOADS_S", 0.1)
        assert "it has no libc" in refused(begun.pid)
        monkeypatch.undo()
        opener = threading.Timer(0.2, lambda: os.close(os.open(gate, os.O_WRONLY)))
        opener.start()
        assert attaching.check(begun.pid).pid == begun.pid
        opener.join()


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


INSIDE = """
#include <stdlib.h>
#include <unistd.h>
static char pool[64];
static volatile int freed;
__attribute__((noinline)) void *NAME(size_t n) { freed -= n < 9; return n <= 64 ? pool : 0; }
__attribute__((noinline)) void FREE(void *p) { if (p) freed += p != pool + 1; freed &= 255; }
int main(void) { for (;;) { FREE(NAME(40)); usleep(1000); } }
"""


@pytest.mark.parametrize(("malloc", "free", "said"), [("mi_malloc", "mi_free", "mimalloc is inside"), ("malloc", "free", "its own malloc is inside")])
def test_a_program_with_an_allocator_inside_is_refused_and_the_way_to_record_it_is_said(tmp_path, malloc, free, said):
    program = build(tmp_path, INSIDE.replace("NAME", malloc).replace("FREE", free), "inside")
    with Process(program) as inside:
        wait_until(lambda: os.readlink(f"/proc/{inside.pid}/exe") == str(program))
        done = record(tmp_path, inside.pid, "--duration", "100ms")
        assert done.returncode == 3 and said in done.stderr and f"fix: quire record -- {program}\n" in done.stderr
        assert inside.lives and not list(tmp_path.glob("*.qtr"))


def test_a_program_that_is_linked_with_an_allocator_inside_of_a_library_is_refused_too(tmp_path):
    library = build(tmp_path, INSIDE.replace("NAME", "mi_malloc").replace("FREE", "mi_free").partition("int main")[0], "libmimalloc.so", ["-shared", "-fPIC", "-Wl,-soname,libmimalloc.so"])
    source = "void *mi_malloc(unsigned long); void mi_free(void *); int usleep(unsigned);" + INSIDE.replace("NAME", "mi_malloc").replace("FREE", "mi_free").splitlines()[-1]
    with Process(build(tmp_path, source, "linked", [library, f"-Wl,-rpath,{tmp_path}"])) as linked:
        wait_until(lambda: "libmimalloc.so" in attaching.Process(linked.pid).mapped())
        assert "mimalloc is inside" in refused(linked.pid)


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


def test_who_is_forbidden_because_another_recording_began_meanwhile_is_told_of_that():
    traced = "import ctypes; print(input(), ctypes.CDLL(None).ptrace(0, 0, 0, 0), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", traced], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        before = attaching.Process(child.pid)
        child.stdin.write("now\n")
        child.stdin.flush()
        assert child.stdout.readline() == "now 0\n"  # PTRACE_TRACEME: we are its tracer
        with pytest.raises(EnvironmentLacks, match=f"process {os.getpid()} traces it already"):
            attaching._forbidden(before)
        child.kill()


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
