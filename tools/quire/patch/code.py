# SPDX-License-Identifier: MIT
"""
code.py - `advise --patch SITE`: the advice on one call site as code.

    parse, jq.c:120, arena      ->  Change: names, sizes, phases   ->  C (patch/c.py), C++ (patch/cpp.py),
                                                                       the line itself as a diff (patch/source.py)

What is printed compiles as it stands. What a trace cannot tell (where the objects are freed) is said in words.
Not here: whether the change pays (advise/mix.py).
"""

import re
import sys
from collections import namedtuple

import advise.evidence as advise_evidence
import cxxnames
import patch.c as patch_c
import patch.cpp as patch_cpp
import patch.source as patch_source
import render
import ui
from cli import nearest
from errors import UsageError

PAGE_BYTES = 4096

CONTAINER = re.compile(
    r"std::(?:__cxx11::)?(list|forward_list|vector|deque|map|multimap|set|multiset|basic_string"
    r"|unordered_map|unordered_multimap|unordered_set|unordered_multiset)<"
)

# `name`: a C identifier for all that is generated; `about`: the figures, one line; `bytes`: of an element or a phase;
# `kept`: the arena stays between its phases.
Change = namedtuple("Change", "name klass about bytes type site others kept", defaults=[False])


def matches(site, wanted):
    """Whether SITE means this one: its number, its function, or its file and line."""
    plain, brief = site.name.split("(")[0], cxxnames.brief(site.name)
    placed = f"{site.path}:{site.line}" if site.line else ""
    return (
        wanted in (str(site.id), site.name, plain, brief, cxxnames.tidy(site.name), site.where)
        or plain.endswith("::" + wanted)
        or brief.endswith("::" + wanted)
        or (":" in wanted and "/" in wanted and placed.endswith("/" + wanted.lstrip("./")))
        or placed == wanted
    )


def find(rows, wanted):
    """The sites that SITE means, busiest first; a usage error when it means none."""
    found = [site for site in rows if matches(site, wanted)]
    if found:
        return found
    names = {word: None for site in rows[:2000] for word in (cxxnames.brief(site.name), site.where)}
    raise UsageError(
        f"no call site `{wanted}` in this trace",
        nearest(wanted, list(names)) or "give its number in the JSON, its function, or its FILE:LINE",
        f"{render.command()} advise TRACE",
    )


def identifier(site):
    """A name for generated code: the function's last part."""
    plain, left = site.name.split("(")[0], ""
    while plain != left:  # template arguments, the innermost first
        plain, left = re.sub(r"<[^<>]*>", "", plain), plain
    plain = plain.rsplit("::", 1)[-1]
    name = re.sub(r"\W+", "_", plain, flags=re.ASCII).strip("_")
    usable = re.fullmatch(r"[A-Za-z]\w*", name, flags=re.ASCII) and "+0x" not in site.name
    name = name.lower() if usable else f"site_{site.id}"
    return f"{name}_site" if patch_source.uses(site.path, name) else name


def about(planned, site):
    """What was measured, in one line that may stand in a comment."""
    said = (
        f"{advise_evidence.times(site.allocs, 'object')} of {ui.size(site.mean_bytes)} on average, "
        f"at most {ui.size(site.largest)}, at most {ui.count(site.peak_live)} alive"
    )
    for arena in planned["arenas"]:
        if arena["arena"] == site.arena:
            said += f"; {advise_evidence.times(arena['generations'], 'phase')} of at most {ui.size(arena['peak_bytes'])}"
    return said


