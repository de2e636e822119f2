# SPDX-License-Identifier: MIT
"""
wrappers.py - functions that look like wrappers of malloc which nobody told us of.

    parse ---\\
    lookup --- my_alloc (one line) --- malloc         all of my_alloc's sites are one line with many callers
    print ---/

With `--wrapper my_alloc` the callers become the sites: they know what the memory is for.
Not here: the wrappers that are known or seen by their shape (the analyser).
"""

import render
import ui

CALLERS_MIN = 6
CHAIN = 2  # callers that tell sites of one line apart
NAMELESS = "+0x"  # a place in a stripped file: there is no name to give
SHARE_MIN = 0.03


def candidates(rows):
    """(name, callers, allocations) of functions that look like wrappers, busiest first."""
    total = sum(site.allocs for site in rows)
    functions = {}
    for site in rows:
        if NAMELESS in site.name:
            continue
        places, callers, allocs = functions.setdefault(site.name, [set(), set(), [0]])
        places.add((site.path, site.where))
        if render.caller(site):
            callers.add(tuple(site.stack[site.frame + 1 :][:CHAIN]))  # its one caller may be a wrapper, too
        allocs[0] += site.allocs
    found = [
        (name, len(callers), allocs[0])
        for name, (places, callers, allocs) in functions.items()
        if len(places) == 1 and len(callers) >= CALLERS_MIN and allocs[0] >= SHARE_MIN * total
    ]
    return sorted(found, key=lambda one: one[2], reverse=True)


def option(name):
    """The name as --wrapper takes it: a function without its arguments."""
    return name.split("(")[0] or name


def document(rows):
    """The same as JSON."""
    return [
        {"function": name, "callers": callers, "allocations": allocs}
        for name, callers, allocs in candidates(rows)
    ]


def text(rows):
    """A line for each."""
    return [
        f"  {ui.printable(name)} has {callers} callers and one line that allocates: it looks like a wrapper. "
        f"Its callers become the sites with --wrapper '{ui.printable(option(name))}'"
        for name, callers, _ in candidates(rows)[:3]
    ]
