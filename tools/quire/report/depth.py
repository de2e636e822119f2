# SPDX-License-Identifier: MIT
"""
depth.py - what a zoom finds under the squares of a trace's map: every page, and which of its 16 bytes live; packed.

    region: pages [[live bytes, site, grains] ...]  ->  {bytes, sites, grains} by region  ->  JSON, zlib, base64: `depth`

Bound: a map's packed text has at most PACKED_BYTES_MAX characters.  Beyond that grains go first, those of the last pages first;
then the pages of the narrowest regions.
Not here: which pages there are (the helper quire-analyse), drawing them (templates/map.js).
"""

import base64
import json
import zlib

import ui
from report.map import REGIONS_SHOWN

PACKED_BYTES_MAX = 256_000
PAGE_BYTES = 4096
GRAIN_BYTES = 16


def columns(region, grains_left):
    """One region's pages by column; grains of as many as there is room for."""
    live_bytes, sites, grains = zip(*region["pages"])
    return {"bytes": live_bytes, "sites": sites, "grains": grains[:grains_left]}


def pack(regions, grains_max):
    """(text, how many pages have their grains) of some regions."""
    found, left = [], grains_max
    for region in regions:
        found.append(columns(region, left))
        left -= len(found[-1]["grains"])
    raw = json.dumps(found, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(raw)).decode(), grains_max - left


def packed(occupancy):
    """One moment's map with its pages packed; as it is where a profile has none."""
    drawn = occupancy["regions"][:REGIONS_SHOWN]
    bare = [{k: v for k, v in r.items() if k != "pages"} for r in occupancy["regions"]]
    if not drawn or "pages" not in drawn[0]:
        return {**occupancy, "regions": bare}
    page_count = sum(len(r["pages"]) for r in drawn)
    grains_max = page_count if occupancy["page_bytes"] == PAGE_BYTES else 0
    text, grained = pack(drawn, grains_max)
    if len(text) > PACKED_BYTES_MAX:
        bare_bytes = len(pack(drawn, 0)[0])
    while len(text) > PACKED_BYTES_MAX and grains_max:
        room = max(0, PACKED_BYTES_MAX - bare_bytes) / max(1, len(text) - bare_bytes)
        grains_max = int(grains_max * min(room, 1) * 0.97)
        text, grained = pack(drawn, grains_max)
    while len(text) > PACKED_BYTES_MAX:
        drawn = drawn[:-1]
        text, grained = pack(drawn, 0)
    told = sum(len(r["pages"]) for r in drawn)
    depth = {"packed": text, "pages": told, "pages_in_all": page_count, "pages_with_grains": grained}
    return {**occupancy, "regions": bare, "depth": depth}


def words(occupancy):
    """How deep a zoom goes, in words; nothing where there is nothing below the squares."""
    depth = occupancy.get("depth")
    if not depth:
        return ""
    page_bytes, told, grained = occupancy["page_bytes"], depth["pages"], depth["pages_with_grains"]
    said = f"Zoomed in: {ui.count(told)} page{'s' * (told != 1)} of {ui.size(page_bytes)}"
    if told < depth["pages_in_all"]:
        said += f" (there was no room for {ui.count(depth['pages_in_all'] - told)} more)"
    if page_bytes > PAGE_BYTES:
        return f"{said}: several OS pages each, for it is a large map."
    which = "each page" if grained == told else f"the first {ui.count(grained)}, as far as there was room,"
    return f"{said}, and of {which} the pieces of {GRAIN_BYTES} B that hold live bytes."


def changed(whole, change):
    """The report's document with its two maps changed."""
    profile = whole.get("profile")
    if not profile:
        return whole
    keys = [k for k in ("occupancy_at_peak", "occupancy_at_end") if k in profile]
    return {**whole, "profile": {**profile, **{k: change(profile[k]) for k in keys}}}


def document(whole):
    """The report's document as its page carries it."""
    return changed(whole, packed)


def without(whole):
    """The same without the packed pages: they need not be in a page twice."""
    return changed(whole, lambda map_: {k: v for k, v in map_.items() if k != "depth"})
