# SPDX-License-Identifier: MIT
"""
evidence.py - what speaks for and against "these objects die together", in words.

    quire-plan: generations that hold what is dead     ->  "48 B, born at allocation 17 in make < build, died 20,100
                and objects that outlived the rest          allocations later; the arena would hold 12 MB all the while"

Allocations of the whole program are the clock: a trace is replayed without times.
Not here: finding the counter-examples (the C helper quire-plan), the rule itself (doc/advice.md).
"""


import render
import ui

from lazily import textwrap

ARENAS_SHOWN = 5
REFUSED_SHOWN = 5
REFUSED_SHARE_MIN = 0.01
NAME_ROOM = 60

# Reasons of quire-plan that an example can show; generations of few objects need none.
SHOWN_BY_EXAMPLE = "dead"


def wrapped(text, indent):
    """A sentence as lines that fit the window."""
    room = ui.width()
    return textwrap.wrap(text, room, initial_indent=indent, subsequent_indent=indent + "  ")


def name_of(site):
    """A site, short enough to stand in a sentence."""
    return ui.shorten(render.called(site), NAME_ROOM)


def times(number, noun):
    """`1 object`, `3 objects`."""
    return f"{ui.count(number)} {noun}{'s' * (number != 1)}"


def later(allocations):
    """How long after, on the program's clock."""
    return "at once" if allocations == 0 else f"{times(allocations, 'allocation')} later"


def born(thing, names):
    """`48 B born at allocation 17 in make < build`"""
    site = names.get(thing["site"])
    where = f" in {name_of(site)}" if site else ""
    return f"{ui.size(thing['bytes'])} born at allocation {ui.count(thing['born'])}{where}"


def freed_by(thing):
    """Where an object died, when that was in another thread."""
    crossed = thing["freed_by"] != thing["thread"]
    return f", in thread {thing['freed_by'] + 1}" if crossed else ""


def held_on(example, names):
    """A generation that a few objects kept: which, and for how long."""
    tail = example["end"] - example["few_since"]
    held = (
        f"generation {ui.count(example['generation'])} held {ui.size(example['held_bytes'])} for "
        f"{times(tail, 'more allocation')} after all but {ui.count(example['few_objects'])} of its "
        f"{times(example['objects'], 'object')} had died"
    )
    if not example["ended"]:
        return held + ", to the end of the run"
    last = example["last_to_die"][0]
    died = later(last["died"] - last["born"])
    return f"{held}: {born(last, names)} died {died}{freed_by(last)}"


def held_dead(example, names):
    """A generation that would hold what is dead: the first object that died in it."""
    text = (
        f"generation {ui.count(example['generation'])} would hold {ui.size(example['held_bytes'])} where "
        f"{ui.size(example['peak_live_bytes'])} live at its peak"
    )
    first = example["first_to_die"]
    if first is None:
        return text
    died = later(first["died"] - first["born"])
    rest = example["end"] - first["died"]
    ends = "the generation goes on for" if example["ended"] else "the program goes on for"
    return f"{text}: {born(first, names)} died {died}{freed_by(first)}, {ends} {times(rest, 'more allocation')}"


def said(example, names):
    """One counter-example."""
    if example["few_since"] is not None:
        return held_on(example, names)
    return held_dead(example, names)


def generations(subject):
    """`300 generations of 100 objects on average`"""
    mean = subject["objects"] / max(1, subject["generations"])
    each = f"{mean:.1f}" if mean < 10 else ui.count(mean)
    if subject["generations"] == 1:
        return f"one generation of {times(subject['objects'], 'object')}"
    return f"{ui.count(subject['generations'])} generations of {each} objects on average"


def arena_lines(planned, names):
    """For each busy arena: what outlives its generations, and what they hold that is dead."""
    lines = []
    for arena in sorted(planned["arenas"], key=lambda a: a["objects"], reverse=True)[:ARENAS_SHOWN]:
        late = arena["late_objects"]
        outlive = "none outlives the rest" if late == 0 else f"{times(late, 'object')} outlive the rest"
        if late == 1:
            outlive = "1 object outlives the rest"
        lines += wrapped(f"arena {arena['arena']}: {generations(arena)}; {outlive}", "  ")
        for example in arena["counterexamples"][:1]:
            lines += wrapped(said(example, names), "    ")
    return lines


def refused_lines(planned, names):
    """For each busy site without an arena: why, with the worst of its generations."""
    least = REFUSED_SHARE_MIN * planned["allocs"]
    lines = []
    worth = [r for r in planned["refused"] if r["objects"] >= least and names[r["site"]].no_arena]
    for refused in worth[:REFUSED_SHOWN]:
        site = names[refused["site"]]
        lines += wrapped(f"{name_of(site)}: {site.no_arena} ({generations(refused)})", "  ")
        if SHOWN_BY_EXAMPLE in site.no_arena:
            for example in refused["counterexamples"][:1]:
                lines += wrapped(said(example, names), "    ")
    return lines


def text(planned, rows):
    """Both, under their headings."""
    names = {site.id: site for site in rows}
    lines = []
    for heading, found in (
        ("Do they die together?", arena_lines(planned, names)),
        ("Busy sites without an arena", refused_lines(planned, names)),
    ):
        if found:
            lines += ["", heading] + found
    return lines
