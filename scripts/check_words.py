#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_words - what no file of the tree says: a postponed job, a home directory of somebody's
machine, another licence.

The words are put together from pieces here, so that this file does not contain them.
"""

import re
import sys
from pathlib import Path

import checklib

POSTPONED = re.compile(
    r"\b(?:"
    + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "not " + "implemented", "Not" + "Implemented"])
    + r")\b"
)
SOMEBODYS_PATH = re.compile(
    r"(?<![\w$.{}*-])/(?:" + "|".join(["work", "root", r"home/\w+", r"Users/\w+"]) + r")/[\w.]"
)
OTHER_LICENCE = re.compile("SPDX-License" + r"-Identifier:\s*(?!MIT\b)\S")
RULES = (
    (POSTPONED, "a postponed job; do it, or open an issue and leave the code out"),
    (SOMEBODYS_PATH, "a path of somebody's machine; make it relative"),
    (OTHER_LICENCE, "another licence; everything here is MIT"),
)


def check(root):
    findings = []
    for path in checklib.files(root):
        text = checklib.read(root, path)
        for number, line in enumerate((text or "").splitlines(), 1):
            findings += [
                f"{path}:{number}: {problem}" for rule, problem in RULES if rule.search(line)
            ]
    licence = Path(root) / "LICENSE"
    if not licence.is_file() or not licence.read_text(encoding="utf-8").startswith("MIT License"):
        findings.append("LICENSE:1: is not the MIT licence")
    return findings


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
