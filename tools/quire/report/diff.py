# SPDX-License-Identifier: MIT
"""
diff.py - what changed from A to B: two traces, two results of `try`, two of `bench`.

    document -> figures {name: Figure}  --+--  both, one of them  ->  rows, the largest change first
             -> sites   {key: Site}     --+

A change is called one only where the intervals do not meet, or where the figures are counts.
Not here: pictures' drawing (report/plots.py), the page's frame (templates/diff.html).
"""

import re
from collections import namedtuple

import cxxnames
import render
import report.figures as figures
import report.page as report_page
import report.subject as report_subject
import tracefile
import ui
from errors import UsageError

# form: a key of FORMS; low, high: None where there is no interval; exact: a count, so that any other is a change
Figure = namedtuple("Figure", "value low high form exact", defaults=(False,))
Change = namedtuple("Change", "name before after percent clear")
Site = namedtuple("Site", "name where allocations bytes peak")  # bytes: all sizes that were asked for, at reallocs, too
SiteChange = namedtuple("SiteChange", "name where before after grown")
Difference = namedtuple("Difference", "kind names figures sites only partial")

FORMS = {
    "count": ui.count,
    "bytes": ui.size,
    "percent": ui.percent,
    "ns": lambda v: ui.seconds(v / 1e9) if abs(v) >= 1e4 else f"{v:.1f} ns",
    "s": ui.seconds,
    "plain": lambda v: f"{v:,.4g}",
}
TRACE_FACTS = [
    ("allocations", "allocations", "count"),
    ("frees", "frees", "count"),
    ("reallocs", "reallocs", "count"),
    ("threads", "threads", "count"),
    ("peak_live_bytes", "live bytes at the peak", "bytes"),
    ("peak_live_objects", "live objects at the peak", "count"),
    ("live_bytes_at_end", "live bytes at the end", "bytes"),
]
FIGURES_SHOWN, SITES_SHOWN = 40, 25
NAMES = {"try": "results of `try`", "bench": "results of `bench`", "trace": "traces"}


def form_of(name):
    """How a figure of a JSON document is written, by the unit in its name."""
    for form in ("bytes", "percent", "ns", "s"):
        if re.search(rf"(^|_){form}($|_)", name):
            return form
    return "plain"


def identity(entry):
    """What tells an element of a list from its neighbours: the words and numbers before its figures."""
    words = []
    for value in entry.values():
        if isinstance(value, (dict, list, float)):
            break
        words.append(str(value))
    return " ".join(words)


def walk(value, path, found, alone=False):
    """All figures with an interval of a JSON document, by their path; alone: of one round, which has none."""
    if isinstance(value, dict):
        alone = value.get("rounds", 1 if alone else 0) == 1
        middle = value.get("median", value.get("value"))
        if isinstance(middle, (int, float)) and "low" in value and "high" in value:
            name = " ".join(path)
            while name in found:
                name += " again"
            low, high = (None, None) if alone else (value["low"], value["high"])
            found[name] = Figure(middle, low, high, form_of(path[-1]))
            return
        for key, inner in value.items():
            walk(inner, path + [key], found, alone)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict):
                walk(inner, path[:-1] + [identity(inner)], found, alone)


def of_bench(document):
    """Every figure with an interval."""
    found = {}
    walk({k: v for k, v in document.items() if k != "machine"}, [], found)
    return found


def of_try(document):
    """Figures of a `try`: its own, and those of each allocator."""
    program, found = document["program"], {}
    found["CPU time of the program"] = estimate(program.get("cpu_interval_s") or {"value": program["cpu_s"], "low": None, "high": None}, "s")
    found["peak resident memory of the program"] = Figure(
        program["peak_rss_bytes"], None, None, "bytes"
    )
    for key, name in (
        ("allocation_share_percent", "allocation's share"),
        ("saving_percent", "saved"),
    ):
        if document.get(key):  # null where there was nothing to say
            found[name] = estimate(document[key], "percent")
    for row in document.get("allocators", []):
        if "error" not in row:
            found.update(of_allocator(figures.shown_name(row["name"], document), row))
    found.update(of_facts(document["trace"]))
    return found


def of_allocator(name, row):
    """Figures of one row of a `try`: what was run, what was replayed."""
    found = {}
    if row.get("measured") and name != "libc":
        found[f"{name}: saved"] = estimate(row["saving_percent"], "percent")
    if row.get("peak_rss_bytes"):
        found[f"{name}: peak memory of the program"] = Figure(row["peak_rss_bytes"], None, None, "bytes")
    if row.get("cpu_ns_per_op"):
        found[f"{name}: one operation, replayed"] = estimate(row["cpu_ns_per_op"], "ns")
        found[f"{name}: peak memory of the replay"] = Figure(row["replay_peak_rss_bytes"], None, None, "bytes")
    return found


