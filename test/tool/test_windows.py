# SPDX-License-Identifier: MIT
"""test_windows - programs longer than memory: replayed window by window; and the timeline of what they hold."""

import json
import os
import subprocess
import sys

import pytest
from qrp import CALLOC, Program
from test_replay import churn, crossing, plan, slab_plan
from toolkit import BUILD, build, native, native_json

import peers

SAME = ("ops", "threads", "lanes", "arenas", "arena_generations", "ops_on_slabs", "frees_elsewhere")


def both(path, window_ops, *words):
    """The figures of one program as a whole and in windows."""
    whole = native_json("quire-replay", "--verify", *words, path)
    parts = native_json("quire-replay", "--verify", "--window", window_ops, *words, path)
    assert parts["windows"] >= -(-whole["ops"] // window_ops) and whole["windows"] == 1
    assert whole["corrupt"] == parts["corrupt"] == whole["failures"] == parts["failures"] == 0
    assert parts["ops_dropped"] == 0
    return whole, parts


@pytest.mark.parametrize("window_ops", [1, 2, 97, 5000])
def test_windows_change_nothing_for_one_thread(tmp_path, window_ops):
    path = churn(rounds=10).write(tmp_path / "p.qrp")
    whole, parts = both(path, window_ops, "--plan", plan(tmp_path, (1, 0), (2, 1)))
    assert [whole[key] for key in SAME] == [parts[key] for key in SAME]
    assert whole["arena_generations"] == 10 + 10 * 20


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("window_ops", [1, 50])
def test_objects_handed_to_other_threads_cross_windows_too(tmp_path, window_ops, runs):
    path = crossing(steps=1500, threads=5).write(tmp_path / "p.qrp", runs=runs)
    for words in ((), ("--plan", plan(tmp_path, (0, 0), (1, 0))), ("--plan", slab_plan(tmp_path, 1))):
        whole, parts = both(path, window_ops, *words)
        assert [whole[key] for key in SAME] == [parts[key] for key in SAME]
        assert whole["frees_elsewhere"] > 300


@pytest.mark.parametrize("window_ops", range(1, 8))
def test_a_thread_may_start_another_after_its_own_last_op(tmp_path, window_ops):
    program = Program(reuse=False)
    for thread in range(6):
        mine = [program.alloc(thread) for _ in range(3)]
        for slot in mine:
            program.free(thread, slot)
    whole, parts = both(program.write(tmp_path / "p.qrp", runs=True), window_ops)
    assert whole["threads"] == parts["threads"] == 6 and parts["lanes"] == 1


def test_a_wide_size_is_never_parted_from_its_op(tmp_path):
    program = Program()
    for size in (5 << 32, 17, (5 << 32) + 1):
        program.birth(0, CALLOC, 1, size)
        program.free(0, program.alloc(0))
    path = program.write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--null", "--window", 1, path)
    assert figures["ops"] == 9 and figures["ops_dropped"] == 0


LONG_PROGRAM_OPS = 24_000_000


@pytest.fixture(scope="module")
def long_program(tmp_path_factory):
    """More operations than a window holds, few objects alive; made by repeating a piece (no interpreter writes 24 M ops)."""
    program = Program()
    ring = [program.alloc(0, site=1, size=16 + at) for at in range(200)]
    head_ops = len(program.ops[0])
    for at in range(20000):
        program.free(0, ring[at % 200])
        ring[at % 200] = program.alloc(0, site=at % 8, size=16 + at % 300)
    whole = program.bytes()
    pieces = (LONG_PROGRAM_OPS - head_ops) // 40000
    head = bytearray(whole[:96])
    head[16:24] = head[80:88] = (head_ops + pieces * 40000).to_bytes(8, "little")
    path = tmp_path_factory.mktemp("long") / "long.qrp"
    with open(path, "wb") as file:
        file.write(head + whole[96 : 96 + head_ops * 16])
        for _ in range(pieces):
            file.write(whole[96 + head_ops * 16 :])
    yield path
    path.unlink()


# A small process between: what a process is said to have held includes what its parent held when it was started.
BETWEEN = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


def run_with_peak(name, *words):
    """A helper's JSON and its peak resident set."""
    command = [sys.executable, "-S", "-c", BETWEEN, BUILD / "tools" / name, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), int(done.stderr.split()[-1]) * 1024


@pytest.mark.long
def test_a_long_program_is_replayed_in_memory_that_does_not_grow_with_it(tmp_path, long_program):
    assert os.path.getsize(long_program) > 360 << 20
    figures, peak_bytes = run_with_peak("quire-replay", long_program)
    assert figures["ops"] >= LONG_PROGRAM_OPS - 40000 and figures["windows"] >= 2
    assert peak_bytes < 300 << 20
    # What one window or the next takes is not booked to the allocator: it holds 200 small blocks.
    assert figures["peak_rss_bytes"] < 2 << 20


@pytest.mark.long
def test_a_long_program_is_planned_in_a_few_megabytes(long_program):
    figures, peak_bytes = run_with_peak("quire-plan", long_program)
    assert figures["allocs"] > 11_000_000
    assert peak_bytes < 64 << 20


def rising_and_falling():
    """One thread: 1000 blocks of 10,000 bytes come, and go."""
    program = Program()
    slots = [program.alloc(0, size=10000) for _ in range(1000)]
    for slot in slots:
        program.free(0, slot)
    return program


@pytest.mark.parametrize("window", [(), ("--window", 300)])
def test_the_timeline_samples_what_is_live_and_what_is_resident(tmp_path, window):
    path = rising_and_falling().write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--timeline", 20, *window, path)
    line = figures["timeline"]
    assert [ops for ops, _, _ in line] == [100 * (i + 1) for i in range(20)]
    rising = [10000 * 100 * (i + 1) for i in range(10)]
    assert [live for _, live, _ in line] == rising + rising[-2::-1] + [0]
    # The kernel counts resident pages in batches for each CPU: a few hundred KiB either way.
    assert all(resident >= live - (1 << 20) for _, live, resident in line)
    assert figures["largest"] == line[9] and line[9][2] < 12e6


def test_the_timelines_largest_point_has_libcs_own_figures(tmp_path):
    path = rising_and_falling().write(tmp_path / "p.qrp")
    info = native_json("quire-replay", "--timeline", 20, path)["mallinfo"]
    assert 10e6 <= info["used_bytes"] <= 10.5e6
    assert info["used_bytes"] + info["free_bytes"] == info["heap_bytes"]


def test_the_timelines_largest_point_has_quires_own_statistics(tmp_path):
    path = rising_and_falling().write(tmp_path / "p.qrp")
    library = {peer.name: peer.path for peer in peers.with_drop_in()}[peers.DROP_IN]
    done = native("quire-replay", "--timeline", 20, path, environment={"LD_PRELOAD": library})
    figures = json.loads(done.stdout)
    assert "mallinfo" not in figures and figures["stats"]["schema"] == "quire.stats/1"
    assert sum(heap["live_bytes"] for heap in figures["stats"]["heaps"]) >= 10e6


def test_a_look_at_the_drop_in_is_not_counted_as_memory_of_the_program(tmp_path):
    program = Program()
    for slot in [program.alloc(0, size=1000) for _ in range(30)]:
        program.free(0, slot)
    path = program.write(tmp_path / "p.qrp")
    library = {peer.name: peer.path for peer in peers.with_drop_in()}[peers.DROP_IN]
    line = json.loads(native("quire-replay", "--timeline", 60, path, environment={"LD_PRELOAD": library}).stdout)["timeline"]
    assert max(resident for _, _, resident in line) < 240 << 10  # for 30 KB; the code of the statistics alone is as much


def test_a_plans_slabs_are_in_the_timelines_statistics(tmp_path):
    program = Program()
    slots = [program.alloc(0, site=1, size=64) for _ in range(5000)]
    for slot in slots:
        program.free(0, slot)
    path = program.write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--timeline", 4, "--plan", slab_plan(tmp_path, 1), path)
    assert [slab["live_elements"] for slab in figures["stats"]["slabs"]] == [5000]


def test_a_timeline_has_at_most_one_sample_an_op(tmp_path):
    program = Program()
    program.free(0, program.alloc(0))
    figures = native_json("quire-replay", "--timeline", 50, program.write(tmp_path / "p.qrp"))
    assert [ops for ops, _, _ in figures["timeline"]] == [1, 2]


def test_threads_sample_at_their_own_points(tmp_path):
    path = crossing().write(tmp_path / "p.qrp", runs=True)
    figures = native_json("quire-replay", "--timeline", 40, path)
    assert len(figures["timeline"]) == 40 and figures["timeline"][-1][1] == 0


@pytest.mark.parametrize("words", [("--timeline", "0"), ("--timeline", "x"), ("--window", "-1")])
def test_counts_that_make_no_sense_are_a_usage_error(tmp_path, words):
    path = churn(rounds=1).write(tmp_path / "p.qrp")
    assert native("quire-replay", *words, path).returncode == 2


HANDED_OVER = """
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
enum { COUNT = 400000 };
static _Atomic(void *) ring[256];
static void *eat(void *arg) {
    for (int i = 0; i < COUNT; i++) {
        void *p;
        while (!(p = atomic_exchange(&ring[i % 256], NULL))) sched_yield(); /* there may be one CPU */
        free(p);
    }
    return arg;
}
int main(void) {
    pthread_t eater;
    pthread_create(&eater, NULL, eat, NULL);
    for (int i = 0; i < COUNT; i++) {
        void *p = malloc(16 + i % 100);
        while (atomic_load(&ring[i % 256])) sched_yield();
        atomic_store(&ring[i % 256], p);
    }
    return pthread_join(eater, NULL);
}
"""


@pytest.mark.by_turns
def test_slots_of_objects_that_change_hands_are_used_again_at_last(tmp_path):
    program = build(tmp_path, HANDED_OVER, flags=["-pthread"])
    trace, path = tmp_path / "t.qtr", tmp_path / "p.qrp"
    env = {"LD_PRELOAD": str(BUILD / "tools" / "libquire-record.so"), "QUIRE_RECORD": str(trace)}
    subprocess.run([program], env={**os.environ, **env}, check=True, timeout=300)
    assert native("quire-analyse", trace, "--program", path).returncode == 0
    slots = int.from_bytes(path.read_bytes()[24:32], "little")
    assert 256 << 10 < slots < (256 << 10) + 2000
    whole, parts = both(path, 100_000)
    assert whole["frees_elsewhere"] == parts["frees_elsewhere"] == 400_000
