# SPDX-License-Identifier: MIT
"""
ci.py - what `report A B --fail-on` found, for what runs it: JUnit's XML, and a summary in GitHub's Markdown.

    [Judged] -> junit(): a test case for each limit      Difference, [Judged] -> summary(): a table of the limits, then of what changed

Names come out of recorded programs: nothing in them may be markup.
Not here: who judges (limits.py), where it is written (cmd_report.py).
"""

import re
import xml.etree.ElementTree as xml

import report.diff as report_diff
import report.limits as limits
import ui

CHANGES_SHOWN = 20


def junit(names, judged):
    """JUnit's XML of two inputs' names and what was judged."""
    title = ui.printable(f"quire report {names[0]} {names[1]}")
    broken = sum(j.is_broken for j in judged)
    counts = {"tests": str(len(judged)), "failures": str(broken), "errors": "0"}
    suites = xml.Element("testsuites", counts)
    suite = xml.SubElement(suites, "testsuite", {"name": title, **counts})
    for one in judged:
        case = xml.SubElement(suite, "testcase", {"classname": "quire.report", "name": ui.printable(one.limit.text)})
        said = ui.printable(f"{one.change.name}: {report_diff.shown(one.change.before)} to {report_diff.shown(one.change.after)}, {limits.grown(one.percent)}")
        if one.is_broken:
            xml.SubElement(case, "failure", {"type": "limit", "message": ui.printable(limits.line(one))}).text = said
        else:
            xml.SubElement(case, "system-out").text = said
    xml.indent(suites)
    return xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def plain(text):
    """Text without anything that Markdown or HTML would obey."""
    escaped = ui.printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~@:-])", lambda m: f"&#{ord(m[1])};", escaped)


def table(head, rows):
    """Lines of a table; the words of its first column are names."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" + " ---: |" * (len(head) - 1)]
    return [*lines, *("| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows)]


def summary(found, judged):
    """Markdown: the limits, and the figures that changed."""
    broken = sum(j.is_broken for j in judged)
    verdict = f"{broken} of {len(judged)} limits broken" if broken else f"all {len(judged)} limits held" if judged else "no limits"
    lines = [f"### Quire: {plain(found.names[0])} to {plain(found.names[1])}: {verdict}", ""]
    if judged:
        cells = [[j.limit.text, j.change.name, report_diff.shown(j.change.before), report_diff.shown(j.change.after), limits.grown(j.percent), "broken" if j.is_broken else "held"] for j in judged]
        lines += [*table(["limit", "figure", "before", "after", "change", "result"], cells), ""]
    changed = [row for row in found.figures if row.clear][:CHANGES_SHOWN]
    if changed:
        cells = [[row.name, report_diff.shown(row.before), report_diff.shown(row.after), report_diff.moved(row)] for row in changed]
        lines += [*table(["what changed", "before", "after", "change"], cells), ""]
    return "\n".join(lines) + "\n"
