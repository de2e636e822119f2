# SPDX-License-Identifier: MIT
"""
map.py - where live bytes lie in the address range: a square a block, the darker the fuller.

    quire.profile/1 occupancy -> regions, widest first -> rows of squares, grouped by shade -> SVG

Scripts zoom into it: templates/map.js, by the same squares.
A square that is only outlined holds nothing live, and yet lies between others that do: memory that fragmentation keeps.
Not here: slots of a running process (cmd_map.py).
"""


import ui
from lazily import html

COLUMNS = 96
SQUARE = 10
LABEL = 14
LEVELS = 9
REGIONS_SHOWN = 12
ZOOM_WORDS = (
    "+ and − zoom; so do a pinch, and the wheel once the map was clicked. A drag or the arrow keys move, Home shows all."
    " What the pointer or the arrow keys are on is said beside it."
)


def level(share):
    """A shade for a share of 0 to 1; None for an empty block."""
    return None if share <= 0 else min(LEVELS - 1, int(share * LEVELS))


def squares(region, block_bytes, top):
    """One region's squares as a path for each shade, and how high they are."""
    paths = {}
    for i, (live_bytes, _) in enumerate(region["blocks"]):
        x, y = (i % COLUMNS) * SQUARE, top + (i // COLUMNS) * SQUARE
        shade = level(live_bytes / block_bytes)
        paths.setdefault(shade, []).append(f"M{x} {y}h8v8h-8z")
    drawn = "".join(
        f'<path class="{"void" if shade is None else f"h{shade}"}" d="{"".join(parts)}"/>'
        for shade, parts in sorted(paths.items(), key=lambda p: -1 if p[0] is None else p[0])
    )
    return drawn, -(-len(region["blocks"]) // COLUMNS) * SQUARE


def region_text(region, block_bytes):
    """What stands above a region."""
    live = sum(block[0] for block in region["blocks"])
    size = len(region["blocks"]) * block_bytes
    return f"{region['address']}  {ui.size(size)}, {ui.percent(100 * live / size)} of it live"


def svg(occupancy, name):
    """The map of one moment; None when nothing was live."""
    regions = occupancy["regions"][:REGIONS_SHOWN]
    if not regions:
        return None
    parts, top = [], 0
    for number, region in enumerate(regions):
        text = html.escape(region_text(region, occupancy["block_bytes"]))
        parts.append(f'<text x="0" y="{top + 10}">{text}</text>')
        drawn, height = squares(region, occupancy["block_bytes"], top + LABEL)
        parts.append(f'<g data-region="{number}" data-top="{top + LABEL}">{drawn}</g>')
        top += LABEL + height + 6
    return (
        f'<svg class="map" role="img" data-map="{name}" viewBox="0 0 {COLUMNS * SQUARE} {top}">'
        f"<title>Occupancy of the address range</title>{''.join(parts)}</svg>"
    )


def summary(occupancy):
    """Figures of one moment."""
    blocks = [b[0] for r in occupancy["regions"] for b in r["blocks"]]
    held = len(blocks) * occupancy["block_bytes"]
    return {
        "live_bytes": sum(blocks),
        "held_bytes": held,
        "share_percent": 100 * sum(blocks) / held if held else 0.0,
        "empty_bytes": sum(1 for b in blocks if b == 0) * occupancy["block_bytes"],
        "left_out_bytes": occupancy["left_out_bytes"],
        "regions": len(occupancy["regions"]),
        "regions_left_out": max(0, len(occupancy["regions"]) - REGIONS_SHOWN),
    }
