# SPDX-License-Identifier: MIT
"""test_bench - quire bench: what it runs, what it refuses to believe, what it prints, and when it
says slower."""

import json
import os
import subprocess
import sys

import pytest
import toolkit
from benchkit import bench  # noqa: F401  (a fixture)

import bench.arena as bench_arena
import bench.chart as bench_chart
import bench.figures as bench_figures
import bench.percpu as bench_percpu
import bench.run as bench_run
import bench.slab as bench_slab
import cmd_bench

# ---- the arena's table ----


def test_the_arenas_table_has_every_allocator_at_one_and_eight_callers(bench):
    status, out, _ = bench()
    assert status == 0
    table = out[: out.index("Slab (Array Allocator)")]
    for name in ("libc", "mimalloc", "jemalloc", "quire-arena"):
        assert sum(line.startswith(name) for line in table.splitlines()) == 2
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


# ---- the slab's tables ----


def lines_of(out, name):
    """The lines of the slab's part that begin with a name."""
    part = out[out.index("Slab (Array Allocator)") : out.index("Per-CPU (")]
    return [line for line in part.splitlines() if line.startswith(name)]


def test_the_slabs_table_has_every_allocator_at_five_thread_counts_and_what_was_published(bench):
    _, out, _ = bench()
    speeds = {name: lines_of(out, name)[0].split()[-5:] for name in ("libc", "quire-slab")}
    assert speeds == {
        "libc": ["40.0"] * 5,
        "quire-slab": ["160.0", "160.0", "158.0", "156.0", "152.0"],
    }
    assert lines_of(out, "no allocator")[0].split()[-5:] == ["230.0"] * 5
    assert lines_of(out, "published")[0].split()[-5:] == ["12.3", "18.3", "21.0", "16.0", "13.3"]
    assert "16 threads: the slab does 1.01 [1.01 to 1.01] times the pairs of mimalloc" in out


def test_json_has_the_slabs_rows_ratios_curve_and_memory(bench):
    _, out, _ = bench("--json")
    table = json.loads(out)["array_allocator"]
    ours = {r["threads"]: r for r in table["rows"] if r["allocator"] == "quire-slab"}
    assert sorted(ours) == [1, 2, 4, 8, 16]
    assert ours[4]["m_pairs_per_cpu_s"]["median"] == 158
    assert ours[4]["ratio_to_libc"]["median"] == pytest.approx(158 / 40)
    assert (ours[4]["best_peer"], ours[4]["ratio_to_best_peer"]["median"]) == (
        "mimalloc",
        pytest.approx(158 / 150),
    )
    assert table["curve"]["ratio"]["median"] == pytest.approx(0.95)
    assert table["curve"]["falls"] is False
    full = {r["allocator"]: r for r in table["memory"]["full"]}
    assert full["quire-slab"]["overhead_bytes_per_element"]["median"] == 0.5
    assert full["libc"]["held_freed_bytes"]["median"] == 3 << 20
    burst = {r["allocator"] for r in table["memory"]["burst"]}
    assert burst == {"touch", "libc", "mimalloc", "jemalloc", "quire-slab"}


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ("160 160 160 160 144", "16 threads do 0.90 [0.90 to 0.90] of what 1 thread does"),
        ("160 160 160 160 144", "the slab's curve does not fall (bar: 0.9)"),
        ("160 160 160 160 143", "the slab's curve FALLS (bar: 0.9)"),
        ("100 160 160 160 143", "the slab's curve does not fall"),
    ],
)
def test_the_curve_falls_when_16_threads_do_less_than_nine_tenths_of_one(
    bench, monkeypatch, speeds, said
):
    monkeypatch.setenv("FAKE_SLAB", speeds)
    assert said in bench()[1]


def test_the_chart_puts_each_allocator_at_its_height_and_side_by_side_in_one_cell():
    series = {"quire-slab": [100, 100, 100, 90, 20], "libc": [20] * 5}
    drawn = bench_chart.chart(series, bench_slab.THREADS, "a chart")
    rows = {line.split("|")[0].strip(): line.split("|")[1] for line in drawn.splitlines()[1:-4]}
    columns = {
        letter: [
            [int(height) for height, row in rows.items() if letter in row[9 * c : 9 * c + 9]]
            for c in range(5)
        ]
        for letter in "Sl"
    }
    assert columns["S"] == [[100], [100], [100], [90], [20]]
    assert columns["l"] == [[20]] * 5
    assert rows["20"].split()[-1] == "Sl"
    assert drawn.splitlines()[-2].split() == ["S", "quire-slab", "l", "libc"]
    assert drawn.splitlines()[-1].strip() == "side by side: within one step, the highest first"


