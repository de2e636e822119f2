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

# With so many rounds replays last until they are stopped.
BUSY = """
#include <stdlib.h>
int main(void) { for (int i = 0; i < 400000; i++) free(malloc(i % 500)); return 0; }
"""
MANY_ROUNDS = ["--rounds", "100000"]

# In jinja2's place: whoever makes a page waits here until it is stopped.
ENDLESS_PAGE = "import sys, time\nprint('making the page', file=sys.stderr, flush=True)\ntime.sleep(3600)\n"

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
    assert sorted(p.name for p in folder.iterdir()) == allowed


@pytest.mark.by_turns
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("phase", PHASES)
def test_a_try_that_is_stopped_leaves_the_trace_and_nothing_else(
    tmp_path, programs, phase, number, code
):
    command = [programs["busy"]] if phase == "replay" else [programs["stubborn"], phase]
    running = Running(tmp_path, "try", "--no-report", *MANY_ROUNDS, "-o", "t.qtr", "--", *command)
    running.until(PHASES[phase])
    if phase == "record":
        running.wait_for((tmp_path / "t.qtr").exists)
    assert running.stop(number) == code, running.said
    kept = [] if phase == "alone" else ["t.qtr"]
    nothing_is_left(running, tmp_path, kept)
    assert ("t.qtr" in running.said) == bool(kept)
    assert ("interrupted" if number == signal.SIGINT else "ended by SIGTERM") in running.said
    assert "Traceback" not in running.said


def test_a_stop_while_the_trace_is_read_keeps_it(tmp_path, programs):
    running = Running(tmp_path, "try", "--no-report", *MANY_ROUNDS, "-o", "t.qtr", "--", programs["busy"])
    running.until("reading the trace")
    assert running.stop(signal.SIGINT) == 130, running.said
    nothing_is_left(running, tmp_path, ["t.qtr"])


@pytest.mark.long
def test_a_stop_while_the_page_is_written_keeps_the_trace_and_no_half_page(
    tmp_path, tmp_path_factory, programs
):
    modules = tmp_path_factory.mktemp("modules")
    (modules / "jinja2.py").write_text(ENDLESS_PAGE)
    words = ["try", "--rounds", "1", "-o", "t.qtr", "--", programs["busy"]]
    running = Running(tmp_path, *words, env={"PYTHONPATH": str(modules)})
    running.until("writing the report").until("making the page")
    assert running.stop(signal.SIGINT) == 130, running.said
    nothing_is_left(running, tmp_path, ["t.qtr"])


@pytest.mark.parametrize("command", ["record", "run"])
def test_a_stop_of_a_program_that_is_seen_is_the_programs_own_business(tmp_path, command):
    script = "trap 'echo tidy; exit 9' INT TERM; echo ready; while :; do sleep 0.05; done"
    for number in (signal.SIGINT, signal.SIGTERM):
        running = Running(tmp_path, command, "--", "sh", "-c", script)
        assert running.until("ready").stop(number) == 9, running.said
        assert "tidy" in running.said and running.leftovers() == []


def test_a_recording_that_is_stopped_before_its_load_says_which_trace_it_leaves(tmp_path):
    script = "echo up >up; exec sleep 60"
    running = Running(tmp_path, "record", "-o", "t.qtr", "--ready-cmd", "false", "--load", "true", "--", "sh", "-c", script)
    running.wait_for((tmp_path / "up").exists)
    running.wait_for((tmp_path / "t.qtr").exists)
    assert running.stop(signal.SIGINT) == 130, running.said
    traces = sorted(p.name for p in tmp_path.iterdir() if p.name != "up")  # sh's, and that of what it became
    assert running.leftovers() == [] and "t.qtr" in traces and "interrupted" in running.said
    assert all(f"trace: {name} (" in running.said for name in traces), running.said


