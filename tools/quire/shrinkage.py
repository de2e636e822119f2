# SPDX-License-Identifier: MIT
"""
shrinkage.py - what a malloc saves a server: what its runs say, drawn towards what the model says, by how little the runs can be told from noise.

    runs - model  =  noise of libc's runs, the same in all rows  +  noise of the row's own runs  +  what the model does not know of the row

The rounds say how large both noises are. What is left of the rows' spread is the model's error here, of this program on this machine; what it errs by
in all rows alike cannot be told from libc's noise, and is expected to be a PART of what it says, as on other programs: it knows no caches, and so
says too little of every malloc, or too much. Where the error is large, the runs stand as they are; where there is none, the model stands. Each part of
a difference is kept as far as it is error and no noise: the best linear guess (James and Stein 1961, Efron and Morris 1973), with the spread found by
moments (DerSimonian and Laird 1986).

Only under a load: there two measurements of one thing lie points apart, and replays are of the busy server alone, without the start that other
programs' models err in. Not here: intervals, which stay the runs' own (sequential.py), nor the model (advise/).
"""

from collections import namedtuple
from statistics import fmean, variance

# The standard deviation of the model's error in parts of what it says: the median of 28 rows of programs that a rule chose (doc/prediction.md,
# "In parts of what it said"), over that of a normal distribution of unit variance
PART = 0.42 / 0.6745

# A malloc's saving by the runs, its standard error, and the saving that the model says; all in points
Row = namedtuple("Row", "measured noise modelled")


def drawn(rows):
    """The savings, in order. Fewer than two rows tell no spread, and stay as they were measured."""
    if len(rows) < 2:
        return [row.measured for row in rows]
    apart = [row.measured - row.modelled for row in rows]
    each = fmean(row.noise**2 for row in rows) / 2  # libc's runs make the other half
    error = max(0.0, variance(apart) - each)
    alike = PART * fmean(abs(row.modelled) for row in rows)
    common = _share(alike**2 + error / len(rows), each + each / len(rows))
    own, middle = _share(error, each), fmean(apart)
    return [row.modelled + common * middle + own * (a - middle) for row, a in zip(rows, apart)]


def _share(error, noise):
    """How much of a difference is error and not noise."""
    return error / (error + noise) if error + noise > 0 else 1.0
