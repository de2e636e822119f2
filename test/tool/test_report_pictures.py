# SPDX-License-Identifier: MIT
"""test_report_pictures - charts: text stays text, colours follow the reader, the same figures give the same bytes; pictures as files; the page of a map."""

import json
import re
import xml.etree.ElementTree as xml

import pytest
import reportkit
from toolkit import quire

import report.plots as plots
import report.figures as report_figures
import report.page as report_page
import report.rss as report_rss
import report.slots as report_slots

SVG = "{http://www.w3.org/2000/svg}"


def chart(name="c", number=3):
    """A line chart with an interval."""
    xs = [1, 2, 4, 8]
    series = [
        plots.Series(f"<series {i}>", xs, [i + x for x in xs], [i] * 4, [i + 9] * 4)
        for i in range(number)
    ]
    return plots.lines(series, plots.Axes(name, "A <title>", x="threads", y="ns", x_log=True))


def words(svg):
    """All text of a drawing."""
    return {e.text for e in xml.fromstring(svg).iter(f"{SVG}text")}


def test_text_stays_text_and_is_escaped():
    found = words(chart().inline())
    assert {"threads", "ns", "<series 0>", "8"} <= found
    assert xml.fromstring(chart().inline()).find(f"{SVG}title").text == "A <title>"


def test_the_same_figures_give_the_same_bytes():
    assert chart().inline() == chart().inline()


def test_no_stand_in_colour_is_left_and_no_colour_is_missing():
    for theme in (None, "light", "dark"):
        text = chart().file(theme)
        assert not re.search("#0a0b[0-9a-f]{2}", text)
        assert ("prefers-color-scheme" in text) == (theme is None)
        xml.fromstring(text)
    used = set(re.findall(r"var\(--q-(\w+)\)", chart().inline()))
    assert {"ink", "soft", "grid", "s0", "s1", "s2"} <= used <= set(plots.LIGHT)
    assert set(plots.LIGHT) == set(plots.DARK)


def test_two_charts_in_one_page_share_no_identifier():
    ids = [set(re.findall(r' id="([^"]+)"', chart(name).inline())) for name in ("a", "b")]
    assert ids[0] and ids[0].isdisjoint(ids[1])
    for name, found in zip("ab", ids):
        text = chart(name).inline()
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) == found


def test_bars_say_their_figures_and_shorten_long_names():
    rows = [plots.Bar("a" * 60, 12.0, 10.0, 14.0), plots.Bar("b", -3.0)]
    found = words(plots.bars(rows, plots.Axes("b", x="ns", x_form="plain")).inline())
    assert {"12", "-3", "a" * 31 + "…"} <= found


def test_heat_maps_draw_what_is_there_and_nothing_else():
    heat = plots.Heat(["x", "y"], ["1", "2"], [[5, None], [0, 500]])
    text = plots.heat(heat, plots.Axes("h")).inline()
    assert len(re.findall(r"var\(--q-h\d\)", text)) == 2 and "var(--q-h8)" in text


def test_sizes_and_lifetimes_have_words():
    assert [report_figures.size_word(v) for v in (0, 9, 10, 20, 35)] == ["1 B", "512 B", "1 K", "1 M", "32 G"]
    assert [report_figures.power(v) for v in (0, 10, 20, 30)] == ["1 ns", "1 µs", "1 ms", "1 s"]


def test_resident_memory_is_the_sum_of_its_parts():
    figures = {"largest": [9, 1000, 1500], "mallinfo": {"used_bytes": 1100, "mapped_bytes": 0, "free_bytes": 300}}
    explained = report_rss.libc(figures)
    assert {p.word: p.bytes for p in explained.parts} == {
        "live": 1000,
        "rounding": 100,
        "page slack": 300,
        "other": 100,
    }
    figures["largest"][2] = 1250
    assert report_rss.libc(figures).absent_bytes == 150


def test_parts_of_every_allocator_make_its_resident_memory():
    timelines = reportkit.raw(reportkit.trace_page())["timelines"]
    for one in report_rss.explain(timelines):
        assert sum(p.bytes for p in one.parts) - one.absent_bytes == one.rss_bytes
        assert one.parts[0].word == "live"
    assert {"rounding", "metadata"} <= {
        p.word for one in report_rss.explain(timelines) if one.name == "drop-in" for p in one.parts
    }


@pytest.mark.long
def test_pictures_as_files_stand_by_themselves(tmp_path):
    done = quire(tmp_path, "report", reportkit.trace(), "--no-replay", "--svg", "out")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"live.svg", "heat.svg", "flame-count.svg", "map-peak.svg"} <= names
    for path in (tmp_path / "out").iterdir():
        root = xml.fromstring(path.read_text())
        assert root.tag == f"{SVG}svg" and root.find(f"{SVG}style") is not None
    again = quire(tmp_path, "report", reportkit.trace(), "--no-replay", "--svg", "out")
    assert again.returncode == 2 and "exists already" in again.stderr


@pytest.fixture
def mapped():
    page = {"kind": "slab", "name": "<b>", "id": 1, "address": "0x1000", "page_bytes": 4096}
    page.update(slot_bytes=64, slots=8, live=5, bits="f1")
    large = {**page, "kind": "heap", "slots": 1, "live": 1, "bits": "1", "name": "big"}
    return {
        "schema": "quire.map/1",
        "process": 7,
        "program": "</script>",
        "pages": [page, large],
        "pages_left_out": 3,
    }


def test_a_map_makes_a_page_of_its_slots(tmp_path, mapped):
    (tmp_path / "m.json").write_text(json.dumps(mapped))
    done = quire(tmp_path, "report", "m.json")
    assert done.returncode == 0 and done.stdout == "report: m.html\n", done.stderr
    text = (tmp_path / "m.html").read_text()
    assert "slab <code>&lt;b&gt;</code>" in text and "5 of 8 slots live" in text
    assert "1 large block," in text and "Left out, for want of room: 3 pages" in text
    assert reportkit.raw(tmp_path / "m.html") == mapped


def test_each_slot_of_a_small_page_is_a_square(mapped):
    assert report_slots.shares(mapped["pages"][0]) == [1, 1, 1, 1, 1, 0, 0, 0]
    drawn = report_slots.svg(report_slots.numbered(mapped["pages"][:1]))
    full, void = (re.search(f'class="{c}" d="([^"]*)"', drawn).group(1) for c in ("h8", "void"))
    assert full.count("M") == 5 and void.count("M") == 3


def test_many_pages_are_a_square_each(mapped):
    many = [{**mapped["pages"][0], "live": n % 9} for n in range(100)]
    drawn = report_slots.svg(report_slots.numbered(many))
    assert drawn.count("M") == 100 and "100 pages of 64 B" in drawn


def test_a_replay_of_which_no_sample_met_a_live_block_is_still_explained():
    nothing = {"largest": [5, 0, 0], "timeline": [[5, 0, 0]]}
    found = report_rss.explain({"libc": nothing, "jemalloc": {**nothing, "largest": [5, 0, 4096]}})
    said = report_page.rss_sentence(found)
    assert said == "Held beyond the 0 B that live, least first: libc 0 B, jemalloc 4.1 KB."
    assert [row["parts"] for row in report_page.rss_rows(found)][0] == []
