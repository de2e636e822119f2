# SPDX-License-Identifier: MIT
"""
figures.py - from the rounds of a benchmark to medians with intervals and ratios.

    samples: one {key: figure} a round  ->  values, ratios  ->  {"median", "low", "high"}

An interval is that of the median by order statistics, at least 95 % where there are six rounds or
more, else the whole range.

Invariants: B2  a ratio is taken between processes of one round, never between medians.
Not here: running anything (bench/run.py), the tables (bench/arena.py, bench/slab.py).
"""

from math import comb
from statistics import median

CONFIDENCE = 0.95
MARGIN = 0.1


def with_interval(values):
    """{"median", "low", "high"} of some numbers."""
    ordered = sorted(values)
    outside = (1 - CONFIDENCE) / 2
    cut, tail = 0, 1 / (1 << len(ordered))
    while tail <= outside and cut < len(ordered) // 2:
        cut += 1
        tail += comb(len(ordered), cut) / (1 << len(ordered))
    cut = max(cut - 1, 0)
    return {"median": median(ordered), "low": ordered[cut], "high": ordered[-1 - cut]}


def values(samples, key, field):
    """One field of one key in every round that has it."""
    return [sample[key][field] for sample in samples if key in sample]


def ratio(samples, key, base, field):
    """One key against another, within each round."""
    pairs = [(s[key][field], s[base][field]) for s in samples if key in s and base in s]
    return with_interval([a / b for a, b in pairs])


def above(now, was):
    """Whether an interval lies wholly above another, and by more than MARGIN: what is left between two quiet runs of the same."""
    return now["low"] > was["high"] * (1 + MARGIN)


def below(now, was):
    """The same downwards."""
    return now["high"] < was["low"] * (1 - MARGIN)


def tight(interval, factor):
    """The same in another unit."""
    return {part: value * factor for part, value in interval.items()}


def spread(interval, digits=2):
    """1.13 [1.08 to 1.20]"""
    return "{:.{d}f} [{:.{d}f} to {:.{d}f}]".format(
        interval["median"], interval["low"], interval["high"], d=digits
    )


def interval_kind(rounds):
    return "95 % interval" if rounds >= 6 else "whole range"
