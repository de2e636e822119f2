# SPDX-License-Identifier: MIT
"""test_report - the page of `report` and `try`: one file, nothing loaded, every name harmless, every section there."""

import base64
import html.parser
import json
import os
import pathlib
import re
import shutil
import types

import pytest
import reportkit
from toolkit import build, quire

import cmd_report
import report.depth as report_depth
import report.figures as report_figures
import packages
import report.page as report_page
import report.subject as report_subject
import report.trial as report_try

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
SECTIONS = "verdict cost live sizes rss map flame sites limits machine rawdata".split()
LOADING = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}


class Elements(html.parser.HTMLParser):
    """Element names, sections and whatever an attribute may load; fails on markup that a browser would have to mend."""

    VOID = {"meta", "link", "br", "input", "img"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.names, self.ids, self.loads, self.handlers, self.open = {}, [], [], [], []
        self.words = []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.names[tag] = self.names.get(tag, 0) + 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in LOADING:
                self.loads.append(value)
            if name.startswith("on"):
                self.handlers.append((tag, name))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            # </p> may be implied; nothing else is in these pages
            assert self.open[-1] == tag, (tag, self.open[-3:])
            self.open.pop()

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def text():
    return reportkit.trace_page().read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def elements(text):
    return Elements(text)


@pytest.mark.by_turns
def test_a_page_of_a_trace_has_every_section(elements):
    assert [name for name in elements.ids if name in SECTIONS] == SECTIONS
    assert elements.names["svg"] >= 8


def test_a_page_loads_nothing(text, elements):
    allowed = [v for v in elements.loads if v.startswith(("#", "data:"))]
    assert elements.loads == allowed
    assert "url(http" not in text and "@import" not in text
    assert "link" not in elements.names or elements.names["link"] == 1


def test_identifiers_in_a_page_are_unique(elements):
    assert len(elements.ids) == len(set(elements.ids))


def test_names_with_markup_stand_in_the_page_as_text_alone(text, elements):
    assert elements.names["script"] == 2  # the raw data and the comforts
    assert "img" not in elements.names and elements.handlers == []
    assert "alert(1)" in "".join(elements.words)
    assert "\033" not in text and "\u202e" not in text
    assert "␛[31mred" in text and "make_box&lt;int&gt;" in text


def test_cxx_names_are_short_in_the_table_and_whole_in_the_flame_graphs_titles(text):
    assert '<summary><code>make_box&lt;int&gt;</code>' in text
    assert "<title>box&lt;int&gt;* make_box&lt;int&gt;(box&lt;int&gt;*)" in text


def test_a_page_says_what_would_live_in_an_arena_and_how_to_get_there(text, elements):
    """Where the replays of so small a program say that an arena loses, the page must not advise one."""
    said = " ".join("".join(elements.words).split())
    document = json.loads(re.search(r'<script type="application/json" id="raw">(.*?)</script>', text, re.S).group(1))
    placed = document["findings"]["arenas"]
    assert ("What would live in arenas" in said and "generations of" in said) == bool(placed)
    assert " --patch " in said


def test_sites_that_do_next_to_nothing_are_folded_but_there():
    row = {"share": 50.0, "saving_key": 3.0}
    few = {"share": 0.01, "saving_key": -1e9}
    dear = {"share": 0.01, "saving_key": 0.5}
    nothing = {"share": 0.01, "saving_key": 0.04, "saving": "~ 0.0 %"}
    assert report_page.folded([row, few, dear, nothing]) == ([row, dear], [few, nothing])


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0.0 %"), (0.01, "< 0.1 %"), (3.26, "3.3 %"), (70.2, "70 %"), (99.99, "99.9 %"), (100, "100 %")]
)
def test_a_share_of_the_allocations_is_never_rounded_to_all_or_nothing(value, expected):
    assert report_page.share(value) == expected


