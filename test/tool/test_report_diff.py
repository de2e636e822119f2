# SPDX-License-Identifier: MIT
"""test_report_diff - `report A B`: what grew is told, what did not is not, and only like is compared with like."""

import copy
import html
import json
import xml.etree.ElementTree as xml

import pytest
import reportkit
from toolkit import ROOT, build, quire

import report.ci as ci
import report.diff as report_diff
import report.limits as limits
from errors import QuireError
from report.inputs import Input

GROWING = """
#include <stdlib.h>
static void *kept[%d];
__attribute__((noinline)) void *keeper(void) { return malloc(100); }
__attribute__((noinline)) void *steady(void) { return malloc(10); }
int main(void) {
    for (int i = 0; i < %d; i++) kept[i] = keeper();
    for (int i = 0; i < 50; i++) free(steady());
    return kept[0] == 0;
}
"""


@pytest.fixture(scope="module")
def traces():
    """Two traces of one program that keeps 30 objects, then 80, at the same line."""
    folder = reportkit.folder() / "diff"
    folder.mkdir(exist_ok=True)
    for name, number in (("a", 30), ("b", 80)):
        (folder / name).mkdir(exist_ok=True)
        program = build(folder / name, GROWING % (number, number), "grower")
        done = quire(folder, "record", "-f", "-o", f"{name}.qtr", "--", program)
        assert done.returncode == 0, done.stderr
    return folder


def bench(cost, low, high):
    """A result of `bench` with one figure."""
    row = {"case": "one", "allocator": "libc", "cpu_ns": {"median": cost, "low": low, "high": high}}
    return {"schema": "quire.bench/1", "table": "micro", "micro": {"rows": [row]}}


def compared(tmp_path, a, b):
    """The text of two documents' difference."""
    (tmp_path / "a.json").write_text(json.dumps(a))
    (tmp_path / "b.json").write_text(json.dumps(b))
    done = quire(tmp_path, "report", "a.json", "b.json", "--text")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.by_turns
def test_what_grew_between_two_traces_is_told_by_site(traces):
    done = quire(traces, "report", "a.qtr", "b.qtr", "--text")
    assert done.returncode == 0, done.stderr
    line = next(x for x in done.stdout.splitlines() if "keeper" in x)
    assert line.count("+5.0 KB") == 2 and " 30 " in line and " 80 " in line
    assert "steady" not in done.stdout
    assert "+50 (" in next(x for x in done.stdout.splitlines() if "allocations" in x)


@pytest.mark.by_turns
def test_a_difference_makes_a_page_with_its_figures(traces, tmp_path):
    done = quire(tmp_path, "report", traces / "a.qtr", traces / "b.qtr")
    assert done.returncode == 0 and done.stdout == "report: a-b.html\n", done.stderr
    document = reportkit.raw(tmp_path / "a-b.html")
    assert document["schema"] == "quire.report-difference/1" and document["kind"] == "trace"
    grown = {s["function"]: s["b"][0] - s["a"][0] for s in document["sites"]}
    assert grown["keeper"] == 50
    text = (tmp_path / "a-b.html").read_text()
    assert "<svg" in text and "keeper" in text and "http://www.w3.org" in text


def test_a_trace_differs_in_nothing_from_itself(traces):
    done = quire(traces, "report", "a.qtr", "a.qtr", "--text")
    assert done.returncode == 0
    assert "0 of 7 figures changed; 0 call sites differ." in done.stdout


def test_only_intervals_that_do_not_meet_are_a_change(tmp_path):
    noisy = compared(tmp_path, bench(100, 90, 120), bench(110, 95, 130))
    assert "0 of 1 figures changed" in noisy and "within noise" in noisy
    clear = compared(tmp_path, bench(100, 90, 120), bench(150, 121, 160))
    assert "1 of 1 figures changed" in clear and "+50 %" in clear
    faster = compared(tmp_path, bench(100, 90, 120), bench(50, 40, 89))
    assert "-50 %" in faster


