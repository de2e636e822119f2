# SPDX-License-Identifier: MIT
"""
conditions.py - what --fail-on says, as 'peak>24M': parsed before the program runs, judged by its report.

    text -> Condition(key, operator, limit, text);   value of key in the report  operator  limit -> holds or not

Not here: the report (runreport.py).
"""

import operator
import re
from collections import namedtuple

import leaksites
from errors import EXIT_TOOL_FAILED, QuireError, UsageError
from lazily import difflib

Condition = namedtuple("Condition", "key compare limit text")

FORM = re.compile(r"^\s*([a-z_]+)\s*(>=|<=|==|!=|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*$")
OPERATORS = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
TIMES = {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6}
LEAKS = ("leaks", "blocks")


def not_suppressed(document, key, part):
    """What was live at exit, without what suppressions took."""
    suppressed = document.get("leak_suppressed", [])
    if leaksites.asked_bytes(document) is not None:
        return sum(row[part] for row in document["leak_sites"])
    return document["report"][key] - sum(line[part] for line in suppressed)


# key: (units, where in the document)
KEYS = {
    "peak": (BYTES, lambda d: d["peak_rss_bytes"]),
    "time": (TIMES, lambda d: d["wall_s"]),
    "cpu": (TIMES, lambda d: d["cpu_s"]),
    "rss": (BYTES, lambda d: d["report"]["rss_bytes"]),
    "live": (BYTES, lambda d: d["report"]["heap"]["live_bytes"]),
    "heap": (BYTES, lambda d: d["report"]["heap"]["peak_bytes"]),
    "leaks": (BYTES, lambda d: not_suppressed(d, "leaked_bytes", "bytes")),
    "blocks": ({"": 1}, lambda d: not_suppressed(d, "leaked_blocks", "count")),
    "fragmentation": ({"": 1, "%": 1}, lambda d: d["fragmentation_percent"]),
}


def parse(text):
    """The Condition of a text, or a usage error that says what would do."""
    found = FORM.match(text)
    if not found:
        raise UsageError(f"--fail-on: `{text}` is no condition", fix="--fail-on 'peak>24M'")
    key, compare, number, unit = found.groups()
    if key not in KEYS:
        close = difflib.get_close_matches(key, KEYS, n=1)
        why = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(KEYS)}"
        raise UsageError(f"--fail-on: there is no `{key}`", why, "quire run --help")
    units = KEYS[key][0]
    if unit not in units:
        known = ", ".join(u for u in units if u) or "none"
        raise UsageError(
            f"--fail-on: `{unit}` is no unit of {key}", f"units: {known}", "quire run --help"
        )
    return Condition(key, compare, float(number) * units[unit], text)


def holds(condition, document, name):
    """Whether it holds in a report."""
    try:
        value = KEYS[condition.key][1](document)
    except (KeyError, TypeError):
        value = None
    if value is None:
        raise QuireError(
            f"--fail-on: `{condition.text}` cannot be judged",
            f"{name} left no report: it ended by a signal, by _exit, could not write it (chroot), or hands everything to libc",
            "peak, time and cpu can always be judged",
            EXIT_TOOL_FAILED,
        )
    return OPERATORS[condition.compare](value, condition.limit)
