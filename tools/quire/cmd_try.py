# SPDX-License-Identifier: MIT
"""
cmd_try.py - `quire try -- PROGRAM`: would an allocator of this library help this program, where, and by how much?

    check -> run alone (time) -> record -> analyse -> advise -> replay in rounds -> verdict -> HTML page

The program runs at least twice, with the same input; its output is hidden, its exit status becomes ours.
Not here: each of the steps (target.py, launch.py, tracefile.py, advise/advice.py, measure.py) and the words (tryreport.py).
"""

import os
import tempfile
from collections import namedtuple

import advise.advice as advice
import launch
import measure
import advise.mix as mix
import native
import peers
import preloaded
import render
import target as targets
import tracefile
import tryreport
import ui
from errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_TOOL_FAILED,
    EnvironmentLacks,
    QuireError,
)

HELP = "record, replay and advise one program: would it gain, where, and by how much?"
TAKES_PROGRAM = True
EPILOG = """Nothing after `try`: a small demo program is tried.
The program runs at least twice (alone for its time, then under the tracer), each time with the same
standard input; its output is hidden. Exit: the program's own status, 128+n when signal n ended it; 126, 127
when it cannot be run; 3 when it cannot be traced; with --strict 4 when the verdict is INCONCLUSIVE."""

SECONDS_DEFAULT = 25
ALONE_RUNS_MAX = 11
ALONE_SECONDS_MAX = 4.0
HIDDEN_ALLOCATOR_BYTES = 64 << 20

# `runs`: on libc's malloc. `today`: as its users have it, where that is CPython's own allocator or one of `mallocs`, the
# libraries that LD_PRELOAD brings in its place; else empty.
Timing = namedtuple("Timing", "runs today mallocs", defaults=((),))


def add_arguments(parser):
    """Options of `try`."""
    parser.add_argument(
        "--json", action="store_true", help='JSON alone on stdout, "schema":"quire.try/1"'
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit 4 when the verdict is INCONCLUSIVE"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="exactly N rounds of replays (default: 5 to 31, as time allows)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=SECONDS_DEFAULT,
        metavar="S",
        help="replay for S seconds at most (25), and the program alone for a part of that",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="keep the trace there (default: PROGRAM.qtr, made unique)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE, and the page beside it, when they exist")
    parser.add_argument(
        "--no-report", action="store_true", help="write no HTML page beside the trace"
    )
    tracefile.add_wrapper_option(parser)


def find_target(args):
    """The program to try: the user's, or the bundled demo."""
    if args.program:
        return targets.resolve(args.program)
    ui.note(
        "no program given: trying the bundled demo, a small request server (yours: try -- PROGRAM ARGS)"
    )
    demo = targets.resolve([native.helper("quire-demo")])
    demo.argv[0] = demo.name
    return demo


def time_alone(target, source, progress, seconds):
    """The program's own time: several runs when it is quick. In turns with the allocator it has today, if that is not libc's."""
    most_s = min(ALONE_SECONDS_MAX, seconds)
    runs, today = [], []
    mallocs = preloaded.mallocs(target.binary)
    with_today = mallocs or target.is_python and "PYTHONMALLOC" not in os.environ
    while len(runs) < ALONE_RUNS_MAX:
        progress.step(
            f"running {target.name} alone, for its time (its output is hidden)", quiet_repeat=True
        )
        ran = launch.hidden(target, source, preloaded.without(launch.environment(), mallocs))
        runs.append(ran)
        if with_today and ran.status >= 0:
            today.append(launch.hidden(target, source, launch.environment(malloc_python=False)))
        if ran.status < 0 or sum(r.wall_s for r in runs) + ran.wall_s > most_s:
            break
    return Timing(runs, today, mallocs)


def record(target, source, path, mallocs=()):
    """The recorded run, without the preloaded `mallocs`."""
    environment = preloaded.without(launch.environment(trace=path), mallocs)
    ran = launch.hidden(target, source, environment)
    if tracefile.family(path):
        return ran
    said = [line for line in ran.stderr.splitlines() if line.startswith("quire record: ")]
    if said:
        reason = said[0].removeprefix("quire record: ")
        raise EnvironmentLacks(
            f"{target.name} could not be recorded", reason, "another place: -o /var/tmp/program.qtr"
        )
    raise EnvironmentLacks(
        f"{target.name} cannot be traced: no trace appeared",
        "the loader did not load the tracer, or the program never called libc's malloc",
        f"ldd {target.binary}   (is libc there, and dynamic?)",
    )


def keep_one(path, chosen):
    """Of the traces of several processes the chosen one stays, under the plain name."""
    for other in tracefile.family(path):
        if other != chosen.path:
            os.unlink(other)
    if chosen.path != path:
        os.rename(chosen.path, path)
        chosen.path = path


