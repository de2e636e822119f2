# SPDX-License-Identifier: MIT
"""Memory that ended threads have freed goes back in time, also where the CPUs are busy: the clock's thread has to wait for one like everybody else."""

import os
import subprocess
import sys

import pytest
from preload_kit import run

LONG = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1: a gigabyte, and four busy loops for each CPU")


@pytest.fixture
def busy_cpus():
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * len(os.sched_getaffinity(0)))]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@LONG
@pytest.mark.parametrize("bytes_of_a_block", [64, 1000, 20000, 300000])
def test_of_a_gigabyte_freed_by_ended_threads_under_8_mib_are_left_after_4_seconds_beside_busy_loops(build, busy_cpus, bytes_of_a_block):
    done = run(build("lateness.c"), bytes_of_a_block, 4)
    before, most, after = map(int, done.stdout.split())
    print(f"blocks of {bytes_of_a_block} bytes: {before} kB before, {most} kB at the most, {after} kB after 4 s")
    assert most - before > 1 << 20
    assert after - before < 8 << 10
