# SPDX-License-Identifier: MIT
"""
pace.py - how fast the CPU worked while the program ran on it, and what the program would have taken at one and the same pace.

    log CPU time of a run = row + SENSITIVITY * log slowness of the CPU during it + SENSITIVITY * log how much the host stretched it + rest

    spin         mean time of a fixed spin that a helper carries out on the program's CPU, every millisecond or so (quire-pace)
    stretch      of a virtual machine: (work + what the host gave to others meanwhile) / work, by the kernel's count of stolen ticks
    sensitivity  0: the program does not mind what slows the spin; 1: as much as the spin; found from the runs themselves, all rows together

On a machine that others share, a program of one thread was seen to take 155 to 280 ms, by what its neighbours on the core did; with the
slowness taken out, runs of one row lay within 3 %. A server that took 15 us a request took 47 while the host stole two seconds of five: a
process's clock counts a part of that time, and all that a wake-up by another CPU waits for. Control variates, in the language of statistics:
they change no expectation, for whoever neighbours are knows nothing of the row. A program of one thread at a time runs on one CPU, and the
spin beside it; of any other all CPUs are asked where they are few.
Not here: rounds (rounds.py), intervals (sequential.py), the spin (tools/native/pace/pace.c).
"""

import contextlib
import math
import mmap
import os
import struct
import subprocess
from collections import namedtuple

import native
import stops
from lazily import statistics

HELPER = "quire-pace"
PERIOD_S_MIN, PERIOD_S_MAX, SPINS_WANTED = 0.0005, 0.003, 50
SPINS_MIN = 4  # of which a mean says something
CPUS_ASKED_MAX = 4
TICKS_MIN = 50  # of a CPU's time, of which the stolen share says something
SENSITIVITY_MAX = {"spin_ns": 1.5, "stretch": 2.0}
PARTNERS_MAX = 60  # of a run: as many as there are without --rounds; all pairs of a thousand runs are half a gigabyte
TURNS = 12  # what slows the spin goes with what is stolen: each is found with the other taken out, in turns
CPU_BYTES = 64  # struct told of pace.c
AT_ONCE = 1.05  # CPU time over wall time of what runs one thread at a time, and its children's last moments

Slow = namedtuple("Slow", "spin_ns stretch", defaults=(None,))  # of the CPUs that were asked, during a run; stretch: None where nobody can say
Look = namedtuple("Look", "spins ticks")  # what was told so far: (number, their nanoseconds) of each CPU; its ticks, busy and stolen


