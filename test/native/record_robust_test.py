# SPDX-License-Identifier: MIT
"""record_robust_test.py - the recorder where things go wrong: kills, forks, full disks, closed descriptors, damaged traces."""
import contextlib
import os
import pathlib
import random
import resource
import signal
import subprocess
import time

import pytest
from record_kit import ANALYSER, HERE, RECORDER, analyse, analyse_raw, build, record, site

TEST_LONG = bool(os.environ.get("QUIRE_TEST_LONG"))

BUSY = r"""
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *work(int n) { return malloc((size_t)n % 100 + 1); }
int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 100000;
    for (int i = 0; i < rounds; i++) { void *p = work(i); if (i % 10) free(p); }
    if (argc > 1 && !strcmp(argv[1], "kill")) kill(getpid(), SIGKILL);
    if (argc > 1 && !strcmp(argv[1], "crash")) *(volatile int *)8 = 1;
    if (argc > 1 && !strcmp(argv[1], "abort")) abort();
    if (argc > 1 && !strcmp(argv[1], "_exit")) _exit(7);
    return 5;
}
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    return build(tmp_path_factory.mktemp("busy"), BUSY)


@pytest.mark.parametrize("how, status", [("kill", -signal.SIGKILL), ("crash", -signal.SIGSEGV), ("abort", -signal.SIGABRT)])
def test_a_trace_is_whole_up_to_the_last_event_after_a_kill_or_a_crash(tmp_path, busy, how, status):
    done, trace = record(tmp_path, [busy, how])
    assert done.returncode == status
    report = analyse(trace)
    made = site(report, "work")
    assert (made["count"], made["never_freed"]) == (100000, 10000)
    assert not report["trace"]["exited"] and not report["trace"]["complete"]
    assert "no exit mark" in report["trace"]["note"]


@pytest.mark.parametrize("how, status", [("return", 5), ("_exit", 7)])
def test_an_ordinary_end_leaves_an_exit_mark_and_the_status_is_the_programs(tmp_path, busy, how, status):
    done, trace = record(tmp_path, [busy, how])
    assert done.returncode == status
    facts = analyse(trace)["trace"]
    assert facts["exited"] and facts["complete"] and facts["note"] == ""
    assert facts["cpu_s"] > 0 and facts["wall_s"] > 0 and facts["peak_rss_bytes"] > 1 << 20


ASKS_FIRST = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
__attribute__((noinline)) static void *work(int n) { return malloc((size_t)n % 100 + 1); }
static void *ask(void *nothing) {
    pthread_attr_t found;  // its first allocation: made by this call, which holds the thread's own lock meanwhile
    if (pthread_getattr_np(pthread_self(), &found) != 0) return nothing;
    pthread_attr_destroy(&found);
    for (int i = 0; i < 1000; i++) free(work(i));
    return nothing;
}
int main(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t one;
        pthread_create(&one, NULL, ask, NULL);
        pthread_join(one, NULL);
    }
    return 0;
}
"""


def test_a_thread_whose_first_allocation_is_libcs_own_under_its_lock_is_recorded(tmp_path):
    done, trace = record(tmp_path, [build(tmp_path, ASKS_FIRST)])
    assert done.returncode == 0
    report = analyse(trace)
    made = site(report, "work")
    assert made["count"] == 3000 and report["trace"]["threads"] == 4


def wait_for(condition, seconds=60):
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.005)


def cpu_s(process):
    """CPU time that a process has had so far: on a machine that is busy or stands still it does not move."""
    words = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.by_turns
