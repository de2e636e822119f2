# SPDX-License-Identifier: MIT
"""
slots.py - what `quire map --json` printed, as a page: which slots of each slab, pool and heap live.

    quire.map/1 -> objects -> slot sizes -> few pages: a strip of squares each;  many pages: a square each

Not here: the same as text (live/map.py), the squares (report/map.py).
"""

import itertools

import live.map as live_map
import report.map as report_map
import report.page as report_page
import ui
from lazily import html
from report.map import COLUMNS, LABEL, SQUARE

STRIPS_MAX = 24
GAP = 6


def shares(page):
    """A page as at most COLUMNS shares of live slots."""
    slots, bits = page["slots"], live_map.live_bits(page)
    count = max(1, min(COLUMNS, slots))
    edges = [i * slots // count for i in range(count + 1)]
    return [
        (bits >> first & ((1 << (end - first)) - 1)).bit_count() / (end - first)
        for first, end in itertools.pairwise(edges)
    ]


def numbered(pages):
    """Pages that know their place in the document, by which a zoom finds their slots."""
    return [{**page, "number": i} for i, page in enumerate(pages)]


def strip(page, top):
    """One page: its words, then its slots."""
    number = page["number"]
    words = (
        f"{page['address']}  {ui.size(page['page_bytes'])}, {page['slots']} x {page['slot_bytes']} B, "
        f"{ui.count(page['live'])} live"
    )
    drawn, height = report_map.squares({"blocks": [[s, 0] for s in shares(page)]}, 1, top + LABEL)
    drawn = f'<g data-top="{top + LABEL}" data-page="{number}">{drawn}</g>'
    return f'<text x="0" y="{top + 10}">{html.escape(words)}</text>{drawn}', LABEL + height + GAP


def grid(pages, top):
    """Many pages of one size: a square each."""
    slots, live = sum(p["slots"] for p in pages), sum(p["live"] for p in pages)
    words = f"{ui.count(len(pages))} page{'s' * (len(pages) > 1)} of {pages[0]['slot_bytes']} B: {ui.count(live)} of {ui.count(slots)} slots live"
    blocks = [[p["live"] / max(1, p["slots"]), 0] for p in pages]
    drawn, height = report_map.squares({"blocks": blocks}, 1, top + LABEL)
    numbers = " ".join(str(p["number"]) for p in pages)
    drawn = f'<g data-top="{top + LABEL}" data-pages="{numbers}">{drawn}</g>'
    return f'<text x="0" y="{top + 10}">{html.escape(words)}</text>{drawn}', LABEL + height + GAP


def svg(pages):
    """All small pages of one object."""
    parts, top = [], 0
    in_full = len(pages) <= STRIPS_MAX
    for _, some in itertools.groupby(pages, key=lambda p: p["slot_bytes"]):
        some = list(some)
        for part in some if in_full else [some]:
            drawn, height = (strip if in_full else grid)(part, top)
            parts.append(drawn)
            top += height
    return (
        f'<svg class="map" role="img" viewBox="0 0 {COLUMNS * SQUARE} {top}">'
        f"<title>Live slots</title>{''.join(parts)}</svg>"
    )


def objects(document):
    """What the template shows of each object."""
    rows = []
    for (kind, name, number), pages in live_map.grouped(numbered(document["pages"])):
        small = [p for p in pages if p["slots"] != 1]
        large = [p for p in pages if p["slots"] == 1]
        slots, live = sum(p["slots"] for p in small), sum(p["live"] for p in small)
        rows.append(
            {
                "kind": kind,
                "name": name or "-",
                "id": number,
                "held": ui.size(sum(p["page_bytes"] for p in pages)),
                "pages": ui.count(len(small)) + " page" + "s" * (len(small) != 1) if small else "",
                "slots": ui.count(slots),
                "live": ui.count(live),
                "share": live_map.percent(live, slots),
                "large": len(large),
                "large_held": ui.size(sum(p["page_bytes"] for p in large)),
                "svg": svg(small) if small else "",
            }
        )
    return rows


def page(document):
    """The page."""
    name, address = report_page.download(document)
    values = {
        "document": document,
        "objects": objects(document),
        "raw": report_page.json_text(document),
        "download": address,
        "download_name": name,
        "zoom_words": report_map.ZOOM_WORDS,
    }
    return report_page.page(document, "slots.html", values)
