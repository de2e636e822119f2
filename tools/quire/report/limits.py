# SPDX-License-Identifier: MIT
"""
limits.py - `report A B --fail-on 'cpu>+3%'`: may a figure grow, or shrink, by so much?

    text -> Limit(figure, compare, percent, text) + the figure's change -> Judged: beyond the limit, and beyond the noise?

A figure with an interval fails only where the intervals of A and B do not meet: what lies within the noise is no reason to stop anybody.
Not here: figures and changes (diff.py), files for what runs the comparison (ci.py), conditions of one run (conditions.py).
"""

import operator
import re
from collections import namedtuple

from errors import EXIT_TOOL_FAILED, QuireError, UsageError
from lazily import difflib

Limit = namedtuple("Limit", "figure compare percent text")
Judged = namedtuple("Judged", "limit change percent is_broken")

FORM = re.compile(r"^\s*(.+?)\s*(>|<)\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*%\s*$")
NAMES = {
    "cpu": "CPU time of the program",
    "peak": "peak resident memory of the program",
    "allocations": "allocations",
    "live": "live bytes at the peak",
    "leaks": "live bytes at the end",
}


def parse(text):
    """The Limit of a text; a usage error says what would do."""
    found = FORM.match(text)
    if not found:
        raise UsageError(f"--fail-on: `{text}` is no limit", fix="--fail-on 'cpu>+3%'")
    name, sign, percent = found.groups()
    return Limit(NAMES.get(name, name), {">": operator.gt, "<": operator.lt}[sign], float(percent), text)


def grown(percent):
    """A change as it is written."""
    return "grew from nothing" if percent == float("inf") else f"{percent:+.1f} %"


def judge(limit, changes, partial=()):
    """What became of a figure, and whether that is beyond its limit."""
    if partial:
        raise QuireError(
            f"--fail-on: `{limit.text}` cannot be judged: {partial[0]}", None, "record the whole of it", EXIT_TOOL_FAILED
        )
    change = next((c for c in changes if c.name == limit.figure), None)
    if change is None:
        close = difflib.get_close_matches(limit.figure, dict.fromkeys([*NAMES, *(c.name for c in changes)]), n=3, cutoff=0.3)
        raise QuireError(
            f"--fail-on: `{limit.text}` cannot be judged: the inputs have no `{limit.figure}` in common",
            f"close to it: {', '.join(close)}" if close else None,
            "report A B --text shows all figures",
            EXIT_TOOL_FAILED,
        )
    percent = change.percent
    if percent is None:  # from nothing: any growth is beyond any percentage
        percent = float("inf") if change.after.value > 0 else 0.0
    has_noise = change.before.low is not None and change.after.low is not None
    is_broken = limit.compare(percent, limit.percent) and not (has_noise and not change.clear)
    return Judged(limit, change, percent, is_broken)


def line(judged):
    """What is said of a limit that is broken."""
    return f"--fail-on {judged.limit.text}: {judged.change.name}: {grown(judged.percent)}"
