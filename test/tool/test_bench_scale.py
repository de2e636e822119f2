# SPDX-License-Identifier: MIT
"""test_bench_scale - quire bench scale: which points, whose figures, what is called slower, and the drivers behind it."""

import argparse
import json
import subprocess

import pytest
import toolkit
from benchkit import bench  # noqa: F401  (a fixture)

import bench.mallocs as bench_mallocs
import bench.run as bench_run
import bench.scale as bench_scale
import cmd_bench


def rows_of(result, axis, part, allocator):
    """The rows of one curve."""
    return [
        r
        for r in result["scale"]["rows"]
        if (r["axis"], r["part"], r["allocator"]) == (axis, part, allocator)
    ]


def test_all_four_allocators_stand_over_threads_and_objects_and_the_per_cpu_one_over_cpus(bench):
    result = json.loads(bench("scale", "--json")[1])
    assert result["table"] == "scale"
    for axis, parts in (
        ("threads", ("arena", "slab", "percpu", "heap")),
        ("objects", ("arena", "slab", "percpu", "heap")),
        ("cpus", ("percpu",)),
    ):
        points = result["scale"]["points"][axis]
        for part in parts:
            for name in ("libc", "mimalloc", "jemalloc", bench_scale.OURS[part]):
                assert [r["at"] for r in rows_of(result, axis, part, name)] == points
        assert {r["part"] for r in result["scale"]["rows"] if r["axis"] == axis} == set(parts)


def test_the_drop_in_is_no_rival_of_arena_slab_and_pool(bench):
    result = json.loads(bench("scale", "--json")[1])
    parts = {r["part"] for r in result["scale"]["rows"] if r["allocator"] == bench_mallocs.OURS}
    assert parts == {"heap"}


