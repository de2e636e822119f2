# SPDX-License-Identifier: MIT
"""
limit.py - when a benchmark must have ended: --time-limit.

    began                                                    until    began + --time-limit
      |  part 1: rounds  |  part 2: rounds  |  part 3: rou|     | END_S: words, JSON
                                                    killed here, and named as not measured

A limit only takes away. Each part gets of what is left as much as it has of the plan; its first round may take all that is left.
Not here: which rounds (bench/run.py), what is said of parts that were left out (cmd_bench.py).
"""

import math
import time

END_S, PICTURES_S = 0.4, 3.0  # kept for what follows the last round
INFINITE = math.inf


class OutOfTime(Exception):
    """The limit has come; `found`: what the cut round had by then."""

    def __init__(self, found=None):
        super().__init__()
        self.found = found or {}


class Limit:
    """So many seconds from now on, or no end."""

    def __init__(self, seconds=None, end_s=END_S):
        self.seconds = seconds
        self.until = INFINITE if seconds is None else time.monotonic() + max(seconds - end_s, seconds / 2)
        self.stretch = INFINITE

    def left_s(self):
        """Seconds until the limit; it may be past."""
        return self.until - time.monotonic()

    def check(self):
        """The end of everything, where it has come."""
        if self.left_s() <= 0:
            raise OutOfTime()

    def plan(self, rest_s):
        """A part begins; so many seconds are planned from here to the end."""
        self.stretch = self.left_s() / max(rest_s, 0.001)

    def room_s(self, planned_s):
        """How long rounds may take that were planned for so long."""
        return INFINITE if self.seconds is None else max(planned_s, 0) * self.stretch
