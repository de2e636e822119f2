# SPDX-License-Identifier: MIT
"""test_report_exports - pprof, folded stacks, speedscope and CSV read back: each has what the trace has, no more, no less."""

import csv
import gzip
import io
import json
import os
import pty
import subprocess
import sys

import pytest
import reportkit
from toolkit import BUILD, TOOL, build, quire

import report.exports_pprof as exports_pprof
import report.exports_text as exports_text
import report.page as page
import ui


def varint(data, at):
    """(value, where it ends)"""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def decode(data):
    """[(field, value)] of one message; a decoder of our own, by the wire format's definition."""
    at, fields = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2, key
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        fields.append((key >> 3, value))
    return fields


def packed(data):
    """A list of numbers."""
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at)
        values.append(value)
    return values


class Pprof:
    """A profile, decoded."""

    def __init__(self, data):
        fields = decode(gzip.decompress(data))
        self.strings = [v.decode() for k, v in fields if k == 6]
        self.types = [dict(decode(v)) for k, v in fields if k == 1]
        self.samples = [
            {k: packed(v) for k, v in decode(value)} for key, value in fields if key == 2
        ]
        self.locations = {
            dict(decode(v))[1]: [dict(decode(x)) for k, x in decode(v) if k == 4]
            for key, v in fields
            if key == 4
        }
        self.mapped = {dict(decode(v)).get(3, 0) for k, v in fields if k == 4}
        self.functions = {dict(decode(v))[1]: dict(decode(v)) for k, v in fields if k == 5}
        self.mappings = {dict(decode(v))[1]: dict(decode(v)) for k, v in fields if k == 3}

    def names(self, sample):
        """Function names, innermost first, inlined ones too."""
        lines = [line for i in sample[1] for line in self.locations[i]]
        return [self.strings[self.functions[line[1]][2]] for line in lines]

    def sums(self):
        """{type: sum over samples}"""
        names = [self.strings[t[1]] for t in self.types]
        return {n: sum(s[2][i] for s in self.samples) for i, n in enumerate(names)}


def run_export(kind, *more):
    """One export to stdout, as bytes."""
    words = [sys.executable, str(TOOL), "report", str(reportkit.trace()), "--export", kind, *more]
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD)}
    done = subprocess.run(words, capture_output=True, env=env, cwd=reportkit.folder())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def totals():
    sites, profile = reportkit.profile()
    stacks = profile["stacks"]
    return {
        "allocations": sum(s["count"] for s in sites["sites"]),
        "allocated": sum(s["bytes"] for s in sites["sites"]) + sum(s[3] for s in stacks),
        "peak": sites["trace"]["peak_live_bytes"],
    }


@pytest.fixture(scope="module")
def pprof():
    return Pprof(run_export("pprof"))


def test_pprof_sums_are_the_traces(pprof, totals):
    assert pprof.strings[0] == ""
    sums = pprof.sums()
    assert sums["alloc_objects"] == totals["allocations"]
    assert sums["alloc_space"] == totals["allocated"]
    assert sums["inuse_space"] == totals["peak"]
    assert 0 < sums["inuse_objects"] <= totals["allocations"]


def test_pprof_refers_to_nothing_that_is_not_there(pprof):
    for sample in pprof.samples:
        assert len(sample[2]) == 4 and sample[1]
        assert pprof.names(sample)
    for function in pprof.functions.values():
        assert function[2] < len(pprof.strings) and function.get(4, 0) < len(pprof.strings)
    assert pprof.mapped - {0} <= set(pprof.mappings)
    assert pprof.strings[pprof.mappings[1][5]] == "box<b>es"


def test_pprof_has_the_stacks_innermost_first(pprof):
    boxes = [s for s in pprof.samples if any("make_box<int>" in n for n in pprof.names(s))]
    assert sum(s[2][0] for s in boxes) == reportkit.ROUNDS * reportkit.BOXES
    names = pprof.names(boxes[0])
    own = next(i for i, n in enumerate(names) if "make_box<int>" in n)
    assert own < names.index("main")


