# SPDX-License-Identifier: MIT
"""test_outputs - what cannot be written in the end is refused before any work: files that exist, places that do not."""

import argparse
import errno
import os
import resource
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
from benchkit import bench  # noqa: F401  (a fixture)

import bench.document as bench_document
import bench.pictures as bench_pictures
import cli
import cmd_bench
import cmd_report
import live.profile as live_profile
import report.svg as report_svg
import report.trial as report_try
import steerplan
import toolkit  # noqa: F401  (makes the tool's modules importable)
from errors import EnvironmentLacks, QuireError, UsageError

PROGRAM = ["--", "sh", "-c", "echo ran >ran"]
# Each with a file that would be overwritten; inputs that are not there: whoever looked at them first would say so.
WRITES = {
    "mine.html": ["report", "absent.qtr", "-o", "mine.html"],
    "mine.folded": ["report", "absent.qtr", "--export", "folded", "-o", "mine.folded"],
    "difference.html": ["report", "absent.json", "other.json", "-o", "difference.html"],
    "pictures/live.svg": ["report", "absent.qtr", "--svg", "pictures"],
    "pictures/flame-live.svg": ["report", "absent.qtr", "--svg", "pictures"],
    "mine.qtr": ["record", "-o", "mine.qtr", *PROGRAM],
    "tried.qtr": ["try", "-o", "tried.qtr", *PROGRAM],
    "mine.json": ["run", "--stats=json:mine.json", *PROGRAM],
    "run.json": ["bench", "micro", "--save", "run.json"],
    "drawn/micro-cpu.svg": ["bench", "micro", "--svg", "drawn"],
    "drawn/scale-cpus-percpu.svg": ["bench", "scale", "--svg", "drawn"],
    "data/scale.json": ["bench", "document", "--measure", "--data", "data", "-o", "page.md"],
    "page.md": ["bench", "document", "--measure", "--data", "data", "-o", "page.md"],
    "performance/apps-cpu.svg": ["bench", "document", "--measure", "--data", "data", "-o", "page.md"],
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty directory to work in, where nothing may be measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cmd_bench, "measure", lambda *a: pytest.fail("measured"))
    monkeypatch.setattr(cmd_bench, "measure_single", lambda *a: pytest.fail("measured"))
    return tmp_path


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_exists_is_refused_before_anything_is_read_run_or_measured(place, name):
    mine = place / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("precious")
    with pytest.raises(UsageError) as refused:
        cli.dispatch(WRITES[name])
    assert f"{os.path.basename(name)} exists" in refused.value.text()
    assert mine.read_text() == "precious" and not (place / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "absent.qtr", "-o", "nowhere/page.html"],
        ["record", "-o", "nowhere/mine.qtr", *PROGRAM],
        ["try", "-o", "nowhere/mine.qtr", *PROGRAM],
        ["run", "--stats=text:nowhere/report", *PROGRAM],
        ["bench", "micro", "--save", "nowhere/run.json"],
    ],
)
def test_a_place_that_is_not_there_is_said_before_anything_is_read_run_or_measured(place, words):
    with pytest.raises(EnvironmentLacks) as lacking:
        cli.dispatch(words)
    assert "nowhere" in lacking.value.text() and not (place / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "absent.qtr", "-o", "there"],
        ["report", "absent.qtr", "--svg", "file"],
        ["bench", "micro", "--svg", "file"],
        ["bench", "micro", "--svg", "file/pictures"],
        ["bench", "micro", "--save", "there", "-f"],
    ],
)
def test_a_directory_is_no_file_and_a_file_no_directory(place, words):
    (place / "there").mkdir()
    (place / "file").write_text("mine")
    with pytest.raises(UsageError):
        cli.dispatch(words)
    assert (place / "file").read_text() == "mine"


def test_pictures_of_other_names_in_the_directory_are_no_reason_to_refuse(place):
    (place / "pictures").mkdir()
    (place / "pictures" / "holiday.svg").write_text("mine")
    for words in (["report", "absent.qtr", "--svg", "pictures"], ["report", "absent.qtr", "-f", "-o", "mine"]):
        with pytest.raises(UsageError) as refused:
            cli.dispatch(words)
        assert "absent.qtr" in refused.value.text()


