#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_spdx - every source file begins with its licence: SPDX-License-Identifier: MIT, on line 1,
or 2 after a #! line."""

import sys

import checklib

SUFFIXES = checklib.C_SUFFIXES | {".py", ".sh", ".cmake", ".map", ".S", ".in", ".yml", ".toml"}
NAMES = {"CMakeLists.txt", "quire", ".clang-format", ".editorconfig", "size-exceptions.txt"}
LINE = "SPDX-License-Identifier: MIT"


def check(root):
    findings = []
    for path in checklib.files(root):
        text = (
            checklib.read(root, path)
            if path.suffix in SUFFIXES or path.name in NAMES or path.parts[0] == ".ci"
            else None
        )
        if text is None:
            continue
        lines = text.split("\n", 2)
        wanted = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
        if LINE not in wanted:
            findings.append(f"{path}:1: does not begin with `{LINE}`")
    return findings


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
