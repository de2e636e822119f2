# SPDX-License-Identifier: MIT
"""Threads with blocks of their own write no memory that other threads write: each such write takes a line of memory from another processor's cache."""

import re
import subprocess

import pytest
import steer_kit
from preload_kit import LIBRARY, run

THREADS = 4
PAIRS = 10000


def offset_of(name):
    """Where the library has a variable of its own; None: it has no such name, or none that is told."""
    told = subprocess.run(["readelf", "-sW", LIBRARY], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^ *\d+: ([0-9a-f]+) +\d+ OBJECT .* {name}$", told, re.MULTILINE)
    return found and found.group(1)


def assert_apart(done):
    assert done.returncode == 0, done.stderr
    if done.stdout == "unknown\n":
        pytest.skip("this processor, or this machine, watches no word")
    assert int(done.stdout) <= 16 * THREADS, f"of {THREADS * PAIRS} pairs"


@pytest.mark.parametrize("way", ["free", "delete"])
@pytest.mark.parametrize("conf", ["", "secure:1", "check:1", "passthrough", "prof", "guard:1/5000", "prof,guard:1/1000", "stats:/dev/null"])
def test_what_says_that_a_thread_has_no_short_way_is_written_by_none_that_has_begun(build, conf, way, tmp_path):
    offset = offset_of("heap_local_none") or pytest.skip("the library tells no names")
    assert_apart(run(build("apart.c"), f"0x{offset}", way, conf=conf, cwd=tmp_path))


@pytest.mark.parametrize("way", ["free", "delete"])
def test_nor_by_one_whose_blocks_are_all_in_arenas_of_a_plan(build, way, tmp_path):
    offset = offset_of("heap_local_none") or pytest.skip("the library tells no names")
    program, plan = build("apart.c"), tmp_path / "plan"
    assert steer_kit.wild_plan(steer_kit.record(tmp_path, [program, f"0x{offset}", "free"]), plan, seed=1) != 0
    assert_apart(run(program, f"0x{offset}", way, conf=f"plan:{plan}", cwd=tmp_path))
