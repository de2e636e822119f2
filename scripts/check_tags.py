#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_tags - every order tag has both sides: `release [x]` somewhere means `acquire [x]`
somewhere else.

A store that publishes and the load that relies on it name each other by a tag in a comment.
`acq_rel [x]` is both sides, but only where another line has one side too: an operation does not
synchronise with itself unless it says `acq_rel [x]` twice.

Not here: whether the operation on that line really has the order that its comment says (its name
tells: u64_load_acquire).
"""

import re
import sys

import checklib

_TAG = re.compile(r"\b(release|acquire|acq_rel)\s+\[([A-Za-z0-9_-]+)\]")
_MISSING = {"release": "acquire", "acquire": "release"}


def check(root):
    sides_by_tag = {}
    for path in checklib.files(root, checklib.C_SUFFIXES):
        if path.parts[0] not in ("src", "include", "tools", "bench"):
            continue
        for line, comment in checklib.comments_of(checklib.read(root, path) or ""):
            for match in _TAG.finditer(comment):
                at = line + comment.count("\n", 0, match.start())
                sides_by_tag.setdefault(match.group(2), []).append((match.group(1), f"{path}:{at}"))
    findings = []
    for tag, places in sorted(sides_by_tag.items()):
        findings += _one_sided(tag, places)
    return findings


def _one_sided(tag, places):
    sides = [side for side, _ in places]
    both = sides.count("acq_rel")
    if both > 1 or (both and len(places) > 1) or {"release", "acquire"} <= set(sides):
        return []
    side, where = places[0]
    missing = _MISSING.get(side, "release or acquire")
    return [
        f"{where}: {side} [{tag}] has no other side; write `{missing} [{tag}]` at the line it pairs"
        " with"
    ]


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
