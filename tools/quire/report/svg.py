# SPDX-License-Identifier: MIT
"""
svg.py - the pictures of a page as files of their own, for a README or a document.

    quire.report/1 -> report/page.py -> DIR/time.svg  memory.svg  live.svg ...  flame-live.svg  map-peak.svg

Each follows its viewer's light or dark.  Not here: drawing.
"""

import os
import re

import report.plots as plots
import report.page as report_page


def styled(drawn):
    """A flame graph or a map with the rules that the page has for it."""
    with open(os.path.join(report_page.TEMPLATES, "base.css"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    rules = [line for line in lines if re.match(r"svg\.(flame|map)|\.[hm][0-9]", line)]
    own = ":root { --line: #d8dee4 } @media (prefers-color-scheme: dark) { :root { --line: #2f3742 } }"
    style = "\n".join([plots.variables(), own, "svg { background: var(--q-paper) }", *rules])
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    drawn = drawn.replace("<svg ", head, 1)
    return drawn.replace("</title>", f"</title><style>{style}</style>", 1) + "\n"


def files(document):
    """{file name: text}"""
    drawn, found = report_page.pictures(document), {}
    for name in ("time", "memory", "live", "areas", "heat"):
        if drawn.get(name):
            found[f"{name}.svg"] = drawn[name].file()
    for one in drawn.get("flames", []):
        if one["svg"]:
            found[f"flame-{one['key']}.svg"] = styled(one["svg"])
    for one in drawn.get("maps", []):
        if one["svg"]:
            found[f"map-{one['key'].rsplit('_', 1)[-1]}.svg"] = styled(one["svg"])
    return found
