# SPDX-License-Identifier: MIT
"""
sampling.py - what share of the program's CPU time malloc and free take, by looking at the program itself.

    libquire-sample.so in the program -> {looks, looks inside malloc} -> share with the interval of a count

Not here: the looking (tools/native/sample), the share that a replay says (advise/advice.py).
"""

import math
import struct

import native
import preloaded
import rounds
from errors import EnvironmentLacks
from lazily import tempfile
from measure import Estimate

LIBRARY = "libquire-sample.so"
LOOKS_WANTED = 2000
LOOKS_MIN = 50
COUNTERS = struct.Struct("=QQ")


class Looks:
    """Looks at some runs of a program on libc's malloc."""

    def __init__(self, contest):
        self.contest = contest
        self.all = self.inside = 0

    def run(self, seconds):
        """Runs until LOOKS_WANTED looks, or until no further run fits into the time; always one."""
        spent_s = 0.0
        with tempfile.NamedTemporaryFile(prefix="quire-looks-") as file:
            library = native.helper(LIBRARY)
            row = rounds.Row("sample", library, lambda env: {**preloaded.first(env, library), "QUIRE_SAMPLE": file.name})
            file.write(bytes(COUNTERS.size))
            file.flush()
            load, marks = self.contest.load, []
            if load:  # what is looked at in its start and its end does not count
                load.mark = lambda: marks.append(self._read(file.name))
            while self.all < LOOKS_WANTED:
                marks.clear()
                before = self._read(file.name)
                try:
                    ran = self.contest.run_once(row)
                except EnvironmentLacks:  # under a load: it does not bear to be looked at
                    self.all = self.inside = 0
                    break
                spent_s += ran.wall_s
                first, last = marks if load and ran.served.span_ns else (before, self._read(file.name))
                self.all, self.inside = self.all + last[0] - first[0], self.inside + last[1] - first[1]
                if self.all == 0 or spent_s + ran.wall_s > seconds:
                    break
            if load:
                load.mark = None
        return self

    @staticmethod
    def _read(path):
        with open(path, "rb") as file:
            return COUNTERS.unpack(file.read(COUNTERS.size))

    @property
    def share_percent(self):
        """An Estimate; None where there were too few looks."""
        return share(self.inside, self.all) if self.all >= LOOKS_MIN else None


def share(inside, looks):
    """Percent of looks that were inside, with Wilson's 95 % interval."""
    z, part = 1.96, inside / looks
    middle = (part + z * z / (2 * looks)) / (1 + z * z / looks)
    reach = z * math.sqrt(part * (1 - part) / looks + z * z / (4 * looks * looks)) / (1 + z * z / looks)
    return Estimate(*(100 * v for v in (part, max(0.0, min(part, middle - reach)), min(1.0, max(part, middle + reach)))))
