# SPDX-License-Identifier: MIT
"""
intersect.py - several traces of one program: what the advice of all of them agrees on.

    a.qtr   parse: arena   lookup: slab    log: recycling slot
    b.qtr   parse: arena   lookup: heap    log: slab              ->  parse: arena   lookup: differs   log: slab

A site is the same in two traces when its function, file, line and the callers that tell sites apart are: the analyser's
`key`, which has no addresses in it. Traces of another build have other keys; then names alone are compared.
A site keeps its advice where all traces in which it matters agree and gain. A recycling slot is a slab of few elements.
Not here: the advice on one trace (advise/mix.py), single counter-examples in words (advise/evidence.py).
"""

from collections import namedtuple

import advise.evidence as advise_evidence
import render
import ui

LEFT = "leave alone"
SHARED_MIN = 0.1
FRAMES_TOLD = 3
SHOWN_MAX = 25
DIFFERENT_MAX = 5

# One trace, judged: `mixed` is its mix.Mix, `rows` its advice.Site rows.
Judged = namedtuple("Judged", "recording mixed rows")
# `sites`: by trace, None where the site does not occur; `differs`: why there is no advice, or nothing.
Row = namedtuple("Row", "key name sites advice element_bytes differs")


def by_key(rows):
    """The site's key, from the analyser."""
    return {site.key: site for site in rows}


def by_names(rows):
    """Functions of the site and its callers: what another build has in common. The busiest of equals stands for them."""
    named = {}
    for site in rows:
        frames = site.stack[site.frame + 1 : site.frame + FRAMES_TOLD]
        names = (site.name, *map(render.short_frame, frames))
        known = named.get(names)
        named[names] = site if known is None or site.allocs > known.allocs else known
    return named


def match(judged):
    """How sites are matched ("key" or "names"), and the sites of each trace by what matches them."""
    found = [by_key(one.rows) for one in judged]
    shared = set.intersection(*(set(sites) for sites in found))
    for sites in found:
        total = sum(site.allocs for site in sites.values())
        if sum(sites[key].allocs for key in shared) < SHARED_MIN * total:
            return "names", [by_names(one.rows) for one in judged]
    return "key", found


def element_bytes(judged, site):
    """The element size of the slab that a site is on; 0 without one."""
    sizes = {slab["slab"]: slab["element_bytes"] for slab in judged.mixed.planned["slabs"]}
    return sizes.get(site.slab, 0)


def agreed(classes):
    """The class that several traces agree on, or nothing."""
    if classes == {"slab", "recycling slot"}:
        return "slab"
    return next(iter(classes)) if len(classes) == 1 else None


def names_of(judged):
    """The traces as they are called in words."""
    return [one.recording.path.rsplit("/", 1)[-1] for one in judged]


def facts(site):
    """What a class was judged by."""
    return f"{advise_evidence.times(site.allocs, 'object')} of {ui.size(site.mean_bytes)} on average, at most {ui.count(site.peak_live)} alive"


def why_no_arena(one, site):
    """The reason and the counter-example of a trace in which others' arena does not fit."""
    if not site.no_arena:
        return ""
    refused = {r["site"]: r for r in one.mixed.planned["refused"]}.get(site.id)
    examples = refused["counterexamples"][:1] if refused else []
    names = {row.id: row for row in one.rows} if examples else {}
    return f": {site.no_arena}" + "".join(f": {advise_evidence.said(e, names)}" for e in examples)


def difference(judged, sites):
    """Class by class, in which trace and by what figures; the counter-example where an arena does not fit."""
    parts = []
    wanted = any(site.klass == "arena" for site in sites if site)
    for one, site, name in zip(judged, sites, names_of(judged)):
        if site is None or site.klass == LEFT:
            continue
        reason = why_no_arena(one, site) if wanted and site.klass != "arena" else ""
        parts.append(f"{site.klass} in {name} ({facts(site)}){reason}")
    return "; ".join(parts)


def without_gain(judged, sites):
    """Traces in which the class fits and does not gain."""
    named = zip(judged, sites, names_of(judged))
    return [n for one, s, n in named if s and s.klass != LEFT and not one.mixed.serves(s.klass)]


def decide(judged, key, sites):
    """One site over all traces; None where it matters nowhere."""
    classes = {site.klass for site in sites if site and site.klass != LEFT}
    if not classes:
        return None
    name = render.called(next(site for site in sites if site))
    klass, idle = agreed(classes), without_gain(judged, sites)
    if klass is None:
        return Row(key, name, sites, LEFT, 0, difference(judged, sites))
    if idle:
        return Row(key, name, sites, LEFT, 0, f"{klass} fits, but gains nothing in {', '.join(idle)}")
    sizes = [element_bytes(one, site) for one, site in zip(judged, sites) if site]
    return Row(key, name, sites, klass, max(sizes), "")


