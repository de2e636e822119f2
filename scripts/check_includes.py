#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_includes - the include rule: layers point down only, siblings never meet.

    os < base < pages < owner < arena | slab | percpu | heap < look | steer < compat | prof < preload

A file of src/MODULE may include its own module, every module of a lower layer, and public headers.
A public header counts as the module that owns it (quire/arena.h is arena's) and as everything that
it includes itself.

Not here: bench/, test/, tools/ and examples/, which stand above the public headers.
"""

import re
import sys
from pathlib import Path

import checklib

LAYER_BY_MODULE = {
    "os": 0, "base": 1, "pages": 2, "slots": 2, "owner": 3, "arena": 4, "slab": 4, "percpu": 4, "heap": 4, "look": 5, "steer": 5,
    "compat": 6, "prof": 6, "preload": 7,
}  # fmt: skip
MODULE_BY_HEADER = {
    "source": "pages", "arena": "arena", "slab": "slab", "slab_inline": "os", "percpu": "percpu", "percpu_inline": "os", "counter": "percpu", "histogram": "percpu", "heap": "heap",
    "stats": "look", "netdata": "compat",
}  # fmt: skip
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def check(root):
    return [
        finding
        for path in checklib.files(root, checklib.C_SUFFIXES)
        for finding in _check_file(root, path)
    ]


def _check_file(root, path):
    if path.parts[0] not in ("src", "include"):
        return []
    own = _module_of(path)
    if own is not None and own not in LAYER_BY_MODULE:
        return [
            f"{path}:1: src/{own} has no layer; give it one in scripts/check_includes.py and"
            " doc/design.md"
        ]
    findings = []
    for line, quote, target in _includes(root, path):
        where = f"{path}:{line}"
        if target.endswith((".c", ".cc", ".cpp")):
            findings.append(f"{where}: includes {target}; a source file is never included")
        elif "../" in target:
            findings.append(
                f"{where}: includes {target}; write the path from src/ or include/ instead"
            )
        elif own is not None:
            reached = sorted(_modules_reached(root, path, target, set()))
            findings += [
                f"{where}: {_complaint(own, m, target)}" for m in reached if not _allowed(own, m)
            ]
    return findings


def _complaint(own, reached, target):
    if reached not in LAYER_BY_MODULE:
        return (
            f"includes {target}: src/{reached} has no layer; give it one in"
            " scripts/check_includes.py"
        )
    if LAYER_BY_MODULE[reached] == LAYER_BY_MODULE[own]:
        return (
            f"src/{own} includes its sibling {reached} ({target}); siblings never meet, move what"
            " both need down"
        )
    return f"src/{own} includes {reached} above it ({target}); includes point down only"


def _allowed(own, reached):
    return own == reached or LAYER_BY_MODULE.get(reached, 99) < LAYER_BY_MODULE[own]


def _includes(root, path):
    code = checklib.code_of(checklib.read(root, path) or "", keep_literals=True)
    return [
        (checklib.line_at(code, m.start()), m.group(1), m.group(2)) for m in _INCLUDE.finditer(code)
    ]


def _module_of(path):
    """The module a file belongs to, by its directory or, for a public header, by its name; None:
    everybody's."""
    if path.parts[0] == "src":
        return path.parts[1] if len(path.parts) > 2 else None
    return MODULE_BY_HEADER.get(path.stem)


def _modules_reached(root, path, target, seen):
    """The modules that an include brings in; public headers are followed, for they bring in what
    they include."""
    if target in seen:
        return set()
    seen.add(target)
    beside, public, inner = path.parent / target, Path("include") / target, Path("src") / target
    if (root / beside).is_file() and path.parts[0] == "src":
        return {_module_of(beside)} - {None}
    if (root / public).is_file():
        reached = {_module_of(public)} - {None}
        for _, _, deeper in _includes(root, public):
            reached |= _modules_reached(root, public, deeper, seen)
        return reached
    if (root / inner).is_file():
        return {_module_of(inner)} - {None}
    return set()


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
