# SPDX-License-Identifier: MIT
"""
render.py - what `try`, `replay` and `advise` print: as text, and as JSON with units in its key names.

Not here: the figures (measure.py), the rules (advise/advice.py).
"""

import os
import re
import shutil
import sys

import cxxnames
import ui

HERE = os.path.dirname(os.path.abspath(__file__))

ARENAS_SHOWN = 5
SLABS_SHOWN = 5

FRAMES_SHOWN = 6

# What calls main and threads' functions: no caller worth a name.
RUNTIME = ("__libc_start", "_start", "start_thread", "clone", "__clone")

# What stands behind a function in a line of a stack.
FRAME_END = re.compile(r"(?: \(inlined\))?(?: \([^()]*\))?$")

SLAB_CALLS = "  a slab: quire_slab_create(bytes, NULL) once, quire_slab_alloc for malloc, quire_slab_free for free"
HOW = {
    "arena": "quire_arena, one alloc, one destroy",
    "slab": "quire_slab, elements of one size, freed in any order",
    "recycling slot": "quire_slab too: one element, used again and again",
    "heap": "any size, any time: quire_heap, or the drop-in without a change of the code",
    "leave alone": "too few calls, or too large blocks, to gain anything",
}
CODE = "advice in the code"  # the row `mix`
NO_GAIN = "fits, but no gain was measured: leave it alone"
LOSES = "fits, but lost time here: leave it alone"

BLIND_SPOTS = [
    "what is modelled knows no cache effects of where objects lie: the replay touches each object once, the program does more",
    "per-CPU use, and, where it is modelled, waiting that is not about memory: threads keep their order and hand-overs, not their timing",
    "whether changed code goes on visiting what an arena makes needless to free: the model counts the way there as saved, too",
    "allocations that never reach malloc: mmap, the stack, an allocator of the program's own",
]
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
NO_HUGE_PAGES = (
    "what an arena does with huge pages, which are off or not to be seen here: it fetches its memory several times faster with them"
)


def blind_spots(huge_pages=HUGE_PAGES):
    """What the figures say nothing about, on this machine."""
    try:
        with open(huge_pages, encoding="ascii") as choice:
            withheld = "[never]" in choice.read()
    except OSError:
        withheld = True
    return BLIND_SPOTS + [NO_HUGE_PAGES] * withheld


def command():
    """How the user called this tool: `quire` where the shell finds it by that name, else the path that was typed."""
    typed = sys.argv[0]
    if os.path.basename(typed) != "quire" or not os.path.isfile(typed):  # python3 tools/quire
        return "./quire" if os.path.isfile(os.path.join(HERE, "..", "..", "quire")) else "quire"
    found = shutil.which("quire")
    if found and os.path.realpath(found) == os.path.realpath(typed):
        return "quire"
    return ui.word(typed if os.path.dirname(typed) else f"./{typed}")


def interval(value, form):
    """`12 % (11 % to 13 %)`; of one round `12 %`"""
    if value.low == value.high:
        return form(value.value)
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"


def next_commands(trace):
    """The next three commands."""
    return [
        (f"{command()} replay {trace} --rounds 25", "the same replay with tighter intervals"),
        (f"{command()} advise {trace}", "every call site; with --patch SITE its change as code"),
        (f"{command()} bench seeds", "what arenas, slabs and per-CPU pools do on this machine, by themselves"),
    ]


def allocator_rows(outcome):
    """A row for each allocator: name, ns per operation, run time, saving, peak memory."""
    rows = []
    for backend in outcome.series.backends:
        if backend.null:
            continue
        name = CODE if backend.name == "mix" else backend.name
        if backend.name in outcome.series.failed:
            rows.append([name, "not measured: " + outcome.series.failed[backend.name], "", "", ""])
            continue
        cost = outcome.ns_per_op(backend.name)
        saving = (
            "" if backend.name == "libc" else ui.percent(outcome.saving_with(backend.name).value)
        )
        rows.append(
            [
                name,
                interval(cost, "{:.1f}".format),
                ui.seconds(outcome.program_with(backend.name)),
                saving,
                ui.size(outcome.series.peak_bytes(backend.name)),
            ]
        )
    return rows


def site_saving(site, mix, saved_s, program_s):
    """A site's part of what the advice saves, percent of the run time; None when the mix leaves it alone."""
    saved_ns = mix.saving_ns(site, saved_s * 1e9)
    return None if saved_ns is None else 100 * saved_ns / 1e9 / max(program_s, 1e-6)


def saves_percent(mix, saved_s, program_s):
    """What to print as saved by a site: of the run time."""

    def said(site):
        saving = site_saving(site, mix, saved_s, program_s)
        if saving is None:
            return unserved(site)
        return "~ " + ui.percent(saving) if saving > 0 else "no gain"

    return said


def saves_time(mix):
    """What to print as saved by a site: CPU time of one run."""

    def said(site):
        saved_ns = mix.saving_ns(site)
        return unserved(site) if saved_ns is None else "~ " + ui.seconds(saved_ns / 1e9)

    return said


