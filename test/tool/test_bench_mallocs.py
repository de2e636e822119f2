# SPDX-License-Identifier: MIT
"""test_bench_mallocs - quire bench: the heap's table, and mallocs side by side in small programs."""

import json

import pytest
from benchkit import bench  # noqa: F401  (a fixture)

import bench.mallocs as bench_mallocs
import cmd_bench


def test_the_heaps_table_has_the_session_of_every_malloc_beside_what_was_published(bench):
    _, out, _ = bench()
    part = out[out.index("Heap (BiBOP)") :]
    for words in ("libc", "mimalloc", "jemalloc", "drop-in", "18.93", "giving back", "never"):
        assert words in part
    assert (
        "interpreter: the drop-in is 4.00 [4.00 to 4.00] times as fast as libc (bar: 2.0)" in part
    )


def test_json_has_the_heaps_requests_and_memory_with_units(bench):
    heap = json.loads(bench("--json")[1])["heap"]
    row = {r["allocator"]: r for r in heap["session"]}["libquire-malloc"]
    assert row["given_back_bytes"] == 1048576 and row["requests_per_cpu_s"]["median"] == 900
    assert [r["line"] for r in heap["traces"] if r["allocator"] == "libc"] == [
        "interpreter",
        "sweeps",
    ]


def test_an_interpreter_that_became_slower_on_the_heap_is_status_1(bench, monkeypatch):
    bench("--save", "base.json")
    monkeypatch.setenv("FAKE_HEAP", "80")
    status, out, _ = bench("--baseline", "base.json")
    assert status == 1
    assert "heap, interpreter: 2.50 times as fast as libc, it was 4.00" in out


def test_small_programs_have_a_line_each_with_ratios_means_and_what_stays(bench):
    status, out, _ = bench("micro", "--lines", "one,producer/8,lists,freed")
    assert status == 0
    for line in ("one", "producer/8", "lists", "mean of micro"):
        assert f"\n{line}" in out
    assert "\ntwo decays after freeing everything" in out
    assert "The drop-in holds every bar." in out
    assert "\nrealloc" not in out


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FAKE_HEAP", "250", "one, CPU: 1.25, bar 1.10"),
        ("FAKE_HEAP", "160", "micro, mean CPU: 0.80, bar 0.70"),
        ("FAKE_HELD", "52428800", "two decays after freeing everything: 50.00, bar 4.00"),
    ],
)
def test_a_bar_that_the_drop_in_misses_is_named_with_both_figures(
    bench, monkeypatch, variable, value, said
):
    monkeypatch.setenv(variable, value)
    assert said in bench("micro", "--lines", "one,freed")[1]


def test_the_shapes_have_means_and_bars_of_their_own(bench, monkeypatch):
    _, out, _ = bench("micro", "--lines", "window,relay/8")
    assert "\nof shapes" in out and "holds every bar" in out
    monkeypatch.setenv("FAKE_HEAP", "150")
    _, out, _ = bench("micro", "--lines", "window,relay/8")
    assert "shapes, mean CPU: 0.75, bar 0.62" in out
    assert "relay/8, CPU over the best peer's: 1.50, bar 1.15" in out
    assert "of shapes" not in bench("micro", "--lines", "one")[1]


def test_a_drop_in_that_is_not_really_loaded_is_left_out(bench, monkeypatch):
    monkeypatch.setenv("FAKE_UNLOADED", "libquire-malloc")
    _, out, err = bench("micro", "--lines", "one")
    assert "libquire-malloc is left out: preloaded, but malloc was libc's" in err
    assert "drop-in holds" not in out


def test_a_small_program_that_became_slower_than_the_baseline_is_status_1(bench, monkeypatch):
    bench("micro", "--lines", "one", "--save", "base.json")
    monkeypatch.setenv("FAKE_HEAP", "70")
    status, out, _ = bench("micro", "--lines", "one", "--baseline", "base.json")
    assert status == 1
    assert "micro one: 0.35 of libc's CPU, it was 0.25" in out


