# SPDX-License-Identifier: MIT
"""
flame.py - stacks as an icicle: callers above, what they call below, as wide as their share.

    stacks -> tree (root: the program) -> rectangles -> SVG        +----------- main -----------+
                                                                   +--- parse ---+---- eval ----+
                                                                   +- list -+

Whatever is narrower than SHARE_MIN of the whole is left out, so that a page stays small; the title of each box has the
exact figures.  Without JavaScript it is a picture with titles; with it a click on a box makes that box the whole width.
Not here: where stacks come from (the helper quire-analyse).
"""

import zlib

import cxxnames
import ui
from lazily import html

WIDTH = 1100
ROW = 19
SHARE_MIN = 0.0012
DEPTH_MAX = 48
CHAR_WIDTH = 6.3
METRICS = {
    "live": ("bytes live at the peak", 5, ui.size),
    "bytes": ("bytes allocated", 2, ui.size),
    "count": ("allocations", 1, ui.count),
}
CUT = "(callers beyond the recorded depth)"


class Node:
    """One function in one context: what it and all it calls weigh."""

    __slots__ = ("name", "module", "total", "children")

    def __init__(self, name, module):
        self.name, self.module = name, module
        self.total = 0
        self.children = {}

    def child(self, name, module):
        """The child of that name, made when it is the first time."""
        if name not in self.children:
            self.children[name] = Node(name, module)
        return self.children[name]


def frames(profile, stack):
    """(name, module) of a stack, outermost first."""
    names = []
    for location in stack[0]:
        for index in profile["locations"][location]:
            function = profile["functions"][index]
            names.append((function[0], function[3]))
    if len(stack[0]) >= profile["frames_max"]:
        names.append((CUT, ""))
    return names[::-1]


def tree(profile, column):
    """All stacks as one tree, by one of their figures."""
    root = Node("all", "")
    for stack in profile["stacks"]:
        weight = stack[column]
        if not weight:
            continue
        root.total += weight
        node = root
        for name, module in frames(profile, stack)[:DEPTH_MAX] or [("(unknown)", "")]:
            node = node.child(name, module)
            node.total += weight
    return root


def tint(node):
    """A class for the colour: one a module."""
    return f"m{zlib.crc32(node.module.encode()) % 6}" if node.module else "m6"


def place(root):
    """[(node, depth, left, width)], shares of the whole from 0 to 1; what is too narrow is left out."""
    boxes, waiting = [], [(root, 0, 0.0)]
    while waiting:
        node, depth, left = waiting.pop()
        boxes.append((node, depth, left, node.total / root.total))
        for child in sorted(node.children.values(), key=lambda n: n.name):
            if child.total / root.total >= SHARE_MIN:
                waiting.append((child, depth + 1, left))
            left += child.total / root.total
    return boxes


def fit(name, width):
    """What of a name there is room for."""
    room = int((width - 6) / CHAR_WIDTH)
    return ui.shorten(name, room) if room >= 3 else ""


def box(entry, root, form, clean):
    """One rectangle with its name and its title."""
    node, depth, left, share = entry
    name = cxxnames.brief(node.name)
    said = f"{clean(cxxnames.tidy(node.name))}\n{form(node.total)}, {ui.percent(100 * node.total / root.total)}"
    if node.module:
        said += f"\n{clean(node.module)}"
    x, width, y = left * WIDTH, share * WIDTH, depth * ROW
    return (
        f'<g class="{tint(node)}" data-d="{depth}" data-x="{left:.6f}" data-w="{share:.6f}">'
        f"<title>{html.escape(said)}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{max(0.4, width - 0.6):.1f}" height="{ROW - 1}"/>'
        f'<text x="{x + 4:.1f}" y="{y + 13}">{html.escape(fit(clean(name), width))}</text></g>'
    )


def svg(profile, metric, clean=str):
    """The icicle by one of METRICS; None when nothing has it."""
    title, column, form = METRICS[metric]
    root = tree(profile, column)
    if not root.total:
        return None
    boxes = place(root)
    height = (max(entry[1] for entry in boxes) + 1) * ROW
    drawn = "".join(box(entry, root, form, clean) for entry in boxes)
    return (
        f'<svg class="flame" role="img" viewBox="0 0 {WIDTH} {height}" data-width="{WIDTH}">'
        f"<title>Call stacks by {title}</title>{drawn}</svg>"
    )