def estimate(value, form):
    """An estimate of a JSON document; of one run alone, which has no width, it is no interval."""
    low, high = (None, None) if value["low"] == value["high"] else (value["low"], value["high"])
    return Figure(value["value"], low, high, form)


def of_facts(facts):
    """Figures of a trace."""
    return {
        name: Figure(facts[key], None, None, form, exact=True)
        for key, name, form in TRACE_FACTS
        if isinstance(facts.get(key), (int, float))
    }


def sum_sites(rows):
    """{key: Site}, equal sites added up."""
    found = {}
    for key, site in rows:
        if key in found:
            old = found[key]
            site = site._replace(**{f: getattr(site, f) + getattr(old, f) for f in ("allocations", "bytes", "peak")})
        found[key] = site
    return found


def function_of(frame):
    """The name in a line of a stack: without its place, which moves with every change of the source."""
    name = re.sub(r"(\+0x[0-9a-f]+)? \([^()]*\)$", "", frame)
    return name.removesuffix(" (inlined)")


def site_key(site):
    """A site by the names of its function and its callers, so that it is the same one after lines have moved."""
    own = site.get("frame", 0)
    return (site["function"], *(function_of(frame) for frame in site["stack"][own : own + 3]))


def trace_sites(recording):
    """Sites of a trace."""
    rows = []
    for site in recording.document["sites"]:
        where = f"{site['file'].rsplit('/', 1)[-1]}:{site['line']}" if site["file"] else site["module"]
        row = Site(site["function"], where, site["count"], site["bytes"] + site["realloc_bytes"], site["bytes_at_program_peak"])
        rows.append((site_key(site), row))
    return sum_sites(rows)


def try_sites(document):
    """Sites of a `try`."""
    rows = []
    for site in document.get("sites", []):
        row = Site(site["function"], site["where"], site["allocations"], site["bytes"], 0)
        rows.append((site_key(site), row))
    return sum_sites(rows)


def sides(what, wrappers, folder):
    """(figures, sites, what is missing) of one input."""
    if what.kind == "trace":
        recording = tracefile.analyse(what.path, folder, wrappers)
        return of_facts(recording.facts), trace_sites(recording), recording.missing(True)
    if what.kind == "try":
        return of_try(what.document), try_sites(what.document), ""
    return of_bench(what.document), {}, ""


def change(name, before, after):
    """One figure on both sides; `clear` where the intervals do not meet."""
    percent = None
    if before.value:
        percent = 100 * (after.value - before.value) / abs(before.value)
    if before.low is None or after.low is None:
        clear = before.exact and before.value != after.value
    else:
        clear = after.low > before.high or after.high < before.low
    return Change(name, before, after, percent, clear)


def figure_changes(a, b):
    """All figures that both have; clear changes first, the largest first."""
    rows = [change(name, a[name], b[name]) for name in a if name in b]
    order = {row.name: place for place, row in enumerate(rows)}
    return sorted(rows, key=lambda r: (not r.clear, -abs(r.percent or 0), order[r.name]))


def site_changes(a, b):
    """All sites whose allocations, bytes or live bytes at the peak differ, the most grown first."""
    rows = []
    for key in {**a, **b}:
        known = a.get(key) or b[key]
        none = Site(known.name, known.where, 0, 0, 0)
        before, after = a.get(key, none), b.get(key, none)
        if before[2:] != after[2:]:
            grown = (after.peak - before.peak, after.bytes - before.bytes)
            rows.append(SiteChange(known.name, known.where, before, after, grown))
    return sorted(rows, key=lambda r: (-abs(r.grown[0]), -abs(r.grown[1]), r.name, r.where))


def difference(inputs, wrappers, folder):
    """From two inputs of one kind; a Difference."""
    first, second = inputs
    if first.kind != second.kind:
        raise UsageError(
            "nothing to compare",
            f"{first.path} is of the {NAMES[first.kind]}, {second.path} of the {NAMES[second.kind]}",
            "give two traces, two JSON of `try`, or two of `bench`",
        )
    if first.kind == "bench" and first.document.get("table") != second.document.get("table"):
        raise UsageError(
            "nothing to compare: these are of two tables",
            f"{first.document.get('table')} and {second.document.get('table')}",
            f"quire bench {first.document.get('table')} --save OTHER.json",
        )
    (a, a_sites, *missing), (b, b_sites, b_missing) = (sides(what, wrappers, folder) for what in inputs)
    partial = [f"{name} is not whole: {why}" for name, why in zip("AB", [*missing, b_missing]) if why]
    if first.kind == "try" and not (a_sites and b_sites):
        a_sites = b_sites = {}  # one had no time for them
    only = [f"A alone: {name}" for name in a if name not in b]
    only += [f"B alone: {name}" for name in b if name not in a]
    names = (tracefile.shown(first.path), tracefile.shown(second.path))
    return Difference(first.kind, names, figure_changes(a, b), site_changes(a_sites, b_sites), only, partial)