def test_memory_that_stays_and_grew_is_status_1_and_a_little_more_is_not(bench, monkeypatch):
    monkeypatch.setenv("FAKE_HELD", "3000000")
    bench("micro", "--lines", "freed,drift", "--save", "base.json")
    monkeypatch.setenv("FAKE_HELD", "3500000")
    assert bench("micro", "--lines", "freed,drift", "--baseline", "base.json")[0] == 0
    monkeypatch.setenv("FAKE_HELD", "9000000")
    status, out, _ = bench("micro", "--lines", "freed,drift", "--baseline", "base.json")
    assert status == 1
    assert "micro, memory two decays after freeing everything: 8.58 MiB, it was 2.86" in out
    assert out.count("SLOWER") == 1


def test_a_baseline_of_another_table_is_refused(bench):
    bench("micro", "--lines", "one", "--save", "base.json")
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("--baseline", "base.json")
    assert "quire bench micro --baseline base.json" in refused.value.text()


def test_an_unknown_line_is_refused_with_the_lines_there_are(bench):
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench("micro", "--lines", "won")
    assert "one, jq, python3" in refused.value.text()


def test_lines_belong_to_micro_and_apps_alone(bench):
    with pytest.raises(cmd_bench.UsageError):
        bench("seeds", "--lines", "one")


@pytest.mark.parametrize("table", ["seeds", "scale"])
def test_secure_belongs_to_mallocs_alone(bench, table):
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench(table, "--secure")
    assert "micro | apps" in refused.value.text()


def test_secure_is_the_same_library_told_so_and_is_no_peer(bench, monkeypatch):
    monkeypatch.setenv("QUIRE_CONF", "passthrough:1")
    _, out, _ = bench("micro", "--lines", "one", "--secure")
    assert " drop-in" in out and " secure" in out
    cast = bench_mallocs.cast(secure=True)
    assert cast.environment("quire-secure")["QUIRE_CONF"] == "secure:1"
    assert "QUIRE_CONF" not in cast.environment("libquire-malloc")
    assert bench_mallocs.best_peer({"libc": {"cpu": 1}, "quire-secure": {"cpu": 0.1}}) is None


# ---- means, and what is worst ----


def row(line, name, cpu, rss):
    """A row as far as the means read it."""
    return {
        "line": line,
        "allocator": name,
        "cpu_ratio_to_libc": {"median": cpu},
        "rss_ratio_to_libc": {"median": rss},
    }


def test_a_mean_is_geometric_and_over_the_lines_of_its_set_alone():
    table = [row("a", "x", 0.5, 1.0), row("b", "x", 2.0, 4.0), row("other", "x", 100, 100)]
    found = bench_mallocs.means(table, ["a", "b"])
    assert found["x"]["lines"] == 2
    assert found["x"]["cpu"] == pytest.approx(1.0) and found["x"]["rss"] == pytest.approx(2.0)


def test_the_best_peer_is_neither_libc_nor_ours():
    means = {
        n: {"cpu": c} for n, c in (("libc", 1), ("libquire-malloc", 0.1), ("p", 0.9), ("q", 0.8))
    }
    assert bench_mallocs.best_peer(means) == "q"
    assert bench_mallocs.best_peer({"libc": {"cpu": 1}}) is None


def test_what_is_worst_comes_first():
    table = [row("a", "libquire-malloc", 0.5, 1.2), row("b", "libquire-malloc", 1.5, 1.0)]
    assert bench_mallocs.worst(table, 2) == [(1.5, "b", "cpu"), (1.2, "a", "rss")]


def test_a_drop_in_that_is_not_built_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(bench_mallocs.native, "library", lambda name: None)
    cast = bench_mallocs.cast()
    assert "libquire-malloc" not in cast.names()
    assert "cmake --build" in cast.refused["libquire-malloc"]
