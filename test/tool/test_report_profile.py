# SPDX-License-Identifier: MIT
"""test_report_profile - `quire-analyse --profile`: its second pass says the same as the first, and its pictures' figures are right."""

import json
import random
import subprocess

import pytest
import reportkit
from toolkit import BUILD, build, native, quire

import report.flame as report_flame
import report.map as report_map

BOX_BYTES = 48


@pytest.fixture(scope="module")
def sites():
    return reportkit.profile()[0]


@pytest.fixture(scope="module")
def profile():
    return reportkit.profile()[1]


def own(profile):
    """The place of the boxes' site among the profile's."""
    return next(i for i, s in enumerate(profile["sites"]) if "make_box" in s["function"])


def test_stacks_and_sites_have_the_same_sums(sites, profile):
    assert sum(s[1] for s in profile["stacks"]) == sum(s["count"] for s in sites["sites"])
    assert sum(s[2] for s in profile["stacks"]) == sum(s["bytes"] for s in sites["sites"])
    assert sum(s[5] for s in profile["stacks"]) == sites["trace"]["peak_live_bytes"]
    assert sum(s[7] for s in profile["stacks"]) == sites["trace"]["live_bytes_at_end"]


def test_growing_blocks_count_what_reallocs_added(profile):
    grown = [s for s in profile["stacks"] if s[3]]
    assert sum(s[3] for s in grown) == reportkit.ROUNDS * (65536 - 16)


def test_sizes_by_lifetimes_hold_every_object_once(sites, profile):
    assert sum(c[2] for c in profile["size_lifetime"]) == sites["trace"]["allocations"]
    place = own(profile)
    cells = profile["sites"][place]["size_lifetime"]
    assert sum(c[2] for c in cells) == reportkit.ROUNDS * reportkit.BOXES
    assert {c[0] for c in cells} == {BOX_BYTES.bit_length() - 1}
    leaks = next(s for s in profile["sites"] if s["function"].startswith("leak"))
    assert [c[1] for c in leaks["size_lifetime"]] == [-1]
    assert leaks["size_lifetime"][0][2] == reportkit.LEAKS


def test_samples_follow_the_run_and_end_where_it_ends(sites, profile):
    samples = profile["samples"]
    assert 200 <= len(samples) <= 241
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in zip(samples, samples[1:]))
    facts = sites["trace"]
    assert samples[-1][0] == facts["allocations"] + facts["frees"] + facts["reallocs"]
    assert samples[-1][2] == facts["live_bytes_at_end"]
    assert max(s[3] for s in samples) == facts["peak_live_bytes"]
    assert max(s[5][own(profile)] for s in samples) > 0.9 * reportkit.BOXES * BOX_BYTES


def test_occupancy_holds_the_live_bytes_of_its_moment(sites, profile):
    for key, live in (
        ("occupancy_at_peak", sites["trace"]["peak_live_bytes"]),
        ("occupancy_at_end", sites["trace"]["live_bytes_at_end"]),
    ):
        found = profile[key]
        assert sum(b[0] for r in found["regions"] for b in r["blocks"]) == live
        assert all(b[0] <= found["block_bytes"] for r in found["regions"] for b in r["blocks"])


