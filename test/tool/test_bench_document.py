# SPDX-License-Identifier: MIT
"""test_bench_document - quire bench document: doc/performance.md is what the saved runs make of it; quire bench --svg."""

import json
import re
import shutil
import xml.etree.ElementTree

import pytest
import toolkit
from benchkit import bench  # noqa: F401  (a fixture)

import bench.document as bench_document
import cmd_bench
import peers

DOC = toolkit.ROOT / "doc"
DATA = DOC / "performance"


@pytest.fixture
def copy(tmp_path):
    """The committed runs and their template, to be doctored."""
    shutil.copytree(DATA, tmp_path / "performance")
    return tmp_path / "performance"


def pages():
    return {name: (DATA / f"{name}.md").read_text() for name in bench_document.page_names(str(DATA))}


def test_the_committed_document_and_its_pages_are_what_the_committed_runs_make():
    assert bench_document.document(str(DATA)) == (DOC / "performance.md").read_text()
    for name, text in pages().items():
        assert bench_document.document(str(DATA), name) == text
    assert {path.stem for path in DATA.glob("*.md")} == set(pages()) and len(pages()) > 3


def test_a_reader_first_meets_one_picture_and_five_lines():
    text = (DOC / "performance.md").read_text()
    begin = text[: text.index("| page |")].splitlines()
    assert len([line for line in begin if line.startswith("![")]) == 1 and len([line for line in begin if line.startswith("- ")]) == 5
    assert text.count("\n") < 100 and all(f"(performance/{name}.md)" in text for name in pages())


def test_every_picture_that_the_document_shows_is_there_and_no_other():
    shown = bench_document.shown_pictures(str(DATA))
    assert shown == {path.stem for path in DATA.glob("*.svg")} and len(shown) > 8
    for path in DATA.glob("*.svg"):
        xml.etree.ElementTree.parse(path)
        assert path.stat().st_size < 30_000


@pytest.mark.parametrize("name", bench_document.RUNS)
def test_every_saved_run_is_a_baseline_that_says_when_where_and_by_which_command(name):
    table = "apps" if name == "secure" else name
    saved = cmd_bench.load_baseline(str(DATA / f"{name}.json"), table)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", saved["date"])
    assert saved["command"].startswith(f"./quire bench {table} --")
    assert saved["machine"]["load_average_before"] >= 0 and saved["rounds"] >= 3
    assert cmd_bench.regressions(saved, saved) == []


def test_runs_of_several_machines_are_said_to_be_of_these():
    def table(model_of):
        run = json.loads((DATA / "seeds.json").read_text())
        return bench_document.machine(lambda name: {**run, "machine": {**run["machine"], "cpu_model": model_of(name)}}, None)

    assert "| processor | A, 2 CPUs |" in table(lambda name: "A")
    several = next(line for line in table(lambda name: "B" if name == "apps" else "A").splitlines() if "processor" in line)
    others = ", ".join(name for name in bench_document.RUNS if name != "apps")
    assert f"{others}: A, " in several and "apps: B, " in several and several.index("A, ") < several.index("B, ")


def test_the_document_says_what_its_figures_do_not_show_and_names_each_command():
    text = (DOC / "performance.md").read_text()
    assert "## What these figures do not show" in text
    text += "".join(pages().values())
    for name in bench_document.RUNS:
        saved = json.loads((DATA / f"{name}.json").read_text())
        assert f"`{saved['command']}`, {saved['date']}" in text


def test_another_figure_in_a_saved_run_is_another_figure_in_the_document(copy):
    path = copy / "seeds.json"
    saved = json.loads(path.read_text())
    for row in saved["rows"]:
        if (row["allocator"], row["callers"]) == ("quire-arena", 8):
            row["cpu_ratio_to_libc"]["median"] = 0.987
    path.write_text(json.dumps(saved))
    assert "**0.987**" in bench_document.document(str(copy), "arena")
    assert "**0.987**" not in pages()["arena"]


def test_a_mark_that_stands_for_nothing_is_refused_with_those_there_are(copy):
    (copy / "template.md.in").write_text("{{sedes arena}}")
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench_document.document(str(copy))
    assert "seeds" in refused.value.text() and "{{sedes arena}}" in refused.value.text()


def test_a_run_that_was_never_saved_is_named_with_the_command_that_saves_it(copy):
    (copy / "scale.json").unlink()
    with pytest.raises(cmd_bench.UsageError) as refused:
        bench_document.document(str(copy), "scale")
    assert "quire bench scale --save" in refused.value.text()


