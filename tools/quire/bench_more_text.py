# SPDX-License-Identifier: MIT
"""
bench_more_text.py - the smaller tables of the seeds, for people: a line a table's line, a column an allocator.

Not here: figures (bench_more.py), the headline tables' words (bench_arena.py, bench_slab_text.py, bench_percpu_text.py).
"""

from bench_figures import interval_kind, spread
from bench_more import TABLES

COLUMN, LABEL = 20, 26


def text(found, prefix=""):
    """All tables whose name begins so."""
    parts = [
        table(name, [r for r in found["rows"] if r["table"] == name])
        for name in TABLES
        if name.startswith(prefix)
    ]
    head = f"medians of {found['rounds']} interleaved rounds, [{interval_kind(found['rounds'])}]"
    return "\n\n".join([head, *(part for part in parts if part)])


def table(name, rows):
    """One table, with what was published."""
    if not rows:
        return ""
    what = TABLES[name]
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    lines = [f"{what.title}; {what.unit}", " " * LABEL + "".join(f"{n:>{COLUMN}}" for n in names)]
    for line in dict.fromkeys(row["line"] for row in rows):
        by_name = {row["allocator"]: row for row in rows if row["line"] == line}
        cells = "".join(f"{cell(by_name.get(n)):>{COLUMN}}" for n in names)
        lines.append(f"{line:{LABEL}}{cells}".rstrip())
    lines += ratios(what, rows)
    return "\n".join([*lines, f"  {what.published}"])


def cell(row):
    """A figure with as many digits as it deserves, and its range."""
    if row is None:
        return "-"
    return spread(row["value"], 1 if row["value"]["median"] >= 10 else 2).replace(" to ", "-")


def ratios(what, rows):
    """Ours beside the base, a sentence for each line."""
    return [
        f"{row['line']}: {row['allocator']} {spread(row['ratio_to_base'])} times {what.base}'s"
        for row in rows
        if row["allocator"].startswith("quire-")
        and row["allocator"] != what.base
        and "ratio_to_base" in row
    ]
