# SPDX-License-Identifier: MIT
"""test_prediction - the examples that carry out an advice: same output, the advised class, fewer calls; and how a prediction is judged."""

import json
import re
import subprocess

import pytest
from prediction import Stopwatch, judge
from prediction_pairs import compiled, write_sql
from toolkit import HANGS_S, ROOT, quire

import measure

NAMES = {"server": "1500", "tree": "400"}
WARNINGS = "-std=c11 -O2 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Werror".split()


@pytest.fixture(scope="session", params=sorted(NAMES))
def pair(request, tmp_path_factory):
    """One example: its name and the commands of both versions."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, compiled(folder, request.param)


@pytest.fixture(scope="session")
def advised(pair):
    """What `quire advise` says of the malloc version."""
    name, folder, (before, _) = pair
    trace = folder / "t.qtr"
    assert quire(folder, "record", "-o", trace, "--", before, NAMES[name]).returncode == 0
    done = quire(folder, "advise", "--json", trace)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["traces"][0]


def output(program, size):
    """What a program prints."""
    return subprocess.run([program, size], capture_output=True, text=True, check=True, timeout=HANGS_S).stdout


def test_both_versions_of_an_example_print_the_same(pair):
    name, _, (before, after) = pair
    assert output(before, NAMES[name]) == output(after, NAMES[name])
    assert output(before, NAMES[name]) != output(before, "7")


def test_the_advice_is_the_class_that_the_changed_program_carries_out(pair, advised):
    _, _, (_, after) = pair
    by_class = {}
    for site in advised["sites"]:
        by_class[site["class"]] = by_class.get(site["class"], 0) + site["allocations"]
    assert by_class["arena"] > 0.95 * sum(by_class.values())
    assert b"quire_arena_create" in after.read_bytes()


def test_the_functions_that_the_advice_names_are_those_that_changed(pair, advised):
    name, _, _ = pair
    folder = ROOT / "examples" / name
    changed = (folder / f"{name}_advised.c").read_text()
    named = {s["function"] for s in advised["sites"] if s["class"] == "arena" and s["allocations"] > 100}
    assert named
    served = {m for m in re.findall(r"^static [\w *]*?(\w+)\(", changed, re.M)}
    assert named <= served | {"main"}, (named, served)


def test_the_changed_program_hardly_calls_malloc(pair):
    name, folder, (before, after) = pair
    counts = []
    for program in (before, after):
        trace = folder / f"{program.name}.qtr"
        assert quire(folder, "record", "-o", trace, "--", program, NAMES[name]).returncode == 0
        document = json.loads(quire(folder, "advise", "--json", trace).stdout)["traces"][0]
        counts.append(sum(site["allocations"] for site in document["sites"]))
    assert counts[1] < counts[0] / 20


def test_the_examples_compile_without_a_warning(pair, tmp_path):
    name, _, _ = pair
    for source in sorted((ROOT / "examples" / name).glob("*.c")):
        command = ["cc", *WARNINGS, f"-I{ROOT}/include", "-c", str(source), "-o", str(tmp_path / "x.o")]
        subprocess.run(command, check=True)


def test_a_prediction_within_a_third_holds_and_one_beyond_does_not():
    def estimate(value, spread):
        return measure.Estimate(value, value - spread, value + spread)

    assert judge(estimate(8, 1), estimate(6.1, 1))[1] == "yes"
    assert judge(estimate(8, 1), estimate(5.9, 1))[1] == "no"
    assert judge(estimate(4, 9), estimate(8, 9))[1] == "no"
    assert judge(estimate(1, 1), estimate(2.5, 1))[1] == "intervals overlap"
    assert judge(estimate(0, 0.1), estimate(2.5, 1))[1] == "no"
    assert judge(estimate(9, 1), estimate(10, 1))[0] == pytest.approx(0.9)


def test_the_stopwatch_sees_which_of_two_commands_takes_less():
    loop = "i=0; while [ $i -lt {} ]; do i=$((i+1)); done"
    watch = Stopwatch([(n, ["sh", "-c", loop.format(n)], {}) for n in ("40000", "10000")])
    watch.run(3)
    assert watch.saved_percent("10000").value > 25
    assert watch.saved_percent("40000").value == 0


def test_the_bulk_load_is_sql_that_answers(tmp_path):
    with open(write_sql(tmp_path / "load.sql"), encoding="ascii") as file:
        text = file.read()
    assert text.count("insert into") == text.count("where id in") == 480
    assert text == write_sql(tmp_path / "again.sql").read_text()