def test_a_page_says_what_the_rows_of_its_table_are_in_trys_words(text, elements):
    said = " ".join("".join(elements.words).split())
    assert "drop-in: Quire's heap in the place of malloc" in said and "advised mix" not in said
    steered = {"sites": 0, "expected_bytes": 4 << 20}
    rows = [{"name": name} for name in ("libc", "drop-in", "steered", "mix")]
    words = report_page.meanings({"allocators": rows, "steered": steered})
    assert [line.split(":")[0] for line in words] == ["drop-in", "advice carried out", "advice in the code"]
    assert "a plan: how much memory to expect;" in words[1] and report_page.meanings({"allocators": rows[:1]}) == []


def test_raw_data_in_a_page_is_whole_and_can_be_taken_away(elements):
    document = reportkit.raw(reportkit.trace_page())
    assert document["schema"] == "quire.report/1"
    assert reportkit.HOSTILE[0] in document["title"]
    address = next(v for v in elements.loads if v.startswith("data:application/json;base64,"))
    away = json.loads(base64.b64decode(address.split(",", 1)[1]))
    assert away == report_depth.without(document) != document


def test_a_page_says_what_the_trace_says(elements):
    sites, _ = reportkit.profile()
    said = " ".join("".join(elements.words).split())
    assert f"{sites['trace']['allocations']:,}" in said
    assert "No verdict" in said
    document = reportkit.raw(reportkit.trace_page())
    names = {row["name"] for row in document["findings"]["allocators"]}
    assert {"libc", "drop-in"} <= names and "libc" in document["timelines"]
    for figures in document["timelines"].values():
        assert figures["timeline"] and figures["largest"][2] > 0


@pytest.mark.long
def test_a_trace_without_replays_still_makes_a_page(tmp_path):
    done = quire(tmp_path, "report", reportkit.trace(), "--no-replay")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "report: boxes.html\n"
    found = Elements((tmp_path / "boxes.html").read_text(encoding="utf-8"))
    assert [name for name in found.ids if name in SECTIONS] == SECTIONS
    assert "Nothing was replayed" in "".join(found.words)


def test_no_file_is_overwritten_without_force(tmp_path):
    kept = tmp_path / "mine.html"
    kept.write_text("mine")
    done = quire(tmp_path, "report", reportkit.trace(), "--no-replay", "-o", kept)
    assert done.returncode == 2 and "exists already" in done.stderr and "-f" in done.stderr
    assert kept.read_text() == "mine"
    words = ("--export", "csv", "-o", kept, "-f")
    assert quire(tmp_path, "report", reportkit.trace(), *words).returncode == 0
    assert kept.read_text().startswith("id,function,")
    with pytest.raises(cmd_report.UsageError):
        cmd_report.outputs.write(str(kept), "late", force=False)
    assert cmd_report.unique(str(tmp_path / "mine"), "html") == str(tmp_path / "mine.1.html")


@pytest.mark.by_turns
def test_try_writes_its_page_beside_the_trace_and_says_so():
    done, document = reportkit.tried()
    page = pathlib.Path(document["report"])
    assert page.parent == reportkit.folder() / "tried" and page.suffix == ".html"
    assert pathlib.Path(document["trace"]["path"]).with_suffix(".html") == page
    carried = reportkit.raw(page)
    assert carried["findings"]["verdict"] == document["verdict"]
    assert document["verdict"]["word"] in page.read_text(encoding="utf-8")
    assert "writing the report" in done.stderr


@pytest.mark.by_turns
def test_a_result_of_try_makes_a_page_from_its_json_and_its_trace(tmp_path):
    reportkit.tried()
    done = quire(tmp_path, "report", reportkit.folder() / "tried" / "try.json", "-o", "a.html")
    assert done.returncode == 0, done.stderr
    carried = reportkit.raw(tmp_path / "a.html")
    assert carried["profile"]["stacks"] and carried["findings"]["schema"] == "quire.try/1"


