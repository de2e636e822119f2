# SPDX-License-Identifier: MIT
"""
shrinkage.py - what a malloc saves a server: what its runs say, drawn towards what the model says, by how little the runs can be told from noise.

    runs - model  =  noise of libc's runs, the same in all rows  +  noise of the row's own runs  +  what the model does not know of the row

The rounds say how large both noises are; a row of few rounds has a larger one of its own, and counts less. What is left of the rows' spread is the
model's error here, of this program on this machine; four rows tell little of it, so what is usual counts beside it. What it errs by in all rows alike
cannot be told from libc's noise, and is expected to be a PART of what it says, as on other programs: it knows no caches, and so says too little of every
malloc, or too much; it is more only where the runs are sure of it. Where the error is large, the runs stand as they are; where there is none, the model
stands. Each part of a difference is kept as far as it is error and no noise: the best linear guess (James and Stein 1961, Efron and Morris 1973), with
the spread found by moments (DerSimonian and Laird 1986).

Only under a load: there two measurements of one thing lie points apart, and replays are of the busy server alone, without the start that other
programs' models err in. Not here: intervals, which stay the runs' own (sequential.py), nor the model (advise/).
"""

from collections import namedtuple

from lazily import statistics

# The standard deviation of the model's error in parts of what it says: the median of 28 rows of programs that a rule chose (doc/prediction.md,
# "In parts of what it said"), over that of a normal distribution of unit variance
PART = 0.42 / 0.6745
# By how much the model's errors in a program's rows usually differ among themselves (standard deviation): in points, and in parts of what it says on the
# average; medians of the 18 programs of doc/prediction.md of which it says less than two points, and of the 34 of which it says more (test/tool/shrinkage_trials.py)
USUAL_POINTS, USUAL_PART = 1.2, 0.36
USUAL_ROWS = 4  # so many degrees of freedom that counts as (doc/adr/0058-shrinkage.md)
SURE = 3  # so many standard errors of what all rows share are no noise
TINY = 1e-9

# A malloc's saving by the runs, its standard error, and the saving that the model says, all in points; how many rounds
Row = namedtuple("Row", "measured noise modelled rounds")


def drawn(rows):
    """The savings, in order. Fewer than two rows tell no spread, and stay as they were measured."""
    if len(rows) < 2:
        return [row.measured for row in rows]
    apart = [row.measured - row.modelled for row in rows]
    most = max(row.rounds for row in rows)
    libc = statistics.fmean(row.noise**2 * row.rounds for row in rows) / 2 / most  # half of a round's noise is libc's run; it runs in every round
    own = [row.noise**2 * (1 - row.rounds / most / 2) for row in rows]  # a row of one round has libc's run of that round, nearly for itself
    says = statistics.fmean(abs(row.modelled) for row in rows)
    seen = _spread(apart, own)
    error = _error(seen, len(rows) - 1, USUAL_POINTS**2 + (USUAL_PART * says) ** 2)
    weights = _weights([error + noise for noise in own])
    middle = _mean(apart, weights)
    noise = libc + sum(w * w * v for w, v in zip(weights, own))  # of the middle
    alike = (PART * says) ** 2
    alike = max(alike, middle**2 - SURE**2 * noise)  # runs that are sure refute the model of all rows alike, too
    common = _share(alike + max(0.0, seen) * sum(w * w for w in weights), noise)  # what all rows share, they alone can show
    return [row.modelled + common * middle + _share(error, v) * (a - middle) for row, a, v in zip(rows, apart, own)]


def _spread(values, noises):
    """The variance of values beyond the noise that each has of its own (DerSimonian and Laird); below zero by chance."""
    weights, total = _weights(noises), sum(1 / max(noise, TINY) for noise in noises)
    middle = _mean(values, weights)
    excess = sum(w * (v - middle) ** 2 for w, v in zip(weights, values)) - (len(values) - 1) / total
    return excess / (1 - sum(w * w for w in weights))


def _error(spread, freedom, usual):
    """The variance of the model's error: by the rows, beyond their noise, and by what is usual, each as far as it is known."""
    return max(0.0, (freedom * spread + USUAL_ROWS * usual) / (freedom + USUAL_ROWS))


def _weights(variances):
    """Of a mean of values with these: the less a value is known, the less it counts. Their sum is 1."""
    known = [1 / max(v, TINY) for v in variances]
    return [k / sum(known) for k in known]


def _mean(values, weights):
    return sum(v * w for v, w in zip(values, weights))


def _share(error, noise):
    """How much of a difference is error and not noise."""
    return error / (error + noise) if error + noise > 0 else 1.0
