# SPDX-License-Identifier: MIT
"""test_bench_limit - quire bench --time-limit: what is cut, what is named, and what is no longer compared."""

import json
import os
import subprocess

import pytest
from benchkit import bench  # noqa: F401  (a fixture)

import bench.apps as bench_apps
import bench.document as bench_document
import bench.limit as bench_limit
import bench.plots as bench_plots
import bench.run as bench_run
import cmd_bench


@pytest.fixture
def clock(monkeypatch):
    """A clock that only processes advance, a second each; [now]."""
    now = [0.0]
    monkeypatch.setattr(bench_limit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bench_limit, "END_S", 0)
    monkeypatch.setattr(bench_limit, "PICTURES_S", 0)
    return now


@pytest.fixture
def timed(bench, clock, monkeypatch):
    """The same as `bench`; every process takes a second of the clock."""
    answer = bench_run.process_rows

    def process_rows(cast, name, argv, limit_s=None):
        cast.limit.check()
        clock[0] += 1
        if cast.limit.left_s() < 0:
            raise bench_limit.OutOfTime()
        return answer(cast, name, argv, limit_s)

    monkeypatch.setattr(bench_run, "process_rows", process_rows)
    monkeypatch.setattr(bench_run, "sweep_together", one_after_another)
    return bench


def one_after_another(cast, entries, limit_s, workers):
    """As sweep_together, but in an order that the clock can follow."""
    try:
        return bench_run.sweep(cast, entries, limit_s)
    except bench_limit.OutOfTime as cut:
        return cut.found


LAST = "slab, per-CPU allocator, heap, table of the smaller ones"


def test_parts_that_have_no_time_for_one_round_are_named_and_the_others_are_printed(timed):
    status, out, err = timed("--time-limit", "20")
    assert status == 0
    assert "Arena (One Way Allocator)" in out and "Slab (Array Allocator)" not in out
    assert f"no time within --time-limit 20 for: {LAST}" in out
    assert f"no time within --time-limit 20 for: {LAST}" in err


@pytest.fixture
def undrawn(monkeypatch):
    """A picture is what it would be called: drawing takes longer than all the rest."""
    for kind in ("lines", "bars"):
        monkeypatch.setattr(bench_plots.plots, kind, lambda series, axes: axes)


def test_json_and_pictures_have_what_there_was_time_for_and_json_the_names_of_the_rest(timed, undrawn):
    result = json.loads(timed("--json", "--time-limit", "20")[1])
    assert (result["time_limit_s"], result["not_measured"]) == (20, LAST.split(", "))
    assert len(result["rows"]) == 8 and "percpu" not in result
    assert result["command"].endswith("--time-limit 20")
    assert [picture.name for picture in bench_plots.pictures(result)] == ["seeds-arena"]


def test_without_a_limit_nothing_is_left_out(timed):
    result = json.loads(timed("micro", "--lines", "one,once", "--json")[1])
    assert (result["time_limit_s"], result["not_measured"]) == (None, [])


def test_a_line_of_which_one_allocator_is_missing_is_left_out_whole(timed):
    _, out, _ = timed("micro", "--lines", "one,jq,freed,once", "--time-limit", "6")
    assert "no time within --time-limit 6 for: jq, once, freed" in out
    assert "\none " in out and "\njq " not in out


def test_memory_that_stays_is_measured_line_by_line_too(timed):
    _, out, _ = timed("micro", "--lines", "freed,once", "--time-limit", "6")
    assert "no time within --time-limit 6 for: freed" in out
    assert "\nof a thread that allocates once" in out


def test_a_curve_that_misses_a_point_is_left_out_whole(timed, undrawn):
    _, out, _ = timed("scale", "--lines", "threads", "--time-limit", "45")
    assert "no time within --time-limit 45 for: percpu over threads, heap over threads" in out
    assert "Slab: elements" in out and "Heap:" not in out
    result = json.loads(timed("scale", "--lines", "threads", "--json", "--time-limit", "45")[1])
    drawn = [picture.name for picture in bench_plots.pictures(result)]
    assert drawn == ["scale-threads-arena", "scale-threads-slab"]


@pytest.mark.parametrize("table", ["seeds", "micro", "scale"])
def test_a_limit_too_small_for_anything_is_refused_with_one_that_is_not(timed, table):
    with pytest.raises(cmd_bench.UsageError) as refused:
        timed(table, "--time-limit", "1")
    assert "nothing could be measured within --time-limit 1" in refused.value.text()
    assert f"quire bench {table} --time-limit 60" in refused.value.text()