def test_a_block_is_its_pages_and_a_page_its_grains(profile):
    found = profile["occupancy_at_peak"]
    each = found["block_bytes"] // found["page_bytes"]
    assert found["page_bytes"] == 4096
    for region in found["regions"]:
        assert -(-len(region["pages"]) // each) == len(region["blocks"])
        for i, block in enumerate(region["blocks"]):
            assert sum(p[0] for p in region["pages"][i * each : (i + 1) * each]) == block[0]
        for live_bytes, _, grains in region["pages"]:
            touched = int(grains[::-1] or "0", 16).bit_count()
            assert touched <= live_bytes <= 16 * touched and not grains.endswith("0") and len(grains) <= 64


def test_a_flame_graph_is_as_wide_as_its_parts(profile):
    root = report_flame.tree(profile, 1)
    assert root.total == sum(s[1] for s in profile["stacks"])
    waiting = [root]
    while waiting:
        node = waiting.pop()
        assert sum(c.total for c in node.children.values()) <= node.total
        waiting += node.children.values()
    for node, depth, left, width in report_flame.place(root):
        assert 0 <= left and left + width <= 1 + 1e-9 and width > 0


def test_narrow_boxes_are_left_out_and_names_never_cross_their_box():
    function = [[f"function_{i}", "", 0, "m", False] for i in range(3000)]
    chance = random.Random(5)
    stacks = [[[i, 0], chance.choice([1, 1000]), 0, 0, 0, 0, 0, 0] for i in range(3000)]
    big = {"stacks": stacks, "locations": [[i] for i in range(3000)], "functions": function}
    boxes = report_flame.place(report_flame.tree({**big, "frames_max": 24}, 1))
    assert len(boxes) < 900
    assert report_flame.fit("a_long_function_name", 60) == "a_long_…"
    assert report_flame.fit("anything", 10) == ""


def test_a_map_shades_by_what_is_live():
    assert report_map.level(0) is None and report_map.level(0.01) == 0 and report_map.level(1) == 8
    region = {"address": "0x1000", "blocks": [[4096, 1], [0, 0], [40, 2]]}
    found = {"block_bytes": 4096, "left_out_bytes": 0, "regions": [region]}
    drawn = report_map.svg(found, "x")
    assert drawn.count('class="h8"') == 1 and drawn.count('class="void"') == 1
    assert report_map.summary(found)["empty_bytes"] == 4096
    assert report_map.svg({**found, "regions": []}, "x") is None


def test_a_profile_alone_prints_no_sites(tmp_path):
    done = native("quire-analyse", reportkit.trace(), "--profile", tmp_path / "p.json")
    assert done.returncode == 0 and done.stdout == ""
    done = native("quire-analyse", reportkit.trace(), "--profile", tmp_path / "no" / "p.json")
    assert done.returncode == 3 and "cannot write" in done.stderr


@pytest.mark.by_turns
def test_a_block_that_is_only_asked_for_costs_no_time_and_is_left_out(tmp_path):
    source = "#include <stdlib.h>\nint main(void) { char *p = malloc(3ul << 30); return p == 0 || p[0]; }\n"
    program = build(tmp_path, source)
    done = quire(tmp_path, "record", "-o", "x.qtr", "--", program)
    assert done.returncode == 0, done.stderr
    assert native("quire-analyse", tmp_path / "x.qtr", "--profile", tmp_path / "p.json").returncode == 0
    found = json.loads((tmp_path / "p.json").read_text())["occupancy_at_peak"]
    live = sum(b[0] for r in found["regions"] for b in r["blocks"])
    assert live == (256 << 20) and found["left_out_bytes"] == (3 << 30) - live
    assert sum(len(r["blocks"]) for r in found["regions"]) <= 2048 + 64
    pages = [p for r in found["regions"] for p in r["pages"]]
    assert len(pages) <= 32768 + 64 and found["page_bytes"] == 8192
    assert sum(p[0] for p in pages) == live and not any(p[2] for p in pages)


@pytest.mark.by_turns
def test_a_damaged_trace_gives_a_profile_or_a_reason_in_bounded_memory(tmp_path):
    whole, draw = reportkit.trace().read_bytes(), random.Random(11)
    for _ in range(15):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 4, 40])):
            damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        (tmp_path / "x.qtr").write_bytes(damaged)
        tool = BUILD / "tools" / "quire-analyse"
        words = f"ulimit -v 3000000; exec {tool} x.qtr --profile p.json"
        done = subprocess.run(["sh", "-c", words], cwd=tmp_path, capture_output=True, timeout=30)
        assert done.returncode in (0, 3), done.stderr
        if done.returncode == 0:
            json.loads((tmp_path / "p.json").read_text())
