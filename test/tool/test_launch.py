# SPDX-License-Identifier: MIT
"""test_launch - a program under `run` and `record` gets each signal once, whoever sent it to whom, ends in its own way, and is charged with no memory but its own."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import toolkit
from manners import Running, environment
from toolkit import build, native, quire

import launch
import target as targets

# Says each signal that it gets; a line on its input, or SIGUSR2, ends it after all that have come.
COUNTS = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(void) {
    const int wanted[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    const struct timespec none = {0, 0};
    sigset_t all;
    int number = 0;
    sigemptyset(&all);
    for (int i = 0; i < 6; i++) sigaddset(&all, wanted[i]);
    sigprocmask(SIG_BLOCK, &all, NULL);
    free(malloc(100));
    puts("ready"); fflush(stdout);
    while (number != SIGUSR2) { sigwait(&all, &number); printf("got %d.\\n", number); fflush(stdout); }
    while ((number = sigtimedwait(&all, NULL, &none)) > 0) printf("got %d.\\n", number);
    puts("tidy");
    return 9;
}
"""

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


def namespaces():
    """Whether a process namespace is to be had here."""
    found = shutil.which("unshare")
    return found and subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    return build(tmp_path_factory.mktemp("launch"), COUNTS, "counts")


def name_of(pid):
    """Of a process; empty when it has just ended, as the launcher may."""
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def end_of(running):
    """Ends the program by a signal that comes after all others; (its status, how often it got each)."""
    status = running.send(signal.SIGUSR2).end()
    assert "tidy" in running.said, running.said
    assert running.leftovers() == []
    return status, [running.said.count(f"got {int(number)}.") for number in NUMBERS]


@pytest.mark.parametrize("send", ["send", "send_all"])
@pytest.mark.parametrize("command", ["run", "record"])
def test_each_signal_comes_once_sent_to_the_tool_alone_or_to_its_group(
    tmp_path, counts, command, send
):
    running = Running(tmp_path, command, "--", counts).until("ready")
    for number in NUMBERS:
        getattr(running, send)(number)
        running.until(f"got {int(number)}.")
    assert end_of(running) == (9, [1] * 5), running.said


def test_keys_at_the_terminal_come_once(tmp_path, counts):
    running = Running(tmp_path, "record", "--", counts, columns=100).until("ready")
    for key, number in ((b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)):
        running.press(key).until(f"got {int(number)}.")
    assert end_of(running) == (9, [1, 0, 0, 1, 0]), running.said


def test_what_is_sent_first_to_the_group_and_then_to_the_tool_comes_twice(tmp_path, counts):
    running = Running(tmp_path, "record", "--", counts).until("ready")
    running.send_all(signal.SIGINT).until("got 2.")
    running.send(signal.SIGTERM).until("got 15.")  # the tool has looked at the first
    running.send(signal.SIGINT)
    assert end_of(running) == (9, [2, 1, 0, 0, 0]), running.said


def test_signals_still_come_when_the_witness_was_killed(tmp_path, counts):
    running = Running(tmp_path, "record", "--", counts).until("ready")
    witnesses = [pid for pid in running.marked() if name_of(pid) == "quire-witness"]
    os.kill(int(witnesses[0]), signal.SIGKILL)
    running.send(signal.SIGINT).until("got 2.")
    assert end_of(running) == (9, [1, 0, 0, 0, 0]), running.said


def test_a_program_that_one_signal_to_the_tool_ends_gives_its_status_and_a_report(tmp_path):
    script = "echo ready; exec sleep 600"
    words = ("run", "--stats=json:report.json", "--", "sh", "-c", script)
    running = Running(tmp_path, *words).until("ready").send(signal.SIGINT)
    assert running.end() == 130, running.said
    full = json.loads((tmp_path / "report.json").read_text())
    assert (full["status"], full["ended"]) == (130, "ended by SIGINT")


def test_a_signal_that_is_ignored_for_us_is_ignored_for_the_program(tmp_path, counts):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        running = Running(tmp_path, "record", "--", "sh", "-c", "echo ready; read line; echo tidy; exit 9", columns=100)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.until("ready").send(signal.SIGHUP).send_all(signal.SIGHUP).press(b"\n")
    assert running.end() == 9 and "tidy" in running.said