def test_the_names_that_are_asked_for_are_those_that_are_drawn(monkeypatch):
    class Drawn:
        file = staticmethod(str)

    names = ("time", "memory", "live", "areas", "heat")
    drawn = {name: Drawn for name in names}
    drawn |= {"flames": [{"key": "live", "svg": "x"}], "maps": [{"key": "at_peak", "svg": "x"}]}
    monkeypatch.setattr(report_svg.report_page, "pictures", lambda document: drawn)
    monkeypatch.setattr(report_svg, "styled", str)
    for name in report_svg.files({}):
        assert any(cmd_report.outputs.fnmatch.fnmatchcase(name, wanted) for wanted in cmd_report.PICTURES)
    assert len(report_svg.files({})) == len(names) + 2


def test_a_benchmarks_pictures_are_those_whose_names_were_asked_for(bench, tmp_path):
    bench("scale", "--lines", "cpus", "--svg", "drawn")
    assert {path.name for path in (tmp_path / "drawn").iterdir()} <= set(bench_pictures.files("scale"))
    shown = bench_document.shown_pictures(bench_document.DATA)
    every = {name for table in cmd_bench.TABLES for name in bench_pictures.files(table)}
    assert {f"{name}.svg" for name in shown} <= every


def test_a_device_is_written_to_and_never_replaced(place):
    args = argparse.Namespace(svg=None, output="/dev/null", force=False, export=None, text=False, junit=None, github_summary=None)
    cmd_report.refuse_outputs(args)
    cmd_report.outputs.write("/dev/null", "page", force=False)
    assert not os.path.isfile("/dev/null") and not list(place.iterdir())
    with pytest.raises(EnvironmentLacks):
        cmd_report.outputs.write("/dev/full", "page", force=False)


def profile_of(path, text, force):
    cli.dispatch(["profile", "--raw", "-o", path, *["-f"] * force, text])


def answer_of(path, text, force):
    live_profile.save(SimpleNamespace(pid=7))


def page_of(path, text, force):
    report_try.keep(SimpleNamespace(recording=SimpleNamespace(path=f"{os.path.splitext(path)[0]}.qtr")), "x" * 4000, force)


def plan_of(path, text, force):
    steerplan.Plan("a test", "x" * 4000).write(path)


def picture_of(path, text, force):
    pytest.importorskip("matplotlib")
    import bench.plots as bench_plots

    with mock.patch.object(bench_plots, "pictures", lambda result: [SimpleNamespace(name="a", file=lambda: "x" * 4000)]):
        bench_plots.write({}, ".", force)


def pages_of(path, text, force):
    with mock.patch.object(bench_document, "draw", lambda data, folder: None):
        bench_document.run(argparse.Namespace(data=None, output=path, force=force))


WRITERS = {"a.heap": profile_of, "quire.7.0.heap": answer_of, "a.html": page_of, "a.plan": plan_of, "a.svg": picture_of, "a.md": pages_of}


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_what_does_not_fit_leaves_no_part_of_itself_and_an_old_one_as_it_was(place, monkeypatch, name, is_there):
    profile = place.parent / f"{place.name}.heap"
    profile.write_text("heap profile: 9: 900 [ 90: 9000] @ heapprofile\n" + "#" * 4000)
    monkeypatch.setattr(live_profile, "text_of", lambda page, patience_s: profile.read_text())
    if is_there:
        (place / name).write_text("as it was")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported meanwhile would be kept as far as it fits
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises((OSError, QuireError)):
            WRITERS[name](name, str(profile), is_there)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in place.iterdir()] == [name] * is_there
    assert not is_there or (place / name).read_text() == "as it was"


def test_where_no_file_can_have_two_names_it_is_written_all_the_same(place, monkeypatch):
    def none_here(*_):
        raise PermissionError(errno.EPERM, "no links on this disk")

    monkeypatch.setattr(cmd_report.outputs.os, "link", none_here)
    cmd_report.outputs.write("page.html", "page", force=False)
    with pytest.raises(FileExistsError):
        cmd_report.outputs.write_whole("page.html", b"another", False)
    assert [path.name for path in place.iterdir()] == ["page.html"] and (place / "page.html").read_text() == "page"


def test_a_benchmark_that_cannot_be_saved_in_the_end_is_printed_all_the_same(bench, capsys):
    with pytest.raises(EnvironmentLacks) as lacking:
        bench("micro", "--lines", "one", "--save", "/dev/full")
    assert "cannot write /dev/full" in lacking.value.text() and "--save /tmp/run.json" in lacking.value.text()
    assert "\none " in capsys.readouterr().out


def test_what_belongs_to_the_document_alone_is_refused_elsewhere(place):
    for words in (["--data", "data"], ["-o", "page.md"]):
        with pytest.raises(UsageError):
            cli.dispatch(["bench", "micro", *words])
