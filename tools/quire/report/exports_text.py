# SPDX-License-Identifier: MIT
"""
exports_text.py - a trace's stacks as folded lines, as speedscope's JSON, and its call sites as CSV.

    quire.profile/1 + call sites (report/subject.py)  ->  export(kind, exported) -> text

Folded: `main;parse;list 4096`, outermost first, bytes allocated (flamegraph.pl, inferno).  speedscope: four profiles of
the same stacks (bytes and objects allocated, and live at the peak).  CSV: one line a site.
Not here: pprof (report/exports_pprof.py).
"""

import io
import json

import ui
from lazily import csv
from report.flame import frames
from version import VERSION

ENDINGS = {"pprof": "pb.gz", "folded": "folded", "speedscope": "speedscope.json", "csv": "csv"}
UNKNOWN = "(unknown)"
# name, unit, the figures of a stack that are added
SPEEDSCOPE = [
    ("bytes allocated", "bytes", (2, 3)),
    ("allocations", "none", (1,)),
    ("bytes live at the peak", "bytes", (5,)),
    ("objects live at the peak", "none", (4,)),
]
COLUMNS = [
    "id",
    "function",
    "file",
    "line",
    "module",
    "allocations",
    "bytes",
    "reallocs",
    "realloc_bytes",
    "freed",
    "never_freed",
    "size_min_bytes",
    "size_max_bytes",
    "peak_live_objects",
    "peak_live_bytes",
    "bytes_at_program_peak",
    "lifetime_p50_ns",
    "lifetime_p99_ns",
    "cross_thread_frees",
    "stack",
]


def allocated(stack):
    """Bytes of a stack's blocks, with what reallocs added to them."""
    return stack[2] + stack[3]


def folded(exported):
    """One line a stack."""
    lines = {}
    for stack in exported["profile"]["stacks"]:
        weight = allocated(stack)
        if weight > 0:
            names = [n for n, _ in frames(exported["profile"], stack)] or [UNKNOWN]
            key = ";".join(ui.masked(n).replace(";", ":") for n in names)
            lines[key] = lines.get(key, 0) + weight
    return "".join(f"{key} {weight}\n" for key, weight in sorted(lines.items()))


def speedscope_profile(entry, stacks, samples, moment):
    """One profile: the stacks that have this figure."""
    name, unit, columns = entry
    name = name.replace("at the peak", moment)
    kept = [(s, sum(stack[c] for c in columns)) for stack, s in zip(stacks, samples)]
    kept = [(s, weight) for s, weight in kept if weight > 0]
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weight for _, weight in kept),
        "samples": [s for s, _ in kept],
        "weights": [weight for _, weight in kept],
    }


def speedscope(exported):
    """speedscope's file format."""
    profile, numbers, listed = exported["profile"], {}, []

    def number(frame):
        if frame not in numbers:
            numbers[frame] = len(listed)
            listed.append({"name": ui.masked(frame[0]), **({"file": ui.masked(frame[1])} if frame[1] else {})})
        return numbers[frame]

    samples = [
        [number(frame) for frame in frames(profile, stack) or [(UNKNOWN, "")]]
        for stack in profile["stacks"]
    ]
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"quire {VERSION}",
        "name": exported["command"],
        "activeProfileIndex": 0,
        "shared": {"frames": listed},
        "profiles": [speedscope_profile(e, profile["stacks"], samples, exported.get("moment", "at the peak")) for e in SPEEDSCOPE],
    }
    return json.dumps(document) + "\n"


def guarded(value):
    """A cell; a name that a spreadsheet would take for a formula gets a quote."""
    text = ui.masked(str(value))
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def site_cells(site):
    """One line of the CSV."""
    cells = dict(site)
    cells.update(
        allocations=site["count"],
        size_min_bytes=site["sizes"]["min"],
        size_max_bytes=site["sizes"]["max"],
        lifetime_p50_ns=site["lifetime_ns"]["p50"],
        lifetime_p99_ns=site["lifetime_ns"]["p99"],
        stack=" < ".join(site["stack"]),
    )
    return [guarded(cells[column]) for column in COLUMNS]


def sites_csv(exported):
    """The call sites, most allocations first."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(site_cells(site) for site in exported["sites"])
    return sink.getvalue()


def export(kind, exported):
    """The text of one kind."""
    return {"folded": folded, "speedscope": speedscope, "csv": sites_csv}[kind](exported)