def test_a_program_killed_at_a_random_moment_leaves_a_readable_trace(tmp_path, busy):
    for attempt in range(0, 8, 1 if TEST_LONG else 3):
        trace = tmp_path / f"{attempt}.qtr"
        env = {**os.environ, "LD_PRELOAD": str(RECORDER), "QUIRE_RECORD": str(trace)}
        command, env = HERE.started([busy, "return", "100000000"], env)
        child = subprocess.Popen(command, env=env)
        wait_for(trace.exists)
        from_s = cpu_s(child)
        wait_for(lambda: cpu_s(child) - from_s > 0.03 + 0.03 * attempt)  # noqa: B023 - called here only
        child.kill()
        child.wait()
        facts = analyse(trace)["trace"]
        assert facts["events"] > 0 and facts["unknown_frees"] == 0 and facts["missed_frees"] == 0
        assert facts["note"].count(";") == 0, facts["note"]


def test_a_forked_child_writes_its_own_trace_and_leaves_its_parents_alone(tmp_path):
    source = r"""
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void mine(int n) { for (int i = 0; i < n; i++) free(malloc(11)); }
int main(void) {
    mine(1000);
    if (fork() == 0) { mine(70); if (fork() == 0) { mine(7); _exit(0); } wait(0); _exit(0); }
    wait(0); mine(1000); return 0;
}
"""
    _, trace = record(tmp_path, [build(tmp_path, source)])
    traces = sorted(tmp_path.glob("trace.qtr*"))
    counts = sorted(sum(entry["count"] for entry in analyse(one)["sites"] if entry["function"] == "mine")
                    for one in traces)
    assert counts == [7, 70, 2000]
    assert sum(entry["count"] for entry in analyse(trace)["sites"] if entry["function"] == "mine") == 2000
    facts = [analyse(one)["trace"] for one in traces]
    assert all(one["complete"] and one["unknown_frees"] == 0 for one in facts)
    assert {one["parent_pid"] for one in facts} & {one["pid"] for one in facts}


@pytest.mark.parametrize("way", ["fork()", "syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)"])
def test_a_child_of_a_parent_that_never_allocated_writes_its_own_trace(tmp_path, way):
    source = r"""
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void mine(int n) { for (int i = 0; i < n; i++) free(malloc(11)); }
int main(void) { if (WAY == 0) { mine(70); _exit(0); } wait(0); mine(5); return 0; }
""".replace("WAY", way)
    _, trace = record(tmp_path, [build(tmp_path, source)])
    assert site(analyse(trace), "mine")["count"] == 5
    (child,) = tmp_path.glob("trace.qtr.*")
    assert site(analyse(child), "mine")["count"] == 70


def test_a_child_that_becomes_another_program_gets_a_trace_of_that_program(tmp_path, busy):
    done, trace = record(tmp_path, ["/bin/sh", "-c", f"{busy} return 500; {busy} return 300; exit 3"])
    assert done.returncode == 3
    counts = [sum(entry["count"] for entry in analyse(one)["sites"] if entry["function"] == "work")
              for one in tmp_path.glob("trace.qtr*")]
    assert sorted(count for count in counts if count) == [300, 500]
    assert analyse(trace)["trace"]["command"][0] == "/bin/sh"


def test_forks_from_busy_threads_neither_hang_nor_disturb_the_trace(tmp_path):
    source = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int stop;
