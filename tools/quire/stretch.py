# SPDX-License-Identifier: MIT
"""
stretch.py - `quire record --after 10s --duration 30s --then leave -- PROGRAM`: a stretch of a run is recorded, of a program that does not end by itself.

    started as it is, in a session of its own --after--> entered as a running process (attaching.py) --duration, --until-idle, Ctrl-C--> left again
                                                                                                     '--then--> goes on, or is asked to end, or killed

Before and after the stretch nothing of ours runs in it. What cannot be entered is ended again: it was we who started it.
Not here: programs that are recorded from their start to their end (launch.py), servers under a load (load.py).
"""

import os
import signal
import time

import attaching
import launch
import own
import stops
import target as targets
import ui
from errors import EnvironmentLacks, UsageError

THEN = ("leave", "stop", "kill")
SETTLE_S, POLL_S = 0.3, 0.05
IDLE_S, IDLE_SHARE = 1.0, 0.01  # for so long at most such a share of one CPU


def wanted(args):
    """Whether a command line asks for a stretch."""
    return bool(args.after or args.until_idle or args.then)


def check(args, target):
    """What cannot be, before anything runs."""
    if args.load:
        raise UsageError("--load ends the program when the load ends: --after, --until-idle and --then are for a run without one", fix="leave out one of the two")
    if target.static or target.inside:
        reason = "no loader is in it that could load the recorder" if target.static else f"{own.shown(target.inside)} is inside, and is not called by way of slots"
        targets.refuse(target.name, f"only a stretch of its run cannot be recorded: {reason}", "without --after, --until-idle and --then: all of its run is recorded")


def wait(program, name, after_s):
    """Until recording begins."""
    until_s = time.monotonic() + after_s
    while time.monotonic() < until_s:
        if program.poll() is not None:
            raise EnvironmentLacks(f"{name} ended before recording began", launch.describe(program.returncode), "a shorter --after, or none of --after, --until-idle and --then")
        time.sleep(min(POLL_S, max(0.0, until_s - time.monotonic())))


def idle(pid):
    """Returns when a process has done next to nothing for a while, or is gone."""
    clock = (~pid << 3) | 2  # its CPU clock, by the kernel's numbering
    try:
        used_s = IDLE_S
        while used_s > IDLE_S * IDLE_SHARE:
            before_s = time.clock_gettime(clock)
            time.sleep(IDLE_S)
            used_s = time.clock_gettime(clock) - before_s
    except OSError:
        return


def record(target, path, args):
    """Records the stretch; our exit status: the program's own where it ended by itself, else 0."""
    program = launch.started(target, launch.environment())
    try:
        wait(program, target.name, args.after or SETTLE_S)
        process = attaching.check(program.pid)
        attaching.record(process, path, args.duration or 0, args.limit_bytes, (lambda: idle(program.pid)) if args.until_idle else None)
    except BaseException:
        stops.end_group(program)
        if os.path.exists(path):  # was not there before
            os.unlink(path)
        raise
    if program.poll() is not None:
        return launch.exit_code(program.returncode)
    if args.then == "leave":
        ui.note(f"{target.name} goes on: process {program.pid}")
        return 0
    stops.end_group(program, signal.SIGKILL if args.then == "kill" else signal.SIGTERM)
    return 0
