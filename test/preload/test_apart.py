# SPDX-License-Identifier: MIT
"""Threads with blocks of their own write no memory that other threads write: each such write takes a line of memory from another processor's cache."""

import re
import subprocess

import pytest
from preload_kit import LIBRARY, run

THREADS = 4
PAIRS = 10000


def offset_of(name):
    """Where the library has a variable of its own; None: it has no such name, or none that is told."""
    told = subprocess.run(["readelf", "-sW", LIBRARY], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^ *\d+: ([0-9a-f]+) +\d+ OBJECT .* {name}$", told, re.MULTILINE)
    return found and found.group(1)


@pytest.mark.parametrize("way", ["free", "delete"])
@pytest.mark.parametrize("conf", ["", "secure:1", "prof", "guard:1/5000", "prof,guard:1/1000", "stats:/dev/null"])
def test_what_says_that_a_thread_has_no_short_way_is_written_by_none_that_has_begun(build, conf, way, tmp_path):
    offset = offset_of("heap_local_none") or pytest.skip("the library tells no names")
    done = run(build("apart.c"), f"0x{offset}", way, conf=conf, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if done.stdout == "unknown\n":
        pytest.skip("this processor, or this machine, watches no word")
    print(f"{conf}: {done.stdout}", end="")
    assert int(done.stdout) <= 16 * THREADS, f"of {THREADS * PAIRS} pairs"