def test_a_burst_takes_at_most_a_quarter_of_the_free_memory(monkeypatch, tmp_path):
    assert bench_slab.burst_count_of(full=False) <= 50_000
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:  400000 kB\n")
    real = open
    monkeypatch.setattr("builtins.open", lambda p, *a, **k: real(meminfo, *a, **k))
    assert bench_slab.burst_count_of(full=True) == 100_000


# ---- the per-CPU tables ----


def percpu_part(out):
    return out[out.index("Per-CPU (") :]


def test_both_kernel_tables_stand_beside_libc_the_peers_and_the_area_map(bench):
    part = percpu_part(bench()[1])
    table = part[: part.index("1,000,000 objects of 4 bytes")]
    cells = {line[:14].strip(): line[14:].split() for line in table.splitlines()}
    assert cells["quire-percpu"][:3] == ["5", "/", "10"]
    assert cells["libc"][:3] == ["5", "/", "40"]
    assert cells["area map *"][:3] == ["5", "/", "900"]
    assert "mimalloc" in cells and "jemalloc" in cells
    assert cells["area map"][:3] == ["335", "/", "4960"]
    assert cells["bitmap"][:3] == ["725", "/", "70"]
    assert "4 bytes: 1.00 [1.00 to 1.00] of libc's time to allocate, 0.25 [0.25 to 0.25] to" in part


def test_fewer_objects_than_a_million_are_scaled_to_a_million(bench):
    rows = json.loads(bench("--json")[1])["percpu"]["rows"]
    (large,) = (r for r in rows if (r["allocator"], r["object_bytes"]) == ("quire-percpu", 1024))
    assert large["alloc_ms"]["median"] == 100  # 5 for the 50,000
    assert large["free_worst_ms"]["median"] == 40  # 2 for them
    assert large["worst_order"] == "random"


def test_the_contrived_alignment_case_says_how_far_the_area_map_came(bench):
    part = percpu_part(bench()[1])
    assert "50,000 in 0.0 s; all of them would take about 10 minutes" in part
    assert "all in 12.0 [12.0 to 12.0] ms: 1.20 [1.20 to 1.20] times as long" in part
    assert "area map 52 minutes, bitmap 14 s" in part


@pytest.mark.parametrize(
    ("ns", "share", "said"), [("30", "1.25", "does not grow"), ("31", "1.27", "GROWS")]
)
def test_cost_grows_when_the_most_objects_and_cpus_take_a_quarter_longer(
    bench, monkeypatch, ns, share, said
):
    monkeypatch.setenv("FAKE_512", ns)
    part = percpu_part(bench()[1])
    assert f"take {share} [{share} to {share}] times as long" in part
    assert f"cost {said} (bar: {bench_percpu.GROWTH_BAR})" in part
    assert "b 512 CPUs  a 2 CPUs  l libc" in part


@pytest.mark.parametrize("missing", ["", "1"])
def test_adding_is_that_with_restartable_sequences_where_there_are_any(bench, monkeypatch, missing):
    monkeypatch.setenv("FAKE_NO_RSEQ", missing)
    add = json.loads(bench("--json")[1])["percpu"]["add"]
    assert add["quire-percpu"] == {"median": 1, "low": 1, "high": 1}


# ---- what it refuses to believe ----


def test_a_peer_that_was_not_really_loaded_is_left_out_and_named(bench, monkeypatch):
    monkeypatch.setenv("FAKE_UNLOADED", "jemalloc")
    _, out, err = bench()
    assert not any(line.startswith("jemalloc") for line in out.splitlines())
    assert "left out: jemalloc: preloaded, but malloc was libc's" in out
    assert err.count("jemalloc is left out") == 1


def test_nothing_that_meddles_with_malloc_reaches_a_measured_process(monkeypatch):
    for name in bench_run.MEDDLING:
        monkeypatch.setenv(name, "mine")
    cast = bench_run.Cast([cmd_bench.peers.Peer("mimalloc", "/x.so")])
    assert not set(bench_run.MEDDLING) & set(cast.environment("libc"))
    assert cast.environment("mimalloc")["LD_PRELOAD"] == "/x.so"
    assert "MALLOC_CONF" not in cast.environment("mimalloc")


# ---- saved runs ----


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


def test_a_slab_that_became_slower_at_one_thread_count_is_status_1(bench, monkeypatch):
    bench("--save", "base.json")
    monkeypatch.setenv("FAKE_SLAB", "160 160 140 156 152")
    status, out, _ = bench("--baseline", "base.json")
    assert status == 1
    slower = [line for line in out.splitlines() if line.startswith("SLOWER")]
    assert slower == ["SLOWER    slab, threads 4: 3.50 times libc's pairs, it was 3.95"]


