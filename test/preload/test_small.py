# SPDX-License-Identifier: MIT
"""A process holds little of a library: of its code that which most programs run (src/preload/first.ld, src/first.ld), and nothing beside it."""

import os
import re
import subprocess
import sys

import pytest
from preload_kit import LIBRARY, run

LINKED = LIBRARY.with_name("libquire.so")

IDLE_KIB_MAX, KIB_MAX, GROWS_KIB_MAX = 80, 124, 152  # of the library's own pages: code, the loader's tables, constants, data
LINKED_KIB_MAX = {None: 64, "slab": 128, "arena": 164, "percpu": 164, "heap": 164}  # of libquire.so


def mappings(smaps, library=LIBRARY):
    """(rights, resident KiB) of a library's mappings, by rising addresses."""
    found = []
    for line in smaps.splitlines():
        if begin := re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+ *(.*)", line):
            rights, file = begin.groups()
        elif line.startswith("Rss:") and file == os.path.realpath(library):
            found.append((rights, int(line.split()[1])))
    return found


def ordered(test):
    """Where the compiler, the linker and the pages are those that the order was made with."""
    test = pytest.mark.skipif(b".text.other" not in LIBRARY.read_bytes(), reason="this linker was not told what is run first")(test)
    test = pytest.mark.skipif(b"GCC: (Debian 12." not in LIBRARY.read_bytes(), reason="first.ld is made for gcc 12: another compiler cuts functions up in another way")(test)
    return pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="a page of these is as large as the library's first code")(test)


def held(code):
    """Which of the segments are in memory, in part at least."""
    return "".join(str(index) for index, resident in enumerate(code) if resident)


@ordered
@pytest.mark.parametrize("words, segments, most", [([], "0", IDLE_KIB_MAX), (["blocks"], "01", KIB_MAX), (["grows"], "012", GROWS_KIB_MAX)])
def test_a_process_holds_the_first_code_and_one_that_allocates_what_most_run(build, words, segments, most):
    done = run(build("small.c"), *words)
    parts = mappings(done.stdout)
    code = [resident for rights, resident in parts if "x" in rights]
    if len(code) != 4:  # the first, what most run, what some run, all other
        pytest.skip("this linker has an order of its own")
    assert done.returncode == 0
    assert held(code) == segments, f"{code}: scripts/first_code.py makes first.ld anew"
    assert sum(resident for _, resident in parts) <= most, parts


@ordered
@pytest.mark.parametrize("used, segments", [(None, "0"), ("slab", "012"), ("arena", "013"), ("percpu", "013"), ("heap", "013")])
def test_a_process_holds_no_code_of_allocators_that_it_does_not_use(build, used, segments):
    program = build("small_linked.c", "-Wl,--no-as-needed", str(LINKED), f"-Wl,-rpath,{LINKED.parent}")
    done = subprocess.run([program, *([used] if used else [])], capture_output=True, text=True, check=True, timeout=60)
    parts = mappings(done.stdout, LINKED)
    code = [resident for rights, resident in parts if "x" in rights]
    if len(code) != 5:  # the first, what programs with any allocator run, with a slab, with others, all other
        pytest.skip("this linker has an order of its own")
    assert held(code) == segments, f"{code}: scripts/first_code.py makes first.ld anew"
    assert sum(resident for _, resident in parts) <= LINKED_KIB_MAX[used], parts


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
