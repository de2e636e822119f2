#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
newcomers.py - programs that nobody here chose: what `quire try` is given as a new user would, before anybody has looked.

    names in /usr/bin, by the SHA-1 of the name  ->  less those that a file of the tree names  ->  the first N

    python3 test/tool/newcomers.py 40

A person takes from that list, in order, those that end by themselves on an input that is at hand; each is tried once with `quire try -- NAME ...`, and is named
in doc/prediction.md then, so that the next list goes on behind it.
"""

import hashlib
import os
import re
import subprocess
import sys

from toolkit import ROOT

WORD = re.compile(r"[A-Za-z0-9_.+\[-]+")


def by_hash(names):
    """In the order of their SHA-1."""
    return sorted(names, key=lambda name: hashlib.sha1(name.encode()).hexdigest())


def words_of(texts):
    """All words that could be names of programs."""
    return {word.rstrip(".") for text in texts for word in WORD.findall(text)}


def tracked():
    """The text of each file that git knows."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        with open(ROOT / name, encoding="utf-8", errors="replace") as file:
            yield file.read()


def main(arguments):
    number = int(arguments[0]) if arguments else 40
    known = words_of(tracked())
    for name in [name for name in by_hash(os.listdir("/usr/bin")) if name not in known][:number]:
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
