# SPDX-License-Identifier: MIT
"""test_prediction - the examples that carry out an advice: same output, the advised class, fewer calls; the study of doc/prediction.md: rule, inputs, judging."""

import argparse
import json
import random
import re
import subprocess
import sys
from itertools import islice

import prediction
import prediction_inputs as inputs
import prediction_programs as programs
import prediction_rule as rule
import prediction_tables as tables
import pytest
from prediction_pairs import compiled, write_sql
from toolkit import HANGS_S, ROOT, quire

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


@pytest.mark.long
def test_both_versions_of_an_example_print_the_same(pair):
    name, _, (before, after) = pair
    assert output(before, NAMES[name]) == output(after, NAMES[name])
    assert output(before, NAMES[name]) != output(before, "7")


@pytest.mark.by_turns
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


@pytest.mark.long
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


def one(**changes):
    """A stored program: two preloads that were run, one row that was not."""
    told = {"value": 10.0, "low": 9.0, "high": 12.0}
    rows = [
        {"name": "a", "library": "a.so", "measured": True, "rounds": 8, "printed": told, "modelled": 20.0},
        {"name": "b", "library": "b.so", "measured": True, "rounds": 1, "printed": told, "modelled": 5.0},
        {"name": "mix", "library": None, "measured": False, "rounds": 0, "printed": told, "modelled": 10.0},
    ]
    times = {"libc": [1.0, 1.1, 0.9], "a": [0.885, 0.985, 0.785], "b": [0.7, 0.7, 0.7]}
    return {"name": "p", "rows": rows, "left_out": ["c left out: it ends otherwise"], "times": times, "verdict": "YES", "shares": {"sampled": 30.0, "modelled": None}, **changes}


def stored(**parts):
    """A run as a file has it."""
    conditions = {"date": "2026-01-01", "rounds": 3, "stdout": "null", "time_limit_s": None, "processors": 2, "load": [0.0, 0.5]}
    return {"schema": "quire.prediction/1", **conditions, **parts}


def test_a_printed_saving_is_a_hit_within_two_points_or_a_fifth_and_no_further():
    assert tables.is_hit(1.0, 3.0) and not tables.is_hit(0.9, 3.0)
    assert tables.is_hit(24.0, 20.0) and tables.is_hit(16.0, 20.0) and not tables.is_hit(24.1, 20.0)
    assert tables.is_hit(-12.0, -10.0) and not tables.is_hit(-12.1, -10.0)


def test_within_a_third_is_a_third_of_the_real_saving():
    assert tables.is_within_a_third(8, 6.1) and not tables.is_within_a_third(8, 5.9)
    assert not tables.is_within_a_third(1, 0)


def test_a_real_saving_is_the_median_of_the_rounds_and_its_halves_say_how_far_it_is_known():
    assert tables.saved([1, 2, 4], [1, 1, 1]) == 50
    assert tables.saved([1, 1, 2, 2], [0.8, 0.8, 1.6, 1.6]) == pytest.approx(20)  # a slow minute is slow for both
    assert tables.halves([1, 1, 1, 1], [0.8, 0.5, 0.8, 0.5]) == pytest.approx([20, 50])
    assert tables.halves([1], [0.75]) == [25, 25]


def test_the_model_s_error_is_in_points_and_in_parts_of_what_it_said():
    wrong = tables.errors(list(tables.lines(one())))
    assert wrong.number == 2 and wrong.too_much == 1
    assert wrong.points == pytest.approx([20 - 11.5, 30 - 5])
    assert wrong.relative == pytest.approx([8.5 / 20, 25 / 5])
    assert tables.percentile([3, 1, 2], 0.9) == 3
    assert tables.percentile(range(100), 0.9) == 90


