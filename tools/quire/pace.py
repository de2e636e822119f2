# SPDX-License-Identifier: MIT
"""
pace.py - how fast the CPU worked while the program ran on it, and what the program would have taken at one and the same pace.

    log CPU time of a run = row + SENSITIVITY * log slowness of the CPU during it + rest

    slowness     mean time of a fixed spin that a helper carries out on the program's CPU, every millisecond or so (quire-pace)
    sensitivity  0: the program does not mind what slows the spin; 1: as much as the spin; found from the runs themselves, all rows together

On a machine that others share, a program of one thread was seen to take 155 to 280 ms, by what its neighbours on the core did; with the
slowness taken out, runs of one row lay within 3 %. A control variate, in the language of statistics: it changes no expectation, for whoever
neighbours are knows nothing of the row. A program of one thread at a time runs on one CPU, and the spin beside it; of any other all CPUs are
asked where they are few.
Not here: rounds (rounds.py), intervals (sequential.py), the spin (tools/native/pace/pace.c).
"""

import math
import mmap
import os
import struct
import subprocess
import tempfile
from statistics import median

import native
import stops

HELPER = "quire-pace"
PERIOD_S_MIN, PERIOD_S_MAX, SPINS_WANTED = 0.0005, 0.003, 50
SPINS_MIN = 4  # of which a mean says something
CPUS_ASKED_MAX = 4
SENSITIVITY_MAX = 1.5
CPU_BYTES = 64
AT_ONCE = 1.05  # CPU time over wall time of what runs one thread at a time, and its children's last moments


class Pace:
    """Asks CPUs for their pace, from `start` to `stop`. cpus: where the program shall run, None for anywhere."""

    def __init__(self, wall_s, is_serial):
        allowed = sorted(os.sched_getaffinity(0))
        self.cpus = {allowed[-1]} if is_serial else None
        self.asked = [allowed[-1]] if is_serial else allowed
        self.period_s = min(PERIOD_S_MAX, max(PERIOD_S_MIN, wall_s / SPINS_WANTED))
        self.process = self.told = None

    def start(self):
        """Begins to ask; where that cannot be, nothing is told."""
        if len(self.asked) > CPUS_ASKED_MAX:
            return self
        with tempfile.NamedTemporaryFile(prefix="quire-pace-") as file:
            size = CPU_BYTES * len(self.asked)
            file.truncate(size)
            self.told = mmap.mmap(file.fileno(), size)
            words = [native.helper(HELPER), str(int(self.period_s * 1e6)), file.name, *(str(cpu) for cpu in self.asked)]
            with stops.held():
                self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not self._read(0)[0] and self.process.poll() is None:
                pass  # it has the file open once it tells; a millisecond
        return self

    def stop(self):
        """Ends the helper."""
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def _read(self, place):
        while True:
            count, *sums = struct.unpack_from("QQQ", self.told, place * CPU_BYTES)
            if struct.unpack_from("Q", self.told, place * CPU_BYTES)[0] == count:
                return count, sums[count % 2]

    def look(self):
        """What was told so far, to be given to `since`."""
        return [self._read(i) for i in range(len(self.asked))] if self.process else []

    def since(self, before):
        """Mean nanoseconds of a spin since then; None where too few were told."""
        spins = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(self.look(), before)]
        if not spins or min(count for count, _ in spins) < SPINS_MIN:
            return None
        return sum(total / count for count, total in spins) / len(spins)


def is_serial(ran, threads):
    """Whether a program keeps one CPU busy at a time, by one run and the threads that were seen in it."""
    return threads == 1 and ran.cpu_s <= AT_ONCE * ran.wall_s


def sensitivity(rows):
    """
    How much of the spin's slowness the program shares. rows: of each row the pairs (time, slowness). The median of the slopes between any two
    runs of one row, each with the weight of their distance in slowness (Theil 1950, Sen 1968; weighted as Jaeckel 1972).
    """
    slopes = []
    for runs in rows:
        points = [(math.log(slow), math.log(time)) for time, slow in runs if slow and time > 0]
        for i, (x, y) in enumerate(points):
            slopes += [((y - b) / (x - a), abs(x - a)) for a, b in points[:i] if x != a]
    slopes.sort()
    half, passed = sum(weight for _, weight in slopes) / 2, 0.0
    for slope, weight in slopes:
        passed += weight
        if passed >= half:
            return min(SENSITIVITY_MAX, max(0.0, slope))
    return 0.0


class Evened:
    """Times as they would be at the middle pace of all runs. rows: as for `sensitivity`."""

    def __init__(self, rows):
        slows = [slow for runs in rows for _, slow in runs if slow]
        self.middle = median(slows) if slows else None
        self.sensitivity = sensitivity(rows) if slows else 0.0

    def time(self, time, slow):
        """One run's."""
        return time * (self.middle / slow) ** self.sensitivity if slow else time


def spread_percent(slows):
    """By how much the slowest tenth of the runs had a slower CPU than the fastest tenth; None for too few runs."""
    slows = sorted(slow for slow in slows if slow)
    if len(slows) < 10:
        return None
    tenth = len(slows) // 10
    return 100 * (slows[-1 - tenth] / slows[tenth] - 1)