def test_pprof_numbers_are_as_the_wire_format_says():
    assert exports_pprof.varint(0) == b"\0" and exports_pprof.varint(300) == b"\xac\x02"
    for value in (0, 1, 127, 128, 1 << 32, (1 << 63) - 1):
        assert varint(exports_pprof.varint(value), 0)[0] == value


def test_folded_lines_add_up_and_none_is_broken_by_a_name(totals):
    lines = run_export("folded").decode().splitlines()
    weights = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert sum(weights) == totals["allocated"]
    stacks = [line.rsplit(" ", 1)[0].split(";") for line in lines]
    assert all(all(frames) for frames in stacks)
    boxes = next(s for s in stacks if any("make_box<int>" in f for f in s))
    assert boxes.index("main") < next(i for i, f in enumerate(boxes) if "make_box" in f)


def test_speedscope_profiles_add_up_and_refer_to_frames_that_exist(totals):
    document = json.loads(run_export("speedscope"))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    sums = {}
    for profile in document["profiles"]:
        assert profile["type"] == "sampled" and profile["unit"] in ("bytes", "none")
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        assert all(0 <= f < len(frames) for stack in profile["samples"] for f in stack)
        sums[profile["name"]] = profile["endValue"]
    assert sums["bytes allocated"] == totals["allocated"]
    assert sums["allocations"] == totals["allocations"]
    assert sums["bytes live at the peak"] == totals["peak"]
    assert all(frame["name"] for frame in frames)


def test_csv_has_every_site_with_its_figures(totals):
    rows = list(csv.DictReader(io.StringIO(run_export("csv").decode())))
    sites, _ = reportkit.profile()
    assert [int(r["id"]) for r in rows] == [s["id"] for s in sites["sites"]]
    assert sum(int(r["allocations"]) for r in rows) == totals["allocations"]
    leak = next(r for r in rows if r["function"].startswith("leak"))
    assert int(leak["never_freed"]) == reportkit.LEAKS
    assert int(leak["bytes"]) == reportkit.LEAKS * reportkit.LEAK_BYTES
    assert leak["file"].endswith("boxes.cc") and int(leak["line"]) > 0


def test_a_name_that_a_spreadsheet_would_compute_is_quoted():
    assert exports_text.guarded("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert exports_text.guarded("a\nb\033") == "a?b?" and exports_text.guarded(-3) == "-3"


def test_a_stack_that_is_not_known_is_named_so():
    profile = {"stacks": [[[], 3, 30, 2, 1, 10, 0, 0]], "locations": [], "functions": []}
    exported = {"profile": {**profile, "frames_max": 24}, "command": "x", "facts": {}, "sites": []}
    assert exports_text.folded(exported) == "(unknown) 32\n"
    read = Pprof(exports_pprof.export("pprof", exported))
    assert read.names(read.samples[0]) == ["(unknown)"]
    assert read.samples[0][2] == [3, 32, 1, 10]


def test_a_stack_that_was_cut_says_so():
    function = ["f", "", 0, "m", False]
    stack = [[0, 0], 1, 8, 0, 0, 0, 0, 0]
    profile = {"stacks": [stack], "locations": [[0]], "functions": [function], "frames_max": 2}
    exported = {"profile": profile, "command": "m", "facts": {}, "sites": []}
    assert exports_text.folded(exported) == "(callers beyond the recorded depth);f;f 8\n"
    read = Pprof(exports_pprof.export("pprof", exported))
    assert read.names(read.samples[0])[-1] == "(callers beyond the recorded depth)"


def test_an_export_goes_to_a_file_that_was_not_there(tmp_path):
    kept = tmp_path / "x.csv"
    assert quire(tmp_path, "report", reportkit.trace(), "--export", "csv", "-o", kept).returncode == 0
    before = kept.read_text()
    again = quire(tmp_path, "report", reportkit.trace(), "--export", "folded", "-o", kept)
    assert again.returncode == 2 and "exists already" in again.stderr
    assert kept.read_text() == before


def test_an_export_never_fills_a_terminal(tmp_path):
    lead, end = pty.openpty()
    words = [sys.executable, str(TOOL), "report", str(reportkit.trace()), "--export", "pprof"]
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD)}
    done = subprocess.run(words, stdout=end, stderr=subprocess.PIPE, cwd=tmp_path, env=env)
    os.close(end)
    os.close(lead)
    assert done.returncode == 0, done.stderr
    assert Pprof((tmp_path / "boxes.pb.gz").read_bytes()).samples
    assert b"boxes.pb.gz" in done.stderr