def saves_much(mix):
    """Which rows save a tenth or more of all that is saved, however few their calls."""

    def much(site):
        saved_ns = mix.saving_ns(site)
        return saved_ns is not None and saved_ns > max(0.0, 0.1 * mix.saved_ns())

    return much


def unserved(site):
    """Why nothing is saved at a site."""
    return "" if site.klass == "leave alone" else "no gain"


def fits(site):
    """What serves a site best."""
    if site.arena is not None:
        return f"arena {site.arena}"
    if site.slab is None:
        return site.klass
    return f"slab {site.slab}" if site.klass == "slab" else f"slot of slab {site.slab}"


def caller(site):
    """The function that called the site's, to tell equal sites apart; empty when unknown."""
    above = site.stack[site.frame + 1 :]
    return short_frame(above[0]) if above and not above[0].startswith(RUNTIME) else ""


def stack_text(site):
    """The stack of a site: from the last wrapper to `main`, names shortened to the window."""
    lines = []
    for frame in site.stack[max(0, site.frame - 1) :]:
        if frame.startswith(RUNTIME) or len(lines) == FRAMES_SHOWN:
            break
        lines.append("    " + ui.shorten(ui.printable(cxxnames.tidy(frame)), ui.width() - 4))
    return lines


def short_frame(frame):
    """A line of a stack without arguments, files and offsets: `parse`, `jq+0x1234`."""
    return cxxnames.brief(FRAME_END.sub("", frame))


def called(site, number=1):
    """`inner (inlined) file.c:9 < outer`, or how many callers there are."""
    name = cxxnames.brief(site.name)
    said = f"{name} (inlined) {site.where}" if site.inlined else f"{name} {site.where}"
    if number > 1:
        return ui.printable(f"{said.strip()}, {number} callers")
    above = caller(site)
    return ui.printable(f"{said.strip()} < {above}" if above else said.strip())


def gather(sites):
    """Sites that read the same (function, line, what fits) as one row each: their number, and the first of them."""
    groups = {}
    for site in sites:
        alike = (site.name, site.where, site.klass, site.arena, site.slab)
        groups.setdefault(alike, []).append(site)
    rows = []
    for same in groups.values():
        if len(same) == 1:
            rows.append((1, same[0]))
            continue
        total = {
            key: sum(getattr(s, key) for s in same)
            for key in ("allocs", "bytes", "peak_live", "ops", "elsewhere", "resizes")
        }
        rows.append((len(same), same[0]._replace(**total)))
    return sorted(rows, key=lambda row: row[1].allocs, reverse=True)


def sites_text(sites, saves=None, limit=8, matters=lambda site: False):
    """The table of call sites, busiest first; `saves` says what each saves, `matters` which are shown however few their calls."""
    total = max(1, sum(s.allocs for s in sites))
    rows, shown_sites, shown_allocs = [], 0, 0
    for place, (number, site) in enumerate(gather(sites)):
        busy = place < limit and (site.allocs >= 0.005 * total or place == 0)
        if not busy and not matters(site):
            continue
        shown_sites, shown_allocs = shown_sites + number, shown_allocs + site.allocs
        row = [
            called(site, number),
            ui.percent(100 * site.allocs / total),
            ui.size(site.mean_bytes),
            ui.count(site.peak_live),
            fits(site),
        ]
        rows.append(row + [saves(site)] if saves else row)
    header = ["call site", "of allocs", "mean size", "live at peak", "fits"] + (
        ["saves"] if saves else []
    )
    lines = ui.table(header, rows, align="lrrrlr"[: len(header)])
    left = len(sites) - shown_sites
    if left > 0:
        part = ui.percent(100 * (total - shown_allocs) / total)
        lines.append(f"  and {ui.count(left)} more call site{'s' * (left != 1)}, {part} of the allocations together")
    return lines


def arenas_text(planned, sites):
    """A line for each arena of the plan that matters."""
    lines = []
    worth = [
        a
        for a in planned["arenas"]
        if a["objects"] >= 0.01 * planned["allocs"]
        or a["peak_bytes"] >= 0.1 * planned["peak_live_bytes"]
    ]
    for arena in sorted(worth, key=lambda a: a["objects"], reverse=True)[:ARENAS_SHOWN]:
        names = list(
            dict.fromkeys(cxxnames.brief(s.name) for s in sites if s.arena == arena["arena"])
        )
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        times = arena["generations"]
        life = (
            "created once"
            if times == arena["instances"]
            else f"{'reset' if arena.get('kept') else 'created and destroyed'} {ui.count(times)} times"
        )
        lines.append(
            f"  arena {arena['arena']}: {ui.printable(', '.join(names[:3]))}{more}; {life}, at most {ui.size(arena['peak_bytes'])}"
        )
    return lines


