#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples - keeps doc/examples.md true: the programs of examples/ as they are, and what they print.

    <!-- code: slab.c -->                 the file, without its licence line
    <!-- output: ./slab -->               what it printed; shell words, run in a directory of built
    <!-- end -->                          examples

    examples.py DIR      writes the page again, with outputs of the programs in DIR

Not here: building the programs (test/install/test_examples.py does, and compares).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "doc" / "examples.md"
BLOCK = re.compile(r"<!-- (code|output): (.+?) -->\n```\w+\n(.*?)```\n<!-- end -->", re.DOTALL)


def blocks():
    """[(code or output, its file or command, the text)] of the page."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def code_of(name):
    """An example as the page shows it."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    return text.split("\n", 1)[1]


def output_of(command, folder, environment=None):
    """What a command of the page prints."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, env=environment, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr or done.returncode}")
    return done.stdout


def main():
    folder = Path(sys.argv[1])

    def fresh(match):
        kind, what, _ = match.groups()
        text = code_of(what) if kind == "code" else output_of(what, folder)
        return f"<!-- {kind}: {what} -->\n```{'c' if kind == 'code' else 'text'}\n{text}```\n<!-- end -->"

    PAGE.write_text(BLOCK.sub(fresh, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
