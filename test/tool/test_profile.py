# SPDX-License-Identifier: MIT
"""test_profile - quire profile: what is written in each format is what the profile has, differences are differences, and what is no profile is refused."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pprof_kit import PPROF, WHY_NOT
from test_report_exports import Pprof
from toolkit import BUILD, ROOT, TOOL, quire

import heapprofile
import report.exports_pprof as exports_pprof

SOURCE = """
#include <stdio.h>
int inner(int x) { return x * 3; }
int main(void) { return printf("%p %p", (void *)inner, (void *)main) < 0; }
"""
HEAD = "heap profile: 9: 900 [ 90: 9000] @ heapprofile\n# quire.heap/1 period 512 samples 12 lost 0 stacks 3 held_bytes 100 pid 1 monotonic_ns 5\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """(path, addresses in inner and main as if the program lay at 0x10000000)"""
    folder = tmp_path_factory.mktemp("profile")
    (folder / "p.c").write_text(SOURCE)
    subprocess.run(["gcc", "-g", "-O0", "-pie", "-fPIE", "p.c", "-o", "p"], cwd=folder, check=True)
    names = subprocess.run(["nm", "p"], cwd=folder, capture_output=True, text=True, check=True).stdout.split("\n")
    places = {line.split()[2]: int(line.split()[0], 16) + 4 for line in names if len(line.split()) == 3}
    return folder / "p", places["inner"], places["main"]


def text_of(program, stacks):
    path, inner, main = program
    places = {"inner": 0x10000000 + inner, "main": 0x10000000 + main, "nobody": 0x999}
    lines = [f"{a}: {b} [ {c}: {d}] @ " + " ".join(hex(places[f]) for f in frames) for (a, b, c, d), frames in stacks]
    size = path.stat().st_size
    return HEAD + "\n".join(lines) + f"\nMAPPED_LIBRARIES:\n10000000-{0x10000000 + size:x} r-xp 00000000 08:01 5 {path}\n20000000-20001000 r-xp 00000000 00:00 0 \n"


@pytest.fixture
def files(program, tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_BUILD_DIR", str(BUILD))
    a, b = tmp_path / "a.heap", tmp_path / "b.heap"
    a.write_text(text_of(program, [((3, 300, 30, 3000), ["inner", "main"]), ((1, 10, 20, 200), ["nobody"])]))
    b.write_text(text_of(program, [((5, 700, 40, 4000), ["inner", "main"]), ((0, 0, 20, 200), ["nobody"]), ((2, 50, 2, 50), ["main"])]))
    return a, b


def test_the_table_has_names_and_sums(files):
    done = quire("/", "profile", str(files[1]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("p: live 750 B in 7 blocks, allocated 4.2 KB in 62; estimated from 12 samples, one in 512 B")
    rows = [line.split() for line in done.stdout.splitlines()[3:]]
    assert [row[0] for row in rows] == ["700", "50"] and "inner < main" in done.stdout


def test_bytes_since_the_start_are_another_order(files):
    done = quire("/", "profile", str(files[1]), "--allocated", "--rows", "1")
    assert "4.0 KB" in done.stdout and "2 more stacks: --rows 3" in done.stdout


def test_a_difference_is_what_has_changed(files):
    done = quire("/", "profile", str(files[0]), str(files[1]))
    lines = done.stdout.splitlines()
    assert lines[0].startswith("p: live +440 B in 3 blocks, allocated +1.1 KB in 12;")
    assert [line.split()[0] for line in lines[3:]] == ["+400", "+50", "-10"]


def exported(files, *more):
    done = subprocess.run([sys.executable, str(TOOL), "profile", *map(str, files), "-o", "-", *more], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pprof_has_every_stack_with_its_figures_and_the_period(files):
    data = exported(files[1:])
    got = Pprof(data)
    assert got.sums() == {"alloc_objects": 62, "alloc_space": 4250, "inuse_objects": 7, "inuse_space": 750}
    assert {tuple(got.names(s)) for s in got.samples} == {("inner", "main"), ("main",), ("(no file)+0x999",)}
    comment = [s for s in got.strings if "one in 512 bytes" in s]
    assert len(comment) == 1
    assert b"\x60\x80\x04" in gzip.decompress(data)  # field 12, 512


@pytest.mark.skipif(not PPROF, reason=WHY_NOT)
@pytest.mark.parametrize(("index", "flat"), [("inuse_space", ["700B inner", "50B main"]), ("alloc_objects", ["40 inner", "2 main", "20 (no"])])
def test_go_tool_pprof_opens_what_we_write(files, tmp_path, index, flat):
    (tmp_path / "b.pb.gz").write_bytes(exported(files[1:]))
    words = [*PPROF, "-top", "-unit=B" if "space" in index else "-unit=count", f"-sample_index={index}", "b.pb.gz"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PPROF_TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.count("%") == 3 and "flat%" not in line]
    assert sorted(f"{row[0]} {row[5]}" for row in rows if row[0] != "0") == sorted(flat), done.stdout


def test_pprof_bears_what_has_become_less(files):
    got = Pprof(exported(files))
    less = [s[2] for s in got.samples if got.names(s) == ["(no file)+0x999"]]
    assert less == [[0, 0, (1 << 64) - 1, (1 << 64) - 10]]
    assert exports_pprof.varint(-1) == b"\xff" * 9 + b"\x01"


def test_speedscope_and_folded_stacks_have_the_same(files):
    document = json.loads(exported(files[1:], "--export", "speedscope"))
    live = next(p for p in document["profiles"] if p["name"].startswith("bytes live"))
    assert live["name"] == "bytes live when the profile was written" and live["endValue"] == 750
    assert b"main;inner 4000\n" in exported(files[1:], "--export", "folded")


def test_objects_are_rows_of_what_lives_and_of_nothing_that_was_allocated(files):
    changed = files[1].read_text() + "# object slab 7 2000 144000 a/b of\n# object arena 9 0 16 \n"
    files[1].write_text(changed)
    got = Pprof(exported(files[1:]))
    assert {tuple(got.names(s)): s[2][2:] for s in got.samples if got.names(s)[0][0] == "["} == {("[slab a/b of]",): [2000, 144000], ("[arena 9]",): [0, 16]}
    assert got.sums()["alloc_space"] == 4250 and got.sums()["inuse_space"] == 750 + 144016
    said = quire("/", "profile", str(files[1])).stdout
    assert "[slab a/b of]" in said and said.splitlines()[0].endswith("one in 512 B; with 2 objects, exact")
    assert [line.split()[0] for line in quire("/", "profile", *map(str, files)).stdout.splitlines()[3:5]] == ["+144", "+400"]


def test_raw_is_what_was_written(files):
    assert exported(files[1:], "--raw") == files[1].read_bytes()


def test_places_are_those_of_the_file(program, files):
    raw = heapprofile.read(files[0].read_text(), "a")
    places = heapprofile.places_of(raw)
    assert places[0x10000000 + program[1]] == (str(program[0]), program[1])
    assert places[0x999] == ("", 0x999)


def test_report_shows_profiles_as_this_command_does_and_names_it_where_it_cannot(files, tmp_path):
    for chosen in (files, files[:1]):
        shown, other = quire("/", "profile", *map(str, chosen)), quire("/", "report", *map(str, chosen))
        assert (other.returncode, other.stdout) == (0, shown.stdout) and "inner" in shown.stdout, other.stderr
    (tmp_path / "try.json").write_text("{}")
    for words in (["a.heap", "b.heap", "-o", "x.html"], ["a.heap", "b.heap", "--fail-on", "cpu>1%"], ["a.heap", "try.json"]):
        done = quire(tmp_path, "report", *words)
        assert (done.returncode, done.stdout) == (2, "") and "quire profile a.heap" in done.stderr


def test_the_help_says_what_a_profile_was_measured_to_cost(tmp_path):
    measured = (ROOT / "doc/performance/heap.md").read_text(encoding="utf-8")
    mean, worst = re.findall(r"^\d+ programs. `prof`: geometric mean (\S+) .*?, worst (\S+) ", measured, re.MULTILINE)[0]
    said = re.search(r"measured: (\S+) % of the CPU time, (\S+) % at the worst", quire(tmp_path, "profile", "--help").stdout)
    assert said and [float(part) for part in said.groups()] == pytest.approx([100 * (float(one) - 1) for one in (mean, worst)], abs=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "its first line is not"),
        ("heap profile: x\n", "its first line is not"),
        (HEAD, "it is cut short"),
        (HEAD + "1: 2 [ 3: 4] @ 0xzz\nMAPPED_LIBRARIES:\n", "line 3 is no stack"),
        (HEAD + "\x00\x01\nMAPPED_LIBRARIES:\n", "line 3 is no stack"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, said):
    (tmp_path / "x.heap").write_text(text)
    done = quire("/", "profile", str(tmp_path / "x.heap"))
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.by_turns
def test_a_file_is_not_overwritten_and_words_that_make_no_sense_are_refused(files, tmp_path):
    (tmp_path / "there").write_text("mine")
    assert quire("/", "profile", str(files[0]), "-o", str(tmp_path / "there")).returncode == 2
    assert (tmp_path / "there").read_text() == "mine"
    assert quire("/", "profile", str(files[0]), "-o", str(tmp_path / "there"), "-f").returncode == 0
    for words in ([], ["a", "b", "c"], ["--pid", "1", str(files[0])], ["--raw", str(files[0])], ["/nowhere"]):
        assert quire("/", "profile", *words).returncode == 2, words


def test_who_has_no_profile_is_told_how_to_start_with_one(tmp_path):
    done = quire(tmp_path, "profile", "--pid", os.getpid())
    assert done.returncode == 3 and "does not show itself" in done.stderr
    assert "fix: QUIRE_CONF=prof:512K quire run" in done.stderr and "top" not in done.stderr.split("why:")[1], done.stderr


@pytest.mark.parametrize("words", [["profile", "--rows", "-3", "nothing"], ["profile", "--rows", "x", "nothing"], ["check", "--pid", "-1"], ["replay", "--rounds", "x", "nothing"], ["record", "--ready-port", "x", "--load", "true", "--", "true"]])
def test_a_number_that_is_none_is_a_usage_error_in_words(tmp_path, words):
    done = quire(tmp_path, *words)
    assert done.returncode == 2 and ("no whole number" in done.stderr or "is less than 1" in done.stderr), done.stderr


@pytest.mark.parametrize("folder", ["line\u2028page\x0c", os.fsdecode(b"latin\xe9")])
def test_a_program_in_a_folder_of_any_name_has_its_names(program, tmp_path, folder):
    place = tmp_path / folder
    place.mkdir()
    shutil.copy(program[0], place / "p")
    file = tmp_path / "a.heap"
    file.write_bytes(os.fsencode(text_of((place / "p", *program[1:]), [((3, 300, 30, 3000), ["inner", "main"])])))
    done = quire("/", "profile", str(file))
    assert done.returncode == 0, done.stderr
    assert "inner < main" in done.stdout
    assert quire("/", "profile", str(file), "-o", str(tmp_path / "a.txt"), "--export", "folded").returncode == 0
    assert quire("/", "profile", str(file), "--raw", "-o", str(tmp_path / "b.heap")).returncode == 0
    assert (tmp_path / "b.heap").read_bytes() == file.read_bytes()