class Intersection:
    """What the traces of one program agree on."""

    def __init__(self, judged):
        self.judged = judged
        self.matched_by, found = match(judged)
        keys = dict.fromkeys(key for sites in found for key in sites)
        rows = [decide(judged, key, [sites.get(key) for sites in found]) for key in keys]
        self.rows = sorted(filter(None, rows), key=self.share, reverse=True)
        self.kept = [row for row in self.rows if row.advice != LEFT]

    def share(self, row):
        """A site's part of the allocations, mean of all traces."""
        totals = [max(1, one.mixed.planned["allocs"]) for one in self.judged]
        return sum(s.allocs / t for s, t in zip(row.sites, totals) if s) / len(totals)

    def arenas(self):
        """Sites that share an arena in every trace, as lists of rows."""
        groups = {}
        for row in self.kept:
            if row.advice == "arena":
                places = tuple(site.arena if site else None for site in row.sites)
                groups.setdefault(places, []).append(row)
        return list(groups.values())

    def document(self):
        """As JSON."""
        return {
            "program": self.judged[0].recording.executable,
            "traces": [one.recording.path for one in self.judged],
            "matched_by": self.matched_by,
            "kept_percent": round(100 * sum(map(self.share, self.kept)), 3),
            "arenas": [[self.row_key(row) for row in group] for group in self.arenas()],
            "sites": [self.row_document(row) for row in self.rows],
        }

    def row_key(self, row):
        """What names a row in JSON."""
        return row.key if isinstance(row.key, str) else " < ".join(row.key)

    def row_document(self, row):
        """One site as JSON; null in a list: it does not occur in that trace."""
        first = next(site for site in row.sites if site)

        def each(of):
            return [of(site) if site else None for site in row.sites]

        return {
            "key": self.row_key(row),
            "function": first.name,
            "where": first.where,
            "advice": row.advice,
            "differs": row.differs or None,
            "element_bytes": row.element_bytes or None,
            "ids": each(lambda s: s.id),
            "classes": each(lambda s: s.klass),
            "allocations": each(lambda s: s.allocs),
            "mean_bytes": each(lambda s: round(s.mean_bytes, 1)),
            "largest_bytes": each(lambda s: s.largest),
            "peak_live_objects": each(lambda s: s.peak_live),
        }


def classes_text(row):
    """The classes of all traces, in their order."""
    return " | ".join(site.klass if site else "-" for site in row.sites)


def fits_text(row):
    """What to do at a site."""
    if row.differs:
        return LEFT
    return f"{row.advice} of {row.element_bytes} B" if row.element_bytes else row.advice


def text(found, limit=SHOWN_MAX):
    """The intersection as lines."""
    traces = names_of(found.judged)
    kept_percent = ui.percent(100 * sum(map(found.share, found.kept)))
    lines = [ui.bold(f"What {len(traces)} traces of {ui.printable(found.judged[0].recording.executable)} agree on")]
    lines.append(
        f"  {advise_evidence.times(len(found.kept), 'call site')} of {ui.count(len(found.rows))} "
        f"that matter keep their advice: {kept_percent} of the allocations"
    )
    if found.matched_by == "names":
        lines.append("  these are different builds: sites were matched by the names of functions alone")
    table = [
        [row.name, ui.percent(100 * found.share(row)), fits_text(row), classes_text(row)]
        for row in found.rows[:limit]
    ]
    header = ["call site", "of allocs", "advice", ui.printable(" | ".join(traces))]
    lines += ui.table(header, table, align="lrll") if table else []
    for group in found.arenas()[:DIFFERENT_MAX]:
        names = list(dict.fromkeys(row.name.split(" ")[0] for row in group))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        lines.append(f"  one arena in all of them: {', '.join(names[:3])}{more}")
    different = [row for row in found.rows if row.differs][:DIFFERENT_MAX]
    if different:
        lines += ["", "Where they differ"]
    for row in different:
        lines += advise_evidence.wrapped(f"{row.name}: {ui.printable(row.differs)}", "  ")
    return lines


def other_programs(judged):
    """The names of the programs, when the traces are not of one."""
    return list(dict.fromkeys(one.recording.executable for one in judged))
