# SPDX-License-Identifier: MIT
"""
cmd_record.py - `quire record -- PROGRAM`: the program as it is, with the tracer watching; `--pid PID`: one that runs already, for a while.

A program keeps its own input and output, and its exit status becomes ours. A process that we attached to goes on when we end.
Not here: what the trace says (cmd_advise.py, cmd_replay.py), attaching (attaching.py).
"""

import os

import attaching
import kin
import launch
import load
import native
import options
import own
import stretch
import target as targets
import tracefile
import ui
from errors import EnvironmentLacks, UsageError

HELP = "run a program and keep a trace of its allocations (measured: 1.1 to 2 times the CPU time; up to 3 times, where stacks are deep and ever others, or a program does nothing but allocate)"
TAKES_PROGRAM = True
EPILOG = """The trace is NAME.qtr in this directory unless -o says otherwise; further processes of the program
get NAME.qtr.PID. Exit: the program's own status; 128+n when signal n ended it; 126, 127 when it cannot be run;
3 when it cannot be traced.
A program that does not end by itself: --load CMD, or --duration TIME; its output is hidden then, and it is ended.
With --duration Ctrl-C ends it before its time: the trace is kept, exit 0.
--after, --until-idle, --then: a stretch of its run is recorded; 0, or the program's own status where it ended by itself.
With --pid: 0 when it was recorded, also until Ctrl-C; 3 when it cannot be. The process goes on in every case, also when quire is
killed: then recording ends within 3 s.
Blocks that lived before are not in the trace, and their frees are counted as unknown."""

# The header's page and two blocks: what a trace takes at once (tools/native/record/file.c).
TRACE_BYTES_MIN = os.sysconf("SC_PAGE_SIZE") + (128 << 10)


def add_arguments(parser):
    """Options of `record`."""
    parser.add_argument("--pid", type=options.at_least(1), metavar="PID", help="record the process with this number, which runs already and goes on afterwards")
    parser.add_argument("--duration", type=options.seconds, metavar="TIME", help="with --pid: for so long, as 30s or 2m (default: until Ctrl-C); else the program is ended after it")
    stretch.add_options(parser)
    load.add_options(parser, duration=False)
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
    """Records one run, or a stretch of one."""
    if args.pid:
        return attach(args)
    if not args.program:
        raise UsageError("no program to record", fix="quire record -- PROGRAM ARGS")
    target = targets.resolve(args.program)
    if target.inside:
        static = " (static: the recorder is brought in by ptrace)" if target.static else ""
        ui.note(f"{own.shown(target.inside)} is inside of {ui.printable(target.inside.path)}: its calls are recorded{static}")
    if stretch.wanted(args):
        return record_stretch(args, target)
    driven = load.of(args)
    if driven:
        driven.may_be_cut = driven.command is None
    path = tracefile.output_path(args, target.name)
    env = launch.environment(target.is_python, trace=path, limit_bytes=args.limit_bytes)
    if target.is_python and "PYTHONMALLOC" not in os.environ:
        ui.note(
            "PYTHONMALLOC=malloc is set for this run: CPython's own allocator would hide what it does"
        )
    try:
        with tracefile.fresh(path, args.force) as found:
            ran = launch.hidden(target, launch.Input().capture(), env, driven) if driven else launch.visible(target, env)
    except KeyboardInterrupt:
        for one in found:
            say(one)
        raise
    if driven and driven.is_cut:
        ui.note(f"Ctrl-C ended the recording after {ui.seconds(ran.wall_s)}, and {target.name} with it")
    if ran.status < 0:
        ui.note(f"{target.name} {launch.describe(ran.status)}")
    if not found:
        native.must_load("libquire-record.so")
        raise EnvironmentLacks(
            f"no trace of {target.name} appeared",
            "the tracer said so above, or it was not loaded, or the program never called malloc",
            "free some space or give another place: -o /var/tmp/program.qtr",
        )
    for one in found:
        say(one)
    if not target.is_python and "PYTHONMALLOC" not in os.environ and any(targets.names_python(tracefile.command(one)) for one in found):
        ui.note("CPython's own allocator hides small blocks: they are seen with PYTHONMALLOC=malloc before this command")
    if len(found) > 1:
        ui.note(f"{len(found)} processes were recorded, most of {tracefile.shown(max(found, key=tracefile.stream_bytes))}")
    return launch.exit_code(ran.status)


def say(path):
    """A trace that is there."""
    ui.note(f"trace: {tracefile.shown(path)} ({ui.size(os.path.getsize(path))})")
    if tracefile.stopped(path):
        ui.note(f"  it holds only the beginning: {tracefile.stopped(path)}")


def record_stretch(args, target):
    """Records a part of a run."""
    stretch.check(args, target)
    path = tracefile.output_path(args, target.name)
    with tracefile.fresh(path, args.force) as found:
        ran = stretch.record(target, path, args, launch.environment(target.is_python))
    for one in found[:1]:
        say(one)
    return launch.exit_code(ran.status)


def attach(args):
    """Records a process that runs."""
    if args.program:
        raise UsageError("--pid records a process that runs, and a program is named beside it", fix=f"quire record --pid {args.pid}")
    if stretch.wanted(args):
        raise UsageError("--after, --until-idle and --then are for a program that is started; one that runs already goes on", fix=f"quire record --pid {args.pid} --duration 30s")
    process = attaching.check(args.pid)
    path = tracefile.output_path(args, process.name)
    if process.hides_blocks:
        ui.note("CPython's own allocator hides small blocks: they are seen where it was started with PYTHONMALLOC=malloc")
    with tracefile.fresh(path, args.force) as found:
        others = kin.Kin(args.pid, args.pid)
        ended = attaching.record(process, path, args.duration or 0, args.limit_bytes)
    if passed := others.passed_by():
        ui.note(kin.text(passed, process.name) + f": quire record --pid {passed.pid}" * (passed.pid > 0))
    if ended == "gone":
        ui.note(f"{process.name} ({process.pid}) {'executes another program now' if attaching.goes_on(process.pid) else 'has ended'}")
    elif ended != "ended":
        ui.note("it could not be told that this is the end: its recorder ends by itself within 3 s, at its next malloc")
    for one in found[:1]:
        say(one)
    return 0