static void *work(void *arg) { unsigned n = 1; while (!stop) { void *p = malloc(n % 500 + 1); n = n * 1103515245u + 12345u; free(p); } return arg; }
int main(void) {
    pthread_t t[4]; for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, work, 0);
    int bad = 0;
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) { for (int k = 0; k < 50; k++) free(malloc(k)); _exit(0); }
        int status; waitpid(child, &status, 0); bad |= status; fflush(NULL);
    }
    stop = 1; for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
    return bad != 0;
}
"""
    done, trace = record(tmp_path, [build(tmp_path, source)])
    assert done.returncode == 0
    facts = analyse(trace)["trace"]
    assert facts["complete"] and facts["unknown_frees"] == 0 and facts["missed_frees"] == 0
    assert len(list(tmp_path.glob("trace.qtr.*"))) == 60


def test_a_thread_cancelled_inside_malloc_leaves_the_recorder_in_order(tmp_path):
    programs = pathlib.Path(__file__).resolve().parents[1] / "preload" / "programs"
    program = build(tmp_path, (programs / "life.c").read_text(), flags=["-I", str(programs)])
    done, trace = record(tmp_path, [program, "cancel", "100"])
    assert done.returncode == 0
    facts = analyse(trace)["trace"]
    assert facts["complete"] and facts["lost_events"] == 0 and facts["threads"] > 50


def test_a_program_that_fills_blocks_faster_than_they_are_packed_has_a_whole_trace_too(tmp_path, busy):
    done, trace = record(tmp_path, [busy, "exit", "3000000"])
    assert done.returncode == 5
    facts = analyse(trace)["trace"]
    assert facts["complete"] and facts["events"] >= 3000000 * 1.9 and facts["lost_events"] == 0


LOST = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    free(malloc(9));
    rename("in", "out");
    if (fork() == 0) { fprintf(stderr, "%d", getpid()); free(malloc(9)); _exit(0); }
    wait(NULL);
    return rename("out", "in");
}
"""


def test_a_child_whose_trace_cannot_be_made_is_not_taken_for_its_parent(tmp_path):
    (tmp_path / "in").mkdir()
    done, trace = record(tmp_path, [build(tmp_path, LOST)], trace=tmp_path / "in" / "t.qtr")
    pid, _, said = done.stderr.partition("quire record: process ")
    assert trace.exists() and pid and said.startswith(f"{pid} cannot record to "), done.stderr


def test_an_existing_file_is_never_overwritten(tmp_path, busy):
    (tmp_path / "trace.qtr").write_text("precious")
    _, trace = record(tmp_path, [busy, "return", "10"])
    assert trace.read_text() == "precious"
    assert len(list(tmp_path.glob("trace.qtr.*"))) == 1


def test_a_trace_that_cannot_be_made_costs_one_line_and_nothing_else(tmp_path, busy):
    done, _ = record(tmp_path, [busy], trace=tmp_path / "no" / "such" / "folder.qtr")
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1 and "cannot record to" in done.stderr and "No such file" in done.stderr


def test_a_limit_that_is_no_size_is_refused_with_an_example(tmp_path, busy):
    done, trace = record(tmp_path, [busy], environment={"QUIRE_RECORD_LIMIT": "lots"})
    assert done.returncode == 5 and "such as 500M" in done.stderr and not trace.exists()


def test_the_size_limit_ends_the_trace_with_a_mark_and_the_program_goes_on(tmp_path, busy):
    done, trace = record(tmp_path, [busy, "return", "2000000"], environment={"QUIRE_RECORD_LIMIT": "300K"})
    assert done.returncode == 5 and done.stderr == ""
    assert trace.stat().st_size <= 300 * 1024
    facts = analyse(trace)["trace"]
    assert facts["events"] > 10000 and facts["exited"]
    assert not facts["complete"] and "QUIRE_RECORD_LIMIT" in facts["note"]


def test_the_file_size_limit_of_the_process_is_no_signal(tmp_path, busy):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 * 1024, 300 * 1024))
    done, trace = record(tmp_path, [busy, "return", "2000000"], preexec_fn=limit)
    assert done.returncode == 5
    assert "ulimit -f" in analyse(trace)["trace"]["note"]


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
                                           capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_ends_the_trace_with_a_mark_and_the_program_goes_on(tmp_path, busy):
    with small_disk(tmp_path / "disk", "400k") as disk:
        done, trace = record(tmp_path, [busy, "return", "2000000"], trace=disk / "t.qtr")
        assert done.returncode == 5 and done.stderr == ""
        facts = analyse(trace)["trace"]
        assert facts["events"] > 10000 and facts["exited"]
        assert not facts["complete"] and "disk was full" in facts["note"]


