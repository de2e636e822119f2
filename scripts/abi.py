#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""abi - the stored description of libquire's ABI, compared with the library that is built, and written anew.

    scripts/abi.py            abidiff's report; status 0: no difference, 1: some, 77: abidiff is not installed
    scripts/abi.py --write    test/install/libquire.abi as the library is now

    build/release/libquire.so --abidw, with the public headers--> functions, their versions, public structs --> libquire.abi

A function that is new stands in the version of the release that it comes with (src/quire.map), else --write refuses.  doc/abi.md says what may change when.
Debian's package is abigail-tools.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORED = Path("test/install/libquire.abi")
MISSING = 77
WHAT = ["--drop-private-types", "--exported-interfaces-only", "--type-id-style", "hash"]
LEAN = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--no-architecture", "--no-write-default-sizes", "--no-parameter-names"]
# What every line says alike, and abidiff takes for granted.
GRANTED = re.compile(r" is-defined='yes'| (?:access|visibility)='(?:public|default)'|^ +", re.MULTILINE)


def describe(root, library):
    command = ["abidw", "--headers-dir", root / "include", *WHAT, *LEAN, library]
    return GRANTED.sub("", subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(stored, description):
    """abidiff's report; empty: no difference."""
    with tempfile.NamedTemporaryFile("w", suffix=".abi") as now:
        now.write(description)
        now.flush()
        done = subprocess.run(["abidiff", "--harmless", stored, now.name], capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def versions(description):
    """The version of each function."""
    return dict(re.findall(r"<elf-symbol name='(\w+)' version='([^']*)'", description))


def misplaced(before, after, release):
    """Functions that are new and stand in another version than this release's."""
    return sorted(name for name, version in after.items() if name not in before and version != f"QUIRE_{release}")


def release_of(root):
    return re.search(r"project\(quire VERSION (\d+\.\d+)", (root / "CMakeLists.txt").read_text(encoding="utf-8")).group(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the description anew")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--library", type=Path, default=ROOT / "build/release/libquire.so")
    words = parser.parse_args()
    stored = words.root / STORED
    if not (shutil.which("abidw") and shutil.which("abidiff")):
        print("abi: abidiff is not installed (apt-get install abigail-tools)")
        return MISSING
    description = describe(words.root, words.library)
    if not words.write:
        report = compare(stored, description)
        print(report, end="")
        return 1 if report else 0
    before = versions(stored.read_text(encoding="utf-8")) if stored.exists() else versions(description)
    wrong = misplaced(before, versions(description), release_of(words.root))
    if wrong:
        print(f"abi: new functions belong in QUIRE_{release_of(words.root)} (src/quire.map): {' '.join(wrong)}")
        return 1
    stored.write_text(description, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
