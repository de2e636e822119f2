# SPDX-License-Identifier: MIT
"""
scale_text.py - what `quire bench scale` found, for people: a chart in text for each part of each axis.

    Slab: ns a pair over threads          chart, its figures, then one line of words on our own curve

Not here: figures (bench/scale.py), drawing (bench/chart.py), pictures (bench/plots.py).
"""

from bench.chart import chart, figure_lines
from bench.figures import interval_kind, spread
from bench.scale import NS, OURS

WHAT = {
    "arena": "Arena: a query's objects, built and thrown away",
    "slab": "Slab: elements of 64 bytes",
    "percpu": "Per-CPU: objects with a copy for each CPU (malloc has one)",
    "heap": "Heap: blocks of 64 bytes, a random one replaced",
}
OVER = {"threads": "threads", "objects": "live objects", "cpus": "configured CPUs"}


NAMES = {OURS["heap"]: "quire-heap (drop-in)"}  # one letter in a chart, and that of ours upper case


def text(table, _names=None):
    """Everything."""
    head = (
        "Scale: CPU nanoseconds to allocate and free one object\n"
        f"medians of {table['rounds']} interleaved rounds, [{interval_kind(table['rounds'])}];"
        " one process a figure, the malloc in it checked"
    )
    parts = [
        one(table, axis, part)
        for axis in table["points"]
        for part in dict.fromkeys(r["part"] for r in table["rows"] if r["axis"] == axis)
    ]
    return "\n\n".join([head, *parts])


def series(table, axis, part):
    """{allocator: [row a point]}, ours first."""
    found = {OURS[part]: []}
    for row in table["rows"]:
        if (row["axis"], row["part"]) == (axis, part):
            found.setdefault(row["allocator"], []).append(row)
    return {name: rows for name, rows in found.items() if rows}


def title(axis, part):
    """What is drawn over what."""
    return f"{WHAT[part]}; ns over {OVER[axis]}"


def one(table, axis, part):
    """A chart and what it says."""
    found, points = series(table, axis, part), table["points"][axis]
    medians = {NAMES.get(name, name): [row[NS]["median"] for row in rows] for name, rows in found.items()}
    columns = [f"{at:,}" for at in points]
    lines = [chart(medians, columns, title(axis, part)), *figure_lines(medians, columns)]
    if OURS[part] in found:
        last = found[OURS[part]][-1]
        lines.append(
            f"{NAMES.get(OURS[part], OURS[part])}: {points[-1]:,} {OVER[axis]} take {spread(last['ratio_to_first'])} times as"
            f" long a pair as {points[0]:,}; {spread(last['ratio_to_libc'])} of libc's time there"
        )
    return "\n".join(lines)
