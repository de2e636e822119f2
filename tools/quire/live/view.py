# SPDX-License-Identifier: MIT
"""
view.py - a page as rows: every object with what it holds, and what changed since the page before.

    page, earlier page -> rows (kind, name, id, held, live, free, count, change a second) -> text, or rich's table

Names are others' words: control characters become `?`, and none is taken for markup.
Not here: reading pages (live/page.py), keys and the terminal (cmd_top.py).
"""

import os
from collections import namedtuple

import ui

# kind -> held, live, free, count: how each is had from an object of quire.stats/1
KINDS = {
    "sources": (
        lambda o: o["taken_bytes"] + o["idle_bytes"] + o["meta_bytes"],
        lambda o: o["taken_bytes"],
        lambda o: o["idle_bytes"],
        lambda o: o["takes"] - o["gives"],
    ),
    "arenas": (lambda o: o["mapped_bytes"], lambda o: o["live_bytes"], lambda o: o["rest_bytes"], lambda o: None),
    "slabs": (
        lambda o: o["mapped_bytes"],
        lambda o: o["live_bytes"],
        lambda o: o["free_bytes"],
        lambda o: o["live_elements"],
    ),
    "percpu": (
        lambda o: o["mapped_bytes"],
        lambda o: o["live_bytes"],
        lambda o: o["free_bytes"],
        lambda o: o["live_objects"],
    ),
    "heaps": (
        lambda o: o["mapped_bytes"],
        lambda o: o["live_bytes"],
        lambda o: o["free_bytes"],
        lambda o: o["live_blocks"],
    ),
    "heap_classes": (
        lambda o: o["page_bytes"],
        lambda o: o["live_blocks"] * o["slot_bytes"],
        lambda o: o["page_bytes"] - o["live_blocks"] * o["slot_bytes"],
        lambda o: o["live_blocks"],
    ),
}
SINGULAR = {
    "sources": "source",
    "arenas": "arena",
    "slabs": "slab",
    "percpu": "per-CPU",
    "heaps": "heap",
    "heap_classes": "  size",
}
HEADER = ["object", "kind", "id", "holds", "live", "free", "count", "holds/s", "count/s"]
ALIGN = "llrrrrrrr"
# A narrow window goes without these, in this order, before a figure is cut; names need as much as NAME_WIDTH_MIN.
DROPPED_FIRST = ("id", "free", "count/s", "kind", "count", "live")
NAME_WIDTH_MIN = 12
GAP = 2  # as rich has it
SORT_KEYS = ("kind", "bytes", "live", "count", "change", "name")

Row = namedtuple("Row", "kind name id held live free count held_per_s count_per_s")


def label(kind, thing):
    """How an object is called in a row."""
    if kind == "heap_classes":
        return f"  {ui.masked(thing['name']) or '-'} / {thing['slot_bytes']} B"
    return ui.masked(thing["name"]) or "-"


def identity(kind, thing):
    """What tells an object from the others, in every page of its process."""
    return kind, thing["id"], thing["slot_bytes"] if kind == "heap_classes" else 0


def objects(page):
    """(kind, object) of a page, in its order."""
    return [(kind, thing) for kind in KINDS for thing in page.stats.get(kind, [])]


def rows(page, before=None, classes=False):
    """Rows of a page; changes a second since `before`, None where the object was not there yet."""
    past = {identity(k, o): (k, o) for k, o in objects(before)} if before else {}
    seconds = page.written_s - before.written_s if before else 0
    found = []
    for kind, thing in objects(page):
        if kind == "heap_classes" and not classes:
            continue
        held, live, free, count = (f(thing) for f in KINDS[kind])
        held_per_s = count_per_s = None
        old = past.get(identity(kind, thing))
        if old and seconds > 0:
            held_per_s = (held - KINDS[kind][0](old[1])) / seconds
            count_per_s = (count - KINDS[kind][3](old[1])) / seconds if count is not None else None
        found.append(Row(kind, label(kind, thing), thing["id"], held, live, free, count, held_per_s, count_per_s))
    return found


