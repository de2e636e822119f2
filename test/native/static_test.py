# SPDX-License-Identifier: MIT
"""
static_test.py - static programs under the recorder: the trace counts what that of the same program, linked dynamically, counts; the program does not notice.

The tool's side (refusals, verdicts) is test/tool/test_static.py.  musl, 200 starts, what it costs: QUIRE_TEST_LONG=1.
"""
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

import pytest
from record_kit import ANALYSER, BUILD, ROOT, build

LONG = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1 runs it")
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="static programs are entered on x86-64 alone")

# Thread-local variables of its own, filled and zero; errno over malloc; threads that begin, end and begin; a child; a program that it executes; status 3.
PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <locale.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static __thread int filled = 7; static __thread char zeros[300]; static __thread const char *pointer = "pointed to";
static volatile sig_atomic_t signals;
static void on_signal(int n) { (void)n; signals++; }
static void blocks(int n) {
    void *p;
    for (int i = 0; i < n; i++) {
        errno = 55;
        p = malloc(20 + i % 50);
        p = realloc(p, 100 + i % 50);
        if (errno != 55) abort();
        free(p);
        p = calloc(3, 7);
        free(p);
        free(aligned_alloc(64, 64));
        if (posix_memalign(&p, 256, 10) != 0) abort();
        free(p);
    }
}
static void *work(void *arg) {
    filled += (int)(long)arg;
    blocks(500);
    for (int i = 0; i < 300; i++) if (zeros[i]++) abort();
    if (strcmp(pointer, "pointed to") != 0) abort();
    return (void *)(long)filled;
}
int main(int argc, char **argv) {
    pthread_t thread[4];
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    for (int round = 0; round < 2; round++) {
        for (long i = 0; i < 4; i++) pthread_create(&thread[i], NULL, work, (void *)i);
        for (long i = 0; i < 4; i++) {
            void *result;
            pthread_join(thread[i], &result);
            if ((long)result != 7 + i) abort();
        }
    }
    int status = 0;
    if (fork() == 0) { blocks(100); _exit(5); }
    wait(&status);
    if (WEXITSTATUS(status) != 5) abort();
    if (fork() == 0) { execl("/bin/echo", "echo", "executed", NULL); _exit(9); }
    wait(&status);
    char exe[200] = "", name[20] = "";
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) abort();
    printf("%d %d %d %s %s %s\n", (int)signals, filled, status, setlocale(LC_ALL, NULL), strrchr(exe, '/') + 1, argv[1]);
    fflush(stdout);
    if (argc > 2) raise(SIGTERM);
    return 3;
}
"""
# So many pairs of malloc and free, from two functions; their CPU time in ns, then pages that are mapped and resident.
COSTS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static void *volatile kept[64];
__attribute__((noinline)) static void one(unsigned i) { free(kept[i % 64]); kept[i % 64] = malloc(16 + i % 500); }
__attribute__((noinline)) static void two(unsigned i) { free(kept[i % 64]); kept[i % 64] = malloc(24); }
int main(int argc, char **argv) {
    struct timespec from, to;
    char pages[100] = "";
    unsigned pairs = (unsigned)atoi(argv[1]);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (unsigned i = 0; i < pairs; i++) { if (i % 2) one(i); else two(i); }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    int file = open("/proc/self/statm", O_RDONLY);
    if (read(file, pages, sizeof pages - 1) < 3) return 1;
    printf("%ld %s", (to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec, pages);
    return 0;
}
"""
PAIRS, ROUNDS = 500_000, 41