def shown(figure):
    """`12.3 ns (11.0 ns to 13.1 ns)`"""
    form = FORMS[figure.form]
    if figure.low is None:
        return form(figure.value)
    return f"{form(figure.value)} ({form(figure.low)} to {form(figure.high)})"


def signed(value, form):
    """A change with its sign."""
    return ("+" if value > 0 else "") + form(value) if value else "0"


def points(value):
    """38 points: between 1 % and 39 %, where a percentage of a percentage would be taken for one of the whole."""
    return ui.percent(value).removesuffix(" %") + " points"


def moved(row):
    """What changed of a figure: percent, of what is in percent points, or that it did not."""
    percent = "from 0" if row.percent is None else signed(row.percent, ui.percent)
    if row.before.form == "percent":
        percent = signed(row.after.value - row.before.value, points)
    if row.before.exact:
        grown = signed(row.after.value - row.before.value, FORMS[row.before.form])
        return f"{grown} ({percent})" if row.clear else "same"
    if None in (row.before.low, row.after.low):
        return f"{percent}, no interval"
    return percent if row.clear else "within noise"


def summary(found):
    """One sentence."""
    clear = sum(row.clear for row in found.figures)
    said = f"{clear} of {len(found.figures)} figures changed"
    if any(row.before.low is not None for row in found.figures):
        said += ": counts, and those whose intervals do not meet"
    if found.kind != "bench":
        said += f"; {len(found.sites)} call site{'s differ' if len(found.sites) != 1 else ' differs'}"
    return said + "."


def text(found):
    """The difference as lines."""
    lines = [ui.bold(f"A {found.names[0]}"), ui.bold(f"B {found.names[1]}"), "", summary(found), ""]
    figures = [
        [report_page.clean(r.name), shown(r.before), shown(r.after), moved(r)]
        for r in found.figures[:FIGURES_SHOWN]
    ]
    if figures:
        lines += ui.table(["figure", "A", "B", "change"], figures)
    if len(found.figures) > FIGURES_SHOWN:
        lines.append(f"  and {len(found.figures) - FIGURES_SHOWN} more, with smaller changes or none")
    if found.sites:
        lines += ["", *ui.table(*site_table(found))]
    lines += [f"  {report_page.clean(line)}" for line in found.partial + found.only[:10]]
    return lines


def site_table(found):
    """(header, rows) of the sites that changed most."""
    peaks = found.kind == "trace"
    header = ["call site", "allocations A", "B", "bytes asked for"] + ["live at the peak"] * peaks
    rows = []
    for r in found.sites[:SITES_SHOWN]:
        row = [
            report_page.clean(f"{cxxnames.brief(r.name)} {r.where}".strip()),
            ui.count(r.before.allocations),
            ui.count(r.after.allocations),
            signed(r.grown[1], ui.size),
        ]
        rows.append(row + [signed(r.grown[0], ui.size)] * peaks)
    return header, rows


def picture(found):
    """The sites that changed most as bars."""
    import report.plots as plots

    by_peak = any(r.grown[0] for r in found.sites)
    rows = [(r, r.grown[0] if by_peak else r.grown[1]) for r in found.sites]
    rows = sorted((r for r in rows if r[1]), key=lambda r: -abs(r[1]))[:12]
    if not rows:
        return None
    what = "live at the program's peak" if by_peak else "bytes asked for"
    bars = [
        plots.Bar(report_page.clean(cxxnames.brief(r.name)), grown, colour="s1" if grown > 0 else "s2")
        for r, grown in rows
    ]
    title = f"Call sites: change of {what}"
    return plots.bars(bars, plots.Axes("sites", title, x=what, x_form="size", width_in=10.4))


def page(found):
    """The difference as one HTML file."""
    document = {
        "schema": "quire.report-difference/1",
        "kind": found.kind,
        "a": found.names[0],
        "b": found.names[1],
        "figures": [
            {
                "name": r.name,
                "a": r.before._asdict(),
                "b": r.after._asdict(),
                "change_percent": r.percent,
                "clear": r.clear,
            }
            for r in found.figures
        ],
        "sites": [
            {"function": r.name, "where": r.where, "a": r.before[2:], "b": r.after[2:]}
            for r in found.sites[:1000]
        ],
        "only": found.only,
        "partial": found.partial,
    }
    name, address = report_page.download(document)
    values = {
        "found": found,
        "summary": summary(found),
        "drawn": picture(found),
        "sites": found.sites[:200],
        "machine": report_subject.machine(),
        "raw": report_page.json_text(document),
        "download": address,
        "download_name": name,
        "command": render.command(),
        "shown": shown,
        "moved": moved,
        "signed": signed,
        "size": ui.size,
    }
    return report_page.page(document, "diff.html", values)
