# SPDX-License-Identifier: MIT
"""test_bench_slab_driver - bench/slab: every workload runs, on both kinds of allocator, and a broken
allocator gets no figure."""

import json
import os
import subprocess
import time

import pytest
import toolkit

SLAB = toolkit.BUILD / "bench" / "slab"
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"


def slab(*words, environment=None):
    """The driver run; the finished process."""
    return subprocess.run(
        [SLAB, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(environment or {})},
    )


def slab_rows(workload, *words, **options):
    done = slab("--json", "--workload", workload, *words, **options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


SMALL = {
    "stress": ("--rounds", 2),
    "single": ("--rounds", 1000),
    "pairs": ("--rounds", 10, "--batch", 100),
    "remote": ("--count", 20000),
    "exchange": ("--count", 20000, "--batch", 100),
    "burst": ("--count", 20000),
    "full": ("--count", 20000),
    "fragment": ("--count", 20000, "--rounds", 10),
}


@pytest.mark.parametrize("allocator", ["slab", "malloc"])
@pytest.mark.parametrize("workload", SMALL)
def test_every_workload_runs_on_the_slab_and_on_malloc(workload, allocator):
    (row,) = slab_rows(workload, *SMALL[workload], "--allocator", allocator)
    assert row["workload"] == workload
    assert row["allocator"] == {"slab": "quire-slab", "malloc": "libc"}[allocator]
    figure = {"burst": "cold_cpu_ms", "full": "held_full_bytes", "fragment": "held_over_live"}
    assert row[figure.get(workload, "m_pairs_per_cpu_s")] > 0


def shape_row(shape, allocator, cpu_ms):
    words = ["--shape", shape, "--allocator", allocator, "--threads", 2, "--cpu-ms", cpu_ms, "--count", 1000]
    command = [toolkit.BUILD / "bench" / "shapes", "--json", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("allocator", ["slab", "malloc"])
@pytest.mark.parametrize("shape", ["local", "replace", "ring", "produce", "handover"])
def test_every_shape_runs_on_the_slab_and_on_malloc(shape, allocator):
    row = shape_row(shape, allocator, 30)
    assert (row["workload"], row["allocator"]) == (shape, {"slab": "quire-slab", "malloc": "libc"}[allocator])
    assert row["m_allocations_per_cpu_s"] > 0 or shape_row(shape, allocator, 2000)["m_allocations_per_cpu_s"] > 0  # on a busy machine one thread may wait for the other through all of 30 ms


def test_a_malloc_of_slabs_serves_programs_and_is_compared_with_the_drop_in():
    program = ["sh", "-c", "seq 20000 | sort -R | sort -n | tail -1"]
    done = subprocess.run(
        [toolkit.ROOT / "bench" / "slabs_table.py", "--rounds", "1", "--", *program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[2].split()
    assert row[0] == "sh"
    assert 0.1 < float(row[1]) < 10
    library = str(toolkit.BUILD / "bench" / "libslabs-malloc.so")
    served = subprocess.run(program, env={"LD_PRELOAD": library, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
    assert (served.stdout, served.stderr) == ("20000\n", "")


@pytest.mark.by_turns
def test_sizes_has_a_row_for_each_element_size_within_40_mib():
    rows = slab_rows("sizes", "--rounds", 1, "--threads", 2)
    assert [r["element_bytes"] for r in rows] == [8, 16, 24, 64, 100, 256, 1024, 4096, 8200]
    assert all(r["count"] * r["threads"] * r["element_bytes"] <= 40 << 20 for r in rows)


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (("stress", "--rounds", 1, "--allocator", "none"), {"allocator": "none", "pairs": 29762}),
        (("stress", "--rounds", 1, "--defrag", "--threads", 2), {"pairs": 2 * 29762}),
        (("stress", "--rounds", 1, "--single"), {"pairs": 29762}),
        (("stress", "--rounds", 1, "--count", 700), {"count": 700}),
        (("sizes", "--rounds", 1, "--element", 24), {"element_bytes": 24}),
        (("remote", "--count", 20000, "--batch", 100, "--single-calls"), {"pairs": 20000}),
        (("burst", "--count", 1000, "--batch", 100, "--threads", 2), {"batch": 100, "count": 1000}),
        (("burst", "--count", 1000, "--allocator", "touch"), {"allocator": "touch"}),
        (("fragment", "--count", 8000, "--defrag", "--threads", 4), {"defrag": 1, "round": 80}),
        (("fragment", "--count", 8000, "--round", 10), {"defrag": 0, "round": 10}),
    ],
)
def test_options_do_what_they_say(words, row):
    (got,) = slab_rows(*words)
    assert {key: got[key] for key in row} == row


def test_with_decay_memory_is_looked_at_again_two_decays_later():
    assert "held_decayed_bytes" not in slab_rows("full", "--count", 1000)[0]
    began = time.monotonic()
    assert "held_decayed_bytes" in slab_rows("full", "--count", 1000, "--decay")[0]
    assert time.monotonic() - began > 2


def test_more_threads_do_more_pairs_and_remote_frees_each_once():
    one, four = (slab_rows("stress", "--rounds", 1, "--threads", n)[0] for n in (1, 4))
    assert four["pairs"] == 4 * one["pairs"]
    assert slab_rows("remote", "--count", 40000, "--threads", 4)[0]["pairs"] == 40000


def test_full_counts_what_malloc_adds_to_an_element():
    libc = slab_rows("full", "--count", 200000, "--allocator", "malloc")[0]
    ours = slab_rows("full", "--count", 200000)[0]
    assert 15 < libc["overhead_bytes_per_element"] < 17  # a header, and the size rounded up
    assert ours["overhead_bytes_per_element"] < 8
    assert ours["mapped_trimmed_bytes"] < ours["payload_bytes"] / 10


def test_many_counts_slabs_of_one_element():
    few, many = (slab_rows("many", "--count", n)[0] for n in (10, 100))
    assert few["slabs"] == 10
    assert many["mapped_bytes"] == 10 * few["mapped_bytes"]


def test_idle_says_what_threads_that_used_some_slabs_once_hold():
    (row,) = slab_rows("idle", "--threads", 50, "--count", 4)
    assert row["threads"] == 50 and row["slabs"] == 4
    assert 50 * 4096 <= row["held_used_bytes"] < 50 * 65536  # each has caches, a page at least
    assert "held_decayed_bytes" not in row


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: it waits for two decays")
def test_idle_threads_caches_go_back_after_two_decays():
    (row,) = slab_rows("idle", "--threads", 200, "--decay")
    assert row["anonymous_decayed_bytes"] < row["held_used_bytes"] / 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "a workload that there is"),
        (("--workload", "stres"), "a workload that there is"),
        (("--workload", "stress", "--threads", "0"), '"0" is no whole number'),
        (("--workload", "stress", "--threads", "-1"), '"-1" is no whole number'),
        (("--workload", "stress", "--element", "8x"), '"8x" is no whole number'),
        (("--workload", "stress", "--thread-count", "2"), "--thread-count is no option"),
        (("--workload", "stress", "--threads"), "--threads is no option, or lacks its value"),
        (("--workload", "stress", "quickly"), "a word that belongs to no option"),
        (("--workload", "stress", "--allocator", "touch"), "no such allocator"),
        (("--workload", "full", "--allocator", "none"), "without an allocator"),
        (("--workload", "stress", "--single", "--threads", "2"), "--single promises one thread"),
        (("--workload", "remote", "--threads", "3"), "an even number of threads"),
        (("--workload", "remote", "--batch", "5000"), "a batch of more than 1024"),
        (("--workload", "single", "--threads", "2"), "one thread"),
        (("--workload", "many", "--allocator", "malloc"), "slabs only"),
    ],
)
def test_arguments_that_make_no_sense_are_status_2_and_say_what_does(words, said):
    done = slab(*words)
    assert done.returncode == 2
    assert said in done.stderr and "fix:" in done.stderr
    assert done.stdout == ""


TWICE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
static _Alignas(64) char same[72];
void *malloc(size_t bytes)
{
    static void *(*real)(size_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "malloc");
    return bytes == sizeof same ? same : real(bytes);
}
void free(void *p)
{
    static void (*real)(void *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "free");
    if (p != (void *)same)
        real(p);
}
"""


@pytest.mark.parametrize("workload", ["stress", "remote", "burst"])
def test_an_allocator_that_hands_the_same_memory_out_twice_gets_no_figure(tmp_path, workload):
    library = toolkit.build(tmp_path, TWICE, "twice.so", ["-shared", "-fPIC", "-ldl"])
    words = [*SMALL[workload], "--allocator", "malloc", "--element", 72, "--json"]
    done = slab("--workload", workload, *words, environment={"LD_PRELOAD": str(library)})
    assert done.returncode == 1
    assert "does not hold what was written" in done.stderr
    assert done.stdout == ""