class Pace:
    """Asks CPUs for their pace, from `start` to `stop`. cpus: where the program shall run, None for anywhere."""

    def __init__(self, wall_s, is_serial):
        allowed = sorted(os.sched_getaffinity(0))
        self.asked = [max(allowed, key=lambda cpu: (top_khz(cpu), cpu))] if is_serial else allowed
        self.cpus = set(self.asked) if is_serial else None
        self.period_s = min(PERIOD_S_MAX, max(PERIOD_S_MIN, wall_s / SPINS_WANTED))
        self.process = self.told = None

    def start(self):
        """Begins to ask; where that cannot be, nothing is told."""
        if len(self.asked) <= CPUS_ASKED_MAX:
            with contextlib.suppress(OSError):  # a sandbox without files in memory; no process more
                self._start()
        return self

    def _start(self):
        size, streams = CPU_BYTES * len(self.asked), {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with open(os.memfd_create(HELPER), "wb") as file:  # of a full disk no page is to be had: who touches it dies
            file.truncate(size)
            self.told = mmap.mmap(file.fileno(), size)
            words = [native.helper(HELPER), str(int(self.period_s * 1e6)), f"/proc/self/fd/{file.fileno()}", *(str(cpu) for cpu in self.asked)]
            with stops.held():
                self.process = subprocess.Popen(words, pass_fds=[file.fileno()], **streams)

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
        """A Look, to be given to `since`."""
        return Look([self._read(i) for i in range(len(self.asked))] if self.process else [], ticks(self.asked))

    def since(self, before):
        """How Slow the CPUs were since then; None where too few spins were told."""
        now = self.look()
        spins = [(then[0] - first[0], then[1] - first[1]) for then, first in zip(now.spins, before.spins)]
        if not spins or min(count for count, _ in spins) < SPINS_MIN:
            return None
        busy, stolen = (then - first for then, first in zip(now.ticks, before.ticks))
        stretch = (busy + max(0, stolen)) / busy if busy >= TICKS_MIN else None  # what was stolen gets less where a CPU goes, and by some hosts
        return Slow(sum(total / count for count, total in spins) / len(spins), stretch)


def top_khz(cpu):
    """How fast it may become; 0 where the system does not tell. Where cores are of two kinds, the last one is a slow one on many a machine."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def ticks(cpus):
    """Ticks in which these CPUs worked, and those in which the host had given them to others while they wanted to; 0, 0 where no kernel tells."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = {line.split()[0]: [int(word) for word in line.split()[1:]] for line in file if line.startswith("cpu")}
    except OSError:
        return 0, 0
    told = [words[f"cpu{cpu}"] for cpu in cpus if len(words.get(f"cpu{cpu}", ())) >= 8]
    return sum(sum(of[:3]) + of[5] + of[6] for of in told), sum(of[7] for of in told)  # user, nice, system; irq, softirq; steal: proc(5)


def is_serial(ran, threads):
    """Whether a program keeps one CPU busy at a time, by one run and the threads that were seen in it."""
    return threads == 1 and ran.cpu_s <= AT_ONCE * ran.wall_s


def sensitivity(rows, at_most):
    """
    How much of the slowness the program shares. rows: of each row the pairs (time, slowness, a number or None). The median of the slopes between
    any two runs of one row (of many only near ones), each with the weight of their distance in slowness (Theil 1950, Sen 1968; weighted as Jaeckel
    1972).
    """
    slopes = []
    for runs in rows:
        points = [(math.log(slow), math.log(time)) for time, slow in runs if slow and time > 0]
        for i, (x, y) in enumerate(points):
            slopes += [((y - b) / (x - a), abs(x - a)) for a, b in points[max(0, i - PARTNERS_MAX) : i] if x != a]
    slopes.sort()
    half, passed = sum(weight for _, weight in slopes) / 2, 0.0
    for slope, weight in slopes:
        passed += weight
        if passed >= half:
            return min(at_most, max(0.0, slope))
    return 0.0


class Evened:
    """Times as they would be at the middle pace of all runs. rows: of each row the pairs (time, Slow or None)."""

    def __init__(self, rows):
        slows = [slow for runs in rows for _, slow in runs if slow]
        known = {kind: [getattr(slow, kind) for slow in slows if getattr(slow, kind)] for kind in Slow._fields}
        self.middle = {kind: statistics.median(values) for kind, values in known.items() if values}
        self.sensitivity = dict.fromkeys(Slow._fields, 0.0)
        kinds = [kind for kind, values in known.items() if len(set(values)) > 1]
        for kind in kinds * (TURNS if len(kinds) > 1 else 1):
            self.sensitivity[kind] = 0.0
            others = [[(self.time(*run), run[1] and getattr(run[1], kind)) for run in runs] for runs in rows]
            self.sensitivity[kind] = sensitivity(others, SENSITIVITY_MAX[kind])

    def time(self, time, slow):
        """One run's; as it is in what is not known of it: a row of short runs would else seem to be one that nothing was stolen from."""
        for kind, share in self.sensitivity.items():
            if slow and getattr(slow, kind):
                time *= (self.middle[kind] / getattr(slow, kind)) ** share
        return time


def _tenths(values):
    """Where the lowest tenth ends and the highest begins; None for too few."""
    tenth = len(values) // 10
    return (sorted(values)[tenth], sorted(values)[-1 - tenth]) if tenth else None


def spread_percent(spins):
    """By how much the slowest tenth of the runs had a slower CPU than the fastest tenth; None for too few runs."""
    found = _tenths(spins)
    return found and 100 * (found[1] / found[0] - 1)


def stolen_percent(stretches):
    """Of the time in which the CPUs wanted to work, what the host gave to others in the worst tenth of the runs; None for too few runs."""
    found = _tenths(stretches)
    return found and 100 * (1 - 1 / found[1])