def test_a_process_that_runs_when_the_limit_comes_is_ended(bench, monkeypatch):
    monkeypatch.setenv("FAKE_HANG", "1")
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("--time-limit", "0.2")
    assert "nothing could be measured" in refused.value.text()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(bench, seconds):
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("--time-limit", seconds)
    assert "a number of seconds above 0" in refused.value.text()


def test_a_document_is_made_of_whole_runs_alone(bench, tmp_path):
    with pytest.raises(cmd_bench.UsageError):
        bench("document", "--time-limit", "5")
    (tmp_path / "seeds.json").write_text('{"time_limit_s": 5}')
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench_document.load(str(tmp_path), "seeds")
    assert "cut by --time-limit" in refused.value.text()


# ---- baselines ----


def test_parts_without_time_are_not_compared_and_that_is_said(timed, monkeypatch):
    timed("--save", "base.json")
    monkeypatch.setenv("FAKE_SLAB", "160 160 100 156 152")
    status, out, _ = timed("--baseline", "base.json", "--time-limit", "20")
    assert status == 0
    assert "there was no time for the slab now: it is not compared" in out
    timed("--save", "cut.json", "--time-limit", "20")
    assert "its run had no time for the slab: that is not compared" in timed("--baseline", "cut.json")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["seeds"], "of the arena"), (["micro", "--lines", "one"], "nothing is compared")],
)
def test_a_run_cut_to_fewer_rounds_than_usual_calls_nothing_slower(timed, monkeypatch, words, said):
    monkeypatch.setattr(bench_run, "ROUNDS_MIN", 3)
    timed(*words, "--save", "base.json")
    monkeypatch.setenv("FAKE_ARENA_NS", "9e6")
    monkeypatch.setenv("FAKE_HEAP", "150")
    status, out, _ = timed(*words, "--baseline", "base.json", "--time-limit", "150")
    assert status == 0 and "SLOWER" not in out
    assert "fewer than 3 rounds" in out and said in out
    assert timed(*words, "--baseline", "base.json")[0] == 1


# ---- rounds ----


@pytest.mark.parametrize(
    ("limit_s", "budget_s", "expected"),
    [(None, 0, 3), (None, 10, 4), (100, 0.1, 3), (100, 10, 4), (5, 10, 2), (1, 10, 0), (2, 10, 1)],
)
def test_a_limit_takes_rounds_away_and_never_adds_one(clock, limit_s, budget_s, expected):
    limit = bench_limit.Limit(limit_s, 0)
    limit.plan(budget_s)

    def one_round():
        clock[0] += 2
        if limit.left_s() < 0:
            raise bench_limit.OutOfTime({"a": 1})
        return {}

    if expected == 0:
        assert bench_run.rounds_or_part(one_round, budget_s, "a test", limit) == [{"a": 1}]
        with pytest.raises(bench_limit.OutOfTime):
            bench_run.rounds(one_round, budget_s, "a test", limit)
    else:
        assert len(bench_run.rounds(one_round, budget_s, "a test", limit)) == expected


def test_each_part_gets_its_share_of_what_is_left(clock):
    limit = bench_limit.Limit(20, 0)
    limit.plan(40)
    assert limit.room_s(10) == 5
    clock[0] = 10
    limit.plan(30)
    assert limit.room_s(30) == 10
    assert bench_limit.Limit().room_s(7) == bench_limit.INFINITE


# ---- programs ----


def test_a_program_that_is_ended_leaves_no_process_behind():
    reading, writing = os.pipe()
    process = subprocess.Popen(
        ["sh", "-c", "sleep 100 & sleep 100"], start_new_session=True, pass_fds=[writing]
    )
    os.close(writing)
    limit = bench_limit.Limit(0.01)
    with pytest.raises(bench_limit.OutOfTime):
        bench_apps.waited(process, limit, "sleep")
    bench_apps.end(process)
    assert os.read(reading, 1) == b""  # nobody holds the other end any more
    os.close(reading)


# ---- progress ----


@pytest.mark.parametrize(
    ("count", "spent_s", "budget_s", "line"),
    [
        (0, 0, 20, "[....................] the slab, about 20 s left"),
        (1, 5, 20, "[#####...............] the slab: 1 round, about 15 s left"),
        (3, 30, 20, "[####################] the slab: 3 rounds"),
        (2, 3, 0, "[....................] the slab: 2 rounds"),
    ],
)
def test_a_bar_says_how_much_is_done_and_what_is_left(count, spent_s, budget_s, line):
    assert bench_run.bar("the slab", count, spent_s, budget_s) == line


def test_each_part_is_said_when_it_begins_and_once(bench):
    _, _, err = bench("micro", "--lines", "one,once")
    assert err.splitlines() == [
        "quire: measuring small programs, about 0 s",
        "quire: measuring memory that stays, about 18 s",
    ]