def test_a_disk_that_is_full_already_costs_one_line(tmp_path, busy):
    with small_disk(tmp_path / "disk", "64k") as disk:
        (disk / "filler").write_bytes(bytes(64 * 1024))
        done, _ = record(tmp_path, [busy, "return", "10"], trace=disk / "t.qtr")
        assert done.returncode == 5 and "No space left" in done.stderr


def test_a_program_that_closes_every_descriptor_keeps_its_own_files_to_itself(tmp_path):
    source = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    for (int i = 3; i < 4096; i++) close(i);
    int fd = -1;
    for (int i = 0; i < 900; i++) fd = open("own.txt", O_RDWR | O_CREAT, 0600);
    if (write(fd, "mine", 4) != 4) return 1;
    for (int i = 0; i < 300000; i++) free(malloc(i % 999));
    return 0;
}
"""
    def many():
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    done, trace = record(tmp_path, [build(tmp_path, source)], preexec_fn=many)
    assert done.returncode == 0
    assert (tmp_path / "own.txt").read_bytes() == b"mine"
    report = analyse(trace)
    assert report["trace"]["complete"] and report["trace"]["allocations"] >= 300000


def test_a_trace_that_was_removed_and_lost_its_descriptor_stops_without_harm_to_the_file_in_its_place(tmp_path):
    source = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    free(malloc(1));
    unlink("trace.qtr");
    for (int i = 3; i < 1024; i++) close(i);
    int fd = open("trace.qtr", O_RDWR | O_CREAT, 0600);
    if (write(fd, "mine", 4) != 4) return 1;
    for (int i = 0; i < 300000; i++) free(malloc(i % 999));
    return 0;
}
"""
    done, trace = record(tmp_path, [build(tmp_path, source)])
    assert done.returncode == 0 and done.stderr == ""
    assert trace.read_bytes() == b"mine"


def test_a_process_that_becomes_another_program_leaves_what_it_did_before(tmp_path):
    source = r"""
#include <stdlib.h>
#include <unistd.h>
static void mine(int n) { for (int i = 0; i < n; i++) free(malloc(11)); }
int main(int n, char **v) { mine(n == 1 ? 40 : 9); if (n == 1) execl(v[0], v[0], "again", (char *)0); return 0; }
"""
    done, trace = record(tmp_path, [build(tmp_path, source)])
    assert done.returncode == 0
    before, (after,) = analyse(trace), [analyse(one) for one in tmp_path.glob("trace.qtr.*")]
    assert site(before, "mine")["count"] == 40 and "became another program" in before["trace"]["note"]
    assert site(after, "mine")["count"] == 9 and after["trace"]["complete"]


def test_an_allocation_during_lazy_binding_of_a_function_does_no_harm(tmp_path):
    library = r"""
#include <stdlib.h>
static int real(void) { return 42; }
static int (*choose(void))(void) { free(malloc(77)); return real; }
int picked(void) __attribute__((ifunc("choose")));
int call(void) { return picked(); }
"""
    build(tmp_path, library, name="libpick.so", flags=["-shared", "-fPIC", "-Wl,-z,lazy"])
    source = "int call(void); int picked(void); int main(void) { return call() == 42 && picked() == 42 ? 0 : 1; }\n"
    program = build(tmp_path, source, flags=["-Wl,-z,lazy", "-fPIE", f"-L{tmp_path}", "-l:libpick.so",
                                             f"-Wl,-rpath,{tmp_path}"])
    done, trace = record(tmp_path, [program])
    assert done.returncode == 0
    report = analyse(trace)
    assert report["trace"]["complete"]
    assert [entry["sizes"]["max"] for entry in report["sites"] if entry["module"] == "libpick.so"] == [77]


