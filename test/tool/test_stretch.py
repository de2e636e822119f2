# SPDX-License-Identifier: MIT
"""test_stretch - a stretch of a program's run: entered after a while, left again, and then it goes on or ends as it was told."""

import os
import signal
import subprocess
import sys
import time

import pytest
from attachkit import mappings, patched
from toolkit import TOOL, build, native_json, quire

import stretch

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="running processes are entered on x86-64 alone")

# Works for the time that it is told, then does little; says when it is asked to end, and ends a second after a file has come.
PROGRAM = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static void on_term(int n) { (void)n; close(open("asked", O_CREAT | O_WRONLY, 0600)); _exit(7); }
int main(int argc, char **argv) {
    signal(SIGTERM, on_term);
    time_t until = time(NULL) + atoi(argv[1]);
    for (;;) {
        for (int i = 0; i < 100; i++) free(malloc(100 + i));
        usleep(time(NULL) < until ? 100 : 20000);
        if (argc > 2 && access(argv[2], F_OK) == 0) { for (int i = 0; i < 50; i++) { free(malloc(i)); usleep(20000); } return 5; }
    }
}
"""


@pytest.fixture(scope="module", name="program")
def program_fixture(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stretch"), PROGRAM)


def facts(path):
    return native_json("quire-analyse", path, "--sites", "-")["trace"]


def test_a_stretch_is_recorded_and_the_program_goes_on_with_nothing_of_ours_in_its_way(tmp_path, program):
    words = ["record", "--after", "100ms", "--duration", "200ms", "--then", "leave", "-o", "t.qtr", "--", program, 1]
    with open(tmp_path / "said", "w+", encoding="utf-8") as said:  # no pipe: who goes on would keep it open
        status = subprocess.run([sys.executable, str(TOOL), *map(str, words)], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False).returncode
        said.seek(0)
        told = said.read()
    assert status == 0 and "goes on: process" in told, told
    pid = int(told.split("goes on: process ")[1].split()[0])
    try:
        os.kill(pid, 0)
        assert patched(pid) == 0 and not [path for *_, path in mappings(pid) if path.endswith(".qtr")]
    finally:
        os.kill(pid, signal.SIGKILL)
    about = facts(tmp_path / "t.qtr")
    assert about["attached"] and about["complete"] and about["allocations"] > 100


@pytest.mark.parametrize("then, asked", [("stop", True), ("kill", False)])
def test_afterwards_it_is_asked_to_end_or_killed_as_was_told(tmp_path, program, then, asked):
    done = quire(tmp_path, "record", "--duration", "100ms", "--then", then, "-o", "t.qtr", "--", program, 60)
    assert done.returncode == 0 and (tmp_path / "asked").exists() == asked, done.stderr
    assert facts(tmp_path / "t.qtr")["complete"]


def test_a_program_that_ends_by_itself_keeps_its_status_and_one_that_ends_too_early_is_told(tmp_path, program):
    done = quire(tmp_path, "record", "--then", "stop", "-o", "t.qtr", "--", program, 0, "t.qtr")
    assert done.returncode == 5 and (tmp_path / "t.qtr").exists(), done.stderr
    early = quire(tmp_path, "record", "--after", "30s", "-o", "u.qtr", "--", "true")
    assert early.returncode == 3 and "ended before recording began" in early.stderr and "fix:" in early.stderr
    assert not (tmp_path / "u.qtr").exists()


def test_idle_is_when_a_process_has_done_next_to_nothing_for_a_while(monkeypatch):
    used = iter([0.0, 0.5, 0.5, 0.9, 0.9, 0.905])
    monkeypatch.setattr(stretch.time, "sleep", lambda s: None)
    monkeypatch.setattr(stretch.time, "clock_gettime", lambda clock: next(used))
    stretch.idle(1)
    assert list(used) == []
    monkeypatch.undo()
    began_s = time.monotonic()
    stretch.idle(2**22 - 1)  # nobody
    assert time.monotonic() - began_s < 1


def test_what_makes_no_sense_together_is_refused(tmp_path, program):
    for words in (["--load", "true", "--then", "stop", "--", program, "1"], ["--pid", "1", "--then", "leave"]):
        done = quire(tmp_path, "record", *words)
        assert done.returncode == 2 and "fix:" in done.stderr
    static = build(tmp_path, "int main(void) { return 0; }", name="static", flags=["-static"])
    done = quire(tmp_path, "record", "--then", "stop", "--", static)
    assert done.returncode == 3 and "only a stretch" in done.stderr and "fix:" in done.stderr