def record(folder, trace, program, *words):
    """`quire record` of a program: the finished process, and the traces' sums {function: allocations} by process, the first one's first."""
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD), "NO_COLOR": "1"}
    command = [sys.executable, ROOT / "tools" / "quire", "record", "-f", "-o", folder / trace, "--", program, *words]
    done = subprocess.run([str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done, [counts(path) for path in sorted(folder.glob(trace + "*"), key=lambda path: len(path.name))]


def counts(path):
    """What was allocated by the program's own functions; and the trace's facts."""
    document = json.loads(subprocess.run([ANALYSER, path], capture_output=True, text=True, check=True).stdout)
    found = {}
    for site in document["sites"]:
        if site["function"] in ("blocks", "work", "main"):
            found[site["function"]] = found.get(site["function"], 0) + site["count"]
    return found, document["trace"]


@pytest.fixture(scope="module", name="dynamic")
def dynamic_fixture(tmp_path_factory):
    """The program, linked dynamically: how it ends, and what its trace counts."""
    folder = tmp_path_factory.mktemp("dynamic")
    program = build(folder, PROGRAM, flags=["-w"])
    return program, *record(folder, "t.qtr", program, "word")


def check_same(folder, flags, dynamic):
    """A static build of the program against the dynamic one."""
    _, wanted, traces = dynamic
    program = build(folder, PROGRAM, flags=["-w", *flags])
    alone = subprocess.run([program, "word"], capture_output=True, text=True, check=False)
    done, found = record(folder, "t.qtr", program, "word")
    assert (alone.returncode, alone.stdout) == (done.returncode, done.stdout) and done.returncode == 3, done
    assert wanted.returncode == 3 and wanted.stdout == done.stdout
    theirs = [counted for counted, _ in traces if counted]
    assert theirs[0]["blocks"] == 8 * 500 * 4 and theirs[1]["blocks"] == 100 * 4
    assert [counted for counted, _ in found if counted] == theirs
    facts = found[0][1]
    assert facts["exit_status"] == 3 and facts["threads"] == 9 and facts["lost_events"] == 0 and facts["unknown_stacks"] == 0
    return program


@pytest.mark.by_turns
def test_a_static_programs_trace_counts_what_that_of_the_dynamic_one_counts(tmp_path, dynamic):
    program = check_same(tmp_path, ["-static", "-no-pie"], dynamic)
    done, found = record(tmp_path, "killed.qtr", program, "word", "killed")
    assert done.returncode == 128 + 15 and found[0][0]["blocks"] == 8 * 500 * 4, done


def test_a_static_pie_is_recorded_with_its_thread_local_pointers_in_place(tmp_path, dynamic):
    check_same(tmp_path, ["-static-pie"], dynamic)


@LONG
@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="musl-tools are not installed")
def test_a_program_with_musl_inside_is_recorded(tmp_path):
    (tmp_path / "p.c").write_text("#include <stdlib.h>\nint main(void) { for (int i = 0; i < 5000; i++) free(malloc(i)); return 4; }\n")
    subprocess.run(["musl-gcc", "-O1", "-g", "-fno-builtin", "-static", tmp_path / "p.c", "-o", tmp_path / "p"], check=True)
    done, found = record(tmp_path, "t.qtr", tmp_path / "p")
    assert done.returncode == 4 and "musl's malloc" in done.stderr and found[0][0]["main"] == 5000 and found[0][1]["exit_status"] == 4


@LONG
def test_a_launcher_that_is_killed_leaves_no_program_half_begun(tmp_path):
    program, dice = build(tmp_path, "int main(void) { return 3; }", flags=["-static"]), random.Random(46)
    ends = []
    for number in range(60):
        reader, writer = os.pipe()
        command = [BUILD / "tools" / "quire-launch", str(writer), "here", f"--into={BUILD}/tools/libquire-static.so", "--", program, "p"]
        launcher = subprocess.Popen(command, pass_fds=[writer], env={**os.environ, "QUIRE_RECORD": str(tmp_path / f"{number}.qtr")})
        os.close(writer)
        time.sleep(dice.random() * 0.02)
        launcher.kill()
        launcher.wait()
        told = os.read(reader, 99).split()
        os.close(reader)
        if told:
            ends.append(os.waitstatus_to_exitcode(os.waitpid(int(told[0]), 0)[1]))
    assert set(ends) <= {3, -9}, ends  # ran to its end, or never began


@LONG
def test_a_static_program_is_recorded_two_hundred_times_and_ends_as_ever(tmp_path, dynamic):
    program = check_same(tmp_path, ["-static"], dynamic)
    for number in range(200):
        done, found = record(tmp_path, "t.qtr", program, "word")
        assert done.returncode == 3 and found[0][0]["blocks"] == 8 * 500 * 4, (number, done)
        for path in tmp_path.glob("t.qtr*"):
            path.unlink()


def launched(folder, program, recorder, pairs):
    """One run of COSTS by the tool's launcher: its CPU time, bytes mapped and resident, and the seconds from the launcher's start to the end of its output."""
    reader, writer = os.pipe()
    how = [f"--into={BUILD}/tools/libquire-static.so"] if recorder == "static" else [f"LD_PRELOAD={BUILD}/tools/libquire-record.so"] if recorder else []
    trace = folder / "t.qtr"
    env = {**os.environ, **({"QUIRE_RECORD": str(trace)} if recorder else {})}
    began_s = time.monotonic()
    command = [BUILD / "tools" / "quire-launch", str(writer), "here", *how, "--", program, "p", str(pairs)]
    with subprocess.Popen(command, pass_fds=[writer], env=env, stdout=subprocess.PIPE) as launcher:
        said = launcher.stdout.read().split()
    took_s = time.monotonic() - began_s
    os.close(writer)
    pid = int(os.read(reader, 99).split()[0])
    os.close(reader)
    assert os.waitpid(pid, 0)[1] == 0 and trace.exists() == bool(recorder)
    trace.unlink(missing_ok=True)
    return int(said[0]), *(int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in said[1:3]), took_s


@LONG
def test_an_event_of_a_static_program_costs_at_most_three_times_what_one_of_the_dynamic_program_does(tmp_path):
    dice, ways = random.Random(46), [(kind, recorded) for kind in ("static", "dynamic") for recorded in (False, True)]
    program = {kind: build(tmp_path, COSTS, name=kind, flags=["-O2", "-fno-builtin", *flags]) for kind, flags in (("static", ["-static"]), ("dynamic", []))}
    ran = {(way, pairs): [] for way in ways for pairs in (1, PAIRS)}
    for _ in range(ROUNDS):
        for way, pairs in dice.sample(list(ran), len(ran)):
            ran[way, pairs].append(launched(tmp_path, program[way[0]], way[1] and way[0], pairs))
    event_ns = {}
    for kind in program:
        plain, recorded = (kind, False), (kind, True)
        event_ns[kind] = [(r[0] - p[0]) / (2 * PAIRS) for r, p in zip(ran[recorded, PAIRS], ran[plain, PAIRS])]
        mapped, resident, start_s = (statistics.median(r[i] - p[i] for r, p in zip(ran[recorded, 1], ran[plain, 1])) for i in (1, 2, 3))
        low, middle, high = statistics.quantiles(event_ns[kind], n=4)
        print(f"{kind}: an event {middle:.1f} ns (half of the rounds: {low:.1f} to {high:.1f}); start and end {1000 * start_s:.1f} ms; {mapped / 2**20:.1f} MiB mapped, {resident / 2**10:.0f} KiB resident")
    assert statistics.median(s / d for s, d in zip(event_ns["static"], event_ns["dynamic"])) < 3
