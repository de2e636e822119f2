# SPDX-License-Identifier: MIT
"""
stretch.py - `quire record|try --after 10s --duration 30s --then leave -- PROGRAM`: a stretch of a run is recorded, of a program that does not end by itself.

    started as it is, in a session of its own --after--> entered as a running process (attaching.py) --duration, --until-idle, Ctrl-C--> left again
                                                                                                     '--then--> goes on, or is asked to end, or killed

Of a program that has started others (a prefork server, a shell) the process that is busiest then is entered.

Before and after the stretch nothing of ours runs in it. What cannot be entered is ended again: it was we who started it.
Not here: programs that are recorded from their start to their end (launch.py), servers under a load (load.py).
"""

import signal
import time

import attaching
import kin
import launch
import load
import options
import own
import stops
import target as targets
import ui
from errors import EnvironmentLacks, UsageError

THEN = ("leave", "stop", "kill")
SETTLE_S, POLL_S = 0.3, 0.05
IDLE_S, IDLE_SHARE = 1.0, 0.01  # for so long at most such a share of one CPU


def add_options(parser):
    """Options of commands that can record a stretch; `--duration` is the commands' own."""
    parser.add_argument("--after", type=options.seconds, metavar="TIME", help="let the program run so long first; it is entered then, as by record --pid")
    parser.add_argument("--until-idle", action="store_true", help="recording ends when the program has done next to nothing for a second")
    parser.add_argument("--then", choices=THEN, help="when recording ends the program goes on (leave), is asked to end (stop, the default), or is killed; Ctrl-C ends the recording alone")


def wanted(args):
    """Whether a command line asks for a stretch."""
    return bool(args.after or args.until_idle or args.then)


def check(args, target):
    """What cannot be, before anything runs."""
    if args.load or any(ready is not None for ready in (args.ready_port, args.ready_line, args.ready_cmd)):
        raise UsageError("--load ends the program when the load ends, and --ready-* begin one: --after, --until-idle and --then are for a run without a load", fix="leave out one of the two")
    if target.static or target.inside:
        reason = "no loader is in it that could load the recorder" if target.static else f"{own.shown(target.inside)} is inside, and is not called by way of slots"
        targets.refuse(target.name, f"only a stretch of its run cannot be recorded: {reason}", "without --after, --until-idle and --then: all of its run is recorded")


def refuse_ended(program, name):
    """Ends with the reason where the program has ended by itself."""
    if program.poll() is not None:
        raise EnvironmentLacks(f"{name} ended before recording began", launch.describe(program.returncode), "a shorter --after, or none of --after, --until-idle and --then") from None


def wait(program, name, after_s):
    """Until recording begins."""
    until_s = time.monotonic() + after_s
    while time.monotonic() < until_s:
        refuse_ended(program, name)
        time.sleep(min(POLL_S, max(0.0, until_s - time.monotonic())))


def idle(leader):
    """Returns when a process, and what it has started, has done next to nothing for a while, or is gone."""
    used_s = IDLE_S
    while used_s > IDLE_S * IDLE_SHARE and load.family(leader):
        before_s = load.cpu_s(leader)
        time.sleep(IDLE_S)
        used_s = load.cpu_s(leader) - before_s


def peak_bytes(pid):
    """The most memory of a process; 0 when it is gone."""
    try:
        return attaching.Process(pid).number("VmHWM") * 1024
    except EnvironmentLacks:
        return 0


def record(target, path, args, env, source=None):
    """Records the stretch; the Ran: with the program's own status where it ended by itself, else 0. source: its input, where nobody sees its output."""
    program = launch.started(target, env, source)
    try:
        wait(program, target.name, args.after or SETTLE_S)
        pid, number = kin.busiest(program.pid)
        process, others = attaching.check(pid), kin.Kin(program.pid, pid)
        if number > 1:
            ui.note(f"{target.name} runs {number} processes: recorded is the busiest, {process.name} ({pid})")
        began_s, limit = time.monotonic(), getattr(args, "limit_bytes", None)
        attaching.record(process, path, args.duration or 0, limit, (lambda: idle(program.pid)) if args.until_idle else None)
        wall_s = time.monotonic() - began_s
    except BaseException as error:
        is_gone = program.poll() is not None
        stops.end_group(program)
        if is_gone and isinstance(error, EnvironmentLacks):  # it may have ended since anybody looked
            refuse_ended(program, target.name)
        raise
    if program.poll() is not None:
        return program.ran()
    ran = launch.Ran(0, wall_s, 0.0, peak_bytes(pid), "", program.pid, passed=others.passed_by())
    if ran.passed:
        ui.note(kin.text(ran.passed, target.name))
    if args.then == "leave":
        ui.note(f"{target.name} goes on: process {program.pid}")
    else:
        stops.end_group(program, signal.SIGKILL if args.then == "kill" else signal.SIGTERM)
    return ran
