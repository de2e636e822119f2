# SPDX-License-Identifier: MIT
"""
zoomkit.py - pages with maps whose every figure is known, for the tests of the zoom.

    trace page: two regions of blocks of 4 pages, drawn by chance      slots page: a slab of many pages, a heap of two

Names are full of markup.  Not here: tests.
"""

import base64
import json
import random
import re
import zlib

import toolkit  # noqa: F401 - it tells where the tool's modules are

import report.page as report_page
import report.slots as report_slots

PAGE_BYTES, BLOCK_PAGES = 4096, 4
HOSTILE = '<img src=x onerror="alert(1)">\u202e\n</script><script>alert(2)</script>'


def bits_text(bits):
    """A number's bits as quire.map/1 has them."""
    return f"{bits:x}"[::-1] if bits else ""


def region(address, block_count, chance):
    """Blocks and their pages: each 16 bytes live or not by chance, some pages full, some empty."""
    pages = []
    for i in range(block_count * BLOCK_PAGES):
        bits = (0, (1 << 256) - 1, chance.getrandbits(256))[min(2, i % 5)]
        pages.append([bits.bit_count() * 16, i % 2, bits_text(bits)])
    blocks = []
    for i in range(block_count):
        some = pages[i * BLOCK_PAGES : (i + 1) * BLOCK_PAGES]
        blocks.append([sum(p[0] for p in some), 0])
    return {"address": hex(address), "blocks": blocks, "pages": pages}


def occupancy(blocks=150):
    """A map as quire.profile/1 has it, of pages put together."""
    chance = random.Random(3)
    regions = [region(0x7F0000000000, blocks, chance), region(0x10000, 5, chance)]
    return {"block_bytes": BLOCK_PAGES * PAGE_BYTES, "page_bytes": PAGE_BYTES, "left_out_bytes": 0, "regions": regions}


def trace_page(path, monkeypatch):
    """A trace's page with nothing but its maps."""
    still = {"live_lines": "", "live_areas": "", "heat_whole": "", "heat_sites": []}
    for name, drawn in still.items():
        monkeypatch.setattr(report_page.figures, name, lambda *_, drawn=drawn: drawn)
    profile = {"samples": [1], "stacks": [], "locations": [], "functions": [], "frames_max": 24}
    profile["sites"] = [{"id": i, "function": f"{HOSTILE} {i}"} for i in range(2)]
    empty = {**occupancy(), "regions": []}
    profile.update(occupancy_at_peak=occupancy(), occupancy_at_end=empty)
    findings = {"verdict": None, "advice": None, "cannot_show": [], "next": [], "trace": {}}
    document = {"schema": "quire.report/1", "title": "maps", "version": "0", "made": "", "findings": findings}
    document.update(facts={}, profile=profile, timelines={}, machine=[])
    path.write_text(report_page.page(document), encoding="utf-8")
    return path


def slots_page(path):
    """The page of a process's map."""
    chance, pages = random.Random(4), []
    for i in range(130):
        kind = {"kind": "slab", "name": HOSTILE, "id": 1, "address": hex(0x20000 + i * 4096), "page_bytes": 4096}
        pages.append({**kind, "slot_bytes": 64, "slots": 60})
    for i in range(2):
        kind = {"kind": "heap", "name": "h", "id": 2, "address": hex(0x900000 + i * 65536), "page_bytes": 65536}
        pages.append({**kind, "slot_bytes": 128, "slots": 500})
    for page in pages:
        bits = chance.getrandbits(page["slots"])
        page.update(live=bits.bit_count(), bits=bits_text(bits))
    document = {"schema": "quire.map/1", "process": 7, "program": HOSTILE, "pages": pages, "pages_left_out": 0}
    path.write_text(report_slots.page(document), encoding="utf-8")
    return path


def carried(path):
    """What a page carries in #raw."""
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="raw">(.*?)</script>', text, re.S).group(1))


def unpacked(depth):
    """The pages that a zoom reads."""
    return json.loads(zlib.decompress(base64.b64decode(depth["packed"])))


def live(bits):
    """How many bits are set."""
    return int(bits[::-1] or "0", 16).bit_count()