def test_a_recorded_program_that_a_signal_ends_gives_its_status_and_its_trace(tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        name = f"{code}.qtr"
        script = "echo ready; exec sleep 60"
        running = Running(tmp_path, "record", "-o", name, "--", "sh", "-c", script)
        assert running.until("ready").stop(number) == code
        assert "trace: " in running.said and os.path.exists(tmp_path / name)
        assert running.leftovers() == []


@pytest.mark.long
def test_a_stop_that_was_ignored_for_us_stays_ignored(tmp_path, programs):
    words = ["try", "--rounds", "1", "--no-report", "-o", "t.qtr", "--", programs["busy"]]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        running = Running(tmp_path, *words)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.until("recording it")
    assert running.stop(signal.SIGHUP) == 0, running.said


def test_signals_that_come_before_or_after_a_look_end_the_sleep_and_none_is_lost():
    with stops.Watch((signal.SIGUSR1, signal.SIGUSR2)) as watch:
        for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        watch.sleep()
        assert watch.take() == [signal.SIGUSR1, signal.SIGUSR2]  # by number: of what came together nobody knows the order
        os.kill(os.getpid(), signal.SIGUSR1)
        watch.sleep()
        assert watch.take() == [signal.SIGUSR1] and watch.take() == []
        with subprocess.Popen(["true"]) as process:
            watch.sleep()  # a child that ends wakes too
        assert process.returncode == 0 and watch.take() == []


@pytest.mark.parametrize(
    ("lives", "sent"),
    [([False], [signal.SIGTERM]), ([True, True, True, False], [signal.SIGTERM, signal.SIGKILL])],
)
def test_a_group_is_killed_only_while_it_is_there_and_is_gone_in_the_end(monkeypatch, lives, sent):
    looks, signals = iter(lives), []
    monkeypatch.setattr(stops, "GRACE_S", 0)
    monkeypatch.setattr(stops, "_group_lives", lambda _: next(looks))
    monkeypatch.setattr(stops, "_signal_group", lambda _, number: signals.append(number))
    with subprocess.Popen(["true"]) as process:
        stops.end_group(process)
    assert signals == sent and list(looks) == []


def test_a_zombie_that_nobody_reaps_is_no_member_to_wait_for(monkeypatch):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        monkeypatch.setattr(process, "poll", lambda: None)  # what would reap it
        assert stops._group_lives(process)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not stops._group_lives(process)


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGHUP])
def test_any_signal_that_ends_a_try_ends_its_program_too(tmp_path, programs, number):
    words = ("try", "--no-report", "-o", "t.qtr", "--", programs["stubborn"], "alone")
    running = Running(tmp_path, *words).until(PHASES["alone"])
    assert running.stop(number) == 128 + number, running.said
    nothing_is_left(running, tmp_path, [])
    assert f"ended by {number.name}" in running.said


# Notes each signal where its caller looks; ends at SIGUSR2, after all that came before it.
PATIENT = """
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void note(int number) { FILE *f = fopen("noted", "a"); fprintf(f, "%d ", number); fclose(f); }
int main(void) {
    sigset_t all;
    sigemptyset(&all); sigaddset(&all, SIGUSR1); sigaddset(&all, SIGUSR2);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < 5000; i++) free(malloc(i));
    if (!getenv("QUIRE_RECORD")) return 0;
    close(open("waiting", O_CREAT | O_WRONLY, 0600));
    for (int number = 0; number != SIGUSR2;) { sigwait(&all, &number); note(number); }
    return 0;
}
"""


@pytest.mark.by_turns
def test_a_signal_of_the_programs_own_goes_on_to_it_while_a_try_records_it(tmp_path):
    patient = build(tmp_path, PATIENT, "patient")
    words = ("try", "--rounds", "1", "--time-limit", "0.2", "--no-report", "-o", "t.qtr", "--", patient)
    running = Running(tmp_path, *words)
    for number, ready in ((signal.SIGUSR1, "waiting"), (signal.SIGUSR2, "noted")):
        while not (tmp_path / ready).exists():
            assert running.read(0.02), running.said
        running.send(number)
    assert running.end() == 0, running.said
    assert (tmp_path / "noted").read_text() == "10 12 " and (tmp_path / "t.qtr").exists()
    assert running.leftovers() == []
