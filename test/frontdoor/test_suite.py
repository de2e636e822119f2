# SPDX-License-Identifier: MIT
"""test_suite - ./quire test finds the tests, runs what was asked for, counts rightly, and fails
when anything fails."""

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from frontdoor import build, runner, suite
from minihouse import REAL_ROOT, House

MOVED_LAST = runner._moved_last


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def names_of(house, *words, expression=None):
    options = suite._parse(list(words), {"unit", "tool", "checks", *suite.PRESETS})
    options.expression = expression
    return [step.name for step in suite.plan(house.root, options)]


def test_everything_runs_when_nothing_is_named(house):
    house.write("test/tool/test_a.py", "")
    assert names_of(house) == [
        "build release", "build check", "build asan", "build tsan",
        "ctest check", "ctest asan", "ctest tsan", "checks", "pytest tool",
    ]  # fmt: skip


def test_the_sanitizers_take_turns_when_everything_runs_and_are_both_there_when_asked(monkeypatch):
    monkeypatch.delenv("QUIRE_TEST_LONG", raising=False)
    assert [suite.presets_of(set(), turn)[1] for turn in range(6)] == ["asan", "asan", "tsan", "tsan", "asan", "asan"]
    assert suite.presets_of({"unit"}, 1) == ["check", "asan", "tsan"]
    assert suite.presets_of({"asan"}, 1) == ["asan"]
    monkeypatch.setenv("QUIRE_TEST_LONG", "1")
    assert suite.presets_of(set(), 1) == ["check", "asan", "tsan"]


def test_python_packages_come_while_it_builds(house):
    house.write("test/tool/test_a.py", "")
    first, *steps = suite.plan(house.root, suite._parse([], {*suite.PRESETS}), [["pip"]])
    assert first.name == "python packages"
    waits = [step.name for step in steps if first in step.after]
    assert waits == ["checks", "pytest tool"]