def test_a_slab_that_needs_more_memory_than_the_baseline_is_status_1(bench, monkeypatch):
    bench("--save", "base.json")
    monkeypatch.setenv("FAKE_SLAB_OVERHEAD", "0.75")
    status, out, _ = bench("--json", "--baseline", "base.json")
    assert status == 1
    assert json.loads(out)["regressions"] == [
        "slab: 0.75 bytes an element above its own, it was 0.50"
    ]


def doctored(saved, words, factor):
    """The same with an interval, or a number, at the end of a path made larger or smaller."""
    place = saved
    for word in words[:-1]:
        place = (
            next(r for r in place if r["allocator"] == word) if isinstance(place, list) else place[word]
        )
    value = place[words[-1]]
    place[words[-1]] = (
        {k: v * factor for k, v in value.items()} if isinstance(value, dict) else value * factor
    )


@pytest.mark.parametrize(
    ("words", "worse_than", "said"),
    [
        (("percpu", "aligned", "over_plain"), 0.5, "at multiples of 8"),
        (("percpu", "growth", "ratio"), 0.5, "most objects and CPUs"),
        (("percpu", "add", "ratio_to_local"), 0.5, "adding to a counter"),
        (("array_allocator", "memory", "burst", "quire-slab", "cold_cpu_ms_ratio_to_libc"), 0.5, "cold"),
        (("array_allocator", "memory", "burst", "quire-slab", "warm_cpu_ms_ratio_to_libc"), 0.5, "warm"),
        (("array_allocator", "memory", "burst", "quire-slab", "held_trimmed_mib"), -1, "MiB stay"),
        (("heap", "session", "libquire-malloc", "ratio_to_libc"), 2, "heap, requests"),
        (("heap", "session", "libquire-malloc", "test_bytes"), 0.5, "heap, memory after test"),
    ],
)
def test_a_baseline_doctored_to_be_better_is_status_1_and_one_to_be_worse_is_not(
    bench, tmp_path, words, worse_than, said
):
    bench("--save", "base.json")
    saved = json.loads((tmp_path / "base.json").read_text())
    doctored(saved, words, worse_than)
    (tmp_path / "base.json").write_text(json.dumps(saved))
    status, out, _ = bench("--baseline", "base.json")
    slower = [line for line in out.splitlines() if line.startswith("SLOWER")]
    assert status == 1 and len(slower) == 1 and said in slower[0]
    doctored(saved, words, 1 / worse_than**2 if worse_than > 0 else -9)
    (tmp_path / "base.json").write_text(json.dumps(saved))
    assert bench("--baseline", "base.json")[0] == 0


@pytest.mark.parametrize(
    ("part", "name"),
    [("array_allocator", "slab"), ("percpu", "per-CPU allocator"), ("heap", "heap")],
)
def test_a_baseline_from_before_a_part_compares_the_others_and_says_so(bench, tmp_path, part, name):
    bench("--save", "base.json")
    saved = json.loads((tmp_path / "base.json").read_text())
    del saved[part]
    (tmp_path / "base.json").write_text(json.dumps(saved))
    status, out, _ = bench("--baseline", "base.json")
    assert status == 0
    assert f"from before there was a {name}: that is not compared" in out


def test_freeing_per_cpu_objects_that_became_slower_is_status_1(bench, monkeypatch):
    bench("--save", "base.json")
    monkeypatch.setenv("FAKE_FREE_MS", "20")
    status, out, _ = bench("--baseline", "base.json")
    assert status == 1
    assert "of 4 bytes: to free them takes 0.50 of libc's time, it was 0.25" in out


def test_saving_overwrites_only_when_told_to(bench, tmp_path):
    (tmp_path / "mine.json").write_text("precious")
    with pytest.raises(cmd_bench.UsageError):
        bench("--save", "mine.json")
    assert (tmp_path / "mine.json").read_text() == "precious"
    assert bench("--save", "mine.json", "-f")[0] == 0


@pytest.mark.parametrize(
    "content",
    [
        None, "not json", "[]", "[" * 100_000, '{"schema": "quire.try/1"}', '{"schema": "quire.bench/1"}',
        '{"schema": "quire.bench/1", "rounds": 3, "rows": [{}], "machine": {"cpu_model": "x", "cpus_usable": 2}}',
        '{"schema": "quire.bench/1", "rounds": 3, "rows": [], "machine": "x"}',
    ],
    ids="absent text list deep try empty row machine".split(),
)  # fmt: skip
def test_a_baseline_that_is_none_is_refused_before_anything_runs(
    bench, tmp_path, monkeypatch, content
):
    monkeypatch.setattr(cmd_bench, "measure", lambda *a: pytest.fail("measured"))
    if content is not None:
        (tmp_path / "base.json").write_text(content)
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("--baseline", "base.json")
    assert "quire bench seeds --save before.json" in refused.value.text()  # never over what is there
    assert "Errno" not in refused.value.text()