def refuse_unseen(target, recording, ran):
    """Few calls were seen: because recording stopped, or because an allocator of the program's own hides them."""
    stopped = tracefile.stopped(recording.path)
    if recording.events < advice.EVENTS_MIN and stopped:
        raise EnvironmentLacks(
            f"{target.name} could not be recorded: {stopped}",
            f"only {recording.events} operations are in {tracefile.shown(recording.path)}",
            "another place: -o /var/tmp/program.qtr",
        )
    if (
        recording.events < advice.EVENTS_MIN
        and ran.peak_rss_bytes - recording.facts.get("peak_live_bytes", 0) > HIDDEN_ALLOCATOR_BYTES
    ):
        raise EnvironmentLacks(
            f"{target.name} cannot be judged: it holds {ui.size(ran.peak_rss_bytes)} but called libc's malloc {recording.events} times",
            "it has its own malloc inside, or maps its memory itself",
            "if it can be told to use libc's malloc, do so and try again",
        )


def too_few(rounds, args):
    """Why so few rounds give no verdict, and what gives one."""
    number = f"{rounds} round{'s' * (rounds != 1)} of replays"
    if args.rounds is not None:
        return f"{number} cannot be told from noise: --rounds {measure.ROUNDS_USUAL}"
    return f"only {number} fitted into the time: --time-limit {max(SECONDS_DEFAULT, args.time_limit * 4):.0f}"


def measure_all(report, folder, args):
    """Plan, replays and verdict, into the report."""
    ui.note("replaying the parts of the plan a few times, to see which of them gain")
    report.mix = mix.choose(report.recording, folder, args.rounds)
    report.planned = report.mix.planned
    report.rows = advice.sites(report.recording, report.planned)
    chosen = measure.backends(peers.with_drop_in(), report.mix.path)
    limits = measure.Limits(args.rounds, args.time_limit)
    series = measure.replay(report.recording.program, chosen, limits, report.settle)
    report.settle(series)
    if series.rounds < measure.ROUNDS_JUDGED_MIN:
        report.verdict = advice.Verdict(advice.INCONCLUSIVE, too_few(series.rounds, args))


def try_program(report, args, folder):
    """Everything between the checks and the printing, into the report."""
    target = report.target
    progress = ui.Progress(ALONE_RUNS_MAX + 4)
    path = tracefile.output_path(args, target.name)
    source = launch.Input()
    if args.program:
        source.capture()
    report.timing = time_alone(target, source, progress, args.time_limit)
    progress.step("recording it")
    tracefile.clear(path, args.force)
    report.trace_path = path
    report.recorded = record(target, source, path, report.timing.mallocs)
    progress.step("reading the trace")
    recordings = tracefile.analyse_family(path, folder, args.wrapper)
    report.recording, report.processes = recordings[0], recordings
    report.process_count = len(tracefile.family(path))
    keep_one(path, report.recording)
    if report.crashed or report.too_small:
        if not report.crashed:
            refuse_unseen(target, report.recording, report.recorded)
        if report.crashed and report.recording.events:
            report.planned = advice.plan(report.recording, f"{folder}/plan")
            report.rows = advice.sites(report.recording, report.planned)
    else:
        progress.done()
        measure_all(report, folder, args)
    progress.done()


def say_what_is_kept(report):
    """After a stop: the traces that were recorded so far are there, and good for something."""
    for path in tracefile.family(report.trace_path) if report.trace_path else []:
        ui.note(f"the trace so far is kept: {render.command()} advise {tracefile.typed(path)}")


def run(args):
    """Tries one program."""
    measure.check_limits(args)
    for helper in ("libquire-record.so", "quire-analyse", "quire-plan", "quire-replay"):
        native.helper(helper)
    target = find_target(args)
    report = tryreport.Report(target)
    try:
        carry_out(report, args)
    except KeyboardInterrupt:
        say_what_is_kept(report)
        raise
    return status(report, args)


def carry_out(report, args):
    """Tries, writes the page, prints."""
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        try_program(report, args, folder)
        if not args.no_report:
            import report.trial as report_try  # here: pictures take longer to load than all the rest

            report_try.write(report, args, folder)
    if args.json:
        print(ui.json_text(report.document()))
    else:
        print("\n".join(ui.fit(report.text())))


def status(report, args):
    """The exit status: the program's own, but for what the tracer did to it and for --strict."""
    target = report.target
    if report.crashed and not launch.crashed(report.timing.runs[0].status):
        raise QuireError(
            f"{target.name} {launch.describe(report.recorded.status)} under the tracer but not alone",
            "that is a fault of the tracer, or of the program's that it brings to light",
            f"keep the trace {tracefile.shown(report.recording.path)} and report it",
            EXIT_TOOL_FAILED,
        )
    code = launch.exit_code(report.recorded.status)
    if code == EXIT_OK and args.strict and report.inconclusive:
        return EXIT_INCONCLUSIVE
    return code
