# SPDX-License-Identifier: MIT
"""
more_text.py - the smaller tables of the seeds, for people: a line a table's line, a column an allocator.

Not here: figures (bench/more.py), the headline tables' words (bench/arena.py, bench/slab_text.py, bench/percpu_text.py).
"""

from bench.figures import interval_kind, spread
from bench.more import TABLES

COLUMN, LABEL = 12, 24


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
    width = {name: max(COLUMN, len(name) + 2) for name in names}
    lines = [
        f"{what.title}; {what.unit}",
        " " * LABEL + "".join(f"{name:>{width[name]}}" for name in names),
    ]
    for line in dict.fromkeys(row["line"] for row in rows):
        by_name = {row["allocator"]: row for row in rows if row["line"] == line}
        cells = "".join(f"{cell(by_name.get(n)):>{width[n]}}" for n in names)
        said = "" if what.base else f"   {interval(by_name)}"
        lines.append(f"{line:{LABEL}}{cells}{said}".rstrip())
    lines += ratios(what, rows)
    return "\n".join([*lines, f"  {what.published}"])


def digits(value):
    """As many as a figure deserves."""
    return 1 if value >= 10 else 2


def cell(row):
    """The median."""
    value = row["value"]["median"] if row else 0
    return f"{value:.{digits(value)}f}" if row else "-"


def interval(by_name):
    """Ours, of a table without ratios."""
    (row,) = (r for r in by_name.values() if r["allocator"].startswith("quire-"))
    low, high = (row["value"][end] for end in ("low", "high"))
    return f"[{low:.{digits(high)}f} to {high:.{digits(high)}f}]"


def ratios(what, rows):
    """Ours beside the base, a sentence for each line."""
    return [
        f"{row['line']}: {row['allocator']} {spread(row['ratio_to_base'])} times {what.base}'s"
        for row in rows
        if row["allocator"].startswith("quire-")
        and row["allocator"] != what.base
        and "ratio_to_base" in row
    ]
