# SPDX-License-Identifier: MIT
"""test_stretch - a stretch of a program's run: entered after a while, left again, and then it goes on or ends as it was told."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from attachkit import Process, mappings, patched
from manners import Running
from toolkit import BUILD, TOOL, build, native_json, quire

import stretch
import target as targets
from errors import EnvironmentLacks

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


def test_a_program_that_ends_just_before_it_is_entered_is_told_so_too(monkeypatch):
    monkeypatch.setattr(stretch, "wait", lambda program, name, after_s: time.sleep(after_s))  # who looked last saw it run
    args = argparse.Namespace(after=0.3, duration=1.0, until_idle=False, then="leave")
    with pytest.raises(EnvironmentLacks) as failed:
        stretch.record(targets.resolve(["true"]), "none.qtr", args, dict(os.environ))
    assert failed.value.what == "true ended before recording began" and failed.value.why == "exit status 0"


@pytest.mark.by_turns
def test_try_gives_a_verdict_from_a_stretch_of_the_one_run_and_the_program_goes_on(tmp_path, program):
    stretch_of = ("--after", "100ms", "--duration", "100ms", "--then", "leave")
    done = quire(tmp_path, "try", "--json", "--no-report", "--time-limit", 0.3, *stretch_of, "-o", "t.qtr", "--", program, 60)
    assert done.returncode == 0 and "goes on: process" in done.stderr, done.stderr
    os.kill(int(done.stderr.split("goes on: process ")[1].split()[0]), signal.SIGKILL)
    found = json.loads(done.stdout)
    assert found["trace"]["attached"] and found["trace"]["allocations"] > 300 and found["verdict"]["word"] and not found["measured"]
    assert 0 < found["program"]["traced_cpu_s"] < 1 and found["program"]["runs"] == 1 and found["program"]["peak_rss_bytes"] > 1 << 20


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("more", "begun", "then_s"), [(["--then", "stop"], "until Ctrl-C", 0.5), (["--once", "--duration", "60s"], "recording it", 1.5), (["--duration", "3s"], "recording it", 1.5)]
)
def test_control_c_in_try_ends_the_recording_alone_and_the_verdict_follows(tmp_path, program, more, begun, then_s):
    """Then: the program is still to be started, and to settle, and it must have done something under the load."""
    words = [sys.executable, TOOL, "try", "--no-report", "--time-limit", 0.3, *more, "-o", "t.qtr", "--", program, 60]
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD), "NO_COLOR": "1"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(word) for word in words], cwd=tmp_path, env=env, **pipes) as command:
        while begun not in (line := command.stderr.readline()):
            assert line
        time.sleep(then_s)
        command.send_signal(signal.SIGINT)
        said, noted = command.communicate(timeout=100)
    assert command.returncode == 0 and (tmp_path / "asked").exists(), noted
    assert "modelled" in said and any(word in said for word in ("  YES", "  NO", "  INCONCLUSIVE")), said
    assert ("The trace holds" in said) == ("--then" in more) and ("Ctrl-C ended the recorded run" in noted) == ("--then" not in more)


def test_control_c_in_record_with_a_duration_ends_the_recording_and_keeps_it(tmp_path, program):
    words = [sys.executable, TOOL, "record", "--duration", "60s", "-o", "t.qtr", "--", program, 60]
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD), "NO_COLOR": "1"}
    with subprocess.Popen([str(word) for word in words], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as command:
        while not (tmp_path / "t.qtr").exists():
            assert command.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        command.send_signal(signal.SIGINT)
        noted = command.communicate(timeout=100)[1]
    assert command.returncode == 0 and (tmp_path / "asked").exists(), noted
    assert "Ctrl-C ended the recording after" in noted and "trace: t.qtr" in noted and "interrupted" not in noted, noted


@pytest.mark.by_turns
def test_control_c_in_a_round_of_a_try_with_a_duration_ends_all(tmp_path, program):
    running = Running(tmp_path, "try", "--no-report", "--duration", "500ms", "--rounds", 50, "-o", "t.qtr", "--", program, 60)
    assert running.until("it will run up to").until("looking at where").stop(signal.SIGINT) == 130 and "interrupted" in running.said, running.said


@pytest.mark.by_turns
def test_few_allocations_of_a_stretch_are_told_of_the_stretch_alone(tmp_path):
    busy = build(tmp_path, "int main(void) { for (volatile unsigned long i = 0;; i++) { } }")
    done = quire(tmp_path, "try", "--no-report", "--after", "100ms", "--duration", "300ms", "--then", "kill", "--", busy)
    assert done.returncode == 0, done.stderr
    assert "makes 0 allocations in " in done.stdout and "in the stretch of " in done.stdout and "that was recorded" in done.stdout


def test_idle_is_when_a_process_and_what_it_started_have_done_next_to_nothing_for_a_while(monkeypatch):
    used = iter([0.0, 0.5, 0.5, 0.9, 0.9, 0.905])
    monkeypatch.setattr(stretch.time, "sleep", lambda s: None)
    monkeypatch.setattr(stretch.load, "cpu_s", lambda leader: next(used))
    stretch.idle(os.getpid())
    assert list(used) == []
    monkeypatch.undo()
    monkeypatch.setattr(stretch.time, "sleep", lambda s: pytest.fail("nobody is waited for"))
    stretch.idle(2**22 - 1)


# A server that waits, and has two workers: they allocate until a time is over, and wait then, too. `late`: they begin a second later.
PREFORK = r"""
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            if (argc > 2) sleep(1);
            time_t until = time(NULL) + atoi(argv[1]);
            while (time(NULL) < until)
                for (int n = 0; n < 1000; n++) free(malloc(n));
            break;
        }
    for (;;) pause();
}
"""


@pytest.fixture(scope="module", name="prefork")
def prefork_fixture(tmp_path_factory):
    return build(tmp_path_factory.mktemp("prefork"), PREFORK, "prefork")


@pytest.mark.by_turns
def test_of_a_server_that_has_others_work_the_busiest_is_recorded_and_that_is_said(tmp_path, prefork):
    done = quire(tmp_path, "try", "--json", "--no-report", "--time-limit", 0.3, "--duration", "100ms", "--then", "kill", "-o", "t.qtr", "--", prefork, 60)
    assert done.returncode == 0 and "prefork runs 3 processes: recorded is the busiest, prefork (" in done.stderr, done.stderr
    assert json.loads(done.stdout)["trace"]["allocations"] > 1000


@pytest.mark.by_turns
def test_until_idle_ends_by_itself_when_the_work_is_done_and_the_verdict_is_of_that(tmp_path, program):
    done = quire(tmp_path, "try", "--json", "--no-report", "--time-limit", 0.3, "--until-idle", "-o", "t.qtr", "--", program, 3)
    assert done.returncode == 0 and (tmp_path / "asked").exists(), done.stderr
    found = json.loads(done.stdout)
    assert found["trace"]["attached"] and found["trace"]["allocations"] > 1000 and found["verdict"]["word"]
    assert 1 < facts(tmp_path / "t.qtr")["wall_s"] < 30


@pytest.mark.by_turns
def test_until_idle_is_until_all_that_it_started_is_idle(tmp_path, prefork):
    done = quire(tmp_path, "record", "--until-idle", "--then", "kill", "-o", "t.qtr", "--", prefork, 4)
    assert done.returncode == 0 and facts(tmp_path / "t.qtr")["wall_s"] > 2.5, done.stderr


@pytest.mark.by_turns
def test_where_others_did_much_more_than_who_was_recorded_nothing_is_judged_and_their_number_is_said(tmp_path, prefork):
    done = quire(tmp_path, "try", "--no-report", "--duration", "2s", "--then", "kill", "-o", "t.qtr", "--", prefork, 60, "late")
    assert done.returncode == 3 and "cannot be judged" in done.stderr and "was not recorded" in done.stderr and "fix:" in done.stderr, done.stdout
    with Process(prefork, 60) as server:
        done = quire(tmp_path, "record", "--pid", server.pid, "--duration", "300ms", "-o", "u.qtr", start_new_session=True)
        children = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True).stdout.split()
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
    assert done.returncode == 0 and "(2 of them run)" in done.stderr, done.stderr
    assert any(f"quire record --pid {pid}\n" in done.stderr for pid in children), done.stderr


@pytest.mark.by_turns
def test_what_makes_no_sense_together_is_refused(tmp_path, program):
    for words in (["record", "--load", "true", "--then", "stop", "--", program, "1"], ["record", "--pid", "1", "--then", "leave"], ["try", "--ready-port", "1", "--until-idle", "--", program, "1"]):
        done = quire(tmp_path, *words)
        assert done.returncode == 2 and "fix:" in done.stderr
    static = build(tmp_path, "int main(void) { return 0; }", name="static", flags=["-static"])
    for command in ("record", "try"):
        done = quire(tmp_path, command, "--then", "stop", "--", static)
        assert done.returncode == 3 and "only a stretch" in done.stderr and "fix:" in done.stderr
