#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
shrinkage_trials.py - how often a figure drawn towards the model (decision 58) would hit what is real, by runs drawn at random round it.

    python3 test/tool/shrinkage_trials.py [--draws 400]

What is real, and what the model said, are those of doc/prediction.md: the servers that were open, those that were sealed, and the programs. A round's
saving scatters by so many points, half of it libc's run, which all rows of a program share. A hit is within 2 points of what is real, or a fifth of it.
"""

import argparse
import random
import re
from statistics import fmean, median, stdev

from toolkit import ROOT

import shrinkage  # of the tool, whose folder toolkit puts on the path

MALLOCS = ("mimalloc", "jemalloc", "tcmalloc", "drop-in")
OPEN = ("nginx", "redis", "postgresql")
NGINX_THERE = [(2.0, 0.1), (-1.8, -0.5), (1.4, 0.3), (-1.6, -0.7)]  # nginx of the second machine, in the words of that page
NOISES = [(10, 22), (10, 54), (16, 26)]  # points, rounds


def number(text):
    """The first of a cell, its minus as people write it; None: there is none."""
    found = re.match(r"(−?)([\d.]+)", text.replace("*", ""))
    return found and float(found[2]) * (-1 if found[1] else 1)


def pairs_of(page):
    """{(section, program): [(real, the model's)]} of the tables in which the model said something of all four mallocs."""
    found, section = {}, ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        section = line if line.startswith("#") else section
        if len(cells) == 7 and cells[1] in MALLOCS:
            found.setdefault((section, cells[0]), []).append((number(cells[3]), number(cells[6])))
    return {key: pairs for key, pairs in found.items() if len(pairs) == len(MALLOCS) and None not in sum(pairs, ())}


def sets_of(page):
    """{what they are: [pairs of a program]}."""
    of_programs = re.search(r"^## What is printed.*?^## ", page, re.S | re.M).group()
    servers, programs = pairs_of(re.search(r"^## Servers.*?^## ", page, re.S | re.M).group()), pairs_of(of_programs)
    is_open = {key: key[1] in OPEN for key in servers}
    return {
        "open servers": [pairs for key, pairs in servers.items() if is_open[key]] + [NGINX_THERE],
        "sealed servers": [pairs for key, pairs in servers.items() if not is_open[key]],
        "programs": list(programs.values()),
    }


def usual(programs):
    """By how much the model's errors of one program differ among themselves, medians: points where it says less than two, and parts of what it says of the others."""
    found = [(stdev(real - said for real, said in pairs), fmean(abs(said) for _, said in pairs)) for pairs in programs]
    return median(apart for apart, says in found if says < 2), median(apart / says for apart, says in found if says >= 2)


def rows_of(pairs, scatter, rounds, chance):
    """What a `try` would have measured."""
    each = scatter / (2 * rounds) ** 0.5
    libc = chance.gauss(0, each)
    return [shrinkage.Row(real + libc + chance.gauss(0, each), scatter / rounds**0.5, said, rounds) for real, said in pairs]


def hits(programs, scatter, rounds, draws):
    """Percent of rows that hit: by the runs alone, and drawn."""
    chance, count, tried = random.Random(1), [0, 0], 0
    for pairs in programs * draws:
        rows = rows_of(pairs, scatter, rounds, chance)
        for (real, _), row, said in zip(pairs, rows, shrinkage.drawn(rows)):
            tried += 1
            for i, value in enumerate((row.measured, said)):
                count[i] += abs(value - real) <= max(2, abs(real) / 5)
    return [100 * n / tried for n in count]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    draws = parser.parse_args().draws
    sets = sets_of((ROOT / "doc" / "prediction.md").read_text(encoding="utf-8"))
    print("the model's errors of a program differ by {:.2f} points, or {:.2f} of what it says".format(*usual(sets["programs"])))
    for name, programs in sets.items():
        for scatter, rounds in NOISES:
            runs, both = hits(programs, scatter, rounds, draws)
            print(f"{len(programs)} {name}, {scatter} points, {rounds} rounds: {runs:.1f} % by the runs alone, {both:.1f} % drawn")


if __name__ == "__main__":
    main()
