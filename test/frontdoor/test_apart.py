# SPDX-License-Identifier: MIT
"""test_apart - a part of the tests under a sanitizer (test/apart.cc) is many processes, and what fails in one is named and counted."""

import os
import subprocess

import pytest
from minihouse import REAL_ROOT, House

TESTS = """#include <gtest/gtest.h>
#include <csignal>
static int touched;
TEST(Alone, one) { EXPECT_EQ(touched++, 0); }
TEST(Alone, two) { EXPECT_EQ(touched++, 0); }
TEST(Alone, fails) { EXPECT_EQ(touched++, 1); }
TEST(Alone, dies) { raise(SIGKILL); }
TEST(Alone, leaves) { _exit(0x17); }
TEST(Alone, is_left_out) { GTEST_SKIP(); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    (folder / "tests.cc").write_text(TESTS)
    made = folder / "test_unit"
    command = ["g++", "-O0", folder / "tests.cc", REAL_ROOT / "test/apart.cc", "-o", made, "-lgtest", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "gtest" in done.stderr and "No such file" in done.stderr:
        pytest.skip("GoogleTest is not installed")
    assert done.returncode == 0, done.stderr
    return made


def said(program, *words, **environment):
    done = subprocess.run([program, *words], capture_output=True, text=True, env=os.environ | environment)
    failed = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    return done.returncode, failed, done.stdout.splitlines()[-1]


@pytest.mark.long
def test_each_test_has_a_process_of_its_own_and_however_it_fails_it_is_named(program):
    failed = ["Alone.fails: status 1", "Alone.dies: signal 9", "Alone.leaves: status 23"]
    assert said(program, "--apart=0/1") == (1, failed, "apart: 2 passed, 3 failed, 1 skipped")


def test_the_parts_have_each_test_once(program):
    counts = [said(program, f"--apart={index}/4")[2] for index in range(4)]
    numbers = [[int(word) for word in line.split() if word.isdigit()] for line in counts]
    assert [sum(column) for column in zip(*numbers)] == [2, 3, 1]
    assert all(sum(row) in (1, 2) for row in numbers)


def test_a_part_runs_only_what_is_asked_for(program):
    assert said(program, "--apart=0/1", "--gtest_filter=*one:*two") == (0, [], "apart: 2 passed, 0 failed, 0 skipped")
    assert said(program, "--apart=0/1", QUIRE_TEST_ONLY=r"unit\.Alone\.(one|is_left)") == (0, [], "apart: 1 passed, 0 failed, 1 skipped")
    assert said(program, "--apart=0/1", QUIRE_TEST_ONLY="nothing") == (0, [], "apart: 0 passed, 0 failed, 0 skipped")


def test_tests_take_turns_and_in_so_many_runs_each_had_one(program, monkeypatch):
    for name in ("QUIRE_TEST_LONG", "QUIRE_TEST_TURN"):
        monkeypatch.delenv(name, raising=False)
    assert said(program, "--apart=0/1", "--turns=3/0")[2] == "apart: 2 passed, 3 failed, 1 skipped", "by hand all"
    counts = [[said(program, "--apart=0/1", f"--turns=3/{first}", QUIRE_TEST_TURN=turn)[2] for turn in "012"] for first in "01"]
    numbers = [[int(word) for word in line.split() if word.isdigit()] for line in counts[0]]
    assert [sum(column) for column in zip(*numbers)] == [2, 3, 1] and [2, 3, 1] not in numbers
    assert counts[1] == [*counts[0][1:], counts[0][0]], "with another first number it is the next run's turn"
    assert said(program, "--apart=0/1", "--turns=3/0", QUIRE_TEST_TURN="0", QUIRE_TEST_LONG="1")[2] == "apart: 2 passed, 3 failed, 1 skipped"
    assert said(program, "--apart=0/1", "--turns=1000/1", QUIRE_TEST_TURN="1", QUIRE_TEST_ONLY=r"\.one$")[2] == "apart: 1 passed, 0 failed, 0 skipped"


def of_parts(tmp_path, program, *words):
    house = House(tmp_path)
    house.write("CMakeLists.txt", (house.root / "CMakeLists.txt").read_text() + "".join(
        f"add_test(NAME unit.apart_{index}_of_2 COMMAND {program} --apart={index}/2)\nset_tests_properties(unit.apart_{index}_of_2 PROPERTIES LABELS unit)\n"
        for index in range(2)))
    return house.run("test", "unit", "check", *words)


def test_tests_are_counted_and_not_parts(tmp_path, program):
    done = of_parts(tmp_path, program)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "3 passed, 3 failed, 1 skipped", "one is no part"
    assert "FAILED Alone.dies: signal 9" in done.stdout


def test_a_name_is_looked_for_among_the_tests_of_parts(tmp_path, program):
    done = of_parts(tmp_path, program, "-k", "Alone.two")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed"), done.stdout
    assert "no test of that name" in of_parts(tmp_path / "b", program, "-k", "Alone.three").stderr