def test_a_caller_that_ignores_ended_children_gets_the_status_all_the_same(tmp_path):
    words = ["env", "--ignore-signal=CHLD", sys.executable, str(toolkit.TOOL), "record", "--", "sh", "-c", "exit 9"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


def test_as_first_process_of_a_container_a_stop_is_passed_on(tmp_path):
    if not namespaces():
        pytest.skip("no process namespace of its own to be had")
    script = "trap 'echo tidy; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    argv = [*NAMESPACE, sys.executable, str(toolkit.TOOL), "record", "--", "sh", "-c", script]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            os.kill(int(file.read().split()[0]), signal.SIGTERM)
        assert process.stdout.read() == b"tidy\n"
    assert process.returncode == 9


def test_a_program_is_a_child_of_the_tool_in_its_process_group_and_session(tmp_path):
    ask = "import os; print(os.getppid() == os.getpgrp() == os.getsid(0) != os.getpid())"
    running = Running(tmp_path, "run", "--", "python3", "-c", ask)
    assert running.end() == 0 and "True\n" in running.said


def test_a_program_gets_the_descriptors_that_its_caller_gave_and_none_of_ours(tmp_path):
    (tmp_path / "given").write_text("read\n")
    script = "cat /dev/fd/$0; for fd in /dev/fd/*; do echo ${fd##*/}; done"
    with open(tmp_path / "given") as given:
        number = given.fileno()
        done = quire(tmp_path, "run", "--", "bash", "-c", script, number, pass_fds=(number,))
    numbers = done.stdout.split()
    assert numbers[0] == "read" and str(number) in numbers, done.stderr
    # One is the shell's own, which reads the directory.
    assert len(set(numbers[1:]) - {"0", "1", "2", str(number)}) <= 1


def test_a_program_that_cannot_be_executed_is_126_with_the_reason(tmp_path):
    flags = ["-Wl,--dynamic-linker=/no/such/ld.so"]
    odd = build(tmp_path, "int main(void) { return 0; }", "odd", flags)
    done = quire(tmp_path, "record", "--", odd)
    assert done.returncode == 126, done.stderr
    assert "cannot execute" in done.stderr and os.strerror(errno.ENOENT) in done.stderr


# ---- what it used, and how it is started ----

MEGABYTE = """
#include <stdlib.h>
#include <string.h>
int main(void) { volatile char *p = malloc(1 << 20); memset((char *)p, 1, 1 << 20); return p[9] != 1; }
"""


@pytest.mark.parametrize("way", ["hidden", "visible"])
def test_the_peak_memory_of_a_small_program_is_its_own_and_not_that_of_who_started_it(tmp_path, way):
    ours = bytearray(b"x" * (64 << 20))
    target = targets.resolve([str(build(tmp_path, MEGABYTE))])
    if way == "hidden":
        ran = launch.hidden(target, launch.Input(), dict(os.environ))
    else:
        ran = launch.visible(target, dict(os.environ))
    assert ran.status == 0 and 1 << 20 <= ran.peak_rss_bytes < 12 << 20 < len(ours)
    assert ran.cpu_s > 0 and ran.wall_s > 0


def test_a_hidden_program_is_our_child_and_leads_a_session(tmp_path):
    ask = "import os, sys; print(os.getppid(), os.getpid() == os.getpgrp() == os.getsid(0), file=sys.stderr)"
    ran = launch.hidden(targets.resolve(["python3", "-c", ask]), launch.Input(), dict(os.environ))
    assert ran.stderr == f"{os.getpid()} True\n"


def test_a_signal_that_comes_before_the_program_is_there_is_its_end(tmp_path, monkeypatch):
    helper = tmp_path / "quire-launch"
    helper.write_text("#!/bin/sh\nkill -TERM $$\n")
    helper.chmod(0o755)
    monkeypatch.setattr(launch.native, "helper", lambda name: str(helper))
    ran = launch.hidden(targets.resolve(["true"]), launch.Input(), dict(os.environ))
    assert ran.status == -signal.SIGTERM


def test_the_launcher_becomes_the_program_where_it_cannot_make_a_sibling():
    # The first process of a namespace has none.
    if not namespaces():
        pytest.skip("no process namespace of its own to be had")
    words = ["2", "here", "A=b", "--", "/bin/sh", "sh", "-c", "echo $$ $A; exit 7"]
    done = subprocess.run([*NAMESPACE, str(toolkit.BUILD / "tools" / "quire-launch"), *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.split()[0]) == (7, "1 b\n", "1")


def test_the_launcher_says_why_a_program_could_not_be_executed():
    done = native("quire-launch", "1", "here", "--", "/no/such/program", "x")
    assert int(done.stdout.split()[2]) == errno.ENOENT


def test_a_program_runs_where_it_may_when_no_cpu_can_be_chosen(monkeypatch):
    def forbidden(pid, cpus):
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(launch.os, "sched_setaffinity", forbidden)
    assert launch.hidden(targets.resolve(["true"]), launch.Input(), dict(os.environ), cpus={0}).status == 0
