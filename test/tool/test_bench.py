# SPDX-License-Identifier: MIT
"""test_bench - quire bench: what it runs, what it refuses to believe, what it prints, and when it
says slower."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "quire"))

import bench_figures  # noqa: E402
import cmd_bench  # noqa: E402

DRIVER = """#!{python}
import json, os, sys, time
words = sys.argv
callers = int(words[words.index("--callers") + 1])
kind = words[words.index("--allocator") + 1]
library = os.environ.get("LD_PRELOAD", "")
names = [n for n in ("mimalloc", "jemalloc") if n in library]
name = "quire-arena" if kind == "arena" else (names or ["libc"])[0]
if name == os.environ.get("FAKE_UNLOADED"):
    name = "libc"
arena_ns = float(os.environ.get("FAKE_ARENA_NS", "2e6"))
cost_ns = {{"libc": 20e6, "mimalloc": 6e6, "jemalloc": 11e6, "quire-arena": arena_ns}}[name]
if os.environ.get("FAKE_HANG"):
    time.sleep(60)
if os.environ.get("FAKE_CRASH"):
    sys.exit("out of memory")
print(json.dumps({{"allocator": name, "callers": callers, "queries": 1,
    "cpu_ns_per_query": cost_ns * callers ** 0.5, "wall_ns_per_query": cost_ns,
    "queries_per_s": 1e9 / cost_ns, "response_ns": {{"min": 1e6, "avg": 2e6, "max": 3e6}}}}))
"""


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """bench(arguments...) runs the command in this process over a driver that answers at once;
    (status, stdout, stderr)."""
    driver = tmp_path / "build" / "bench" / "query"
    driver.parent.mkdir(parents=True)
    driver.write_text(DRIVER.format(python=sys.executable))
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("QUIRE_BUILD_DIR", str(tmp_path / "build"))
    measure = cmd_bench.measure
    monkeypatch.setattr(cmd_bench, "measure", lambda budget_s: measure(budget_s=0))
    monkeypatch.setattr(
        cmd_bench.peers,
        "installed",
        lambda: [
            cmd_bench.peers.Peer(n, f"/nonexistent/lib{n}.so.2") for n in ("mimalloc", "jemalloc")
        ],
    )
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        import argparse

        parser = argparse.ArgumentParser()
        cmd_bench.add_arguments(parser)
        status = cmd_bench.run(parser.parse_args(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_the_table_has_every_allocator_at_one_and_eight_callers(bench):
    status, out, _ = bench()
    assert status == 0
    for name in ("libc", "mimalloc", "jemalloc", "quire-arena"):
        assert sum(line.startswith(name) for line in out.splitlines()) == 2
    assert "322.35 s" in out and "39.35 s" in out and "published with the One Way Allocator" in out


def test_json_is_alone_on_stdout_and_has_units_in_its_keys(bench):
    _, out, _ = bench("--json")
    result = json.loads(out)
    assert result["schema"] == "quire.bench/1"
    ours = next(r for r in result["rows"] if (r["allocator"], r["callers"]) == ("quire-arena", 1))
    assert ours["cpu_ns_per_query"]["median"] == 2e6
    assert ours["cpu_ratio_to_libc"]["median"] == pytest.approx(0.1)
    assert (ours["best_peer"], ours["cpu_ratio_to_best_peer"]["median"]) == (
        "mimalloc",
        pytest.approx(1 / 3),
    )
    assert result["rounds"] >= 3


def test_a_peer_that_was_not_really_loaded_is_left_out_and_named(bench, monkeypatch):
    monkeypatch.setenv("FAKE_UNLOADED", "jemalloc")
    _, out, err = bench()
    assert not any(line.startswith("jemalloc") for line in out.splitlines())
    assert "left out: jemalloc: preloaded, but malloc was libc's" in out
    assert "jemalloc is left out" in err


def test_a_saved_run_is_a_baseline_and_the_same_speed_is_no_regression(bench):
    assert bench("--save", "base.json")[0] == 0
    status, out, _ = bench("--baseline", "base.json")
    assert status == 0
    assert "no slower than the baseline" in out


def test_an_arena_that_became_slower_than_the_baseline_is_status_1(bench, monkeypatch):
    bench("--save", "base.json")
    monkeypatch.setenv("FAKE_ARENA_NS", "3e6")
    status, out, _ = bench("--baseline", "base.json")
    assert status == 1
    assert "SLOWER    1 callers: 0.150 of libc's CPU, it was 0.100" in out


def test_saving_overwrites_only_when_told_to(bench, tmp_path):
    (tmp_path / "mine.json").write_text("precious")
    with pytest.raises(cmd_bench.UsageError):
        bench("--save", "mine.json")
    assert (tmp_path / "mine.json").read_text() == "precious"
    assert bench("--save", "mine.json", "-f")[0] == 0


@pytest.mark.parametrize("content", [None, "not json", "[]", '{"schema": "quire.try/1"}'])
def test_a_baseline_that_is_none_is_refused_before_anything_runs(
    bench, tmp_path, monkeypatch, content
):
    monkeypatch.setattr(cmd_bench, "measure", lambda budget_s: pytest.fail("measured"))
    if content is not None:
        (tmp_path / "base.json").write_text(content)
    with pytest.raises(cmd_bench.UsageError):
        bench("--baseline", "base.json")


def test_an_unknown_table_is_refused_with_the_tables_there_are(bench):
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("sedes")
    assert "there are: seeds" in refused.value.text()


def test_a_driver_that_fails_ends_with_its_reason(bench, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "1")
    with pytest.raises(cmd_bench.QuireError) as failed:
        bench()
    assert "out of memory" in failed.value.text()


def test_a_driver_that_hangs_is_ended_and_named(bench, monkeypatch):
    monkeypatch.setenv("FAKE_HANG", "1")
    monkeypatch.setattr(cmd_bench, "PROCESS_LIMIT_S", 0.5)
    with pytest.raises(cmd_bench.QuireError) as failed:
        bench()
    assert "the benchmark under libc did not end" in failed.value.text()


@pytest.mark.parametrize(
    ("count", "low", "high"), [(3, 0, 2), (5, 0, 4), (6, 0, 5), (8, 0, 7), (9, 1, 7), (20, 5, 14)]
)
def test_the_interval_of_a_median_is_that_of_the_binomial_table(count, low, high):
    interval = bench_figures.with_interval(range(count))
    assert (interval["low"], interval["high"]) == (low, high)


def test_ratios_are_taken_within_a_round():
    def figure(cpu):
        return {
            "cpu_ns_per_query": cpu,
            "queries_per_s": 1,
            "response_ns": {"min": 1, "avg": 1, "max": 1},
        }

    samples = [
        {("libc", 1): figure(c), ("quire-arena", 1): figure(c / 10)} for c in (10, 100, 1000)
    ]
    ratio = bench_figures.row(samples, "quire-arena", 1, ["libc", "quire-arena"])[
        "cpu_ratio_to_libc"
    ]
    assert (ratio["low"], ratio["high"]) == (pytest.approx(0.1), pytest.approx(0.1))


def test_the_command_is_listed_and_explains_itself():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "quire", "bench", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0
    assert "--baseline FILE" in done.stdout