def ordered(found, key):
    """Rows by a key; the largest first, names and kinds as words go."""
    places = list(KINDS)
    keys = {
        "kind": lambda r: (places.index(r.kind), -r.held),
        "bytes": lambda r: -r.held,
        "live": lambda r: -r.live,
        "count": lambda r: -(r.count or 0),
        "change": lambda r: -abs(r.held_per_s or 0),
        "name": lambda r: (r.name, r.kind, r.id),
    }
    return sorted(found, key=keys[key])


def signed_size(value):
    """A change of bytes a second; nothing where there is none."""
    if value is None or abs(value) < 1:
        return ""
    return ("+" if value > 0 else "-") + ui.size(abs(value))


def signed_count(value):
    """A change of a count a second."""
    return "" if value is None or abs(value) < 0.5 else f"{value:+,.0f}"


def cells(row):
    """A row as words."""
    return [
        row.name,
        SINGULAR[row.kind],
        str(row.id),
        ui.size(row.held),
        ui.size(row.live),
        ui.size(row.free),
        "" if row.count is None else ui.count(row.count),
        signed_size(row.held_per_s),
        signed_count(row.count_per_s),
    ]


def headline(page):
    """One line about the process."""
    source = next((o for o in page.stats.get("sources", []) if o["name"] == "default"), None)
    held = f", {ui.size(KINDS['sources'][0](source))} from the default source" if source else ""
    late = f", not heard of for {ui.seconds(page.age_s)}" if page.age_s > 2 + 2 * page.interval_s else ""
    return f"{ui.masked(os.path.basename(page.program)) or '?'}[{page.pid}]{held}{late}"


def text(page, found):
    """Lines of the whole page."""
    return [headline(page)] + ui.table(HEADER, [cells(r) for r in found], align=ALIGN)


def list_text(pages):
    """Lines of the list of processes."""
    table = []
    for page in pages:
        sums = page.stats.get("sums", {})
        held = sum(KINDS["sources"][0](o) for o in page.stats.get("sources", []))
        made = sum(sums.get(k, {}).get("objects", 0) for k in ("arenas", "slabs", "percpu", "heaps"))
        table.append(
            [str(page.pid), ui.masked(page.program) or "?", ui.size(held), str(made), ui.seconds(page.age_s)]
        )
    return ui.table(["PID", "program", "holds", "objects", "seen before"], table, flexible=1, align="rlrrr")


def columns_that_fit(words, width):
    """Numbers of the columns that a window has room for, figures whole; the first takes what is left."""
    widths = [max(len(row[i]) for row in words) for i in range(len(HEADER))]
    kept, least = list(range(len(HEADER))), min(widths[0], NAME_WIDTH_MIN)
    for name in DROPPED_FIRST:
        if least + sum(widths[i] + GAP for i in kept[1:]) <= width:
            break
        kept.remove(HEADER.index(name))
    return kept


def rich_table(page, found, room, width, said=""):
    """The page for a terminal, `room` rows high and `width` columns wide; `said`: a line below it."""
    from rich.table import Table  # only the live view needs it
    from rich.text import Text

    table = Table(title=Text(headline(page)), title_justify="left", expand=True, box=None, pad_edge=False)
    words = [cells(row) for row in found[:room]]
    kept = columns_that_fit([HEADER, *words], width)
    widths = [max(len(row[i]) for row in [HEADER, *words]) for i in kept]
    widths[0] = max(1, min(widths[0], width - sum(w + GAP for w in widths[1:])))
    for i in kept:
        table.add_column(HEADER[i], justify="right" if ALIGN[i] == "r" else "left", no_wrap=True, overflow="ellipsis")
    for row, line in zip(found, words):
        line[0] = ui.shorten(line[0], widths[0])
        colours = [None] * 7 + [change_colour(row.held_per_s), change_colour(row.count_per_s)]
        table.add_row(*(Text(line[i], style=colours[i] or "") for i in kept))
    hidden = len(found) - room
    table.caption = Text(f"{ui.masked(said)}\n" * bool(said) + f"{hidden} more below; " * (hidden > 0) + "q ends")
    table.caption_justify = "left"
    return table


def change_colour(value):
    """What grows is red, what shrinks is green."""
    if value is None or abs(value) < 0.5:
        return None
    return "red" if value > 0 else "green"