@pytest.mark.long
def test_the_document_goes_where_it_is_told_and_overwrites_nothing_unasked(bench, copy, tmp_path):
    assert bench("document", "--data", str(copy), "-o", "-")[1] == (DOC / "performance.md").read_text()
    (tmp_path / "else").mkdir()
    page, behind = tmp_path / "else" / "page.md", tmp_path / "else" / "performance"
    assert bench("document", "--data", str(copy), "-o", str(page))[0] == 0
    assert page.read_text() == (DOC / "performance.md").read_text() and "<svg" in (behind / "apps-cpu.svg").read_text()
    assert {path.stem: path.read_text() for path in behind.glob("*.md")} == pages()
    for mine in (page, behind / "apps-cpu.svg", behind / "heap.md"):
        page.unlink(missing_ok=True)
        mine.write_text("mine")
        with pytest.raises(cmd_bench.UsageError):
            bench("document", "--data", str(copy), "-o", str(page))
        assert mine.read_text() == "mine"


@pytest.mark.long
def test_measure_saves_every_run_and_makes_the_document_of_them(bench, copy, tmp_path, monkeypatch):
    monkeypatch.setattr(cmd_bench.SINGLE["apps"], "measure", lambda *a: saved_apps(copy))
    page = tmp_path / "page.md"
    with pytest.raises(cmd_bench.UsageError):  # the runs are there
        bench("document", "--measure", "--data", str(copy), "-o", str(page))
    (copy / "micro.json").write_text("{}")
    status, _, err = bench("document", "--measure", "--data", str(copy), "-o", str(page), "-f")
    assert status == 0 and err.count("quire: measuring ") >= 5
    assert json.loads((copy / "micro.json").read_text())["table"] == "micro"
    secure = json.loads((copy / "secure.json").read_text())
    assert secure["command"] == "./quire bench apps --quick --lines jq,perl,sqlite3 --secure"
    assert page.read_text() != (DOC / "performance.md").read_text()


def saved_apps(folder):
    """What measuring the programs gives, without running them."""
    return json.loads((folder / "apps.json").read_text())["apps"]


def test_saved_numbers_have_eight_digits_and_an_interval_a_line():
    text = bench_document.saved_text({"a": {"median": 1 / 3, "low": 1, "high": 2}, "n": 123456789012})
    assert '"a": { "median": 0.33333333, "low": 1, "high": 2 }' in text
    assert json.loads(text)["n"] == 123456789012


# ---- pictures ----


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("seeds",), {"seeds-arena", "seeds-heap", "seeds-slab"}),
        (("micro", "--lines", "one"), {"micro-cpu", "micro-memory"}),
        (("scale", "--lines", "cpus,threads"), {"scale-cpus-percpu", "scale-threads-heap"}),
    ],
)
def test_svg_draws_each_table_with_every_allocators_name_in_it(bench, tmp_path, words, names):
    pytest.importorskip("matplotlib")
    status, _, err = bench(*words, "--svg", "drawn")
    assert status == 0 and "drawn: " in err
    assert names <= {path.stem for path in (tmp_path / "drawn").glob("*.svg")}
    for name in names:
        text = (tmp_path / "drawn" / f"{name}.svg").read_text()
        assert "mimalloc" in text and "libc" in text and ("quire-" in text or "drop-in" in text)


def test_pictures_overwrite_nothing_unasked(bench, tmp_path):
    pytest.importorskip("matplotlib")
    bench("scale", "--lines", "cpus", "--svg", "drawn")
    (drawn,) = (tmp_path / "drawn").glob("*.svg")
    drawn.write_text("mine")
    with pytest.raises(cmd_bench.UsageError):
        bench("scale", "--lines", "cpus", "--svg", "drawn")
    assert drawn.read_text() == "mine"
    bench("scale", "--lines", "cpus", "--svg", "drawn", "-f")
    assert drawn.read_text() != "mine"


def test_without_matplotlib_svg_is_refused_with_its_package_before_anything_runs(
    bench, monkeypatch
):
    monkeypatch.setattr(cmd_bench.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cmd_bench, "measure_single", lambda *a: pytest.fail("measured"))
    with pytest.raises(cmd_bench.EnvironmentLacks) as lacking:
        bench("scale", "--svg", "drawn")
    assert cmd_bench.packages.install_line(["matplotlib"]) in lacking.value.text()


# ---- peers that are not here ----


def test_peers_that_are_not_installed_are_named_with_the_line_that_installs_them(
    bench, monkeypatch, tmp_path
):
    monkeypatch.undo()  # the real search, in a place without libraries
    monkeypatch.setattr(peers, "library_directories", lambda: [str(tmp_path)])
    assert peers.installed() == []
    said = cmd_bench.missing_text({"missing_packages": peers.missing_packages()})
    (line,) = said
    assert line.startswith("peers that are not here: apt-get install -y libmimalloc2.0 libjemalloc2")
    (tmp_path / "libjemalloc.so.2").write_text("")
    assert "libjemalloc2" not in " ".join(peers.missing_packages())


def test_a_table_names_the_missing_peers_below_its_machine(bench):
    _, out, _ = bench("scale", "--lines", "cpus")
    assert "peers that are not here: apt-get install -y libtcmalloc-minimal4" in out
