# SPDX-License-Identifier: MIT
"""
figures.py - the charts of a report, from its document.

    findings.allocators  -> time, memory (bars with intervals)        profile.samples -> live bytes by site (areas)
    profile + timelines  -> live bytes and resident memory (lines)    size_lifetime   -> heat maps

Each function gives a plots.Picture, or None where the document lacks the figures.
Not here: drawing (report/plots.py), flame graph and map (report/flame.py, report/map.py).
"""

import cxxnames
import measure
import report.plots as plots
import trytable
import ui

HEAT_SITES = 4
AREA_SITES = 7
WIDE, HALF = 10.4, 6.0  # inches of a chart as wide as the page, and of one of two beside each other
LIFE_WORDS = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]
OURS = {trytable.CARRIED_OUT, trytable.CODE, "drop-in"}
OURS_BY_NAME = {"steered", "mix", "drop-in"}  # as documents have them; the others are names of mallocs


def shown_name(name, findings=None):
    """An allocator's name for readers."""
    program = (findings or {}).get("program", {})
    today = program.get("today_allocator") or "the allocator of today"
    return trytable.shown(name, f"{today}, inside" if program.get("today_inside") else today)


def with_figures(findings):
    """The allocators that have figures."""
    return [row for row in findings.get("allocators", []) if "error" not in row]


def was_run(findings):
    """Whether the program itself was run under each allocator, and not only its trace replayed."""
    return bool(findings.get("measured"))


def replay_rounds(findings):
    """How often each allocator replayed the trace."""
    return findings.get("replay_rounds", findings.get("rounds")) or 0


def colour(name):
    """Ours stand out."""
    return "s0" if name in OURS else "s7"


def time_bars(findings):
    """The program's CPU time under each allocator; of a trace alone the nanoseconds of an operation."""
    if was_run(findings):
        return program_bars(findings)
    rows = []
    for row in with_figures(findings):
        cost, name = row["cpu_ns_per_op"], shown_name(row["name"], findings)
        ends = (cost["low"], cost["high"]) if cost["low"] < cost["high"] else (None, None)
        rows.append(plots.Bar(name, cost["value"], *ends, colour(name)))
    if not rows:
        return None
    number = replay_rounds(findings)
    title = "CPU time of an operation, each allocator" + f", with {measure.interval_kind(number).split(' are ')[0]}" * (number > 1)
    return plots.bars(rows, plots.Axes("time", title, x="ns per operation", x_form="plain", width_in=HALF))


def program_s(row, findings, end="value"):
    """CPU time of the program under a row's allocator, as its saving says it; None where that is not known. end: of the saving's interval."""
    saving, program = row.get("saving_percent"), findings.get("program")
    return None if not saving or not program else program["cpu_s"] * (1 - saving[end] / 100)


def program_bars(findings):
    """CPU time of the program: that of libc's malloc less what each row saves, with the interval of the saving."""
    rows = []
    for row in with_figures(findings):
        middle, high, low = (program_s(row, findings, end) for end in ("value", "low", "high"))
        name = shown_name(row["name"], findings)
        rows.append(plots.Bar(name, middle, max(0.0, low), high, colour(name)))
    title = "CPU time of the program under each allocator, with intervals"
    return plots.bars(rows, plots.Axes("time", title, x="CPU time", x_form="seconds", width_in=HALF))


def memory_bars(findings):
    """Peak memory under each allocator: the program's own, or its replay's."""
    key = "peak_rss_bytes" if was_run(findings) else "replay_peak_rss_bytes"
    rows = []
    for row in with_figures(findings):
        name = shown_name(row["name"], findings)
        if key in row:
            rows.append(plots.Bar(name, row[key], colour=colour(name)))
    if not rows:
        return None
    title = f"Peak resident memory of the {'program' if was_run(findings) else 'replay'}, each allocator"
    return plots.bars(rows, plots.Axes("memory", title, x="peak resident memory", x_form="size", width_in=HALF))


