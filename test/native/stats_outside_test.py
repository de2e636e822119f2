# SPDX-License-Identifier: MIT
"""Statistics seen from outside: no allocation, no system call but write, nothing that Valgrind or AddressSanitizer would say."""
import re
import shutil

import pytest
from outside_kit import build, run  # noqa: F401 (build is a fixture)

needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


def test_malloc_is_not_called(build):
    done = run(build("stats_frugal", "-DWATCHED=0"))
    assert (done.returncode, done.stdout) == (0, "begin\nend\n0 calls\n"), done.stderr


@needs_strace
def test_the_only_system_calls_are_those_that_write(build, tmp_path):
    log = tmp_path / "strace.log"
    done = run("strace", "-f", "-qq", "-o", log, build("stats_frugal", "-DWATCHED=0"))
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    thread = next(line.split()[0] for line in lines if '"begin\\n"' in line)  # the reaper's calls are its own
    own = [line for line in lines if line.split()[0] == thread]
    first, last = (next(i for i, line in enumerate(own) if f'"{word}\\n"' in line) for word in ("begin", "end"))
    names = {re.match(r"\d+ +(?:<\.\.\. )?(\w+)", line).group(1) for line in own[first + 1 : last]}
    assert "write" in names
    assert names <= {"write", "membarrier", "getpid"}


@pytest.mark.by_turns
@needs_valgrind
def test_valgrind_finds_nothing_wrong(build):
    done = run("valgrind", "-q", "--fair-sched=yes", "--error-exitcode=9", build("stats_frugal", "-DWATCHED=1"))
    assert (done.returncode, done.stdout) == (0, "begin\nend\n0 calls\n"), done.stderr


def test_a_program_built_with_asan_writes_them_with_the_library_as_installed(build):
    done = run(build("stats_frugal", "-DWATCHED=1", "-fsanitize=address"))
    assert done.returncode == 0, done.stderr
