# SPDX-License-Identifier: MIT
"""
chart.py - a chart in text: a letter a series, a column a number.

     160 |      S        S        S       side by side where they fall into one cell
     140 |      m        m        m
         +---------------------------
                1        2        4
            S quire-slab   m mimalloc

Not here: which figures (bench/slab_text.py, bench/percpu_text.py).
"""

CHART_LINES = 12
COLUMN_WIDTH = 9
OURS = "quire-"


def chart(series, columns, title):
    """{name: [figure a column]} drawn; ours should come first."""
    letters, step = _letters(series), _step(max(max(values) for values in series.values()))
    cells = {}
    for name, values in series.items():
        for column, value in enumerate(values):
            cells.setdefault((round(value / step), column), []).append(letters[name])
    lines = [title]
    for level in range(max(line for line, _ in cells), -1, -1):
        drawn = "".join(
            f"{''.join(cells.get((level, column), [])):^{COLUMN_WIDTH}}"
            for column in range(len(columns))
        )
        lines.append(f"{level * step:5} |{drawn}".rstrip())
    lines.append(f"{'':5} +" + "-" * COLUMN_WIDTH * len(columns))
    lines.append((f"{'':7}" + "".join(f"{c:^{COLUMN_WIDTH}}" for c in columns)).rstrip())
    lines.append(f"{'':7}" + "  ".join(f"{letter} {name}" for name, letter in letters.items()))
    return "\n".join(lines)


def _letters(series):
    """One letter a series: the slab's is S, others have the first of their letters or digits that
    is free."""
    letters = {}
    for name in series:
        wanted = name[len(OURS) :].upper() if name.startswith(OURS) else name
        free = [c for c in wanted if c.isalnum() and c not in letters.values()]
        letters[name] = free[0] if free else "?"
    return letters


def _step(most):
    """A round number of which about CHART_LINES make the highest figure."""
    for step in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500):
        if most / step <= CHART_LINES:
            return step
    return 1000
