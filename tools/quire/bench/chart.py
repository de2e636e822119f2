# SPDX-License-Identifier: MIT
"""
chart.py - a chart in text: a letter a series, a column a number.

     160 |      S       Sm        S       within one step of each other: side by side, the highest first
     140 |      m                 m
         +---------------------------
                1        2        4
            S quire-slab   m mimalloc     in the order of the last column, from above

A letter alone says which series it is, so colours add nothing. In a column too narrow for all letters of a step the last
is MANY, and ours is among the others. Figures that differ by more than WIDE are drawn over a logarithmic axis.
Not here: which figures (bench/slab_text.py, bench/percpu_text.py, bench/scale_text.py).
"""

import math
import string

import ui

CHART_LINES = 12
COLUMN_WIDTH, COLUMN_WIDTH_MIN, COLUMN_WIDTH_MAX = 9, 4, 11
OURS = "quire-"
MANY = "*"
WIDE = 20
STEPS = (1, 2, 2.5, 5)
LOG_LEVELS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))  # of a decade, few to many


class Layout:
    """Where things stand: letters, a column's width, the margin before it, the order from above."""

    def __init__(self, series, columns):
        self.letters = letters_of(series)
        self.margin = max(5, *(len(label(v)) + 1 for values in series.values() for v in values))
        room = (ui.width() - self.margin - 2) // max(len(columns), 1)
        names = [str(column) for column in columns]
        if max(map(len, names)) >= min(room, COLUMN_WIDTH_MAX):
            names = [brief(name) for name in names]
        wanted = max(COLUMN_WIDTH, max(map(len, names)) + 1)
        self.width = max(COLUMN_WIDTH_MIN, min(wanted, room))
        self.columns = names
        self.order = sorted(series, key=lambda name: -series[name][-1])

    def row(self, head, cells):
        """A line: what stands before the axis, and a cell a column."""
        return (head + "".join(f"{cell:^{self.width}}" for cell in cells)).rstrip()

    def cell(self, found):
        """The letters of one step in one column, from [(figure, letter)]; MANY for what has no room."""
        letters = [letter for _, letter in sorted(found, key=lambda one: -one[0])]
        room = self.width - 1
        if len(letters) <= room:
            return "".join(letters)
        ours = [letter for letter in letters[room - 1 :] if letter.isupper()]
        return "".join([*letters[: room - 1 - len(ours[:1])], *ours[:1], MANY])

    def figures(self, series):
        """A line a series: its letter and its figures, below the chart's columns."""
        return [
            self.row(f"{self.letters[name]:>{self.margin}}  ", map(figure, series[name]))
            for name in self.order
        ]

    def legend(self, crowded, several):
        """Which letter is whose; and how letters are read that stand together."""
        parts = [f"{self.letters[name]} {name}" for name in self.order]
        parts += [f"{MANY} more"] if crowded else []
        lines, indent = [], " " * (self.margin + 2)
        for part in parts:
            if lines and len(lines[-1]) + 2 + len(part) <= ui.width():
                lines[-1] += f"  {part}"
            else:
                lines.append(indent + part)
        together = "side by side: within one step, the highest first"
        return lines + ([indent + together] if several else [])


def chart(series, columns, title):
    """{name: [figure a column]} drawn; ours should come first."""
    layout = Layout(series, columns)
    values = [value for figures in series.values() for value in figures]
    levels = levels_of(values)
    title += " (logarithmic)" if is_wide(values) else ""
    cells = {}
    for name, figures in series.items():
        for column, value in enumerate(figures):
            near = min(range(len(levels)), key=lambda at: distance(levels, at, value))
            cells.setdefault((near, column), []).append((value, layout.letters[name]))
    lines = [title]
    bottom = min(at for at, _ in cells) if levels[0] > 0 else 0
    for at in range(max(at for at, _ in cells), bottom - 1, -1):
        drawn = [layout.cell(cells.get((at, column), [])) for column in range(len(columns))]
        lines.append(layout.row(f"{label(levels[at]):>{layout.margin}} |", drawn))
    lines.append(" " * layout.margin + " +" + "-" * layout.width * len(columns))
    lines.append(layout.row(" " * (layout.margin + 2), layout.columns))
    most = max(map(len, cells.values()))
    return "\n".join(lines + layout.legend(most > layout.width - 1, most > 1))


def figure_lines(series, columns):
    """The figures of a chart, to stand below it: what its letters stand for, exactly."""
    return Layout(series, columns).figures(series)


def letters_of(series):
    """One letter a series: of ours an upper-case one, of others the first of their own that is free; a, b, c for names that
    begin with a number."""
    letters = {}
    for name in series:
        wanted = name[len(OURS) :].upper() if name.startswith(OURS) else name
        wanted = [c for c in wanted if c.isalpha()] if wanted[:1].isalpha() else []
        free = [c for c in [*wanted, *string.ascii_letters] if c not in letters.values()]
        letters[name] = free[0] if free else "?"
    return letters


def is_wide(values):
    """Whether a linear axis would hide the small ones."""
    return min(values) > 0 and max(values) > WIDE * min(values)


def distance(levels, at, value):
    """Of a figure from a level, as the axis has it."""
    if levels[0] > 0:
        return abs(math.log(value / levels[at]))
    return abs(value - levels[at])


def levels_of(values):
    """The axis, from below: about CHART_LINES round numbers; from 0 on, or a logarithmic one."""
    if is_wide(values):
        return log_levels(min(values), max(values))
    step = step_of(max(values))
    return [round(step * at, 6) for at in range(round_up(max(values) / step) + 1)]


def round_up(value):
    """Half and more is one more: where a figure is drawn."""
    return int(value + 0.5)


def log_levels(least, most):
    """The finest levels that are not too many lines."""
    found = []
    for of_decade in LOG_LEVELS:
        decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
        finer = [level * 10.0**decade for decade in decades for level in of_decade]
        low = max(0, sum(level <= least for level in finer) - 1)
        high = next((at for at, level in enumerate(finer) if level >= most), len(finer) - 1)
        if not found or high - low < CHART_LINES + 3:
            found = finer[low : high + 1]
    return found


def step_of(most):
    """A round number of which about CHART_LINES make the highest figure."""
    if most <= 0:
        return 1
    decade = 10.0 ** (math.floor(math.log10(most / CHART_LINES)))
    return next(s * decade for s in (*STEPS, 10) if most / (s * decade) <= CHART_LINES)


def label(value):
    """A level of the axis."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def figure(value):
    """A figure in at most five signs, where that is enough."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def brief(name):
    """100,000 -> 100k"""
    number = name.replace(",", "")
    for zeros, unit in (("000000", "M"), ("000", "k")):
        if number.isdigit() and number.endswith(zeros):
            return number.removesuffix(zeros) + unit
    return name