def test_what_the_runs_alone_said_is_counted_where_the_model_moved_it():
    found = list(tables.lines(one()))
    assert list(tables.by_runs_text(found)) == []  # stored before rows were drawn
    drawn = [line._replace(by_runs=by_runs) for line, by_runs in zip(found, (11.0, 29.0, None))]
    assert list(tables.by_runs_text(drawn)) == ["By the runs alone, before they were drawn towards the model: 2 of 2."]
    assert list(tables.by_runs_text([line._replace(by_runs=10.0) for line in found])) == []


def test_the_document_counts_hits_and_misses_and_names_what_was_left_out():
    text = tables.text([stored(programs=[one()])])
    assert "| p | a | 10.0 (9.0 to 12.0), 8 rounds | 11.5 (10.5, 12.1) | hit | held | 20.0 |" in text
    assert "| p | b | 10.0 (9.0 to 12.0), 1 rounds | 30.0 (26.1, 36.4) | **no hit** | **no held** | 5.0 |" in text
    assert "| p | YES | 30.0 |  |" in text
    assert "| p | mix | 10.0 (9.0 to 12.0), modelled |" in text
    assert "fifth: 1 of 2. The interval holds the real saving: 1 of 2." in text
    assert "Of these 1 rows had fewer than 5 rounds. Within 2 points or a fifth: 0 of 1." in text
    assert "c left out: it ends otherwise" in text


def test_the_document_of_two_files_is_one_table():
    text = tables.text([stored(programs=[one()]), stored(programs=[one(name="q")])])
    assert text.count("| program | row |") == 1
    assert "2 of 4" in text and "| q | a |" in text


def test_a_pair_is_judged_by_its_own_saving():
    told = {"value": 10.0, "low": 1.0, "high": 19.0}
    rows = [{"name": "mix", "printed": told}, {"name": "steered", "printed": {**told, "value": 29.0}}]
    pair = {"name": "p", "rows": rows, "left_out": [], "times": {"libc": [1.0, 1.0], "changed": [0.7, 0.7]}}
    text = tables.text([stored(pairs=[pair])])
    assert "| p | 30.0 (30.0, 30.0) | mix | 10.0 (1.0 to 19.0) | **no** |" in text
    assert "| steered | 29.0 (1.0 to 19.0) | yes |" in text


def test_rows_of_a_try_are_kept_with_what_is_needed_to_run_them():
    saving = {"value": 1.0, "low": 0.0, "high": 2.0}
    document = {
        "allocators": [
            {"name": "libc", "library": None, "measured": True, "saving_percent": saving},
            {"name": "jemalloc", "library": "j.so", "measured": True, "saving_percent": saving, "modelled_saving_percent": {**saving, "value": 4.0}},
            {"name": "tcmalloc", "library": "t.so", "measured": True, "error": "with it the program ends with exit status 1"},
            {"name": "steered", "library": "s.so", "measured": True, "saving_percent": saving},
            {"name": "mix", "library": "libc.so", "measured": False, "saving_percent": saving, "modelled_saving_percent": saving},
        ]
    }
    rows, left_out = prediction.rows_of(document)
    assert [(r["name"], r["library"], r["modelled"]) for r in rows] == [("jemalloc", "j.so", 4.0), ("steered", None, None), ("mix", None, 1.0)]
    assert left_out == ["tcmalloc left out: with it the program ends with exit status 1"]


def test_plain_rounds_see_which_of_two_commands_takes_less():
    loop = "i=0; while [ $i -lt {} ]; do i=$((i+1)); done"
    runs = {n: lambda cpus, n=n: prediction.cpu_s(["sh", "-c", loop.format(n)], cpus=cpus) for n in ("60000", "15000")}
    found = prediction.in_rounds(runs, 3, True)
    times = found["times"]
    assert [len(seconds) for seconds in times.values()] == [len(seconds) for seconds in found["clock_times"].values()] == [3, 3]
    assert tables.saved(times["60000"], times["15000"]) > 25


