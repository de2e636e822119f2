# SPDX-License-Identifier: MIT
"""
prediction_rule.py - which packages of Debian others build on, section by section: the order in which programs are chosen.

    apt-cache dumpavail | python3 test/tool/prediction_rule.py          30 lines a section:  RANK  PACKAGE  HOW MANY

A package's place: how many packages of main depend on it (Depends, Pre-Depends) or recommend it, each counted once, alternatives
too; equals by name. Where a package is there in two versions, the first that is printed counts.
Not here: what is chosen of them and why the others fall out (prediction_programs.py).
"""

import re
import sys
from collections import Counter

SECTIONS = "database devel graphics interpreters math perl python ruby science text utils vcs web".split()
FIELDS = ("Pre-Depends", "Depends", "Recommends")


def stanzas(text):
    """Each package once: (name, section, names that it depends on or recommends)."""
    seen = set()
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]*): *(.*)$", stanza, re.M))
        name = fields.get("Package")
        if name and name not in seen:
            seen.add(name)
            wanted = ",".join(fields.get(field, "") for field in FIELDS)
            yield name, fields.get("Section", ""), {re.split(r"[ :(]", one.strip())[0] for one in re.split(r"[,|]", wanted)}


def ranked(text, sections=SECTIONS):
    """section -> [(package, how many want it)], most wanted first. Sections of contrib and non-free have a prefix, and are not asked for."""
    by_section, wanted = {section: [] for section in sections}, Counter()
    for name, section, names in stanzas(text):
        if "/" in section:
            continue
        wanted.update(names - {"", name})
        if section in by_section:
            by_section[section].append(name)
    return {
        section: sorted(((name, wanted[name]) for name in names), key=lambda pair: (-pair[1], pair[0]))
        for section, names in by_section.items()
    }


def main():
    """See the top."""
    for section, packages in ranked(sys.stdin.read()).items():
        print(section)
        for place, (name, number) in enumerate(packages[:30], 1):
            print(f"{place:4} {name:32} {number:6}")


if __name__ == "__main__":
    main()
