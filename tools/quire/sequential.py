# SPDX-License-Identifier: MIT
"""
sequential.py - a median and its interval that hold although somebody looks at them again and again.

    round   5     8     12    18    27    40    60            a look at each
    spends  3.1   0.8   0.5   0.3   0.15  0.1   the rest      percent that each end of the interval may be wrong, 5 in all

Who stops at the first look that pleases errs more often than each single look does.  So every look has a small part of the
5 %, and their sum is what the verdict may err on one side.  The last look, when time is up, has what is left.

Intervals are those of Wilcoxon's signed-rank test: order statistics of the means of all pairs, exact for any noise that is as
likely up as down.  The estimate is Hodges' and Lehmann's, the median of the same means.  Below 5 rounds there is only a range.
Not here: the rounds (rounds.py), the verdict (advice.py).
"""

import bisect
import functools

from lazily import statistics
from measure import Estimate

LOOKS = (5, 8, 12, 18, 27, 40, 60)
SPENDS = (1 / 32, 0.008, 0.005, 0.003, 0.0015, 0.0008, 0.0004)
ERROR = 0.05
ROUNDS_MIN = LOOKS[0]


def is_look(rounds):
    """Whether the figures are judged after so many rounds."""
    return rounds in LOOKS


def spends(rounds, last=False):
    """What each end of an interval after so many rounds may be wrong; the last look has all that is left."""
    place = bisect.bisect_left(LOOKS, rounds)
    if last:
        return ERROR - sum(SPENDS[:place])
    return SPENDS[min(place, len(SPENDS) - 1)]


@functools.lru_cache(maxsize=None)
def cut(rounds, error):
    """How many of the sorted means of pairs to leave out at each end; 0 where even the whole range errs more often."""
    ways = [1]  # ways[s]: in how many ways of 2**rounds the positive ranks sum to s
    for rank in range(1, rounds + 1):
        shifted = [0] * rank + ways
        ways = [a + b for a, b in zip(ways + [0] * rank, shifted)]
    left, tail = 0, 0
    for number in ways:
        tail += number
        if tail > error * 2**rounds:
            break
        left += 1
    return max(0, left - 1)


def estimate(values, last=False):
    """Median and interval of one figure a round."""
    values = sorted(values)
    number = len(values)
    if number < 2:
        return Estimate(values[0], values[0], values[0])
    means = sorted((values[i] + values[j]) / 2 for i in range(number) for j in range(i, number))
    out = cut(number, spends(number, last))
    return Estimate(statistics.median(means), means[out], means[-1 - out])


def kind(rounds):
    """What an interval of so many rounds is, in words."""
    if rounds < 2:
        return "one round has no interval of its own: what is shown is as wide as rounds may lie apart"
    if rounds < ROUNDS_MIN:
        return f"intervals are the whole range of the {rounds}, and on each side as much more as so few may be off"
    return "intervals err on each side in at most 5 of 100 programs"


def more_rounds(found, threshold, rounds):
    """How many rounds would bring the interval off the threshold, if the scatter stays; None when no number would."""
    distance = abs(found.value - threshold)
    reach = max(found.high - found.value, found.value - found.low)
    if distance <= 0.05 * reach or distance == 0:
        return None
    return max(rounds + 1, round(rounds * (1.2 * reach / distance) ** 2))
