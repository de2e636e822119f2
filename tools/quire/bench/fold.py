# SPDX-License-Identifier: MIT
"""
fold.py - a benchmark's text in a window that is too narrow for it.

    prose            folded at spaces, under its own beginning
    rows of a table  its columns in groups below each other, each with the first column:

                     libc  mimalloc  jemalloc                libc  mimalloc
        2 threads    30.0      54.1      22.0    -->    2 threads    30.0      54.1
        4 threads    29.3      36.0      18.5                   jemalloc
                                                        2 threads     22.0  ...
    charts           as they are: they know the width themselves (bench/chart.py)

Columns are where all rows that follow each other have two spaces or more. Only on a terminal, or where COLUMNS is set: a file has no width.
Not here: what is in the tables.
"""

import os
import re
import sys
import textwrap
from itertools import groupby

import ui

ROW = re.compile(r"\S {2,}\S")
CHART = re.compile(r"\s*[\d.]+ \||\s*\+-")
GAP = 2  # spaces between columns


def folded(text):
    """The text, no wider than the window where that can be."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        return text
    width, lines = ui.width(), []
    for kind, block in groupby(text.split("\n"), kind_of):
        block = list(block)
        if max(map(len, block)) <= width or kind == CHART:
            lines += block
        else:
            lines += table(block, width) if kind == ROW else prose(block, width)
    return "\n".join(lines)


def kind_of(line):
    """What a line is part of: ROW, CHART, or None for prose."""
    if CHART.match(line):
        return CHART
    return ROW if ROW.search(line) else None


def prose(block, width):
    """Each line folded."""
    found = []
    for line in block:
        hang = " " * (len(line) - len(line.lstrip()) + 2)
        found += textwrap.wrap(
            line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return found


def columns(block):
    """[(begin, end)] of what stands between the gaps of all rows."""
    length = max(map(len, block))
    used = [any(len(row) > at and row[at] != " " for row in block) for at in range(length)] + [False] * GAP
    found, begin = [], None
    for at in range(length + 1):
        if used[at] and begin is None:
            begin = at
        elif begin is not None and not any(used[at : at + GAP]):
            found.append((begin, at))
            begin = None
    return found


def table(block, width):
    """Groups of columns below each other."""
    found = columns(block)
    label_end, groups, room = found[0][1], [[]], 0
    if any(end - begin + GAP > width - label_end for begin, end in found[1:]):
        return prose(block, width)  # a column of sentences
    for before, (begin, end) in zip(found, found[1:]):
        since = before[1]
        if groups[-1] and label_end + room + end - since > width:
            groups.append([])
            room = 0
        if label_end + room + end - since > width:
            since = begin - GAP  # the gap alone is too wide
        groups[-1].append((since, end))
        room += end - since
    lines = []
    for group in groups:
        for row in block:
            cells = "".join(row[begin:end].ljust(end - begin) for begin, end in group)
            if cells.strip() or group is groups[0]:
                lines.append((row[:label_end].ljust(label_end) + cells).rstrip())
    return lines
