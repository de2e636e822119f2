# SPDX-License-Identifier: MIT
"""A process holds little of the library: of its code that which most programs run (src/preload/first.ld), and nothing beside it."""

import os
import re
import sys

import pytest
from preload_kit import LIBRARY, run

IDLE_KIB_MAX, KIB_MAX, GROWS_KIB_MAX = 80, 124, 152  # of the library's own pages: code, the loader's tables, constants, data


def mappings(smaps):
    """(rights, resident KiB) of the library's mappings, by rising addresses."""
    found = []
    for line in smaps.splitlines():
        if begin := re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+ *(.*)", line):
            rights, file = begin.groups()
        elif line.startswith("Rss:") and file == os.path.realpath(LIBRARY):
            found.append((rights, int(line.split()[1])))
    return found


@pytest.mark.skipif(b".text.other" not in LIBRARY.read_bytes(), reason="this linker was not told what is run first")
@pytest.mark.skipif(b"GCC: (Debian 12." not in LIBRARY.read_bytes(), reason="first.ld is made for gcc 12: another compiler cuts functions up in another way")
@pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="a page of these is as large as the library's first code")
@pytest.mark.parametrize("words, segments, most", [([], "0", IDLE_KIB_MAX), (["blocks"], "01", KIB_MAX), (["grows"], "012", GROWS_KIB_MAX)])
def test_a_process_holds_the_first_code_and_one_that_allocates_what_most_run(build, words, segments, most):
    done = run(build("small.c"), *words)
    parts = mappings(done.stdout)
    code = [resident for rights, resident in parts if "x" in rights]
    if len(code) != 4:  # the first, what most run, what some run, all other
        pytest.skip("this linker has an order of its own")
    assert done.returncode == 0
    assert "".join(str(index) for index, resident in enumerate(code) if resident) == segments, f"{code}: scripts/first_code.py makes first.ld anew"
    assert sum(resident for _, resident in parts) <= most, parts


def test_what_a_program_maps_lies_anywhere():
    """Not at multiples of its size, below a mapping of ours that the system began at one: Python's arenas are mapped half as often again there."""
    code = "import ctypes; f = ctypes.CDLL(None).mmap; f.restype = ctypes.c_void_p; print(f(None, ctypes.c_size_t(1 << 20), 3, 0x22, -1, ctypes.c_long(0)))"
    rests = [int(run(sys.executable, "-c", code).stdout) % (1 << 14) for _ in range(40)]
    assert rests.count(0) <= 20, rests  # a quarter of them, by chance


@pytest.mark.parametrize("sizes, most", [(1, 11.5), (8, 11.5), (40, 18)])
def test_of_an_ended_thread_an_os_page_stays(build, sizes, most):
    """In KiB; 5 of them, of each of 1,000 threads, libc's: stacks that it keeps."""
    assert float(run(build("ended_threads.c"), 1000, sizes).stdout.split()[1]) < most


def test_of_pages_that_a_thread_begins_no_more_is_in_memory_than_it_touches(build):
    """In KiB of each of 1,000 threads with a block of each of 8 sizes: 16; 28 where what came ahead of few that fill pages was given to all who begin one.
    The least of some runs: where threads meet at the pages that sampled blocks share, they begin pages of their own (heap_sample.c)."""
    program = build("ended_threads.c")
    assert min(float(run(program, 1000, 8).stdout.split()[0]) for _ in range(5)) < 20