def test_one_round_has_no_interval_and_its_difference_is_no_change(tmp_path):
    once = bench(150, 150, 150)
    once["micro"]["rounds"] = 1
    for a, b in ((bench(100, 90, 120), once), (once, bench(100, 90, 120))):
        said = compared(tmp_path, a, b)
        assert "0 of 1 figures changed" in said and "no interval" in said and "(150" not in said
    _, document = reportkit.tried()
    other = copy.deepcopy(document)
    for result, seconds in ((document, 1.0), (other, 9.0)):
        result["program"]["cpu_interval_s"] = {"value": seconds, "low": seconds, "high": seconds}
    said = compared(tmp_path, document, other)
    assert "no interval" in next(x for x in said.splitlines() if "CPU time of the program" in x)


def test_two_results_of_try_are_compared_figure_by_figure(tmp_path):
    _, document = reportkit.tried()
    slower = copy.deepcopy(document)
    for row in slower["allocators"]:
        if row["name"] == "libc":
            row["cpu_ns_per_op"] = {"value": 9000.0, "low": 8999.0, "high": 9001.0}
    slower["sites"][0]["allocations"] += 7
    slower["sites"][0]["bytes"] += 700
    said = compared(tmp_path, document, slower)
    assert "1 call site differs" in said and "+700 B" in said
    changed = next(x for x in said.splitlines() if "libc: one operation" in x)
    assert "9000.0 ns" in changed and "within noise" not in changed
    assert "no interval" in next(x for x in said.splitlines() if "peak resident memory of the program" in x)