def test_debians_packages_that_builds_can_do_without_come_while_it_builds(house):
    house.write("test/tool/test_a.py", "")
    first, *steps = suite.plan(house.root, suite._parse([], {*suite.PRESETS}), install=lambda: None)
    assert first.name == "packages"
    assert [step.name for step in steps if first in step.after] == ["pytest tool"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as apt does")
@pytest.mark.parametrize("there_is_a_network", [True, False])
def test_what_needs_packages_runs_when_they_came_and_only_then(house, there_is_a_network):
    house.write("test/tool/test_a.py", "def test_a():\n    pass\n")
    house.uninstall("libgtest-dev", "gdb")
    slow = 'case $* in *gdb*) sleep 1;; *) false;; esac && '
    apt = (house.bin / "apt-get").read_text()
    house.program(house.bin / "apt-get", apt.replace("[ -e", slow + ("[ -e" if there_is_a_network else "[ ! -e")))
    done = house.run("test")
    asked = [line.split("--no-install-recommends ")[1].split() for line in house.calls() if line.startswith("apt-get install")]
    assert asked[0] == ["libgtest-dev"], "at once, for the builds"
    assert "gdb" in asked[1], "later, with all else"
    ended = dict(re.findall(r"^(?:ok|FAIL)\s+(\w+ \w+|checks|packages)\s+(.*?)  \(", done.stdout, re.MULTILINE))
    assert done.returncode == (0 if there_is_a_network else 1)
    assert ended["packages"] == ("ok" if there_is_a_network else "status 3")
    assert ended["pytest tool"].startswith("1 passed" if there_is_a_network else "not run: packages failed")
    assert "100% tests passed" in ended["ctest asan"]
    if not there_is_a_network:
        assert "Unable to fetch some archives" in done.stdout
        assert "apt-get install -y --no-install-recommends gdb" in done.stdout, "the line that mends it"


@pytest.mark.parametrize("status", [0, 1])
def test_what_needs_python_packages_runs_when_they_came_and_only_then(house, status):
    shutil.rmtree(next((house.root / ".venv").glob("lib/python3*/site-packages/rich-*")))
    house.write("test/tool/test_a.py", "def test_a():\n    pass\n")
    pip = f'case "$*" in *"pip install"*"rich"*) sleep 1; echo fetched; exit {status};; esac'
    house.program(house.root / ".venv/bin/python", f'#!/bin/sh\n{pip}\nexec {house.python} "$@"\n')
    done = house.run("test")
    ended = dict(re.findall(r"^(?:ok|FAIL)\s+(\w+ \w+|checks)\s+(.*?)  \(", done.stdout, re.MULTILINE))
    assert done.returncode == status
    assert ended["python packages"] == ("ok", "status 1")[status]
    assert ("fetched" in done.stdout) == bool(status), "a failing step's log is shown"
    assert ended["pytest tool"].startswith(("1 passed", "not run: python packages failed")[status])
    assert "100% tests passed" in ended["ctest asan"]


def test_both_of_pytests_ways_to_name_a_file_are_found(house):
    house.write("test/one/test_a.py", "")
    house.write("test/two/a_test.py", "")
    house.write("test/three/helper.py", "")
    assert suite.kinds_and_suites(house.root) == (["unit"], ["one", "two"])


def test_a_suite_of_many_files_is_several_steps_that_have_each_file_once(house):
    wanted = {house.root / f"test/tool/test_{n}.py" for n in range(2 * suite.PART_FILES + 1)}
    for path in wanted:
        house.write(path, "")
    assert names_of(house, "tool")[1:] == ["pytest tool 1/3", "pytest tool 2/3", "pytest tool 3/3"]
    steps = suite.plan(house.root, suite._parse(["tool"], {"tool"}))[1:]
    files = [word for step in steps for word in step.commands()[0] if str(word).endswith(".py")]
    assert (len(files), set(files)) == (len(wanted), wanted)
    assert len({step.log for step in steps}) == 3


def test_a_kind_of_test_runs_in_every_preset_without_the_rest(house):
    assert names_of(house, "unit") == [
        "build check",
        "build asan",
        "build tsan",
        "ctest check",
        "ctest asan",
        "ctest tsan",
    ]


def test_a_kind_in_one_preset_builds_that_preset_only(house):
    assert names_of(house, "unit", "asan") == ["build asan", "ctest asan"]


def test_asan_takes_the_tests_objects_from_check_where_both_are_built(house, monkeypatch):
    monkeypatch.delenv("QUIRE_TEST_LONG", raising=False)
    assert [build.takes_objects(preset, suite.PRESETS) for preset in suite.PRESETS] == [False, True, False]
    assert not build.takes_objects("asan", ["asan"])
    said = build.commands(house.root, "asan", takes=True)[0][0]
    assert f"-DQUIRE_TEST_FILES_OF={house.root}/build/check" in map(str, said)
    assert "FILES_OF" not in str(build.commands(house.root, "asan")[0][0])
    monkeypatch.setenv("QUIRE_TEST_LONG", "1")
    assert not build.takes_objects("asan", suite.PRESETS)


def test_a_whole_run_prints_closing_lines_and_the_sum(house):
    house.write("test/tool/test_a.py", "def test_a():\n    pass\n")
    done = house.run("test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks: 3 passed, 0 failed" in done.stdout
    assert "100% tests passed, 0 tests failed out of 1" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("6 passed, 0 failed")


def test_on_two_cores_four_steps_run_at_once_but_two_beside_a_build_which_is_one(house, monkeypatch):
    monkeypatch.setattr(suite.os, "cpu_count", lambda: 2)
    running, seen, met, turn = [], [], set(), threading.Condition()

    def noted(step):
        """A build that goes on until two other steps run beside it, a step that goes on until four run at once, or until none is left to begin."""

        def run():
            with turn:
                running.append(step)
                seen.append(tuple(other.name for other in running))
                builds = [other for other in running if "build" in other.name]
                met.update(builds if len(running) > 2 else [], running if len(running) == 4 and not builds else [])
                turn.notify_all()
                turn.wait_for(lambda: step in met or len(seen) == 10, timeout=60)
                running.remove(step)
            step.status = 0

        step.run = run
        return step

    steps = [runner.Build(house.root, preset) for preset in ("check", "asan")]
    steps += [runner.Checks(house.root, []) for _ in range(8)]
    suite._run_on_lanes(house.root, [noted(step) for step in steps])
    built = [len(names) for names in seen if any("build" in name for name in names)]
    assert (len(seen), max(built), max(map(len, seen))) == (10, 3, 4)
    assert max(sum("build" in name for name in names) for names in seen) == 1


def test_a_failing_test_shows_its_log_and_fails_the_run(house):
    house.write("test/tool/test_a.py", "def test_a():\n    assert 'here' == 'there'\n")
    done = house.run("test", "tool")
    assert done.returncode == 1
    assert "assert 'here' == 'there'" in done.stdout
    assert done.stdout.splitlines()[-2:][0] == "failed steps: pytest tool"
    assert done.stdout.splitlines()[-1].startswith("0 passed, 1 failed")


def test_what_fails_beside_others_is_tried_again_alone_and_named(house, monkeypatch):
    monkeypatch.delenv("QUIRE_TEST_LONG", raising=False)
    shutil.copy(REAL_ROOT / "test" / "conftest.py", house.root / "test" / "conftest.py")
    once = "import pathlib, pytest\n@pytest.mark.parametrize('n', ['a b', '[::]'])\ndef test_a(n):\n"
    once += "    seen = pathlib.Path(__file__ + '.seen')\n    if n == 'a b':\n        return\n"
    once += "    if not seen.exists():\n        seen.touch()\n        assert 'here' == 'there'\n"
    house.write("test/tool/test_a.py", once)
    done = house.run("test", "tool")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert "assert 'here' == 'there'" in done.stdout, "the first failure is shown all the same"
    assert [line.split()[:3] for line in lines if "again" in line] == [["ok", "pytest", "tool,"]]
    assert lines[-2].startswith("unsteady: ") and "test_a.py::test_a[[::]]" in lines[-2]
    assert lines[-1].startswith("2 passed, 0 failed")


@pytest.mark.long
@pytest.mark.parametrize(("long", "failing"), [("1", 1), ("", runner.AGAIN_MAX + 1)])
def test_long_runs_and_many_failures_get_no_second_try(house, monkeypatch, long, failing):
    monkeypatch.setenv("QUIRE_TEST_LONG", long)
    shutil.copy(REAL_ROOT / "test" / "conftest.py", house.root / "test" / "conftest.py")
    house.write("test/tool/test_a.py", f"import pytest\n@pytest.mark.parametrize('n', range({failing}))\ndef test_a(n):\n    assert 0\n")
    done = house.run("test", "tool")
    assert done.returncode == 1 and "again" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"0 passed, {failing} failed")


@pytest.mark.long
def test_many_rounds_run_beside_busy_loops_and_one_that_fails_fails_all(house):
    shutil.copy(REAL_ROOT / "test" / "conftest.py", house.root / "test" / "conftest.py")
    house.write("test/tool/test_a.py", """import os, pathlib
def test_a():
    seen = pathlib.Path(__file__ + ".seen")
    seen.touch()
    seen.write_text(seen.read_text() + "x")
    states = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            said = (place / "cmdline").read_text(), (place / "stat").read_text()
        except OSError:
            continue
        is_ours = said[1].rpartition(")")[2].split()[1] == str(os.getppid())  # this run's: it may be one of many beside loops of theirs
        states += [place.name] if is_ours and "os.getppid() == parent" in said[0] else []
    pathlib.Path(__file__ + ".loops").write_text(" ".join(states))
    assert len(states) == 2
    assert seen.read_text() != "xx"
""")
    done = house.run("test", "tool", "--times", "3", "--beside", "2")
    assert done.returncode == 1, done.stdout
    assert (house.root / "test/tool/test_a.py.seen").read_text() == "xxx", "the second failed; the third runs all the same"
    assert [line.split()[0] for line in done.stdout.splitlines() if " passed, " in line and line[0].isdigit()] == ["1", "0", "1"]
    assert done.stdout.splitlines()[-1] == "2 of 3 rounds passed beside 2 busy loops" and "again" not in done.stdout
    loops = (house.root / "test/tool/test_a.py.loops").read_text().split()
    assert not any(b"getppid" in cmdline_of(pid) for pid in loops), "they end with it"


def cmdline_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_fails_twice_fails(house, monkeypatch):
    monkeypatch.delenv("QUIRE_TEST_LONG", raising=False)
    shutil.copy(REAL_ROOT / "test" / "conftest.py", house.root / "test" / "conftest.py")
    house.write("test/tool/test_a.py", "def test_a():\n    assert 'here' == 'there'\ndef test_b():\n    pass\n")
    done = house.run("test", "tool")
    assert done.returncode == 1 and "FAIL pytest tool, again" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 passed, 1 failed")


def test_a_build_that_fails_fails_what_waits_for_it(house):
    house.write("CMakeLists.txt", "this is not cmake\n")
    done = house.run("test", "unit", "asan")
    assert done.returncode == 1
    assert "not run: build asan failed" in done.stdout
    assert "0 passed, 2 failed" in done.stdout


def test_a_test_that_hangs_the_step_is_stopped(house, monkeypatch):
    monkeypatch.setattr(runner, "QUIET_S", 0.2)
    log = house.root / "log.txt"
    assert runner._run_logged(["sleep", "30"], house.root, log)[0] == 124
    assert "took longer than" in log.read_text()


def while_noted(step, name, quiet_s, monkeypatch):
    """A step may stand still for `quiet_s` while the test that runs is the one named, however late the machine is before and after."""
    note = step.log.with_suffix(".now")

    def moved_last(log):
        noted = note.exists() and name in note.read_text()
        monkeypatch.setattr(runner, "QUIET_S", quiet_s if noted else 540)
        return MOVED_LAST(log)

    monkeypatch.setattr(runner, "_moved_last", moved_last)


def test_a_step_whose_time_is_up_says_which_test_ran(house, monkeypatch):
    shutil.copy(REAL_ROOT / "test" / "conftest.py", house.root / "test" / "conftest.py")
    house.write("test/tool/test_a.py", "import time\ndef test_a():\n    pass\ndef test_slow():\n    time.sleep(600)\n")
    step = runner.Pytest(house.root, "tool", [])
    while_noted(step, "test_slow", 0.5, monkeypatch)
    step.run()
    assert step.status == 124
    assert re.search(r"the test that ran: \S*test_a.py::test_slow, for \d+ s", step.log.read_text())


def test_a_step_that_moves_goes_on_beyond_the_time_in_which_one_may_stand_still(house, monkeypatch):
    house.write("test/tool/test_a.py", "import time, pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_a(n):\n    time.sleep(0.7)\n")
    shutil.copy(REAL_ROOT / "test" / "conftest.py", house.root / "test" / "conftest.py")
    step = runner.Pytest(house.root, "tool", [])
    while_noted(step, "test_a", 3, monkeypatch)
    step.run()
    assert (step.status, step.passed) == (0, 6)


def test_of_ctest_the_tests_that_have_started_and_not_ended_are_named(house):
    log = house.root / "log.txt"
    log.write_text("    Start 1: unit.a\n    Start 12: unit.b\n 1/20 Test  #1: unit.a ....   Passed\n")
    assert runner.running_in(log) == "the tests that ran: unit.b"


SIGNALS = """
import os, signal, subprocess, sys
def test_all_is_as_a_shell_would_have_it():
    status = open("/proc/self/status").read()
    words = dict(line.split(":\\t") for line in status.splitlines() if line.startswith("Sig"))
    ignored = int(words["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    assert (ignored, int(words["SigBlk"], 16), os.umask(0)) == (0, 0, 0o022)
    assert not sys.dont_write_bytecode
"""


def test_tests_get_their_signals_and_umask_whoever_calls(house):
    house.write("test/tool/test_a.py", SIGNALS)
    command = " ".join(map(str, house.command("test", "tool")))
    asked = f"umask 077; export PYTHONDONTWRITEBYTECODE=1; trap '' INT QUIT HUP TERM USR1; {command}"
    done = subprocess.run(asked, shell=True, capture_output=True, text=True, env=house.environment())
    assert done.returncode == 0, done.stdout + done.stderr


def test_packages_that_came_configure_again_and_once(house, monkeypatch):
    packages = house.root / "status"
    monkeypatch.setattr(build, "PACKAGES", packages)

    def titles():
        return [title for _, title in build.commands(house.root, "check")]

    build.ensure(house.root, "check")
    assert titles() == ["building check"]
    packages.touch()
    assert titles() == ["configuring check again, for packages that came", "building check"]
    build.ensure(house.root, "check")
    assert titles() == ["building check"]


def test_a_word_that_names_nothing_is_refused_with_the_near_one(house):
    done = house.run("test", "unti")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is named unti; did you mean unit?" in done.stderr


def test_an_expression_that_matches_nothing_is_not_a_pass(house):
    done = house.run("test", "unit", "check", "-k", "nosuch")
    assert done.returncode == 2
    assert "no test of that name" in done.stderr


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("100% tests passed, 0 tests failed out of 57", (57, 0, 0)),
        ("98% tests passed, 1 tests failed out of 57", (56, 1, 0)),
        (
            (
                "3/9 Test #3: race.rseq ...***Skipped 0.01 sec\n100% tests passed, 0 tests failed"
                " out of 9"
            ),
            (8, 0, 1),
        ),
    ],
)
def test_ctests_closing_line_is_counted(house, text, counts):
    step = runner.Ctest(house.root, "check", [], [])
    step.read_counts(text, 0)
    assert (step.passed, step.failed, step.skipped) == counts


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("53 passed in 1.19s", (53, 0, 0)),
        ("1 failed, 2 passed, 3 skipped in 0.05s", (2, 1, 3)),
        ("2 passed, 1 error in 0.05s", (2, 1, 0)),
    ],
)
def test_pytests_closing_line_is_counted(house, text, counts):
    step = runner.Pytest(house.root, "tool", [])
    step.read_counts(f"..F  [100%]\n{text}\n", 0)
    assert (step.passed, step.failed, step.skipped) == counts


def test_a_runner_that_crashes_counts_as_a_failure(house):
    house.write("scripts/check.py", "raise SystemExit(7)\n")
    step = runner.Checks(house.root, [])
    step.run()
    assert (step.status, step.failed) == (7, 1)
