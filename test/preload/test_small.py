# SPDX-License-Identifier: MIT
"""A process that hardly allocates holds little of the library: the code that runs while it is loaded, and nothing beside it."""

import os
import re

import pytest
from preload_kit import LIBRARY, run

KIB_MAX = 128  # of the library's own pages: what it begins with, the loader's tables, constants, data


def mappings(smaps):
    """(rights, resident KiB) of the library's mappings, by rising addresses."""
    found = []
    for line in smaps.splitlines():
        if begin := re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+ *(.*)", line):
            rights, file = begin.groups()
        elif line.startswith("Rss:") and file == os.path.realpath(LIBRARY):
            found.append((rights, int(line.split()[1])))
    return found


@pytest.mark.skipif(b".text.seldom" not in LIBRARY.read_bytes(), reason="this linker was not told what is seldom run")
@pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="a page of these is as large as the library's first code")
def test_what_allocates_nothing_holds_the_first_code_only(build):
    done = run(build("small.c"))
    parts = mappings(done.stdout)
    code = [resident for rights, resident in parts if "x" in rights]
    if len(code) != 3:  # the first, the everyday, the seldom
        pytest.skip("this linker has an order of its own")
    assert done.returncode == 0
    assert code[0] > 0 and code[1:] == [0, 0], f"{code}: a function of the first is missing in seldom.ld"
    assert sum(resident for _, resident in parts) <= KIB_MAX, parts
