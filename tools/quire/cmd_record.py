# SPDX-License-Identifier: MIT
"""
cmd_record.py - `quire record -- PROGRAM`: the program as it is, with the tracer watching.

The program keeps its own input and output, and its exit status becomes ours.
Not here: what the trace says (cmd_advise.py, cmd_replay.py).
"""

import os

import launch
import options
import own
import target as targets
import tracefile
import ui
from errors import EnvironmentLacks, UsageError

HELP = "run a program and keep a trace of its allocations (measured: 1.1 to 2 times the CPU time; up to 3 times, where stacks are deep and ever others, or a program does nothing but allocate)"
TAKES_PROGRAM = True
EPILOG = """The trace is NAME.qtr in this directory unless -o says otherwise; further processes of the program
get NAME.qtr.PID. Exit: the program's own status; 128+n when signal n ended it; 126, 127 when it cannot be run;
3 when it cannot be traced."""

# The header's page and two blocks: what a trace takes at once (tools/native/record/file.c).
TRACE_BYTES_MIN = os.sysconf("SC_PAGE_SIZE") + (128 << 10)


def add_arguments(parser):
    """Options of `record`."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the trace (default: PROGRAM.qtr, made unique)"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE when it exists")
    parser.add_argument(
        "--limit-bytes",
        type=options.size(TRACE_BYTES_MIN),
        metavar="SIZE",
        help="stop recording when the trace is so large, as 500M or 2G",
    )


def run(args):
    """Records one run."""
    if not args.program:
        raise UsageError("no program to record", fix="quire record -- PROGRAM ARGS")
    target = targets.resolve(args.program)
    if target.inside:
        ui.note(f"{own.shown(target.inside)} is inside of {ui.printable(target.inside.path)}: its calls are recorded")
    path = tracefile.output_path(args, target.name)
    env = launch.environment(trace=path, limit_bytes=args.limit_bytes)
    if target.is_python and "PYTHONMALLOC" not in os.environ:
        ui.note(
            "PYTHONMALLOC=malloc is set for this run: CPython's own allocator would hide what it does"
        )
    tracefile.clear(path, args.force)
    ran = launch.visible(target, env)
    found = tracefile.family(path)
    if ran.status < 0:
        ui.note(f"{target.name} {launch.describe(ran.status)}")
    if not found:
        raise EnvironmentLacks(
            f"no trace of {target.name} appeared",
            "the tracer said so above, or it was not loaded, or the program never called malloc",
            "free some space or give another place: -o /var/tmp/program.qtr",
        )
    for one in found:
        ui.note(f"trace: {tracefile.shown(one)} ({ui.size(os.path.getsize(one))})")
        if tracefile.stopped(one):
            ui.note(f"  it holds only the beginning: {tracefile.stopped(one)}")
    return launch.exit_code(ran.status)