@pytest.mark.long
def test_a_result_of_try_without_its_trace_says_what_is_missing(tmp_path):
    _, document = reportkit.tried()
    document = {**document, "trace": {**document["trace"], "path": str(tmp_path / "gone.qtr")}}
    (tmp_path / "try.json").write_text(json.dumps(document))
    done = quire(tmp_path, "report", "try.json")
    assert done.returncode == 0, done.stderr
    found = Elements((tmp_path / "try.html").read_text(encoding="utf-8"))
    assert [name for name in found.ids if name in SECTIONS] == SECTIONS
    assert "The trace is not there any more" in "".join(found.words)


def test_a_trace_that_is_of_another_run_by_now_is_left_out(tmp_path, capsys):
    known = {"allocations": 3}
    assert report_subject.of_trace_of(str(reportkit.trace()), known, str(tmp_path)) is None
    assert "is of another run" in capsys.readouterr().err
    (tmp_path / "x.qtr").write_bytes(b"no trace")
    assert report_subject.of_trace_of(str(tmp_path / "x.qtr"), known, str(tmp_path)) is None
    assert "without its trace" in capsys.readouterr().err


def test_try_without_a_page_when_asked(tmp_path):
    shutil.copy(reportkit.program(), tmp_path / "boxes")
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 0.2, "--", tmp_path / "boxes")
    assert done.returncode == 0, done.stderr
    assert "report:" not in done.stdout
    assert [p.name for p in tmp_path.glob("*.html")] == []


def test_try_without_the_packages_keeps_its_text_and_notes_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(report_page, "lacking", lambda: ["jinja2"])
    report_try.write(None, None, "")
    said = capsys.readouterr()
    assert said.out == "" and "no HTML report: that needs jinja2" in said.err


def test_report_without_the_packages_names_the_command_that_brings_them(monkeypatch):
    monkeypatch.setattr(report_page, "lacking", lambda: ["jinja2", "numpy"])
    with pytest.raises(report_page.EnvironmentLacks) as failed:
        report_page.need_packages()
    assert failed.value.exit_code == 3 and packages.install_line(["jinja2", "numpy"]) in failed.value.fix


def test_a_page_beside_a_trace_takes_a_name_that_is_free(tmp_path):
    tried, names = types.SimpleNamespace(recording=types.SimpleNamespace(path=str(tmp_path / "x.qtr")), page=None), []
    for _ in range(3):
        report_try.keep(tried, "page", False)
        names.append(os.path.basename(tried.page))
    assert names == ["x.html", "x.1.html", "x.2.html"]


def test_a_trace_that_is_replaced_takes_its_page_with_it(tmp_path):
    (tmp_path / "x.html").write_text("of the trace before")
    tried = types.SimpleNamespace(recording=types.SimpleNamespace(path=str(tmp_path / "x.qtr")), page=None)
    report_try.keep(tried, "of this one", True)
    assert [p.name for p in tmp_path.iterdir()] == ["x.html"] and tried.page == str(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text() == "of this one"


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "neither a trace nor JSON"),
        (b"\x7fELF", "neither a trace nor JSON"),
        (b"[]", "JSON without a schema"),
        (b'{"schema": "quire.env/1"}', "quire.env/1"),
        (b'{"schema": "quire.try/1", "program": {}}', "without `trace`"),
    ],
)
def test_what_is_no_input_is_refused_with_the_reason(tmp_path, content, why):
    (tmp_path / "x").write_bytes(content)
    done = quire(tmp_path, "report", "x")
    assert done.returncode == 2 and why in done.stderr and "fix:" in done.stderr
    assert done.stdout == ""