def test_an_export_of_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"schema": "quire.bench/1", "table": "micro"}')
    done = quire(tmp_path, "report", "x.json", "--export", "csv")
    assert done.returncode == 2 and "takes a trace" in done.stderr


def test_a_full_disk_leaves_no_half_file(tmp_path):
    target = tmp_path / "x.csv"
    # The limit of a process stands for the disk.
    late = "import resource, signal, sys; sys.path.insert(0, sys.argv[1])\n"
    late += "import cmd_report, errors\n"
    late += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    late += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    late += "try: cmd_report.outputs.write(sys.argv[2], 'x' * 5000, False)\n"
    late += "except errors.EnvironmentLacks as error: sys.exit(error.exit_code)\n"
    done = subprocess.run([sys.executable, "-c", late, str(TOOL), str(target)])
    assert done.returncode == 3 and not target.exists()


def test_a_name_with_the_separator_or_a_line_end_stays_one_frame():
    function = ["a;b\nc d", "", 0, "m", False]
    profile = {"stacks": [[[0], 1, 8, 0, 0, 0, 0, 0]], "locations": [[0]], "functions": [function]}
    exported = {"profile": {**profile, "frames_max": 24}, "command": "m", "facts": {}, "sites": []}
    assert exports_text.folded(exported) == "a:b?c d 8\n"


GROWING = """
#include <stdlib.h>
__attribute__((noinline)) char *grow(void) {
    char *volatile p = NULL;
    for (int size = 10; size <= 1000; size += 10) p = realloc(p, size);
    return p;
}
int main(void) {
    for (int i = 0; i < 3000; i++) free(grow());
    return 0;
}
"""


@pytest.mark.long
def test_blocks_that_grow_have_one_mean_size_and_the_same_bytes_in_all_that_is_said_of_them(tmp_path):
    build(tmp_path, GROWING)
    (tmp_path / "idle").mkdir()
    build(tmp_path / "idle", GROWING.replace("3000", "1"))
    for name, program in (("g.qtr", "./program"), ("i.qtr", "./idle/program")):
        assert quire(tmp_path, "record", "-o", name, "--", program).returncode == 0
    asked = 3000 * sum(range(10, 1001, 10))
    said = json.loads(quire(tmp_path, "advise", "--json", "g.qtr").stdout)["traces"][0]["sites"][0]
    assert (said["allocations"], said["bytes"], said["mean_bytes"], said["largest_bytes"]) == (3000, asked, 505.0, 1000)
    row = next(line for line in quire(tmp_path, "advise", "g.qtr").stdout.splitlines() if line.startswith("  grow "))
    assert " 505 B " in row and page.site_rows({"findings": {"sites": [said]}})[0]["mean"] == "505 B"
    assert "3,000 objects of 505 B on average, at most 1.0 KB" in quire(tmp_path, "advise", "--patch", "grow", "g.qtr").stdout
    both = json.loads(quire(tmp_path, "advise", "--json", "g.qtr", "g.qtr").stdout)["intersection"]["sites"][0]
    assert both["mean_bytes"] == [505.0, 505.0]
    differs = quire(tmp_path, "report", "i.qtr", "g.qtr", "--text").stdout
    assert "bytes asked for" in differs and f"+{ui.size(asked - asked // 3000)}" in differs
    cells = next(csv.DictReader(io.StringIO(quire(tmp_path, "report", "g.qtr", "--export", "csv").stdout)))
    assert int(cells["bytes"]) + int(cells["realloc_bytes"]) == asked
