# SPDX-License-Identifier: MIT
"""test_bench_more - quire bench seeds: the smaller tables, what they compare with, and when one is called worse."""

import json
import tempfile

import pytest
from benchkit import bench  # noqa: F401  (a fixture)

import bench.more as bench_more
import bench.run as bench_run


def rows_of(result, table):
    """{(line, allocator): row} of one table."""
    return {
        (r["line"], r["allocator"]): r for r in result["more"]["rows"] if r["table"] == table
    }


@pytest.fixture
def result(bench):
    return json.loads(bench("--json")[1])


def test_every_smaller_table_is_there_with_ours_and_in_the_order_of_the_systems(result):
    seen = list(dict.fromkeys(r["table"] for r in result["more"]["rows"]))
    assert seen == list(bench_more.TABLES)
    for table in bench_more.TABLES:
        assert any(name.startswith("quire-") for _, name in rows_of(result, table))


def test_frees_by_another_thread_stand_beside_libc_and_each_peer(result):
    rows = rows_of(result, "slab_remote")
    assert {name for _, name in rows} == {"libc", "mimalloc", "jemalloc", "quire-slab"}
    assert {line for line, _ in rows} == set(bench_more.REMOTE_LINES)
    assert rows["8 threads", "quire-slab"]["ratio_to_base"]["median"] == 2


def test_a_slab_with_the_defragmenter_and_one_in_files_are_ours_under_names_of_their_own(result):
    held = rows_of(result, "slab_fragment")
    assert held["right away", bench_more.DEFRAG]["ratio_to_base"]["median"] == pytest.approx(0.2)
    assert set(rows_of(result, "slab_files")) == {
        ("1 thread", bench_more.SLAB),
        ("1 thread", bench_more.FILES),
    }


def test_memory_of_copies_is_in_times_what_was_written(result):
    (row,) = rows_of(result, "percpu_memory").values()
    assert row["value"]["median"] == pytest.approx(1.1) and "ratio_to_base" not in row


def test_the_text_has_what_was_published_below_each_table(bench):
    _, out, _ = bench()
    for table in bench_more.TABLES.values():
        assert f"{table.title}; {table.unit}" in out
        assert f"\n  {table.published}" in out
    assert "right away: quire-slab defrag 0.20 [0.20 to 0.20] times libc's" in out


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("variable", "worse", "better", "said"),
    [
        ("FAKE_REMOTE", "80", "120", "quire-slab 1.60 times libc's, it was 2.00"),
        ("FAKE_FRAGMENT", "3", "1", "quire-slab 0.30 times libc's, it was 0.20"),
        ("FAKE_ARENA_OPERATION", "6", "4", "alloc 64: quire-arena 6.00 ns, it was 5.00"),
    ],
)
def test_what_became_worse_is_status_1_and_what_became_better_is_not(
    bench, monkeypatch, variable, worse, better, said
):
    bench("--save", "base.json")
    monkeypatch.setenv(variable, better)
    assert bench("--baseline", "base.json")[0] == 0
    monkeypatch.setenv(variable, worse)
    status, out, _ = bench("--baseline", "base.json")
    assert status == 1 and said in out


@pytest.mark.parametrize(
    ("now", "was", "less", "expected"),
    [
        ((1.15, 1.2), (0.9, 1.0), True, True),
        ((1.05, 1.2), (0.9, 1.0), True, False),  # within what is left between two quiet runs
        ((0.9, 1.2), (0.9, 1.0), True, False),
        ((0.5, 0.8), (0.9, 1.0), False, True),
        ((0.5, 0.85), (0.9, 1.0), False, False),
        ((1.5, 1.6), (0.9, 1.0), False, False),
    ],
)
def test_worse_is_wholly_beyond_the_interval_and_what_is_in_doubt(now, was, less, expected):
    def interval(ends):
        return {"low": ends[0], "high": ends[1]}

    assert bench_more.worse(interval(now), interval(was), less) is expected


def test_a_peer_that_was_not_really_loaded_is_in_none_of_them(bench, monkeypatch):
    monkeypatch.setenv("FAKE_UNLOADED", "jemalloc")
    found = json.loads(bench("--json")[1])["more"]["rows"]
    assert found and not any(r["allocator"] == "jemalloc" for r in found)


# ---- the real drivers ----


@pytest.mark.long
def test_every_probe_of_the_real_drivers_has_every_figure_of_its_lines():
    cast = bench_run.Cast([])
    with tempfile.TemporaryDirectory() as folder:
        wanted = list(bench_more.probes(cast, False, folder))
        figures = bench_more.one_round(cast, wanted)
    expected = {(p.table, line, p.allocator) for p in wanted for line in p.picks}
    assert set(figures) == expected and not cast.refused
    assert all(figure["value"] > 0 for figure in figures.values())
    (copies,) = (f["value"] for key, f in figures.items() if key[0] == "percpu_memory")
    assert copies < 2  # 64 CPUs, of which 2 write
