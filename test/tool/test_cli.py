# SPDX-License-Identifier: MIT
"""test_cli - the command line: finding commands, refusing what it does not know, starting fast."""

import os
import re
import resource
import shutil
import subprocess
import sys

import pytest
from toolkit import ROOT, TOOL, quire


def test_the_help_lists_every_command_file_with_its_line(tmp_path):
    done = quire(tmp_path, "--help")
    assert done.returncode == 0
    assert "try -- yourprogram args     run it under each allocator" in done.stdout
    for path in TOOL.glob("cmd_*.py"):
        name = path.stem[4:]
        assert re.search(rf"^  {name} +\w", done.stdout, re.M), name


def test_an_unknown_command_gets_a_suggestion_and_exit_2(tmp_path):
    done = quire(tmp_path, "recrod")
    assert done.returncode == 2
    assert "recrod" in done.stderr and "did you mean `record`?" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [("try", "--jsn", "--", "true"), ("replay", "--jsn", "x.qtr"), ("advise", "--jsn", "x.qtr")],
)
def test_an_unknown_option_gets_a_suggestion_and_exit_2(tmp_path, words):
    done = quire(tmp_path, *words)
    assert done.returncode == 2
    assert "unknown option `--jsn`" in done.stderr and "did you mean `--json`?" in done.stderr


def test_no_command_shows_the_help_and_is_a_usage_error(tmp_path):
    done = quire(tmp_path)
    assert done.returncode == 2 and "quire try -- yourprogram" in done.stdout


def test_a_missing_argument_says_which_and_exits_2(tmp_path):
    done = quire(tmp_path, "replay")
    assert done.returncode == 2 and "TRACE" in done.stderr


@pytest.mark.parametrize("command", ["try", "record", "replay", "advise", "bench", "env"])
def test_every_command_explains_itself(tmp_path, command):
    done = quire(tmp_path, command, "--help")
    assert done.returncode == 0 and f"quire {command}" in done.stdout


def test_what_follows_the_dashes_belongs_to_the_program(tmp_path):
    done = quire(tmp_path, "record", "-o", tmp_path / "t.qtr", "--", "echo", "--json", "--", "-o")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "--json -- -o\n"


def test_a_program_may_be_given_without_dashes(tmp_path):
    done = quire(tmp_path, "record", "-o", tmp_path / "t.qtr", "echo", "--json")
    assert done.returncode == 0 and done.stdout == "--json\n"


def test_adding_a_file_adds_a_command(tmp_path):
    copy = tmp_path / "tool"
    shutil.copytree(TOOL, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "cmd_hello.py").write_text(
        'HELP = "says hello"\ndef add_arguments(parser):\n    pass\ndef run(args):\n    print("hello")\n    return 0\n'
    )
    done = subprocess.run([sys.executable, str(copy), "hello"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "hello\n"
    assert (
        "says hello"
        in subprocess.run(
            [sys.executable, str(copy), "--help"], capture_output=True, text=True
        ).stdout
    )


def cpu_seconds(run):
    """What the machine spent on a run, whatever else it did meanwhile."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run().returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.long
def test_a_file_size_limit_leaves_no_part_of_a_modules_bytecode(tmp_path):
    """Python 3.11 keeps it, and cannot read it at any later start."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for limit, kept in ((8, False), ("unlimited", True)):
        environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / str(limit))
        subprocess.run(["sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", sys.executable, TOOL, "--help"], env=environment, stdout=subprocess.DEVNULL, check=True)
        assert any(path.name.startswith("cmd_") for path in (tmp_path / str(limit)).rglob("*.pyc")) == kept


@pytest.mark.by_turns
def test_a_command_starts_in_under_150_ms_where_python_itself_takes_10(tmp_path):
    starts, bare = [], []
    for _ in range(5):
        starts.append(cpu_seconds(lambda: quire(tmp_path, "try", "--help")))
        bare.append(cpu_seconds(lambda: subprocess.run([sys.executable, "-S", "-c", "pass"])))
    assert min(starts) < 15 * max(0.010, min(bare))


def test_the_version_is_that_of_the_build(tmp_path):
    said = quire(tmp_path, "--version").stdout.strip()
    built = re.search(
        r"project\(quire VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()
    ).group(1)
    assert said == f"quire {built}"


def test_a_tool_without_its_helpers_says_how_to_build_them(tmp_path):
    copy = tmp_path / "elsewhere" / "tools" / "quire"
    shutil.copytree(TOOL, copy, ignore=shutil.ignore_patterns("__pycache__"))
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(copy), "try", "--", "true"], capture_output=True, text=True, env=env
    )
    assert done.returncode == 3 and "cmake --build --preset release" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("try", "--time-limit", "-1"), ("replay", "--time-limit", "nan"), ("report", "--time-limit", "soon")]
    + [("advise", "--sites", "0"), ("advise", "--waste-percent", "-5"), ("record", "--limit-bytes", "0")],
)
def test_numbers_that_make_no_sense_are_usage_errors(tmp_path, words):
    done = quire(tmp_path, *words, "x.qtr")
    assert done.returncode == 2 and words[1] in done.stderr and "Traceback" not in done.stderr
