# SPDX-License-Identifier: MIT
"""
figures.py - from the rounds of a benchmark to medians with intervals and ratios.

    samples: one {key: figure} a round  ->  values, ratios  ->  {"median", "low", "high"}

An interval is what measure.estimate says it is.

Invariants: B2  a ratio is taken between processes of one round, never between medians.
Not here: running anything (bench/run.py), the tables (bench/arena.py, bench/slab.py).
"""

from measure import ROUNDS_95_MIN, estimate

MARGIN = 0.1


def with_interval(values):
    """{"median", "low", "high"} of some numbers."""
    found = estimate(values)
    return {"median": found.value, "low": found.low, "high": found.high}


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
    """What stands in brackets."""
    if rounds == 1:
        return "one round: no interval"
    return "95 % interval" if rounds >= ROUNDS_95_MIN else "whole range"