def bytes_of(planned, site):
    """The element size of a slab's site, what an arena's phase holds at most; 0 for the heap."""
    for slab in planned["slabs"]:
        if slab["slab"] == site.slab:
            return slab["element_bytes"]
    for arena in planned["arenas"]:
        if arena["arena"] == site.arena:
            return max(PAGE_BYTES, -(-arena["peak_bytes"] // PAGE_BYTES) * PAGE_BYTES)
    return 0


def change_of(planned, rows, site):
    """All that the code needs to know."""
    others = [
        row for row in rows if site.arena is not None and row.arena == site.arena and row.id != site.id
    ]
    return Change(
        identifier(site),
        site.klass,
        about(planned, site),
        bytes_of(planned, site),
        patch_source.type_of(site),
        site,
        others,
        any(arena["arena"] == site.arena and arena["kept"] for arena in planned["arenas"]),
    )


def common_frame(sites):
    """The innermost line that all these stacks have in common: the phase begins and ends there, or further out."""
    common = list(reversed(sites[0].stack[sites[0].frame + 1 :]))
    for site in sites[1:]:
        other = list(reversed(site.stack))
        same = 0
        while same < min(len(common), len(other)) and common[same] == other[same]:
            same += 1
        common = common[:same]
    if common and not common[-1].startswith(render.RUNTIME):
        return common[-1]
    own = {site.stack[site.frame] for site in sites if len(site.stack) > site.frame}
    return own.pop() if len(own) == 1 else "main" if common else ""  # only what calls main is common: main itself is the place


def container(site):
    """The standard container whose memory this is, or nothing: the last wrapper before the site's own frame."""
    for frame in reversed(site.stack[: site.frame]):
        found = CONTAINER.search(frame)
        if found:
            return "std::" + found.group(1).replace("basic_string", "string")
    return ""


def phase_notes(change, cpp):
    """Where an arena begins and ends."""
    frame = common_frame([change.site] + change.others)
    below = f"All of them are made below {frame or 'code without names'}."
    if cpp:
        return [
            f"Phase: a variable `{change.name}_phase phase;` before the first of these objects is made, whose scope ends once all "
            f"are dead. {below}",
            f"Each {' and '.join(patch_source.ended_by([change.site] + change.others))} of these objects goes.",
        ]
    return [
        f"Phase: {change.name}_begin() before the first of these objects is made, {change.name}_end() once all are dead. {below}",
        f"Their free() calls go, or become {change.name}_free(), which does nothing.",
    ] + [f"{change.name}_quit() where a thread ends before the program does."] * change.kept


def class_notes(change, cpp):
    """What else changes for a slab, or for the heap."""
    if not cpp:
        once = [f"{change.name}_begin() once, at the start of the program."] * (change.klass != "heap")
        return once + [
            f"Each free() of these objects becomes {change.name}_free(): a trace does not tell where they are."
        ]
    if patch_source.ended_by([change.site]) == ["free()"]:
        given = "(p)" if change.klass == "heap" else "(p, bytes)"
        return [f"Each free() of these objects becomes {change.name}_free{given}: a trace does not tell where they are."]
    return [f"The class of these objects gets the base {change.name}_element: its `new` and `delete` stay as they are."]


def notes(change, mixed):
    """What the code does not say by itself."""
    said, cpp = [], patch_source.is_cpp(change.site.path)
    if not mixed.serves(change.klass):
        said.append("No gain was measured here: the change fits, but it may not pay.")
    held = container(change.site) if cpp else ""
    if change.klass == "arena":
        said += phase_notes(change, cpp)
    elif not held:
        said += class_notes(change, cpp)
    if held:
        how = f"{change.name}_allocator"
        if change.klass == "arena":
            how += f", made of phase.arena(); or &phase, as std::pmr::{held[5:]}"
        said.append(f"This is memory of {held}: give it {how}.")
    if change.others:
        names = list(dict.fromkeys(render.called(site) for site in change.others))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        said.append(f"The same arena serves {', '.join(names[:4])}{more}: give them the same {change.name}_alloc().")
    return said


def document(recording, mixed, rows, wanted):
    """The change as JSON; without code where the site is to be left alone."""
    sites = find(rows, wanted)
    site = next((s for s in sites if s.klass != "leave alone"), sites[0])
    result = {
        "schema": "quire.patch/1",
        "trace": recording.path,
        "site": site.id,
        "function": site.name,
        "where": site.where,
        "class": site.klass,
        "served": mixed.serves(site.klass),
        "c": None,
        "cpp": None,
        "header": None,
        "diff": None,
        "diff_folder": None,
        "notes": [],
    }
    if site.klass == "leave alone":
        result["notes"] = ["Leave it alone: it allocates too seldom, or too large blocks, to gain anything."]
        return result
    change = change_of(mixed.planned, rows, site)
    alike = [s for s in sites if s.path == site.path and (s.klass, s.arena) == (site.klass, site.arena)]
    diff = patch_source.diff(change, alike)
    result.update(
        about=change.about,
        c=patch_c.code(change),
        cpp=patch_cpp.code(change),
        header=f"quire_{change.name}." + ("hpp" if patch_source.is_cpp(site.path) else "h"),
        diff=diff.text or None,
        diff_folder=diff.folder or None,
        notes=notes(change, mixed) + diff.notes,
    )
    return result


def text(found):
    """The same as lines."""
    called = ui.printable(f"{found['function']} {found['where']}".strip())
    lines = [ui.bold(f"{called}: {found['class']}")]
    if found["c"] is None:
        return lines + [f"  {note}" for note in found["notes"]]
    stem = found["header"].rsplit(".", 1)[0]
    headers = [("C", f"{stem}.h", found["c"]), ("C++", f"{stem}.hpp", found["cpp"])]
    if found["header"].endswith(".hpp"):  # the site's own language first
        headers.reverse()
    lines += ["  " + found["about"], ""]
    for language, name, code in headers:
        lines += [ui.bold(f"{language}: save as {name}"), "", *code.splitlines(), ""]
    if found["diff"]:
        lines += [ui.bold(f"The change, in {ui.printable(found['diff_folder'])}: patch -p0"), ""]
        # Another program may read it: its bytes are the file's own, but for a terminal.
        show = ui.printable if sys.stdout.isatty() else str
        lines += [show(line) for line in found["diff"].split("\n")]
    for note in found["notes"]:
        lines += advise_evidence.wrapped(ui.printable(note), "  ")
    return lines