def test_each_round_has_every_run_once_and_their_order_changes():
    order = []
    prediction.in_rounds({name: lambda _, name=name: order.append(name) or 1.0 for name in "abc"}, 8, False)
    rounds = ["".join(order[i : i + 3]) for i in range(0, 24, 3)]
    assert {"".join(sorted(names)) for names in rounds} == {"abc"} and len(order) == 24
    assert len(set(rounds)) > 2


def test_a_run_that_fails_is_no_measurement():
    with pytest.raises(subprocess.CalledProcessError):
        prediction.cpu_s(["false"])


def test_a_program_that_fails_in_plain_runs_is_left_out_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "ready", lambda program, folder: (["false"], None, None))
    monkeypatch.setattr(prediction, "asked", lambda *_: {"rows": one()["rows"], "left_out": [], "verdict": "NO", "shares": {}})
    args = argparse.Namespace(stdout="null", rounds=2)
    found = prediction.program_measured(programs.PROGRAMS[0], args)
    assert "a plain run failed" in found["left_out"][0]
    text = tables.text([stored(programs=[found])])
    assert "0 of 0" in text and "a plain run failed" in text


def test_a_stored_result_is_printed_again_without_running_anything(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(stored(programs=[one()])))
    command = [sys.executable, str(ROOT / "test" / "tool" / "prediction.py"), "--document", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS_S)
    assert done.stdout == tables.text([stored(programs=[one()])]) + "\n"


AVAILABLE = """Package: {a}
Section: math
Depends: libc (>= 2), tool | other

Package: {b}
Section: math
Pre-Depends: tool:any
Recommends: {a}, {a} (>= 2)
Description: wants
 Depends: nothing

Package: {b}
Section: math
Depends: other

Package: tool
Section: text

Package: other
Section: contrib/text
Depends: {a}

Package: last
Section: text
Suggests: {b}
"""


def test_packages_stand_in_the_order_of_how_many_want_them():
    order = rule.ranked(AVAILABLE.format(a="abacus", b="bee"), ["math", "text"])
    assert order == {"math": [("abacus", 1), ("bee", 0)], "text": [("tool", 2), ("last", 0)]}


def test_equals_stand_by_name():
    order = rule.ranked("Package: b\nSection: math\n\nPackage: a\nSection: math\n", ["math"])
    assert [name for name, _ in order["math"]] == ["a", "b"]


def test_the_walk_ends_at_the_fourth_chosen_or_the_last_that_two_want_and_finds_who_has_no_reason():
    chosen = [programs.Program("math", name, "", []) for name in ("two", "four", "five", "six")]
    order = {"math": [(name, 9) for name in ("one", "two", "three", "four", "five", "six", "seven")], "web": [("a", 2), ("b", 1)]}
    fates = [(package, fate) for _, package, _, fate in programs.walk(order, chosen, {"one": "few"})]
    assert fates == [("one", "few"), ("two", "chosen"), ("three", None), ("four", "chosen"), ("five", "chosen"), ("six", "chosen"), ("a", None)]


def test_each_section_has_two_programs_and_every_second_program_is_sealed_and_most_have_a_third_and_a_fourth():
    assert [p.section for p in programs.PROGRAMS] == [s for s in [*rule.SECTIONS, "ours"] for _ in range(2)]
    names = [programs.name_of(p) for p in programs.PROGRAMS]
    assert len(set(names)) == len(names) == 28
    opened, sealed, third, fourth = programs.SETS.values()
    assert [p for pair in zip(opened, sealed) for p in pair] == programs.PROGRAMS
    assert [p.section for p in third] == [p.section for p in fourth] == rule.SECTIONS[1:]
    assert len({programs.name_of(p) for p in programs.ALL}) == len(programs.ALL)
    assert not {p.package for p in programs.ALL} & set(programs.FALLEN)


SCRIPTS = {"sums.awk", "maps.erl", "cells.m", "hashes.pl", "objects.py", "hashes.rb", "strings.i", "table.xsl", "maps.js", "numbers.bc", "arrays.pdl", "Thorfile", "names.txt"}  # nothing is drawn for these