def live_lines(profile, timelines):
    """Recorded live bytes, and what each allocator held for them."""
    samples = profile["samples"]
    xs = [0] + [s[0] for s in samples]
    series = [plots.Series("live, as asked for", xs, [0] + [s[3] for s in samples], colour="ink")]
    for place, (name, figures) in enumerate(timelines.items()):
        points = [[0, 0, 0]] + figures["timeline"]
        line = plots.Series(
            shown_name(name),
            [p[0] for p in points],
            [p[2] for p in points],
            colour=f"s{place % plots.SERIES_MAX}",
        )
        series.append(line)
    title = "Live bytes, and resident memory of each allocator's replay, over the operations"
    axes = plots.Axes("live", title, x="operations", y="bytes", y_form="size")
    axes.width_in, axes.height_in = WIDE, 3.6
    return plots.lines(series, axes)


def live_areas(profile):
    """Live bytes by call site over time."""
    samples = profile["samples"]
    names = [site_name(site) for site in profile["sites"]]
    peaks = [max(s[5][i] for s in samples) for i in range(len(names))]
    shown = sorted(range(len(names)), key=lambda i: -peaks[i])[:AREA_SITES]
    shown = [i for i in shown if peaks[i] > 0]
    if not shown or samples[-1][1] == 0:
        return None
    xs = [s[1] / 1e9 for s in samples]
    series = [plots.Series(ui.shorten(names[i], 26), xs, [s[5][i] for s in samples]) for i in shown]
    rest = [max(0, s[2] - sum(s[5][i] for i in shown)) for s in samples]
    series.append(plots.Series("all others", xs, rest, colour="s7"))
    title = "Live bytes by call site over the time of the recorded run"
    axes = plots.Axes("sites-live", title, x="time of the recorded run", x_form="seconds")
    axes.y, axes.y_form, axes.width_in, axes.height_in = "live bytes", "size", WIDE, 3.4
    return plots.areas(series, axes)


def site_name(site):
    """A call site in one word or two."""
    name = cxxnames.brief(site["function"])
    return f"{name}:{site['line']}" if site.get("line") else name


def power(value, words=LIFE_WORDS):
    """2**value nanoseconds."""
    number = 2.0**value
    for unit, word in words:
        if number >= unit:
            return f"{number / unit:.0f} {word}"
    return "0"


def size_word(value):
    """2**value bytes."""
    number = 2**value
    for word in ("B", "K", "M", "G"):
        if number < 1024 or word == "G":
            break
        number //= 1024
    return f"{number} {word}"


def heat_of(cells, whole, axes):
    """Size by lifetime, objects that live to the end in the last column; the scales are those of the whole program."""
    if not cells:
        return None
    sizes = [c[0] for c in whole]
    lives = [c[1] for c in whole if c[1] >= 0] or [0]
    low, high = min(sizes), max(sizes)
    first, last = min(lives), max(lives)
    columns = [power(v) for v in range(first, last + 1)]
    columns += ["end"] if any(c[1] < 0 for c in whole) else []
    values = [[None] * len(columns) for _ in range(low, high + 1)]
    for size, life, count, _ in cells:
        values[size - low][life - first if life >= 0 else -1] = count
    rows = [size_word(v) for v in range(low, high + 1)]
    axes.x, axes.y = "lifetime", "size"
    return plots.heat(plots.Heat(columns, rows, values), axes)


def heat_whole(profile):
    """Size by lifetime of the whole program."""
    axes = plots.Axes("heat", "Objects by size and lifetime, whole program", width_in=WIDE)
    axes.height_in = 3.4
    return heat_of(profile["size_lifetime"], profile["size_lifetime"], axes)


def heat_sites(profile):
    """The same for the sites with most objects: [(site, picture)]."""
    sites = [s for s in profile["sites"] if s["size_lifetime"]]
    sites.sort(key=lambda s: -sum(c[2] for c in s["size_lifetime"]))
    found = []
    for place, site in enumerate(sites[:HEAT_SITES]):
        title = f"Objects by size and lifetime, {site_name(site)}"
        axes = plots.Axes(f"heat{place}", title, width_in=HALF, height_in=2.3)
        found.append((site, heat_of(site["size_lifetime"], profile["size_lifetime"], axes)))
    return found