def one_line(done):
    """What every refusal looks like."""
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert done.stderr.startswith("quire-analyse: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_foreign_empty_and_newer_files_are_refused_in_one_line_each(tmp_path, busy):
    _, trace = record(tmp_path, [busy, "return", "10"])
    data = trace.read_bytes()
    cases = {"empty": b"", "text": b"hello\n" * 500, "elf": ANALYSER.read_bytes()[:9000],
             "newer": data[:8] + (2).to_bytes(4, "little") + data[12:], "cut header": data[:700], "magic only": data[:8]}
    said = {}
    for name, content in cases.items():
        (tmp_path / "case.qtr").write_bytes(content)
        said[name] = one_line(analyse_raw(tmp_path / "case.qtr"))
    assert all("not a Quire trace" in said[name] for name in ("empty", "text", "elf"))
    assert "trace version 2; this quire reads version 1" in said["newer"]
    assert "cut off within its header" in said["cut header"] and "cut off" in said["magic only"]
    assert "not a regular file" in one_line(analyse_raw(tmp_path))


@pytest.fixture(scope="module")
def real_trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    _, trace = record(folder, [build(folder, BUSY), "return", "60000"])
    return trace


@pytest.mark.by_turns
def test_a_trace_cut_off_anywhere_gives_what_is_left_of_it_or_one_line(tmp_path, real_trace):
    data, draw = real_trace.read_bytes(), random.Random(1)
    whole = analyse(real_trace)["trace"]["events"]
    offsets = [1199, 4096, 4100, 4160, len(data) - 1, len(data) - 70000] + [draw.randrange(len(data)) for _ in range(300 if TEST_LONG else 10)]
    seen = set()
    for offset in offsets:
        (tmp_path / "cut.qtr").write_bytes(data[:offset])
        done = analyse_raw(tmp_path / "cut.qtr", "--sites", tmp_path / "s.json", "--program", tmp_path / "p.qrp")
        if offset < 4096:
            one_line(done)
            continue
        facts = analyse(tmp_path / "cut.qtr")["trace"]
        assert done.returncode == 0 and not facts["complete"] and facts["events"] <= whole
        assert f"cut off at byte {offset} of" in facts["note"]
        seen.add(facts["events"])
    assert len(seen) > 1 and max(seen) > 0


@pytest.mark.by_turns
def test_no_flipped_bit_crashes_the_reader_or_makes_it_eat_memory(tmp_path, real_trace):
    data, draw = real_trace.read_bytes(), random.Random(2)
    for attempt in range(750 if TEST_LONG else 30):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 8])):
            where = draw.randrange(1176) if attempt % 3 == 0 else draw.randrange(4096, len(data))
            if attempt % 3 == 1:
                where = 4096 + draw.randrange(20000)
            damaged[where] ^= 1 << draw.randrange(8)
        (tmp_path / "bad.qtr").write_bytes(damaged)
        done = analyse_raw(tmp_path / "bad.qtr", "--sites", tmp_path / "s.json", "--program", tmp_path / "p.qrp")
        assert done.returncode in (0, 3), (attempt, done.returncode, done.stderr)
        if done.returncode == 3:
            one_line(done)


def test_a_report_that_cannot_be_written_is_an_error(tmp_path, real_trace):
    assert "cannot write" in one_line(analyse_raw(real_trace, "--sites", tmp_path / "no" / "s.json"))
    assert "cannot write" in one_line(analyse_raw(real_trace, "--program", tmp_path / "no" / "p.qrp"))
    with small_disk(tmp_path / "disk", "64k") as disk:
        assert "cannot write" in one_line(analyse_raw(real_trace, "--program", disk / "p.qrp"))


@pytest.mark.parametrize("peer", ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_another_preloaded_allocator_stays_the_one_that_serves(tmp_path, busy, peer):
    if subprocess.run(["/bin/true"], env={"LD_PRELOAD": peer}, capture_output=True).stderr:
        pytest.skip(f"{peer} is not installed")
    done, trace = record(tmp_path, [busy], environment={"LD_PRELOAD": f"{RECORDER}:{peer}"})
    assert done.returncode == 5
    report = analyse(trace)
    assert site(report, "work")["count"] == 100000 and report["trace"]["missed_frees"] == 0
