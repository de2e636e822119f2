# SPDX-License-Identifier: MIT
"""
map.py - which slots live, as blocks of text.

    quire.map/1 -> pages, by object -> one line a page:      0x7f1941938000   16 KiB  256 x 64 B  100 %  ████████▇▅▁
                                       one sign a page:      █████▇▇▆▅▃▁      where an object has many

A cell is as dark as its slots are live; with TERM=dumb or an ASCII locale other signs do the same.
Not here: where the document comes from (live/page.py, live/corefile.py).
"""

import itertools
import os
import sys

import ui

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*%#"
CELLS = 48
PAGES_IN_FULL = 16
FEW_PAGES = 3
KIND_WORDS = {"slab": "slab", "percpu": "per-CPU pool (one CPU's copy)", "heap": "heap"}


def signs(stream=None):
    """From empty to full, as the terminal can show them."""
    stream = stream or sys.stdout
    can = "utf" in (getattr(stream, "encoding", "") or "").lower()
    dumb = os.environ.get("TERM") == "dumb"
    return BLOCKS if can and not dumb else ASCII


def sign(part, whole, marks):
    """The sign of a share: blank only where nothing lives, the fullest only where all does."""
    if part == 0 or whole == 0:
        return marks[0]
    if part >= whole:
        return marks[-1]
    return marks[1 + int(part * (len(marks) - 2) / whole)]


def live_bits(page):
    """The live slots as one number, slot i its bit i."""
    return int(page["bits"][::-1] or "0", 16)


def cells(page, count, marks):
    """A page as `count` signs at most."""
    slots, bits = page["slots"], live_bits(page)
    count = max(1, min(count, slots))
    edges = [i * slots // count for i in range(count + 1)]
    parts = []
    for first, end in itertools.pairwise(edges):
        part = bits >> first & ((1 << (end - first)) - 1)
        parts.append(sign(part.bit_count(), end - first, marks))
    return "".join(parts)


def percent(part, whole):
    """A share, never rounded up to all or down to nothing."""
    if whole == 0 or part in (0, whole):
        return "100 %" if part and part == whole else "0 %"
    return f"{min(99, max(1, round(100 * part / whole)))} %"


def matches(page, wanted):
    """Whether --object means this page's object: its name, its number, or KIND:NAME, KIND:NUMBER."""
    if wanted is None:
        return True
    kind, _, rest = wanted.rpartition(":")
    if kind and kind != page["kind"]:
        return False
    return rest in (page["name"], str(page["id"])) or wanted == page["name"]


def grouped(pages):
    """Pages by object: ((kind, name, id), pages by the size of their slots)."""
    by = {}
    for page in pages:
        by.setdefault((page["kind"], page["name"], page["id"]), []).append(page)
    for key, found in by.items():
        yield key, sorted(found, key=lambda p: (p["slot_bytes"], int(p["address"], 16)))


def page_line(page, marks):
    """One page."""
    share = percent(page["live"], page["slots"])
    what = f"{page['slots']} x {page['slot_bytes']} B"
    head = f"  {page['address']:>14}  {ui.size(page['page_bytes']):>7}  {what:>14}  {share:>5}"
    return f"{head}  |{cells(page, CELLS, marks)}|"


def strip(pages, marks):
    """One sign a page, as wide as the window."""
    text = "".join(sign(p["live"], p["slots"], marks) for p in pages)
    wide = ui.width() - 6
    return [f"    |{text[i : i + wide]}|" for i in range(0, len(text), wide)]


def by_size(pages, marks):
    """Many pages: for each size of slots a line, and a sign for each page."""
    lines = []
    for slot_bytes, some in itertools.groupby(pages, key=lambda p: p["slot_bytes"]):
        some = list(some)
        if len(some) <= FEW_PAGES:
            lines += [page_line(p, marks) for p in some]
            continue
        slots, live = sum(p["slots"] for p in some), sum(p["live"] for p in some)
        held = ui.size(sum(p["page_bytes"] for p in some))
        lines.append(
            f"  {len(some)} pages of {slot_bytes} B, {held}: {ui.count(live)} of {ui.count(slots)} slots live,"
            f" {percent(live, slots)}"
        )
        lines += strip(some, marks)
    return lines


def object_lines(key, pages, marks, in_full):
    """One object: its sums, its pages, its large blocks."""
    kind, name, number = key
    large = [p for p in pages if kind == "heap" and p["slots"] == 1]  # a slab's one slot may be free
    small = [p for p in pages if kind != "heap" or p["slots"] != 1]
    slots, live = sum(p["slots"] for p in small), sum(p["live"] for p in small)
    held = sum(p["page_bytes"] for p in pages)
    head = f"{KIND_WORDS.get(kind, kind)} {ui.masked(name) or '-'} (id {number}): {ui.size(held)}"
    lines = [f"{head} in {len(small)} pages, {ui.count(live)} of {ui.count(slots)} slots live, {percent(live, slots)}"]
    if in_full or len(small) <= PAGES_IN_FULL:
        lines += [page_line(p, marks) for p in small]
    else:
        lines += by_size(small, marks)
    if large:
        largest = max(p["page_bytes"] for p in large)
        together = ui.size(sum(p["page_bytes"] for p in large))
        lines.append(f"  {len(large)} large blocks, {together}; the largest {ui.size(largest)}")
    return lines


def text(document, in_full=False, stream=None):
    """Lines of the whole picture."""
    marks = signs(stream)
    pages = document["pages"]
    lines = []
    for key, some in grouped(pages):
        lines += object_lines(key, some, marks, in_full) + [""]
    if not pages:
        return ["no slab, per-CPU pool or heap has a page"]
    held, objects = sum(p["page_bytes"] for p in pages), len(list(grouped(pages)))
    lines.append(f"together: {objects} object{'s' * (objects != 1)}, {len(pages)} page{'s' * (len(pages) != 1)} and large blocks, {ui.size(held)}")
    lines.append(f"signs: |{marks}| from no slot live to all of them")
    if document.get("pages_left_out"):
        lines.append(f"left out, for want of room: {ui.count(document['pages_left_out'])} pages")
    return lines