@pytest.mark.by_turns
def test_a_damaged_trace_is_refused_or_reported_on_but_never_a_traceback(tmp_path):
    whole = reportkit.trace().read_bytes()
    for end in (8, 2000, len(whole) // 2):
        (tmp_path / "cut.qtr").write_bytes(whole[:end])
        more = ("--no-replay",) if end == len(whole) // 2 else ("--export", "speedscope")
        done = quire(tmp_path, "report", "cut.qtr", "-o", f"{end}.out", *more)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
        assert (tmp_path / f"{end}.out").exists() == (done.returncode == 0)


def test_heavy_stacks_stay_and_the_others_are_one_sum(monkeypatch):
    monkeypatch.setattr(report_subject, "STACKS_KEPT", 1)
    _, whole = reportkit.profile()
    few = report_subject.bounded(whole)
    assert len(few["stacks"]) == 2 < len(whole["stacks"])
    for column in range(1, 8):
        assert sum(s[column] for s in few["stacks"]) == sum(s[column] for s in whole["stacks"])


def test_clean_shows_control_characters_and_leaves_everything_else():
    assert report_page.clean("a\033[1m\n\x7f\u202eb ö 漢") == "a␛[1m␊\ufffd\ufffdb ö 漢"
    assert report_page.clean(7) == 7


def test_json_in_a_page_cannot_end_its_element():
    text = report_page.json_text({"a": "</script><!--", "b": "&amp;"})
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {"a": "</script><!--", "b": "&amp;"}


@pytest.mark.long
def test_classes_are_of_all_call_sites_also_where_the_page_lists_a_part_of_them(tmp_path):
    """More of them than a page lists: each in a function of its own, the first called most often."""
    number = report_subject.SITES_KEPT + 60
    functions = "\n".join(f"__attribute__((noinline)) void f{n}(int times) {{ while (times--) free(malloc({n + 1})); }}" for n in range(number))
    calls = "\n".join(f"f{n}({2 * (number - n)});" for n in range(number))
    program = build(tmp_path, f"#include <stdlib.h>\n{functions}\nint main(void) {{ {calls} return 0; }}\n")
    assert quire(tmp_path, "record", "-o", "x.qtr", "--", program).returncode == 0
    (advised,) = json.loads(quire(tmp_path, "advise", "--json", "x.qtr").stdout)["traces"]
    assert quire(tmp_path, "report", "x.qtr", "--no-replay").returncode == 0
    findings = reportkit.raw(tmp_path / "x.html")["findings"]
    assert len(findings["sites"]) < number <= len(advised["sites"])
    assert findings["classes"] == advised["classes"]
    assert sum(row["allocations"] for row in findings["classes"]) == findings["trace"]["allocations"]
    words = "".join(Elements((tmp_path / "x.html").read_text(encoding="utf-8")).words)
    assert f"{len(advised['sites']) - len(findings['sites'])} more call sites" in words


def test_many_figures_are_packed_for_the_way():
    name, address = report_page.download({"a": "x" * report_page.DOWNLOAD_PLAIN_BYTES_MAX})
    assert name.endswith(".gz") and len(address) < 10_000


def test_of_several_processes_the_largest_trace_is_named(tmp_path, capsys):
    first, other = tmp_path / "x.qtr", tmp_path / "x.qtr.77"
    first.write_bytes(b"QTRACE\r\n")
    other.write_bytes(b"QTRACE\r\nmore")
    report_subject.note_others(str(first))
    said = capsys.readouterr().err
    assert "2 processes were recorded" in said and f"report {other}" in said
    report_subject.note_others(str(other))
    assert capsys.readouterr().err == ""


@pytest.mark.by_turns
@pytest.mark.parametrize("odd", [b"\xff\xfe", b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf4\x90\x80\x80"] if LONG else [b"\xed\xa0\x80\xff\xfe"])
def test_arguments_that_are_no_utf8_make_a_page(tmp_path, odd):
    program = os.fsencode(reportkit.program())
    done = quire(tmp_path, "record", "-o", "x.qtr", "--", os.fsdecode(program), os.fsdecode(odd))
    assert done.returncode == 0, done.stderr
    done = quire(tmp_path, "report", "x.qtr", "--no-replay")
    assert done.returncode == 0, done.stderr
    assert "\ufffd\ufffd" in (tmp_path / "x.html").read_bytes().decode("utf-8")


def test_what_a_reader_of_the_figures_must_know_is_said():
    program = {"cpu_s": 1.0, "own_allocator_cpu_s": 0.5, "status": 3, "status_text": "exit status 3"}
    today = {"value": -4.0, "low": -5.0, "high": -3.0}
    findings = {"program": program, "trace": {"process_count": 2}, "saving_today_percent": today}
    document = {"findings": findings, "facts": {"note": "cut"}}
    said = " ".join(report_page.circumstances(document))
    for words in ("not whole: cut.", "PYTHONMALLOC", "takes 500 ms", "2 processes", "exit status 3"):
        assert words in said
    assert ("-4.0 %", "against CPython's own allocator", "-5.0 % to -3.0 %") in report_page.tiles(document)
    for name, words in (("mimalloc", "saved by mimalloc"), ("drop-in", "saved by the drop-in"), ("steered", "saved by the advice carried out")):
        assert words in [what for _, what, _ in report_page.tiles({"findings": {"saving_of": name, "saving_percent": today, "schema": "x"}, "facts": {}})]
    program["today_allocator"] = "libjemalloc.so.2"
    assert "LD_PRELOAD gives the program libjemalloc.so.2" in " ".join(report_page.circumstances(document))
    program.update(own_allocator_cpu_s=None, status=0)
    document = {"findings": {"program": program}, "facts": {}}
    assert report_page.circumstances(document) == []


@pytest.mark.long
def test_a_page_of_a_try_without_time_for_the_model_says_so_of_its_call_sites(tmp_path):
    _, document = reportkit.tried()
    trace = {**document["trace"], "path": None}
    for events, said in ((document["trace"]["events"], "There was no time to judge call sites."), (100, "No call site allocates enough to be judged.")):
        short = {**document, "trace": {**trace, "events": events}, "sites": [], "arenas": [], "slabs": [], "parts": [], "replay_rounds": None}
        (tmp_path / "try.json").write_text(json.dumps(short))
        assert quire(tmp_path, "report", "-f", "try.json", "-o", "a.html").returncode == 0
        words = "".join(Elements((tmp_path / "a.html").read_text(encoding="utf-8")).words)
        assert said in words and ("no time" in words) == (events > 100)


def test_the_picture_and_the_table_have_the_same_cpu_time_for_a_row_as_its_saving_says():
    def row(name, program_s, *saving):
        return {"name": name, "measured": True, "program_cpu_s": program_s, "saving_percent": dict(zip(("value", "low", "high"), saving))}

    findings = {"program": {"cpu_s": 2.0}, "measured": True, "allocators": [row("libc", 2.0, 0, 0, 0), row("jemalloc", 1.7, 10, 5, 15)]}
    table = {one["name"]: one for one in report_page.allocator_rows(findings)}
    picture = report_figures.program_bars(findings).inline()
    for name, text in (("libc", "2.00 s"), ("jemalloc", "1.80 s")):
        assert table[name]["program"] == text and text.replace(".00 ", " ") in picture


@pytest.mark.parametrize("number, kind", [(1, None), (3, "the whole range of the 3"), (9, "the 95 % interval")])
def test_one_replay_has_no_interval_and_few_have_their_range(number, kind):
    cost = {"value": 7.5, "low": 7.5 - (number > 1), "high": 7.5 + (number > 1)}
    findings = {"rounds": number, "allocators": [{"name": "libc", "cpu_ns_per_op": cost}]}
    said, cell = report_page.replays(findings), report_page.allocator_rows(findings)[0]["cost"]
    title = report_figures.time_bars(findings).title
    if kind:
        assert f"in {number} interleaved rounds" in said and kind in said and cell["range"] == "6.5 ns to 8.5 ns" and "interval" in title
    else:
        assert said == "in 1 round. Bars are what it took: one round has no interval." and cell == {"value": "7.5 ns", "range": ""} and "interval" not in title