@pytest.mark.parametrize(
    ("cpus", "threads"),
    [
        (1, [1, 2, 4, 8, 16]),
        (8, [1, 2, 4, 8, 16]),
        (12, [1, 2, 4, 8, 16, 24]),
        (32, [1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_threads_reach_sixteen_and_twice_the_cpus(monkeypatch, cpus, threads):
    monkeypatch.setattr(bench_scale.os, "sched_getaffinity", lambda pid: range(cpus))
    assert bench_scale.points_of(full=False)["threads"] == threads


def test_objects_reach_ten_million_in_full_where_memory_has_room_for_them(monkeypatch):
    monkeypatch.setattr(bench_scale, "most_objects", lambda: 10_000_000)
    assert bench_scale.points_of(full=True)["objects"][-1] == 10_000_000
    assert bench_scale.points_of(full=False)["objects"][-1] == 1_000_000
    monkeypatch.setattr(bench_scale, "most_objects", lambda: 200_000)
    assert bench_scale.points_of(full=True)["objects"][-1] == 100_000
    assert bench_scale.points_of(full=True)["cpus"] == [1, 2, 4, 8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize(
    ("part", "figure", "ns"),
    [
        ("arena", {"cpu_ns_per_query": 500, "objects": 100}, 5),
        ("slab", {"m_pairs_per_cpu_s": 50, "ns_per_pair": 20}, 20),
        ("percpu", {"alloc_ns": 6, "free_in_order_ns": 9}, 15),
        ("percpu", {"m_pairs_per_cpu_s": 100}, 10),
        ("heap", {"ns_per_pair": 12}, 12),
    ],
)
def test_every_figure_is_nanoseconds_of_one_object(part, figure, ns):
    assert bench_scale.nanoseconds(part, figure) == pytest.approx(ns)


def test_ratios_to_the_first_point_are_taken_within_a_round():
    samples = [
        {("threads", "heap", "libc", at): {"ns": ns * at} for at in (1, 2)} for ns in (10, 100, 1000)
    ]
    row = bench_scale.row(samples, "threads", "heap", "libc", 2, [1, 2])
    assert row["ratio_to_first"] == {"median": 2, "low": 2, "high": 2}


def test_the_text_has_a_chart_and_a_line_of_words_for_each_curve(bench):
    _, out, _ = bench("scale", "--lines", "cpus")
    assert "Per-CPU: objects with a copy for each CPU (malloc has one); ns over configured CPUs" in out
    assert "P quire-percpu  l libc" in out
    assert "quire-percpu: 256 configured CPUs take 1.00 [1.00 to 1.00] times as long a pair as 1" in out
    assert "Arena" not in out


def test_a_point_that_became_slower_than_the_baseline_is_status_1_and_only_that(
    bench, monkeypatch
):
    bench("scale", "--save", "base.json")
    assert bench("scale", "--baseline", "base.json")[0] == 0
    monkeypatch.setenv("FAKE_SLOW_LIVE", "100000")
    status, out, _ = bench("scale", "--baseline", "base.json")
    assert status == 1
    slower = [line for line in out.splitlines() if line.startswith("SLOWER")]
    assert slower == [
        "SLOWER    scale, heap, 100,000 objects: 0.50 of libc's time, it was 0.25"
    ]


def test_a_point_that_became_faster_than_a_doctored_baseline_is_no_regression(bench, tmp_path):
    bench("scale", "--save", "base.json")
    saved = json.loads((tmp_path / "base.json").read_text())
    for row in saved["scale"]["rows"]:
        row["ratio_to_libc"] = {k: v * 2 for k, v in row["ratio_to_libc"].items()}
    (tmp_path / "base.json").write_text(json.dumps(saved))
    assert bench("scale", "--baseline", "base.json")[0] == 0
    for row in saved["scale"]["rows"]:
        row["ratio_to_libc"] = {k: v / 4 for k, v in row["ratio_to_libc"].items()}
    (tmp_path / "base.json").write_text(json.dumps(saved))
    assert bench("scale", "--baseline", "base.json")[0] == 1


def test_a_peer_that_was_not_really_loaded_is_in_no_curve(bench, monkeypatch):
    monkeypatch.setenv("FAKE_UNLOADED", "jemalloc")
    result = json.loads(bench("scale", "--json")[1])
    assert result["refused"] == {"jemalloc": "preloaded, but malloc was libc's"}
    assert not any(r["allocator"] == "jemalloc" for r in result["scale"]["rows"])


# ---- the real drivers ----


@pytest.mark.long
def test_every_process_of_a_round_answers_with_its_allocator_at_its_point():
    cast = bench_run.Cast([])
    points = {"threads": [1, 4], "objects": [1000, 10_000], "cpus": [1, 64]}
    for key, name, argv in bench_scale.plan(cast, bench_scale.AXES, points, full=False):
        figure = bench_scale.one_figure(cast, key, name, argv)
        assert figure["allocator"] == name or name == bench_mallocs.OURS
        assert 0 < figure["ns"] < 100_000


def test_a_real_quick_run_ends_with_a_figure_at_every_point_and_is_its_own_baseline(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(cmd_bench.QUICK_S, "scale", 0)
    monkeypatch.setattr(bench_run, "ROUNDS_MIN", 1)
    parser = argparse.ArgumentParser()
    cmd_bench.add_arguments(parser)
    saved = str(tmp_path / "run.json")
    words = ["scale", "--quick", "--lines", "cpus", "--json", "--save", saved]
    assert cmd_bench.run(parser.parse_args(words)) == 0
    result = json.loads(capsys.readouterr().out)
    ours = rows_of(result, "cpus", "percpu", "quire-percpu")
    assert [r["at"] for r in ours] == [1, 4, 16, 64, 256]
    assert all(0 < r["ns"]["median"] < 10_000 for r in ours)
    assert cmd_bench.regressions(result, cmd_bench.load_baseline(saved, "scale")) == []


@pytest.mark.parametrize("charts", [2, 20, 2000])
def test_a_query_of_other_charts_has_as_many_objects(charts):
    words = ["--json", "--rounds", "1", "--warm-ups", "1", "--charts", str(charts)]
    done = subprocess.run(
        [toolkit.BUILD / "bench" / "query", *words, "--allocator", "arena"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["objects"] == 500 * charts


def test_a_quick_table_plans_less_than_a_minute_and_a_full_one_minutes():
    assert set(cmd_bench.QUICK_S) == set(cmd_bench.TABLES)
    assert all(planned < cmd_bench.QUICK_LIMIT_S - 5 for planned in cmd_bench.QUICK_S.values())
    assert cmd_bench.FULL_S > 2 * cmd_bench.QUICK_LIMIT_S
