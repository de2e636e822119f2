# SPDX-License-Identifier: MIT
"""
workers.py - processes of one run that are alike: the workers of a prefork server, the compilers of a build. The busiest stands for all of them.

    nginx.qtr.101  9,000 operations   <- looked at, replayed        what its replay saves is counted 25,000 / 9,000 times: the CPU time, and so
    nginx.qtr.102  8,000                                            the verdict, is that of the group
    nginx.qtr.103  8,000

Alike: their command's first word is one program's (titles that a server gives its workers, "nginx: worker process", begin with its name).
Not here: which trace is the busiest (tracefile.py).
"""

import os
from collections import namedtuple

import tracefile
import ui

# number: of processes; events: of all of them; times: theirs for one of the busiest's.
Group = namedtuple("Group", "name number events times")
ALONE = Group("", 1, 0, 1.0)


def name_of(words):
    """The program of a command line, a worker's title included."""
    first = words if isinstance(words, str) else words[0] if words else ""
    return os.path.basename(first.split(":")[0].split(" ")[0])


def of(recordings, paths):
    """The Group of the busiest recording, the first. Traces that were not analysed count by what was recorded in them."""
    busiest = recordings[0]
    name = name_of(busiest.facts.get("command", ""))
    alike = [r for r in recordings if name_of(r.facts.get("command", "")) == name and r.events]
    events, number = sum(r.events for r in alike), len(alike)
    size = tracefile.stream_bytes(busiest.path)
    for path in set(paths) - {r.path for r in recordings}:
        if name_of(tracefile.command(path)) == name:
            events += busiest.events * tracefile.stream_bytes(path) // max(1, size)
            number += 1
    return Group(name, number, events, events / max(1, busiest.events)) if number > 1 else ALONE


def makes(report, cpu_s, more):
    """Who allocates how often, in which time; of several processes that is one's, and the time is that of all. more: what else is known of who allocates."""
    made, took = f"{ui.count(report.recording.facts['allocations'])} allocations", f"{ui.seconds(cpu_s)} of CPU time"
    if report.process_count < 2:
        return f"{made} in {took}{more}"
    return f"{made}{more}, in the one of {report.process_count} processes that allocates most; all of them take {took}"


def text(report):
    """Which process was looked at, and what the figures are of."""
    group, looked = report.group, f"  It ran {report.process_count} processes; looked at: {report.recording.executable}, which allocates most."
    if group.number < 2:
        return f"{looked} Times are of all of them."
    share = ui.percent(100 / group.times)
    return (
        f"{looked} {group.number} are alike ({ui.printable(group.name)}): it has {share} of their operations and stands for all, so what is modelled is counted "
        f"{group.times:.1f} times. Times are of all processes."
    )
