# SPDX-License-Identifier: MIT
"""
budget.py - the time that a `try` may take, and what of it is left.

    always      a run alone, the recorded one, reading its trace, a round of the rows that decide
    --time-limit S      nothing else begins that does not end by then: what there is no time for is left out, and said; the plan waits for what the rounds leave
    the usual limit     a wish: five rounds of the rows that decide may take twice as long

Not here: how the rounds are shared out (rounds.py), the steps (cmd_try.py).
"""

import time

KEEP_SHARE = 0.1  # of the usual limit, for what comes after the rounds
MODEL_SHARE = 0.5  # of what is left, for the plan and its replays
REPLAYS_MIN = 31  # the least that a plan and its replays take: five variants three times, each allocator once to verify and once to measure
REPLAY_LEAST_S = 2.0  # so much has one replay, where the limit is a wish: a busy machine starts none in a tenth of a second
PAGE_READS, PAGE_CPU_S = 2.0, 4.0  # the page takes as long as reading the trace so many times, and its pictures
PAGE_SHARE = 0.3


class Budget:
    """is_hard: the user said --time-limit, and no number of rounds. crowd: how many others want each CPU, 1 for none."""

    def __init__(self, began_s, limit_s, is_hard, crowd=1.0):
        self.began_s, self.limit_s, self.is_hard, self.crowd = began_s, limit_s, is_hard, crowd
        self.read_s = 0.0  # what reading the trace took

    @property
    def ends_s(self):
        """When it is over, by the monotonic clock."""
        return self.began_s + self.limit_s

    @property
    def left_s(self):
        """Seconds until then; below 0 when it is over."""
        return self.ends_s - time.monotonic()

    def allows_model(self, replay_s):
        """Whether plan and replays fit, by what one replay takes, and leave time for the rounds."""
        return not self.is_hard or REPLAYS_MIN * replay_s <= MODEL_SHARE * self.left_s

    def one_replay_s(self, seconds):
        """What one replay may take, of so many seconds for all of them, before its malloc is left out."""
        return seconds if self.is_hard else max(seconds, REPLAY_LEAST_S)

    def leaves_model(self, replay_s):
        """Whether they fit after the rounds."""
        return REPLAYS_MIN * replay_s <= self.left_s

    def allows_runs(self, number, run_s):
        """Whether so many further runs of the program fit."""
        return not self.is_hard or number * run_s <= self.left_s

    @property
    def page_s(self):
        """What the page will take, about."""
        return PAGE_READS * self.read_s + PAGE_CPU_S * self.crowd

    def allows_page(self):
        """Whether there is time to write the page."""
        return not self.is_hard or self.page_s <= self.left_s

    def for_rounds_s(self):
        """Seconds for the rounds; the rest is the page's."""
        if not self.is_hard:
            return max(self.left_s - KEEP_SHARE * self.limit_s, 0.3 * self.limit_s)
        return self.left_s - (self.page_s if self.page_s <= PAGE_SHARE * self.left_s else 0.0)
