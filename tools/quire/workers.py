# SPDX-License-Identifier: MIT
"""
workers.py - processes of one run that are alike: the workers of a prefork server, the compilers of a build. The busiest stands for all of them.

    nginx.qtr.101  9,000 operations   <- looked at, replayed        what its replay saves is counted 25,000 / 9,000 times: the CPU time, and so
    nginx.qtr.102  8,000                                            the verdict, is that of the group
    nginx.qtr.103  8,000

Alike: their command's first word is one program's (titles that a server gives its workers, "nginx: worker process", begin with its name).
And processes that go on when the program has ended: a daemon, or what a shell left in the background. What they use is in no figure.
And those that nobody saw: LD_PRELOAD did not come to them.
Not here: which trace is the busiest (tracefile.py).
"""

import os
from collections import namedtuple

import render
import target as targets
import tracefile
import ui
from errors import EnvironmentLacks

# number: of processes; events: of all of them; times: theirs for one of the busiest's.
Group = namedtuple("Group", "name number events times")
UNSEEN_S_MIN, UNSEEN_PERCENT_MIN, UNSEEN_PERCENT_MOST = 0.02, 50, 80  # outside of its trace each process begins, and gives its memory back
TIMED_OUT, SIGNAL_SHELL = 124, 128  # what timeout(1) ends with; shells, and timeout -s, add a signal's number
UNSEEN_WHY = "they never allocate, or no preload reaches them: they are static or setuid, or were started without LD_PRELOAD (env -i, sudo)"
ALONE = Group("", 1, 0, 1.0)


def name_of(words):
    """The program of a command line, a worker's title included."""
    first = words if isinstance(words, str) else words[0] if words else ""
    return os.path.basename(first if os.path.isfile(first) else first.split(":")[0].split(" ")[0])


def of(recordings, paths):
    """The Group of the busiest recording, the first. Traces that were not analysed count by what was recorded in them."""
    busiest = recordings[0]
    name = name_of(busiest.facts.get("command", ""))
    if not name:  # longer than the trace has room for
        return ALONE
    alike = [r for r in recordings if name_of(r.facts.get("command", "")) == name and r.events]
    events, number = sum(r.events for r in alike), len(alike)
    size = tracefile.stream_bytes(busiest.path)
    for path in set(paths) - {r.path for r in recordings}:
        if name_of(tracefile.command(path)) == name:
            events += busiest.events * tracefile.stream_bytes(path) // max(1, size)
            number += 1
    return Group(name, number, events, events / max(1, busiest.events)) if number > 1 else ALONE


def refuse_left(report):
    """Where what allocates goes on when the program has ended, its runs tell nothing."""
    left, path = report.recorded.left, report.trace_path

    def process(trace):
        return int(trace[len(path) + 1 :].partition(".")[0] or 0)

    unknown = left.keys() - set(map(process, tracefile.family(path)))  # they have not allocated yet, as a daemon that still sleeps
    judged = {process(report.recording.path)} & left.keys() or unknown or (left if report.too_small else ())
    if not judged:
        return
    pid = min(judged)
    more = f", and {len(left) - 1} more" * (len(left) > 1)
    raise EnvironmentLacks(
        f"{report.target.name} cannot be judged: it ended, and {ui.printable(left[pid])}, which it had started, went on (process {pid}{more}) and was ended",
        "what a process uses is known when it has been waited for",
        "start it so that it stays in the foreground (a shell: `wait`), a server with --load or --duration",
    )


def unseen_percent(report):
    """How much of the recorded run's CPU time is of processes that are in no trace: the recorder did not come into them."""
    status = report.recorded.status  # a signal's end is not told to the trace, be it that of a child
    is_whole = 0 <= status <= SIGNAL_SHELL and status != TIMED_OUT and not report.stopped
    if not is_whole or report.contest.load or report.recording.begun_late or report.recorded.cpu_s < UNSEEN_S_MIN:
        return 0.0
    return max(0.0, 100 - 100 * report.seen_cpu_s / report.recorded.cpu_s)


def refuse_unseen(report):
    """Where next to nothing of what the program does was seen, few calls mean nothing."""
    if report.recorded.passed:
        raise EnvironmentLacks(
            f"{report.target.name} cannot be judged: a process of it allocated {report.recording.facts['allocations']} times, and what did most of the work was not recorded",
            "of a stretch one process is recorded: the busiest when it began",
            "a longer --after, so that those are at work then; or quire record --pid",
        )
    unseen = unseen_percent(report)
    if unseen >= UNSEEN_PERCENT_MOST:
        raise EnvironmentLacks(
            f"{report.target.name} cannot be judged: {ui.percent(unseen)} of its CPU time is of processes that were not recorded",
            UNSEEN_WHY,
            "try the program that it starts",
        )


def unseen_text(report):
    """The same where others were seen that allocate enough."""
    unseen = unseen_percent(report)
    return [f"  {ui.percent(unseen)} of its CPU time is of processes that were not recorded: {UNSEEN_WHY}."] * (unseen >= UNSEEN_PERCENT_MIN)


def left_text(report):
    """Who went on, where that was not what allocates most."""
    named = [f"{ui.printable(name)} ({pid})" for pid, name in sorted(report.recorded.left.items())]
    return [f"  When it had ended, {len(named)} of them went on: {', '.join(named)}. What they use is in no figure; they were ended."] * bool(named)


def outside_text(report):
    """What a server called before and after its load."""
    outside = report.recording.events_outside
    return [f"  {ui.count(outside)} calls of malloc and free before and after the load are in no figure of these."] * (outside > 0)


def makes(report, cpu_s, more):
    """Who allocates how often, in which time; of several processes that is one's, and the time is that of all. more: what else is known of who allocates."""
    made, took = f"{ui.count(report.recording.facts['allocations'])} allocations", f"{ui.seconds(cpu_s)} of CPU time"
    if report.process_count < 2:
        return f"{made} in {took}{more}"
    return f"{made}{more}, in the one of {report.process_count} processes that allocates most; all of them take {took}"


def python_text(report):
    """Of CPython that a program starts, which is not told to leave its own allocator, since nobody would tell it so otherwise."""
    names = {ui.printable(p.executable) for p in report.processes if targets.names_python(p.executable)}
    if not names or report.target.is_python or "PYTHONMALLOC" in os.environ:
        return []
    return [
        f"  {', '.join(sorted(names))} serves small blocks by CPython's own allocator, which no malloc replaces. "
        f"To see them, and to compare without it: PYTHONMALLOC=malloc {render.command()} try ..."
    ]


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
