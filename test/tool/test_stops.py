# SPDX-License-Identifier: MIT
"""test_stops - Ctrl-C and SIGTERM in each phase: the trace kept, everything that was started ended, nothing left lying about."""

import os
import signal
import subprocess

import pytest
from manners import Running
from toolkit import build

import stops

# Allocates, then stays until it is killed: it ignores what a program can ignore. A child of its own stays too.
STUBBORN = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    for (int i = 0; i < 5000; i++) free(malloc(i));
    /* Only under the tracer, or only without it: which phase is meant. */
    if ((getenv("QUIRE_RECORD") != NULL) != (argv[1][0] == 'r')) return 0;
    if (fork() == 0) for (;;) pause();
    for (;;) pause();
}
"""

# Enough for replays that last until they are stopped.
BUSY = """
#include <stdlib.h>
int main(void) { for (int i = 0; i < 400000; i++) free(malloc(i % 500)); return 0; }
"""

PHASES = {
    "alone": "running stubborn alone",
    "record": "recording it",
    "replay": "replaying with",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    return {"stubborn": build(folder, STUBBORN, "stubborn"), "busy": build(folder, BUSY, "busy")}


def nothing_is_left(running, folder, allowed):
    """No process, and no file but these."""
    assert running.leftovers() == []
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith("dev-")) == allowed


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("phase", PHASES)
def test_a_try_that_is_stopped_leaves_the_trace_and_nothing_else(
    tmp_path, programs, phase, number, code
):
    command = [programs["busy"]] if phase == "replay" else [programs["stubborn"], phase]
    running = Running(tmp_path, "try", "--no-report", "-o", "t.qtr", "--", *command)
    running.until(PHASES[phase])
    if phase == "record":
        while not (tmp_path / "t.qtr").exists():
            running.read(0.02)
    assert running.stop(number) == code, running.said
    kept = [] if phase == "alone" else ["t.qtr"]
    nothing_is_left(running, tmp_path, kept)
    assert ("t.qtr" in running.said) == bool(kept)
    assert ("interrupted" if number == signal.SIGINT else "ended by SIGTERM") in running.said
    assert "Traceback" not in running.said


def test_a_stop_while_the_trace_is_read_keeps_it(tmp_path, programs):
    running = Running(tmp_path, "try", "--no-report", "-o", "t.qtr", "--", programs["busy"])
    running.until("reading the trace")
    assert running.stop(signal.SIGINT) == 130, running.said
    nothing_is_left(running, tmp_path, ["t.qtr"])


def test_a_stop_while_the_page_is_written_keeps_the_trace_and_no_half_page(tmp_path, programs):
    running = Running(tmp_path, "try", "--rounds", "1", "-o", "t.qtr", "--", programs["busy"])
    running.until("writing the report")
    assert running.stop(signal.SIGINT) == 130, running.said
    nothing_is_left(running, tmp_path, ["t.qtr"])


@pytest.mark.parametrize("command", ["record", "run"])
def test_a_stop_of_a_program_that_is_seen_is_the_programs_own_business(tmp_path, command):
    script = "trap 'echo tidy; exit 9' INT TERM; echo ready; while :; do sleep 0.05; done"
    for number in (signal.SIGINT, signal.SIGTERM):
        running = Running(tmp_path, command, "--", "sh", "-c", script)
        assert running.until("ready").stop(number) == 9, running.said
        assert "tidy" in running.said and running.leftovers() == []


def test_a_recorded_program_that_a_signal_ends_gives_its_status_and_its_trace(tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        name = f"{code}.qtr"
        script = "echo ready; exec sleep 60"
        running = Running(tmp_path, "record", "-o", name, "--", "sh", "-c", script)
        assert running.until("ready").stop(number) == code
        assert "trace: " in running.said and os.path.exists(tmp_path / name)
        assert running.leftovers() == []


def test_a_stop_that_was_ignored_for_us_stays_ignored(tmp_path, programs):
    words = ["try", "--rounds", "1", "--no-report", "-o", "t.qtr", "--", programs["busy"]]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        running = Running(tmp_path, *words)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.until("recording it")
    assert running.stop(signal.SIGHUP) == 0, running.said


def test_a_signal_that_comes_when_the_program_has_just_ended_takes_nothing_from_it():
    with subprocess.Popen(["sh", "-c", "exit 9"]) as process, stops.Relay() as relay:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, but nobody has asked how
        relay.early.append(signal.SIGINT)
        relay.adopt(process)
        os.kill(os.getpid(), signal.SIGTERM)
        _, status, _ = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 9
