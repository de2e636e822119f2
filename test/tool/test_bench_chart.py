# SPDX-License-Identifier: MIT
"""test_bench_chart - charts in text: whose letter stands where, also where several meet, in a narrow window, and over decades."""

import pytest
import toolkit  # noqa: F401  (makes the tool's modules importable)
from benchkit import bench  # noqa: F401  (a fixture)

import bench.chart as bench_chart
import bench.fold as bench_fold
import ui

SIX = {"quire-percpu": 18.2, "libc": 30, "mimalloc": 18.4, "jemalloc": 18.1, "tcmalloc": 18.6, "tbbmalloc": 18.0}


@pytest.fixture
def sixty(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")


def rows(drawn):
    """{level: text behind the axis}"""
    return {line.split("|")[0].strip(): line.split("|")[1] for line in drawn.splitlines() if "|" in line}


def test_allocators_of_one_first_letter_get_different_letters():
    letters = bench_chart.letters_of(["quire-slab", "snmalloc", "smalloc", "mimalloc", "libc"])
    assert len(set(letters.values())) == 5 and letters["quire-slab"] == "S"


def test_a_series_that_begins_with_a_number_gets_a_letter_that_is_no_figure():
    letters = bench_chart.letters_of(["2 CPUs", "64 CPUs", "libc", "allocator"])
    assert list(letters.values()) == ["a", "b", "l", "o"]


def test_letters_that_meet_and_the_legend_stand_in_the_order_of_their_figures():
    series = {"quire-slab": [10, 100], "libc": [101, 99], "mimalloc": [99, 50]}
    drawn = bench_chart.chart(series, [1, 2], "t")
    assert rows(drawn)["100"].split() == ["lm", "Sl"]
    assert drawn.splitlines()[-2].split() == ["S", "quire-slab", "l", "libc", "m", "mimalloc"]
    assert drawn.splitlines()[-1].strip() == "side by side: within one step, the highest first"


def test_letters_that_never_meet_need_no_words_on_that():
    drawn = bench_chart.chart({"quire-slab": [10, 12], "libc": [100, 99]}, [1, 2], "t")
    assert "side by side" not in drawn and bench_chart.MANY not in drawn


def test_in_a_narrow_window_a_cell_that_is_full_says_so_and_still_has_ours(sixty):
    series = {name: [value] * 9 for name, value in SIX.items()}
    columns = [str(2**n) for n in range(9)]
    drawn = bench_chart.chart(series, columns, "t")
    assert set(rows(drawn)["17.5"].split()) == {"tmP*"} and "* more" in drawn
    series["quire-percpu"] = [17.9] * 9  # the last of five
    assert set(rows(bench_chart.chart(series, columns, "t"))["17.5"].split()) == {"tmP*"}
    figures = bench_chart.figure_lines(series, columns)
    assert all(len(line) <= 60 for line in [*drawn.splitlines(), *figures])
    assert [line.split()[0] for line in figures] == ["l", "t", "m", "j", "b", "P"]
    assert figures[0].split() == ["l", *["30.0"] * 9]


def test_large_numbers_of_columns_are_written_short_where_they_do_not_fit(sixty):
    columns = [f"{10**n:,}" for n in range(3, 8)]
    drawn = bench_chart.chart({"libc": [1, 2, 3, 4, 5]}, columns, "t")
    assert "1k       10k     100k      1M       10M" in drawn
    with ui.columns(100):
        assert "1,000,000 10,000,000" in bench_chart.chart({"libc": [1, 2, 3, 4, 5]}, columns, "t")


def test_figures_of_different_decades_get_a_logarithmic_axis_that_says_so():
    drawn = bench_chart.chart({"quire-slab": [15, 400], "libc": [7, 150]}, [1, 2], "t")
    assert drawn.splitlines()[0] == "t (logarithmic)"
    found = rows(drawn)
    assert (found["15"].split(), found["7"].split()) == (["S"], ["l"])
    assert found["150"].split() == ["l"] and list(found)[0] in ("300", "500")
    assert list(found)[-1] == "7"


@pytest.mark.parametrize(
    ("values", "levels"),
    [([0.0, 0.0], 1), ([0.2, 3], 13), ([100, 20], 11), ([27, 2], 12), ([1e6, 1e6], 11), ([0.001, 1e6], 15)],
)
def test_an_axis_has_a_number_of_lines_that_fits_a_screen_and_each_figure_a_level(values, levels):
    found = bench_chart.levels_of(values)
    assert len(found) <= levels and found == sorted(set(found))
    drawn = bench_chart.chart({"libc": values}, [1, 2], "t")
    assert sum(row.count("l") for row in rows(drawn).values()) == 2


def test_a_width_that_was_asked_for_ends_with_its_block(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    with ui.columns(42):
        assert ui.width() == 42
    assert "COLUMNS" not in bench_chart.ui.os.environ


# ---- text that is too wide for the window ----

TABLE = """medians of 3 interleaved rounds, the malloc in it checked

                CPU ms  queries/s
libc              23.8       14.5   published
quire-arena        2.1      116.3
two threads: the arena takes 0.35 of mimalloc's CPU, that of the best peer-to-be
  12 |  S
     +-----------------------------------------------
x      a sentence that is longer than any column has room for"""


def test_tables_are_folded_by_columns_prose_at_spaces_and_charts_not_at_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "34")
    assert bench_fold.folded(TABLE).splitlines() == [
        "medians of 3 interleaved rounds,",
        "  the malloc in it checked",
        "",
        "                CPU ms  queries/s",
        "libc              23.8       14.5",
        "quire-arena        2.1      116.3",
        "libc          published",
        "two threads: the arena takes 0.35",
        "  of mimalloc's CPU, that of the",
        "  best peer-to-be",
        "  12 |  S",
        "     +-----------------------------------------------",
        "x      a sentence that is longer",
        "  than any column has room for",
    ]


def test_a_file_has_no_width_and_what_fits_stays_as_it_is(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert bench_fold.folded(TABLE * 9) == TABLE * 9
    monkeypatch.setenv("COLUMNS", "100")
    assert bench_fold.folded(TABLE) == TABLE


@pytest.mark.parametrize("table", ["seeds", "scale"])
def test_every_table_fits_a_window_of_sixty_columns(bench, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = bench(table)
    assert [line for line in out.splitlines() if len(line) > 60] == []


@pytest.mark.parametrize("columns", [40, 80])
def test_help_texts_are_filled_to_the_window_and_commands_in_them_stay_lines(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = "One sentence that is\nbroken somewhere for no reason at all, as in a file.\n  quire run -- PROGRAM\nMore."
    lines = ui.reflowed(text).splitlines()
    assert all(len(line) < columns for line in lines)
    assert lines[-2:] == ["  quire run -- PROGRAM", "More."] and len(lines) == {40: 4, 80: 3}[columns]