@pytest.mark.long
@pytest.mark.parametrize(("source", "words"), [
    ("int main(void) { for (int i = 0; i < 9; i++) free(malloc(9)); return 0; }", []),
    ("int main(void) { for (int i = 0; i < 9000; i++) free(malloc(9)); abort(); }", ["--rounds", 1]),
    ("int main(void) { for (int i = 0; i < 90000; i++) free(malloc(9)); return 0; }", ["--time-limit", "0.01"]),
    ("int main(void) { _exit(0); }", ["--rounds", 1]),
])  # fmt: skip
def test_results_of_try_that_have_little_to_say_are_read(tmp_path, source, words):
    program = build(tmp_path, f"#include <stdlib.h>\n#include <unistd.h>\n{source}\n", flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--json", "--no-report", *words, "--", program)
    document = json.loads(done.stdout)
    assert "CPU time of the program" in compared(tmp_path, document, document)
    done = quire(tmp_path, "report", "a.json")
    assert done.returncode == 0, done.stderr


def test_what_is_in_percent_changes_by_points(tmp_path):
    _, document = reportkit.tried()
    other = copy.deepcopy(document)
    for result, value in ((document, -39.0), (other, -1.0)):
        result["saving_percent"] = {"value": value, "low": value - 0.1, "high": value + 0.1}
    said = compared(tmp_path, document, other)
    changed = next(x for x in said.splitlines() if x.strip().startswith("saved "))
    assert changed.endswith("+38 points"), changed


def test_figures_that_only_one_has_are_named(tmp_path):
    other = bench(1, 1, 1)
    other["micro"]["rows"][0]["allocator"] = "mimalloc"
    said = compared(tmp_path, bench(1, 1, 1), other)
    assert "A alone: micro one libc cpu_ns" in said and "B alone: micro one mimalloc cpu_ns" in said


@pytest.mark.parametrize("text, why", [('{"schema": "quire.bench/9", "table": "micro"}', "quire.bench/9"), ("[" * 100000, "neither"), ("[1]", "without a schema")])
def test_a_document_of_another_version_or_none_is_refused(tmp_path, text, why):
    (tmp_path / "x.json").write_text(text)
    done = quire(tmp_path, "report", "x.json")
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("part", [{"threads": "x"}, {"peak_live_bytes": [[]]}])
def test_a_try_with_nonsense_in_it_is_refused(tmp_path, part):
    document = {"schema": "quire.try/1", "program": {"argv": ["x"]}, "trace": {"path": "x.qtr", "allocations": 5, **part}, "verdict": {"word": "YES"}}
    (tmp_path / "x.json").write_text(json.dumps(document))
    done = quire(tmp_path, "report", "x.json")
    assert done.returncode == 2 and "is nothing that `report` reads" in done.stderr and "Traceback" not in done.stderr


def test_unlike_things_are_not_compared(traces, tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(bench(1, 1, 1)))
    done = quire(tmp_path, "report", traces / "a.qtr", "b.json", "--text")
    assert done.returncode == 2 and "nothing to compare" in done.stderr
    (tmp_path / "c.json").write_text(json.dumps({**bench(1, 1, 1), "table": "apps"}))
    done = quire(tmp_path, "report", "b.json", "c.json")
    assert done.returncode == 2 and "two tables" in done.stderr


@pytest.mark.parametrize(
    "words, why",
    [
        (["a", "b", "c"], "one input, or two"),
        (["a", "--text"], "--text is for two"),
        (["a", "b", "--export", "csv"], "--export takes one trace"),
        (["a", "--export", "svg"], "invalid choice"),
        (["a", "--rounds", "0"], "--rounds must be"),
        (["no-such-file"], "no such file"),
        (["."], "a directory"),
    ],
)
def test_wrong_words_end_with_what_is_wrong(tmp_path, words, why):
    done = quire(tmp_path, "report", *words)
    assert done.returncode == 2 and why in done.stderr and done.stdout == ""


def test_names_in_a_difference_are_harmless(tmp_path):
    site = {
        "function": "<b>\033[1m",
        "where": "<i>",
        "allocations": 5,
        "bytes": 50,
        "stack": ["<script>alert(1)</script>"],
    }
    _, document = reportkit.tried()
    a, b = {**document, "sites": [site]}, {**document, "sites": [{**site, "bytes": 60}]}
    inputs = [Input("try", "<a>.json", a), Input("try", "b\033.json", b)]
    found = report_diff.difference(inputs, (), str(tmp_path))
    text = "\n".join(report_diff.text(found))
    assert "\033[1m" not in text and "<b>␛[1m" in text
    page = report_diff.page(found)
    assert "<b>␛" not in page and "&lt;b&gt;␛[1m" in page and "\033" not in page


def failing(tmp_path, a, b, *wanted):
    """Exit status of a comparison with limits, and what was said."""
    (tmp_path / "a.json").write_text(json.dumps(a))
    (tmp_path / "b.json").write_text(json.dumps(b))
    words = [word for limit in wanted for word in ("--fail-on", limit)]
    done = quire(tmp_path, "report", "a.json", "b.json", "--text", *words)
    return done.returncode, done.stderr


FIGURE = "micro one libc cpu_ns"


@pytest.mark.parametrize(
    "after, limit, status",
    [
        ((107, 106, 108), f"{FIGURE}>+3%", 1),
        ((107, 106, 108), f"{FIGURE}>3%", 1),
        ((107, 106, 108), f"{FIGURE}>+8%", 0),
        ((107, 100, 114), f"{FIGURE}>+3%", 0),  # within the noise
        ((107, 106, 108), f"{FIGURE}<-3%", 0),
        ((90, 89, 91), f"{FIGURE}<-3%", 1),
        ((90, 89, 91), f"{FIGURE}>-20%", 1),
    ],
)
def test_a_figure_that_changed_beyond_its_limit_and_the_noise_ends_with_1(tmp_path, after, limit, status):
    assert failing(tmp_path, bench(100, 99, 101), bench(*after), limit)[0] == status


def test_each_broken_limit_is_named_and_none_is_forgotten(tmp_path):
    status, said = failing(tmp_path, bench(100, 99, 101), bench(120, 119, 121), f"{FIGURE}>50%", f"{FIGURE}>3%")
    assert status == 1 and said.count("--fail-on") == 1 and "+20.0 %" in said


def test_limits_of_a_try_go_by_short_names(tmp_path):
    before = copy.deepcopy(reportkit.tried()[1])
    after = copy.deepcopy(before)
    assert failing(tmp_path, before, after, "cpu>+3%", "peak>0%", "allocations>0%") == (0, "")
    after["program"]["peak_rss_bytes"] *= 2
    after["program"]["cpu_interval_s"] = {"value": 10.0, "low": 9.9, "high": 10.1}
    before["program"]["cpu_interval_s"] = {"value": 1.0, "low": 0.9, "high": 1.1}
    status, said = failing(tmp_path, before, after, "cpu>+3%", "peak>+10%", "allocations>0%")
    assert status == 1 and "CPU time of the program: +900.0 %" in said and "+100.0 %" in said and "allocations" not in said


def test_a_limit_that_cannot_be_judged_or_read_is_no_success(tmp_path):
    same = bench(100, 99, 101)
    status, said = failing(tmp_path, same, same, "cpu>3%")
    assert status == 125 and "cannot be judged" in said
    told = (ROOT / "doc" / "report.md").read_text(encoding="utf-8")
    assert "The exit status is 0; with `--fail-on` 1 where" in told and "125 where a limit cannot be judged" in told
    assert failing(tmp_path, same, same, "cpu is fast")[0] == 2
    (tmp_path / "a.json").write_text(json.dumps(same))
    assert quire(tmp_path, "report", "a.json", "--fail-on", "cpu>3%").returncode == 2


def test_what_is_close_to_an_unknown_figure_is_named_once():
    figure = report_diff.Figure(1.0, None, None, "count")
    with pytest.raises(QuireError) as failed:
        limits.judge(limits.parse("alocations>3%"), report_diff.figure_changes({"allocations": figure}, {"allocations": figure}))
    assert failed.value.why.count("allocations") == 1, failed.value.why


@pytest.mark.by_turns
def test_a_limit_on_a_trace_that_is_not_whole_is_no_success(traces, tmp_path):
    whole = (traces / "b.qtr").read_bytes()
    (tmp_path / "cut.qtr").write_bytes(whole[: len(whole) * 3 // 4])
    words = [traces / "b.qtr", tmp_path / "cut.qtr", "--text"]
    assert "B is not whole" in quire(tmp_path, "report", *words).stdout
    done = quire(tmp_path, "report", *words, "--fail-on", "allocations>3%")
    assert done.returncode == 125 and "cannot be judged: B is not whole" in done.stderr, done.stderr


def test_sites_of_a_try_that_had_no_time_for_them_are_not_taken_for_none(tmp_path):
    _, document = reportkit.tried()
    assert "0 call sites differ" in compared(tmp_path, document, {**document, "sites": []})


# ---- for what runs the comparison ----


def for_ci(tmp_path, after, *words, **environment):
    """A comparison with two limits, of which `after` breaks the first or none."""
    (tmp_path / "a.json").write_text(json.dumps(bench(100, 99, 101)))
    (tmp_path / "b.json").write_text(json.dumps(bench(*after)))
    limits = ["--fail-on", f"{FIGURE}>3%", "--fail-on", f"{FIGURE}>+50%"]
    return quire(tmp_path, "report", "a.json", "b.json", "--text", *limits, *words, environment=environment)


@pytest.mark.parametrize("after, status, failures", [((120, 119, 121), 1, 1), ((100, 99, 101), 0, 0)])
def test_junit_has_a_case_for_each_limit(tmp_path, after, status, failures):
    assert for_ci(tmp_path, after, "--junit", "r.xml").returncode == status
    suites = xml.parse(tmp_path / "r.xml").getroot()
    (suite,) = suites
    assert suites.tag == "testsuites" and suite.attrib == {"name": "quire report a.json b.json", "tests": "2", "failures": str(failures), "errors": "0"}
    assert [case.get("name") for case in suite] == [f"{FIGURE}>3%", f"{FIGURE}>+50%"]
    said = [case.find("failure") for case in suite]
    assert [one is not None for one in said] == [failures == 1, False]
    assert not failures or "+20.0 %" in said[0].get("message") and said[0].text == f"{FIGURE}: 100.0 ns (99.0 ns to 101.0 ns) to 120.0 ns (119.0 ns to 121.0 ns), +20.0 %"


def test_the_summary_is_appended_where_github_says_or_to_a_file(tmp_path):
    (tmp_path / "step.md").write_text("# Before\n")
    assert for_ci(tmp_path, (120, 119, 121), "--github-summary", GITHUB_STEP_SUMMARY=str(tmp_path / "step.md")).returncode == 1
    said = (tmp_path / "step.md").read_text()
    assert said.startswith("# Before\n### Quire: a.json to b.json: 1 of 2 limits broken\n\n| limit |")
    rows = [[html.unescape(cell.strip()) for cell in line.strip("|").split("|")] for line in said.splitlines() if line.startswith("| ") and "| --- |" not in line]
    assert rows[1][:2] == [f"{FIGURE}>3%", FIGURE] and rows[1][-2:] == ["+20.0 %", "broken"] and rows[2][-1] == "held"
    assert rows[3][0] == "what changed" and rows[4][0] == FIGURE
    assert for_ci(tmp_path, (100, 99, 101), "--github-summary=other.md").returncode == 0
    assert "all 2 limits held" in (tmp_path / "other.md").read_text()


def test_names_in_a_summary_and_in_junit_are_no_markup():
    name = "a|b `c` <img src=x> [d](e) *f* # g \033[1m\x00"
    before, after = report_diff.Figure(1, None, None, "count", True), report_diff.Figure(2, None, None, "count", True)
    change = report_diff.change(name, before, after)
    judged = [limits.judge(limits.parse(f"{name.strip()}>3%"), [change._replace(name=name.strip())])]
    found = report_diff.Difference("try", ("<a>|", "b`"), [change], [], [], [])
    said = ci.summary(found, judged)
    rows = [line for line in said.splitlines() if line.startswith("| ") and "| --- |" not in line]
    assert [row.count("|") for row in rows] == [7, 7, 5, 5] and "\033" not in said and "\0" not in said
    assert not set("`<>[]*") & set("".join(rows))
    (suite,) = xml.fromstring(ci.junit(found.names, judged))
    assert suite[0].find("failure") is not None


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["a.json", "b.json", "--junit", "r.xml"], 2, "--junit is for limits"),
        (["a.json", "--github-summary"], 2, "--github-summary is for two inputs"),
        (["a.json", "b.json", "--text", "--github-summary"], 2, "GITHUB_STEP_SUMMARY is not set"),
        (["a.json", "b.json", "--text", "--github-summary=a.json"], 2, "a.json is an input"),
        (["a.json", "b.json", "--text", "--github-summary=/nowhere/s.md"], 3, "cannot write /nowhere/s.md"),
        (["a.json", "b.json", "--fail-on", f"{FIGURE}>3%", "--text", "--junit", "b.json"], 2, "b.json exists already"),
        (["a.json", "b.json", "--fail-on", f"{FIGURE}>3%", "--text", "--junit", "/nowhere/r.xml"], 3, "cannot write /nowhere/r.xml"),
    ],
)
def test_files_for_ci_that_make_no_sense_are_refused_before_anything_is_done(tmp_path, words, status, said):
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(bench(100, 99, 101)))
    done = quire(tmp_path, "report", *words, environment={"GITHUB_STEP_SUMMARY": ""})
    assert (done.returncode, done.stdout) == (status, "") and said in done.stderr
    assert json.loads((tmp_path / "a.json").read_text()) == bench(100, 99, 101)
