# SPDX-License-Identifier: MIT
"""
kin.py - one process is recorded while it runs, and what it has started is not: which of them is at work, and did others do more meanwhile?

    server (waits) - worker (busy) - worker (busy)       busiest() -> a worker       Kin(...).passed_by() -> the one that did much more, or None

Not here: recording it (attaching.py), all processes of a run that is recorded from its start (workers.py).
"""

import time
from collections import namedtuple

import load
import ui

LOOK_S = 0.2
LITTLE_S, TIMES = 0.02, 2  # so much more than the recorded one is much more

# pid: of who did most, 0: it is gone; number: of processes beside the recorded one
Passed = namedtuple("Passed", "pid number cpu_s own_s")


def clocks(leader):
    """{process: its CPU seconds} of all that came of a process."""
    return {pid: load.clock_s(pid) for pid in load.family(leader)}


def busiest(leader):
    """The process to record, and how many there are: the leader, if no other does more just now."""
    before = clocks(leader)
    if len(before) < 2:
        return leader, 1
    time.sleep(LOOK_S)
    used = {pid: used_s - before.get(pid, 0.0) for pid, used_s in clocks(leader).items()}
    return max(used, key=lambda pid: (used[pid], pid == leader), default=leader), len(used)


class Kin:
    """Those of a leader's family beside the recorded process, from now on."""

    def __init__(self, leader, pid):
        self.leader, self.pid = leader, pid
        self.before, self.gone_s = clocks(leader), sum(load.family(leader).values())

    def passed_by(self):
        """Who did much more than the recorded process, which is still there: a Passed, or None."""
        after = clocks(self.leader)
        if self.pid not in after:
            return None
        used = {pid: used_s - self.before.get(pid, 0.0) for pid, used_s in after.items()}
        own_s, used[0] = used.pop(self.pid), sum(load.family(self.leader).values()) - self.gone_s
        most = max(used, key=used.get)
        return Passed(most, len(used) - 1, used[most], own_s) if used[most] > LITTLE_S + TIMES * own_s else None


def text(passed, name):
    """What to say of it."""
    who = f"the busiest, {passed.pid}," if passed.pid else "those that are gone"
    return f"what {name} has started is not recorded ({passed.number} of them run): {who} took {ui.seconds(passed.cpu_s)} of CPU time, the recorded process {ui.seconds(passed.own_s)}"