# ---- what goes wrong ----


def test_an_unknown_table_is_refused_with_the_tables_there_are(bench):
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("sedes")
    assert "there are: seeds" in refused.value.text()


@pytest.mark.parametrize("driver", ["query", "slab", "percpu", "micro"])
def test_a_driver_that_fails_ends_with_its_reason(bench, monkeypatch, driver):
    monkeypatch.setenv("FAKE_CRASH", driver)
    with pytest.raises(bench_run.QuireError) as failed:
        bench()
    assert "out of memory" in failed.value.text()


def test_a_driver_that_hangs_is_ended_and_named(bench, monkeypatch):
    monkeypatch.setenv("FAKE_HANG", "1")
    monkeypatch.setattr(bench_run, "PROCESS_LIMIT_S", 0.5)
    with pytest.raises(bench_run.QuireError) as failed:
        bench()
    assert "the benchmark under libc did not end" in failed.value.text()


@pytest.mark.parametrize("driver", ["query", "slab", "percpu", "micro"])
def test_a_driver_that_is_not_built_is_named_before_anything_runs(
    bench, monkeypatch, tmp_path, driver
):
    (tmp_path / "build" / "bench" / driver).unlink()
    monkeypatch.setattr(bench_run.native, "directories", lambda: [str(tmp_path / "build" / "tools")])
    monkeypatch.setattr(bench_run, "process", lambda *a: pytest.fail("measured"))
    with pytest.raises(bench_run.EnvironmentLacks) as lacking:
        bench()
    assert f"the benchmark driver `{driver}` is not built" in lacking.value.text()


# ---- rounds, intervals, ratios ----


def test_rounds_go_on_until_the_next_would_not_fit(monkeypatch):
    now = iter(range(0, 1000, 1))  # a clock that advances a second a look
    monkeypatch.setattr(bench_run.time, "monotonic", lambda: next(now))
    few = len(bench_run.rounds(dict, 10, "a test"))
    many = len(bench_run.rounds(dict, 40, "a test"))
    assert 3 <= few < many
    assert len(bench_run.rounds(dict, 0, "a test")) == 3


@pytest.mark.parametrize(
    ("count", "low", "high"), [(3, 0, 2), (5, 0, 4), (6, 0, 5), (8, 0, 7), (9, 1, 7), (20, 5, 14)]
)
def test_the_interval_of_a_median_is_that_of_the_binomial_table(count, low, high):
    interval = bench_figures.with_interval(range(count))
    assert (interval["low"], interval["high"]) == (low, high)


def test_one_round_is_said_to_have_no_interval(bench):
    kinds = [bench_figures.interval_kind(rounds) for rounds in (1, 2, 5, 6)]
    assert kinds == ["one round: no interval", "whole range", "whole range", "95 % interval"]
    assert "[one round: no interval]" in bench("scale", "--lines", "cpus")[1]


def test_ratios_are_taken_within_a_round():
    def figure(cpu):
        return {
            "cpu_ns_per_query": cpu,
            "queries_per_s": 1 / cpu,
            "response_ns": {"min": 1, "avg": 1, "max": 1},
        }

    samples = [
        {("libc", 1): figure(c), ("quire-arena", 1): figure(c / 10)} for c in (10, 100, 1000)
    ]
    row = bench_arena.row(samples, "quire-arena", 1, ["libc", "quire-arena"])
    for share, want in (("cpu_ratio_to_libc", 0.1), ("throughput_ratio_to_libc", 10)):
        assert (row[share]["low"], row[share]["high"]) == (pytest.approx(want), pytest.approx(want))


def test_the_slabs_curve_is_taken_within_a_round():
    samples = [
        {("quire-slab", 1): {bench_slab.SPEED: s}, ("quire-slab", 16): {bench_slab.SPEED: 0.95 * s}}
        for s in (10, 100, 1000)
    ]
    share = bench_slab.curve(samples)["ratio"]
    assert (share["low"], share["high"]) == (pytest.approx(0.95), pytest.approx(0.95))


def test_the_command_is_listed_and_explains_itself():
    done = subprocess.run(
        [sys.executable, toolkit.ROOT / "tools" / "quire", "bench", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0
    assert "--baseline FILE" in done.stdout


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(bench, tmp_path, capsys):
    with pytest.raises(cmd_bench.EnvironmentLacks):
        bench("--save", str(tmp_path / "nowhere" / "run.json"))
    assert "measuring" not in capsys.readouterr().err
