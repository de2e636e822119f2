# SPDX-License-Identifier: MIT
"""
own.py - the allocator that a program brought along: linked into it, or a library whose own names it calls.

    rg (jemalloc inside)      _rjem_malloc, _rjem_sdallocx ... in its symbols       Inside("jemalloc", ".../rg")
    app on libmimalloc.so     calls mi_malloc, which malloc's place does not reach   Inside("mimalloc", ".../libmimalloc.so.2")
    app on libjemalloc.so     calls malloc alone                                     none: what is preloaded comes before it

The recorder sees such calls by patched entries, and libquire-swap.so puts another malloc in their place (tools/native/own, swap): that
is how rows are run which no preload could serve. All of them go the same way, the allocator inside too, so its cost is in all of them.
Not here: a program that is linked with a malloc and calls it by that name (preloaded.py, target.py).
"""

import mmap
import os
from collections import namedtuple

import bindings
import native
import preloaded
import ui
from errors import QuireError

SWAP = "libquire-swap.so"
ITSELF = "inside"
UNKNOWN = "malloc"
STRIPPED = "their names were stripped"
STRIPPED_FIX = "build it with its symbols (Rust: strip = false in the profile; else without -s, or before strip(1)) and try that"
MESSAGES = {"jemalloc": b"<jemalloc>: ", "mimalloc": b"mimalloc: error: ", "tcmalloc": b"tcmalloc: large alloc"}

# `name`: of the allocator; `path`: the file it lies in; `refused`, `why`: the function that cannot be patched, or None.
Inside = namedtuple("Inside", "name path refused why")


def look(binary, libraries):
    """The allocator that a program brought along, or None; its libraries as the loader finds them."""
    try:
        told = native.call_json("quire-own", [binary, *libraries])
    except (QuireError, ValueError):
        return None
    for module in told["modules"]:
        if module["path"] == binary or module["allocator"] in told["called"]:
            return Inside(module["allocator"], module["path"], module["refused"], module["why"])
    name = nameless(binary)
    return Inside(name, binary, "its functions", STRIPPED) if name else None


def nameless(binary):
    """The allocator whose messages are in a program that has no names for its functions; or nothing."""
    with open(binary, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return next((name for name, text in MESSAGES.items() if data.find(text) >= 0), "")


def is_stripped(inside):
    """Whether it cannot be seen for want of names alone."""
    return inside.why == STRIPPED


def shown(inside):
    """Its name for readers."""
    return {UNKNOWN: "its own malloc", "glibc": "glibc's malloc", "musl": "musl's malloc"}.get(inside.name, inside.name)


def is_same(inside, library):
    """Whether a library is the very file that the allocator lies in."""
    return os.path.realpath(inside.path) == os.path.realpath(library)


def dress(binary, library=None):
    """A function that makes a run's environment: with this malloc in the place of the allocator inside `binary`; None: with that itself, by the same way."""

    def dressed(env):
        env = preloaded.first({**env, "QUIRE_SWAP": library or ITSELF, "QUIRE_SWAP_IN": os.path.abspath(binary)}, native.helper(SWAP))
        return preloaded.first(env, library) if library else env  # constructors of what is preloaded last run first, and the swap's must

    return dressed


def not_compared(report):
    """Why what is inside was not compared with anything."""
    why = report.contest.stays or "the program ran only once"
    fix = f", and no library of {shown(report.target.inside)} is installed that could be replayed" if report.target.static else ""
    return f"{shown(report.target.inside)} inside was not compared: {why}{fix}; the table has replays, against libc's malloc"


def in_table(report):
    """The row of today's allocator: also where a library of the same name is in another row."""
    return f"{report.today_allocator}, inside" if report.target.inside else report.today_allocator


def text(report, today_s):
    """How its own row and the others came about."""
    return [
        f"  It has {shown(report.target.inside)} inside, and with that it takes {ui.seconds(today_s)}: the verdict compares with that. All rows go by "
        "patched entries of its functions, its own too, so what that costs is in all of them: as it stands it took "
        f"{ui.seconds(report.contest.first.cpu_s)}, once.",
    ]


def how(target, name):
    """What has to be done to have what a row saves: `name` as it is shown."""
    instead = "" if name == "libc" else f", and with {name} instead"
    return f"build {ui.printable(target.name)} without {shown(target.inside)}{instead}"


def libc():
    """The library whose malloc is meant by the row `libc`."""
    return bindings.libc_path()