@pytest.mark.long
def test_every_input_has_a_writer_that_writes_the_same_again_and_is_read():
    assert {name for p in programs.ALL for name in p.files} == set(inputs.WRITERS)
    for name, writer in inputs.WRITERS.items():
        first, again, other = (list(islice(writer(random.Random(seed)), 500)) for seed in (name, name, "other"))
        assert first == again
        assert (first == other) == (name in SCRIPTS), name


def test_inputs_are_written_once_and_a_folder_gets_its_files(tmp_path):
    inputs.write(tmp_path, ["modules/", "urls.curl"])
    assert len(list((tmp_path / "modules").iterdir())) == 36
    assert (tmp_path / "modules" / "m7.pc").read_text().startswith("prefix=/usr\n")
    assert f"file://{tmp_path}/sums.awk?" in (tmp_path / "urls.curl").read_text()
    (tmp_path / "urls.curl").write_text("kept")
    inputs.write(tmp_path, ["modules/", "urls.curl"])
    assert (tmp_path / "urls.curl").read_text() == "kept"


@pytest.mark.long
def test_our_own_programs_compile_and_answer_the_same_each_time(tmp_path):
    for program in programs.PROGRAMS[-2:]:
        command, source, _ = programs.ready(program, tmp_path)
        assert source is None
        answers = {subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS_S).stdout for _ in range(2)}
        assert len(answers) == 1 and int(answers.pop()) > 1000


def test_the_line_that_installs_names_each_package():
    assert {p.package for p in programs.ALL if p.section != "ours"} - set(programs.apt_line().split()) == {"gnuplot"}


@pytest.mark.by_turns
def test_the_bulk_load_is_sql_that_answers(tmp_path):
    with open(write_sql(tmp_path / "load.sql"), encoding="ascii") as file:
        text = file.read()
    assert text.count("insert into") == text.count("where id in") == 480
    assert text == write_sql(tmp_path / "again.sql").read_text()


def test_newcomers_are_ordered_by_their_hash_and_only_whole_words_are_known():
    import newcomers

    assert newcomers.by_hash(["rev", "osslsigncode", "unxz"]) == ["osslsigncode", "unxz", "rev"]
    assert {"g++-12", "unzip", "ld.gold", "yaml2obj"} <= newcomers.words_of(["with g++-12 or unzip.", "`ld.gold`, (yaml2obj)"])
    assert "zip" not in newcomers.words_of(["unzip"])


@pytest.mark.by_turns
def test_servers_get_rounds_until_two_measurements_of_nothing_agree(monkeypatch):
    import prediction_servers as servers

    class Drawn:
        """Rounds that scatter by so much around nothing, and the folder and the server that nobody needs."""

        def __init__(self, scatter):
            self.scatter, self.chance = scatter, random.Random(7)

        def rounds(self, _server, preloads, count):
            return {"times": {name: [self.chance.gauss(1, self.scatter) for _ in range(count)] for name in preloads}, "sensitivity": []}

    for scatter, rounds in ((0.01, 20), (0.045, 80), (0.4, 200)):
        drawn, kept = Drawn(scatter), []
        found = {"name": "nginx", "libc": None, "rows": [], "times": drawn.rounds(None, ["libc", servers.AGAIN], 20)["times"]}
        monkeypatch.setattr(servers, "DRAWS", 300)
        monkeypatch.setattr(servers, "in_rounds", drawn.rounds)
        monkeypatch.setattr(servers.serverkit, "prepared", lambda *_: None)
        servers.more_rounds(found, argparse.Namespace(until=90, rounds=20, amount=1), lambda: kept.append(len(found["times"]["libc"])))
        assert len(found["times"]["libc"]) == len(found["times"][servers.AGAIN]) == ([*kept] or [20])[-1]
        assert rounds - 40 <= len(found["times"]["libc"]) <= rounds + 40, scatter
        assert kept == list(range(40, len(found["times"]["libc"]) + 1, 20))