def slabs_text(planned, sites, mix):
    """A line for each slab that serves something that matters."""
    lines = []
    worth = [s for s in planned["slabs"] if s["objects"] >= 0.005 * planned["allocs"]]
    sites_of = {}
    for site in sites:
        if site.slab is not None and mix.serves(site.klass):
            sites_of.setdefault(site.slab, []).append(site)
    for slab in sorted(worth, key=lambda s: s["objects"], reverse=True):
        served = sites_of.get(slab["slab"])
        if not served or len(lines) == SLABS_SHOWN:
            continue
        names = list(dict.fromkeys(cxxnames.brief(s.name) for s in served))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        elsewhere = 100 * sum(s.elsewhere for s in served) / sum(s.allocs for s in served)
        crossing = f", {ui.percent(elsewhere)} freed by another thread" if elsewhere >= 0.5 else ""
        lines.append(
            f"  slab {slab['slab']}: {ui.printable(', '.join(names[:3]))}{more}; elements of {slab['element_bytes']} bytes, "
            f"at most {ui.count(slab['peak_live'])} alive{crossing}"
        )
    return lines + [SLAB_CALLS] * bool(lines)


def classes_text(sites, mix=None):
    """How much of the program each class serves, and how to change the code; without a mix all classes are as good."""
    total = max(1, sum(s.allocs for s in sites))
    lines = []
    for name, how in HOW.items():
        part = 100 * sum(s.allocs for s in sites if s.klass == name) / total
        if part >= 0.5:
            number = sum(1 for s in sites if s.klass == name)
            if mix and name != "leave alone" and not mix.serves(name):
                how = NO_GAIN
            elif mix and mix.lost(name):
                how = LOSES
            lines.append(
                f"  {name:<15} {ui.percent(part):>6} of the allocations, {ui.count(number)} call site{'s' * (number != 1)}: {how}"
            )
    return lines


def parts_json(mix):
    """What each part of the plan saved in the pilot."""
    return [
        {
            "class": name,
            "served": part.gains,
            "ops": part.ops,
            "saved_ns_per_op": round(part.saved_ns.value / max(1, part.ops), 3),
        }
        for name, part in mix.parts.items()
    ]


def estimate_json(value):
    """An Estimate as JSON."""
    return {
        "value": round(value.value, 6),
        "low": round(value.low, 6),
        "high": round(value.high, 6),
    }


def allocators_json(outcome):
    """The table of allocators as JSON."""
    rows = []
    for backend in outcome.series.backends:
        if backend.null:
            continue
        if backend.name in outcome.series.failed:
            rows.append(
                {
                    "name": backend.name,
                    "library": backend.library,
                    "error": outcome.series.failed[backend.name],
                }
            )
            continue
        rows.append(
            {
                "name": backend.name,
                "library": outcome.series.runs[backend.name][0]["malloc_library"],
                "cpu_ns_per_op": estimate_json(outcome.ns_per_op(backend.name)),
                "program_cpu_s": round(outcome.program_with(backend.name), 6),
                "saving_percent": estimate_json(outcome.saving_with(backend.name)),
                "replay_peak_rss_bytes": int(outcome.series.peak_bytes(backend.name)),
                "failures": sum(outcome.series.column(backend.name, "failures")),
            }
        )
    return rows


def advised(site, mix):
    """What to do at a site: its class where that gains, else nothing."""
    return site.klass if mix is None or mix.serves(site.klass) else "leave alone"


def classes_json(sites):
    """How much each class serves, of all call sites: sites_json may leave some out."""
    found = {}
    for site in sites:
        row = found.setdefault(site.klass, {"class": site.klass, "call_sites": 0, "allocations": 0})
        row["call_sites"] += 1
        row["allocations"] += site.allocs
    return list(found.values())


def sites_json(sites, mix=None, times=None, limit=100):
    """Call sites as JSON; limit None: all. times: what the advice saves, and what the program takes, in seconds."""
    rows = []
    for site in sites[:limit]:
        row = {
            "id": site.id,
            "function": site.name,
            "where": site.where,
            "file": site.path,
            "line": site.line,
            "inlined": site.inlined,
            "key": site.key,
            "class": site.klass,
            "advice": advised(site, mix),
            "no_arena": site.no_arena,
            "arena": site.arena,
            "slab": site.slab,
            "served": mix.serves(site.klass) if mix else False,
            "allocations": site.allocs,
            "bytes": site.bytes,
            "mean_bytes": round(site.mean_bytes, 1),
            "largest_bytes": site.largest,
            "peak_live_objects": site.peak_live,
            "freed_by_other_threads": site.elsewhere,
            "stack": site.stack,
        }
        if mix:
            saved_ns = mix.saving_ns(site, times[0] * 1e9 if times else None)
            row["saving_cpu_s"] = None if saved_ns is None else round(saved_ns / 1e9, 9)
        if mix and times:
            saving = site_saving(site, mix, *times)
            row["saving_percent"] = None if saving is None else round(saving, 3)
        rows.append(row)
    return rows
