# SPDX-License-Identifier: MIT
"""test_map - quire map: every page is there, its bits are its live slots, and the picture shows neither more nor less."""

import json

import live_kit
import pytest
import toolkit
from live_kit import Shown, wait_until
from toolkit import quire

import live.map as live_map
import live.page as live_page


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    if not (toolkit.BUILD / "libquire.so").exists():
        pytest.skip("libquire.so is not built")
    with Shown([live_kit.build(tmp_path_factory.mktemp("map"))]) as process:
        yield process.ready()


@pytest.fixture(scope="module")
def document(shown):
    page = wait_until(shown.page)
    return json.loads(live_page.must_answer(page, "map"))


def page(bits="", slots=64, slot_bytes=16, **more):
    """A page as the document has it."""
    live = int(bits[::-1] or "0", 16).bit_count()
    plain = {"kind": "slab", "name": "x", "id": 1, "address": "0x1000", "page_bytes": 4096}
    return {**plain, "slot_bytes": slot_bytes, "slots": slots, "live": live, "bits": bits, **more}


def test_the_bits_of_every_page_are_as_many_as_live_and_within_it(document):
    assert document["schema"] == "quire.map/1" and document["pages_left_out"] == 0
    for p in document["pages"]:
        bits = live_map.live_bits(p)
        assert bits.bit_count() == p["live"] <= p["slots"] and bits >> p["slots"] == 0
        assert p["slots"] * p["slot_bytes"] <= p["page_bytes"] and not p["bits"].endswith("0")


def test_the_sums_are_those_of_the_statistics(shown, document):
    stats = wait_until(shown.page).stats
    for kind, plural, live, pages in (("slab", "slabs", "live_elements", "pages"), ("heap", "heaps", "live_blocks", "pages")):
        ours = [p for p in document["pages"] if p["kind"] == kind]
        assert sum(p["live"] for p in ours) == stats["sums"][plural][live]
        assert len([p for p in ours if p["slots"] > 1]) == stats["sums"][plural][pages]
    assert len([p for p in document["pages"] if p["kind"] == "percpu"]) == stats["sums"]["percpu"]["chunks"]


def test_what_the_program_says_lives_lives_and_what_it_has_freed_does_not(shown, document):
    for kind, address, state in shown.said:
        if kind in ("slab", "heap"):
            at = int(address, 16)
            found = [p for p in document["pages"] if 0 <= at - int(p["address"], 16) < p["slots"] * p["slot_bytes"]]
            assert len(found) == 1 and found[0]["kind"] == kind
            slot = (at - int(found[0]["address"], 16)) // found[0]["slot_bytes"]
            assert live_map.live_bits(found[0]) >> slot & 1 == (state == "live")


def test_the_picture_has_a_line_for_each_object_and_its_sums(tmp_path, shown):
    done = quire(tmp_path, "map", shown.pid)
    assert done.returncode == 0, done.stderr
    assert "slab nodes (id 1):" in done.stdout and "2,000 of " in done.stdout
    assert "heap strings (id 2):" in done.stdout and "1 large blocks, 303 KB" in done.stdout
    assert "per-CPU pool (one CPU's copy) counters (id 1):" in done.stdout
    assert "signs: | ▁▂▃▄▅▆▇█|" in done.stdout


def test_a_terminal_that_knows_no_blocks_gets_ascii(tmp_path, shown):
    done = quire(tmp_path, "map", shown.pid, environment={"TERM": "dumb"})
    assert done.stdout.isascii() and "|" + live_map.ASCII + "|" in done.stdout


@pytest.mark.parametrize(("wanted", "kinds"), [("nodes", {"slab"}), ("heap:2", {"heap"}), ("heap:strings", {"heap"}), ("1", {"slab", "percpu"})])
def test_one_object_can_be_asked_for_by_name_or_number(document, wanted, kinds):
    assert {p["kind"] for p in document["pages"] if live_map.matches(p, wanted)} == kinds


def test_an_object_that_is_not_there_is_an_error_that_says_which_are(tmp_path, shown):
    done = quire(tmp_path, "map", shown.pid, "--object", "knots")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no object `knots` has a page" in done.stderr and "slab:nodes" in done.stderr


def test_json_is_the_document_alone_with_the_program(tmp_path, shown):
    done = quire(tmp_path, "map", shown.pid, "--json", "--object", "nodes")
    said = json.loads(done.stdout)
    assert said["program"] == shown.process.args[0] and {p["name"] for p in said["pages"]} == {"nodes"}


@pytest.mark.parametrize(
    ("part", "whole", "expected"), [(0, 8, " "), (8, 8, "█"), (1, 1000, "▁"), (999, 1000, "▇"), (4, 8, "▄"), (0, 0, " ")]
)
def test_a_sign_is_blank_only_for_nothing_and_full_only_for_all(part, whole, expected):
    assert live_map.sign(part, whole, live_map.BLOCKS) == expected


def test_cells_cover_every_slot_once():
    for slots in (1, 7, 48, 49, 100, 4096):
        for slot in (0, slots // 2, slots - 1):
            bits = f"{1 << slot:x}"[::-1]
            drawn = live_map.cells(page(bits, slots), live_map.CELLS, live_map.BLOCKS)
            assert len(drawn) == min(slots, live_map.CELLS) and sum(c != " " for c in drawn) == 1


@pytest.mark.parametrize(("part", "whole", "expected"), [(0, 9, "0 %"), (9, 9, "100 %"), (1, 100000, "1 %"), (99999, 100000, "99 %"), (0, 0, "0 %")])
def test_a_share_is_never_rounded_to_all_or_nothing(part, whole, expected):
    assert live_map.percent(part, whole) == expected


def test_many_pages_are_a_sign_each_and_all_brings_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    pages = [page("f" * 16, address=hex(4096 * i)) for i in range(40)]
    few = live_map.text({"pages": pages})
    assert any("40 pages of 16 B" in line for line in few) and any("█" * 40 in line for line in few)
    assert sum("0x" in line for line in live_map.text({"pages": pages}, in_full=True)) == 40


def test_a_slabs_page_of_one_slot_is_a_page_and_a_heaps_a_large_block():
    pages = [page("1", 1, 3000000, page_bytes=3000000), page("", 1, 3000000, page_bytes=3000000)]
    lines = live_map.text({"pages": pages})
    assert "in 2 pages, 1 of 2 slots live, 50 %" in lines[0] and not any("the largest" in x for x in lines)
    assert [x.split("|")[1] for x in lines[1:3]] in (["█", " "], ["#", " "])
    lines = live_map.text({"pages": [page("1", 1, 3000000, kind="heap", page_bytes=3000000)]})
    assert "in 0 pages" in lines[0] and "1 large blocks, 3.0 MB" in lines[1]


def test_names_can_do_nothing_to_a_terminal():
    assert "\x1b" not in "\n".join(live_map.text({"pages": [page("1", name="\x1b[2J")]}))


def test_a_process_with_nothing_says_so():
    assert live_map.text({"pages": []}) == ["no slab, per-CPU pool or heap has a page"]
