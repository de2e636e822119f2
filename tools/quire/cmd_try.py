# SPDX-License-Identifier: MIT
"""
cmd_try.py - `quire try -- PROGRAM`: would an allocator of this library help this program, where, and by how much?

    check -> run alone -> record -> analyse -> advise -> replay -> run it under each allocator, in rounds -> verdict -> HTML page

What can be run is run: each malloc is preloaded into the real program, and the advice is carried out in it. The replays choose the plan,
and say what cannot be run. The program's output is hidden, its exit status becomes ours.
Not here: each of the steps (target.py, launch.py, tracefile.py, advise/, measure.py, rounds.py), what they found (finding.py), the words (tryreport.py).
"""

import errno
import glob
import os
import time

import advise.advice as advice
import budget
import deepbind
import finding
import launch
import load
import measure
import advise.mix as mix
import native
import own
import pace
import peers
import preloaded
import render
import rounds
import sampling
import sequential
import serving
import statics
import steering
import stretch
import target as targets
import tracefile
import tryreport
import trynoise
import trysmall
import ui
import workers
from errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_TOOL_FAILED,
    EnvironmentLacks,
    QuireError,
    UsageError,
)
from lazily import tempfile

HELP = "run one program under each allocator, record and advise: would it gain, where, and by how much?"
TAKES_PROGRAM = True
EPILOG = """Nothing after `try`: a small demo program is tried.
The program runs many times (the first line says how often, and for how long), each time with the same
standard input; its output is hidden. A program that changes what it works on: --prepare and --cleanup put
it back; one that may run only once: --once. One that does not end by itself, as a server: --load CMD, or --duration TIME (Ctrl-C in the recorded run: the verdict on what was recorded);
with --after, --until-idle or --then it runs once, a stretch of that is recorded, also until Ctrl-C, and all figures are modelled. Exit: the program's own status, 128+n when signal n ended it;
126, 127 when it cannot be run; 3 when it cannot be traced; with --strict 4 when the verdict is INCONCLUSIVE."""

PILOT_SHARE, REPLAY_SHARE, LOOK_SHARE = 0.025, 0.1, 0.05  # of the time limit; the rest, and what they leave, is for the rounds
REPLAY_SHARE_STATIC = 0.6  # where the verdict stands on replays alone: these have all the patience then
PLAN_BYTES_MIN = 2 << 20  # a plan without call sites that expects less memory, not one huge page, changes nothing
HIDDEN_ALLOCATOR_BYTES = 64 << 20


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
        help="exactly N rounds, each of one run under each allocator (default: until the verdict is settled, 5 to 60)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="take S seconds at most, in all, but always a run alone, a recorded one, and one with each malloc that decides (default: about 60; for a program of over half a second 30 more for each further second)",
    )
    parser.add_argument("--once", action="store_true", help="run the program only once, recorded: all figures are modelled")
    parser.add_argument("--prepare", metavar="CMD", help="a shell command before each run, not timed")
    parser.add_argument("--cleanup", metavar="CMD", help="a shell command after each run, not timed")
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
    load.add_options(parser)
    stretch.add_options(parser)
    tracefile.add_wrapper_option(parser)


def check_arguments(args):
    """Options that make no sense together."""
    if args.rounds is not None and args.rounds < 1:
        raise UsageError("--rounds must be at least 1")
    if args.time_limit is not None:
        measure.check_time_limit(args.time_limit)
    if args.json and (args.output or "").endswith(".json"):
        raise UsageError(f"-o {args.output}: that is where the trace is kept, and a trace is no JSON", fix=f"--json without -o, and > {args.output} behind the program")
    args.once = args.once or stretch.wanted(args)
    if args.once and args.rounds is not None:
        raise UsageError("--once runs the program once, as --after, --until-idle and --then do: there are no rounds", fix="leave out one of the two")


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


def record(contest, path, args):
    """The recorded run, or stretch of a run, without the malloc that LD_PRELOAD brings."""
    target = contest.target
    if stretch.wanted(args):
        return contest.hooks.around(lambda: stretch.record(target, path, args, contest.plain(), contest.source))
    environment = contest.plain(trace=path)
    if contest.load:
        contest.load.may_be_cut = contest.load.command is None
    ran = contest.hooks.around(lambda: launch.hidden(target, contest.source, environment, contest.load))
    if contest.load:
        contest.load.may_be_cut = False
    if tracefile.family(path):
        return ran
    said = [line for line in ran.stderr.splitlines() if line.startswith("quire record: ")]
    if said:
        reason = said[0].removeprefix("quire record: ")
        raise EnvironmentLacks(f"{target.name} could not be recorded", reason, way_out(reason))
    native.must_load("libquire-record.so")
    raise EnvironmentLacks(
        f"{target.name} cannot be traced: no trace appeared",
        "the loader did not load the tracer, or the program never called libc's malloc",
        f"ldd {target.binary}   (is libc there, and dynamic?)",
    )


def way_out(reason):
    """What helps where a trace could not be written."""
    if reason.endswith((tracefile.STOPS[3], os.strerror(errno.EFBIG))):
        return "a larger file size limit (ulimit -f); a program that sets it itself (setrlimit) cannot be recorded"
    return "another place: -o /var/tmp/program.qtr"


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
            way_out(stopped),
        )
    if (
        recording.events + recording.events_outside < advice.EVENTS_MIN
        and not recording.begun_late
        and ran.peak_rss_bytes - recording.facts.get("peak_live_bytes", 0) > HIDDEN_ALLOCATOR_BYTES
    ):
        raise EnvironmentLacks(
            f"{target.name} cannot be judged: it holds {ui.size(ran.peak_rss_bytes)} but called libc's malloc {recording.events} times",
            "it has its own malloc inside, or maps its memory itself",
            "if it can be told to use libc's malloc, do so and try again",
        )


def untraced_s(report):
    """CPU time of a program that may run only once: that of the recorded run, less what recording its operations costs."""
    libc = measure.Backend("libc", None, None, False)
    plain, traced = (measure.run_once(report.recording.program, libc, traced=t)["cpu_ns"] for t in (False, True))
    return max(report.recorded.cpu_s - report.group.times * (traced - plain) / 1e9, report.recorded.cpu_s / 4)


def replay_s(report):
    """What one replay takes; None where it does not matter: without a limit, and where no other malloc can be run, so that plan and replays are all there is."""
    if report.target.static or report.contest.stays or not report.budget.is_hard:
        return None
    began_s = time.monotonic()
    measure.run_once(report.recording.program, measure.Backend("libc", None, None, False))
    return time.monotonic() - began_s


def model(report, folder, args):
    """The plan, and its replays, into the report."""
    ui.note("replaying the parts of the plan a few times, to see which of them gain")
    alone, limit_s = report.is_predicted or args.once, report.limit_s  # nothing is run but replays
    report.mix = mix.choose(report.recording, folder, args.rounds, seconds=mix.SECONDS_MAX if alone else PILOT_SHARE * limit_s)
    report.planned = report.mix.planned
    report.rows = advice.sites(report.recording, report.planned)
    chosen = measure.backends(peers.with_drop_in(), report.mix.path)
    seconds = (REPLAY_SHARE_STATIC if report.is_predicted else REPLAY_SHARE) * limit_s
    number = min(args.rounds, measure.ROUNDS_MIN) if args.rounds else None
    limits = measure.Limits(number, seconds, report.budget.is_hard or not alone, None if alone else report.budget.one_replay_s(seconds))
    return measure.replay(report.recording.program, chosen, limits)


def steer(report, folder):
    """The advice as a plan that is carried out in the program: one run that counts what a changed program would not do, and a row of its own."""
    contest, path, said = report.contest, f"{folder}/steered.plan", f"{folder}/steered"
    written = steering.write_plan(report.recording, report.mix, path)
    if not written.sites and written.memory_bytes < PLAN_BYTES_MIN:
        written = steering.write_plan(report.recording, report.mix, path, small_too=True)
        if not written.sites:
            return
        report.steers_small = True  # seldom faster as it is: but what code without the frees would save is measured then
    library = serving.drop_in()
    timed = rounds.Row("timed", library, lambda env: steering.environment(env, path, report=said.replace("%", "%%") + ".%p", timed=True))
    ui.note(f"carrying the advice out: {tryreport.carried_out(written)}")
    try:
        contest.run_once(timed)
    except EnvironmentLacks as error:  # under a load
        ui.note(f"the advice is not carried out: {error.what}: {error.why}")
        return
    counted = steering.counters(*glob.glob(glob.escape(said) + ".[0-9]*"))
    report.steered = finding.Steered(written, counted)
    contest.add(rounds.Row(rounds.STEERED, library, lambda env: steering.environment(env, path)))
    if counted and counted.refused:
        contest.failed[rounds.STEERED] = f"the library did not take the plan: {counted.refused}"


def say_runs(report, args):
    """How often the program will run, before it does."""
    contest, wall_s, limit_s = report.contest, max(report.contest.first.wall_s, 1e-3), report.limit_s
    runs = max(4 if report.budget.is_hard else sequential.ROUNDS_MIN * 3, int(0.7 * limit_s / max(contest.first_s, wall_s)))
    runs = min(runs, len(contest.rows) * (args.rounds or sequential.LOOKS[-1]))
    each = " ".join(f"; {w} runs `{c}` each time" for w, c in (("--prepare", args.prepare), ("--cleanup", args.cleanup)) if c)
    ui.note(
        f"{contest.target.name} takes {ui.seconds(wall_s)}: it will run up to {runs} times, for about {limit_s:.0f} s in all "
        f"(--time-limit S){each}"
    )


def by_replays(report, series):
    """The finding on a static program: some more runs of it as it is, all else from the replays."""
    contest = report.contest
    runs = contest.runs[rounds.LIBC] = [contest.first]
    while len(runs) < measure.ROUNDS_MIN and report.budget.left_s > 0:
        runs.append(contest.run_once(contest.rows[0]))
    outcome = advice.Outcome(series, contest.column(rounds.LIBC, "cpu_s"), before=statics.replayed_as(report.target, series), times=report.group.times)
    return finding.Finding(None, outcome, cpu_s=outcome.program_s.value, by_replays=True)


def measure_all(report, folder, args):
    """Plan, replays, looks, rounds and verdict, into the report."""
    contest, limit_s = report.contest, report.limit_s
    report.is_cut = report.stopped and not args.once and not contest.stays
    if report.is_cut:  # shares, savings and advice would be those of its beginning
        compare_alone(report, args, "only a part of it was recorded: each malloc is only run")
        return
    try:
        model_all(report, folder, args)
    except QuireError as error:
        if "replayed" not in error.why or args.once or contest.stays:
            raise
        report.unreplayed = error.why.removeprefix(f"{report.recording.program} ")
        compare_alone(report, args, "its operations cannot be replayed: each malloc is only run")


def model_all(report, folder, args):
    """The same of what can be replayed."""
    contest, limit_s = report.contest, report.limit_s
    each_s = replay_s(report)
    if each_s is not None and not report.budget.allows_model(each_s):
        report.hurried = True
        compare_alone(report, args, "no time for replays and advice before the rounds: each malloc is only run")
        if report.budget.leaves_model(each_s):  # the rounds were settled early
            report.hurried = False
            report.finding = finding.Finding(contest, advice.Outcome(model(report, folder, args), contest.column(rounds.LIBC, "cpu_s"), times=report.group.times))
        return
    series = model(report, folder, args)
    if report.is_predicted and not args.once and statics.replayed_as(report.target, series):
        report.finding = by_replays(report, series)
        return
    if args.once or contest.stays:
        outcome = advice.Outcome(series, [untraced_s(report) if args.once else contest.first.cpu_s], times=report.group.times)
        target = report.target
        preloads = not (contest.stays or target.static or target.inside or deepbind.opens_past_preloads(target.binary))  # could another malloc be had?
        report.finding = finding.Finding(None, outcome, cpu_s=outcome.program_s.value, preloads=preloads)
        return
    share, run_s = None, contest.first_s
    if not report.target.inside and report.budget.allows_runs(len(contest.rows) + 3, run_s):  # neither the plan's call sites nor the looks know whose calls come by other names
        steer(report, folder)
        ui.note("looking at where it spends its time")
        share = sampling.Looks(contest).run(LOOK_SHARE * limit_s).share_percent

    def found():
        outcome = advice.Outcome(series, contest.column(rounds.LIBC, "cpu_s"), times=report.group.times)
        report.finding = finding.Finding(contest, outcome, share, steered=report.steered)
        return report.finding

    replayed = advice.Outcome(series, [contest.first.cpu_s], times=report.group.times)

    def promise(name):
        return replayed.saving_with(name).value if series.has(name) else None

    run_rounds(report, args, lambda: found().settled(), promise)
    found()


def run_rounds(report, args, is_settled, promise=lambda name: None, most_s=None):
    """The rounds of the program itself. most_s: no more than so long, even if that is one round."""
    contest, left_s = report.contest, report.budget.for_rounds_s()
    threads = max(r.facts.get("threads", 1) for r in report.processes)
    runs = (contest.first, report.recorded)  # the first may have waited for a disk
    serial = not contest.load and all(pace.is_serial(ran, threads) for ran in runs)
    with pace.Pace(contest.first.wall_s, serial) as contest.pace:
        rounds.compete(contest, min(left_s, most_s or left_s), args.rounds, is_settled, promise, report.budget.is_hard or most_s is not None)


def compare_alone(report, args, why):
    """Each malloc in a program that allocates too seldom for replays and a plan, or where there is no time for these."""
    ui.note(why)

    def found():
        report.finding = finding.Finding(report.contest, None, idle=report.too_small)
        return report.finding

    is_small = not report.hurried and not report.contest.load and not args.time_limit
    run_rounds(report, args, lambda: found().settled(), most_s=trysmall.SECONDS_MAX if is_small else None)
    found()
    trysmall.settle(report, args)


def begin(report, args, began_s):
    """The first run of the program, and how long all of it may take."""
    source = launch.Input()
    if args.program:
        source.capture()
    target = report.target
    hooks = rounds.Hooks(args.prepare, args.cleanup)
    mallocs = [] if target.static else preloaded.mallocs(target.binary)
    driven = None if stretch.wanted(args) else load.of(args)
    report.contest = contest = rounds.Contest(target, source, mallocs, hooks, driven)
    if args.once:
        plan_once(report, args, began_s)
        return
    ui.note(f"running {target.name} alone, for its time (its output is hidden)")
    contest.begin()
    is_load = driven is not None and driven.command is not None
    report.limit_s = args.time_limit or rounds.usual_limit_s(contest.first.wall_s if is_load else contest.first_s, is_load)
    report.budget = budget.Budget(began_s, report.limit_s, bool(args.time_limit and not args.rounds), trynoise.crowd(report.load_before))
    if target.static:
        contest.stays = statics.STAYS
        return
    if not target.inside and deepbind.opens_past_preloads(target.binary):
        contest.stays = deepbind.STAYS
        return
    contest.enter(rounds.rows(target, peers.with_drop_in(), contest.mallocs))
    if target.inside:
        ui.note(f"{own.shown(target.inside)} is inside: trying to put libc's malloc in its place")
        contest.take_out()
    say_runs(report, args)


def plan_once(report, args, began_s):
    """How long all may take where the program runs only once."""
    report.limit_s = args.time_limit or rounds.SECONDS_USUAL
    report.budget = budget.Budget(began_s, report.limit_s, False)


def judge_cut(report, args, began_s):
    """Who ended the recorded run by Ctrl-C wants no further runs, but the verdict: that of a program that ran only once."""
    ui.note("Ctrl-C ended the recorded run: the verdict is of what was recorded, and modelled")
    args.once, report.contest.first = True, None
    plan_once(report, args, began_s)


def try_program(report, args, folder):
    """Everything between the checks and the printing, into the report."""
    began_s = time.monotonic()
    path = tracefile.output_path(args, report.target.name)
    begin(report, args, began_s)
    ui.note("recording it")
    with tracefile.fresh(path, args.force) as report.came:
        report.trace_path = path
        report.recorded = record(report.contest, path, args)
        if report.contest.load and report.contest.load.is_cut:
            judge_cut(report, args, began_s)
        if report.contest.first and not report.crashed:
            rounds.refuse_unlike(report.target.name, report.contest.first, report.recorded, "recorded")
    ui.note("reading the trace")
    read_s = time.monotonic()
    served = report.recorded.served
    recordings = tracefile.analyse_family(path, folder, args.wrapper, served.span_ns if served else None)
    report.budget.read_s = time.monotonic() - read_s
    report.recording, report.processes = recordings[0], recordings
    report.contest.look_at(report.recording)
    if report.recording.begun_late:  # its CPU time is the stretch's
        report.recorded = report.recorded._replace(cpu_s=report.recording.facts["cpu_s"])
    report.process_count = len(tracefile.family(path))
    report.group = workers.of(recordings, tracefile.family(path))
    report.seen_cpu_s = sum(map(tracefile.cpu_s, tracefile.family(path)))
    report.stopped = any(map(tracefile.stopped, tracefile.family(path)))
    workers.refuse_left(report)
    keep_one(path, report.recording)
    if report.crashed or report.too_small:
        if not report.crashed:
            workers.refuse_unseen(report)
            refuse_unseen(report.target, report.recording, report.recorded)
        if report.crashed and report.recording.events:
            report.planned = advice.plan(report.recording, f"{folder}/plan")
            report.rows = advice.sites(report.recording, report.planned)
        if not report.crashed and not args.once and trysmall.is_compared(report):
            compare_alone(report, args, "too few allocations to replay: each malloc is only run")
    else:
        measure_all(report, folder, args)
        report.settle(args)


def say_what_is_kept(report, is_stopped):
    """After a stop, or an error: the traces that were recorded so far are there, and good for something."""
    if is_stopped and report.contest and not report.contest.first and not report.trace_path:
        ui.note("it does not end by itself? --load CMD, --duration 30s; or --then stop: then Ctrl-C ends the recording alone")
    for path in tracefile.family(report.trace_path) if report.came else []:
        ui.note(f"the trace so far is kept: {render.command()} advise {tracefile.typed(path)}")


def run(args):
    """Tries one program."""
    check_arguments(args)
    for helper in ("libquire-record.so", "quire-analyse", "quire-plan", "quire-replay", sampling.LIBRARY):
        native.helper(helper)
    target = find_target(args)
    if stretch.wanted(args):
        stretch.check(args, target)
    report = tryreport.Report(target)
    try:
        carry_out(report, args)
    except (KeyboardInterrupt, QuireError, OSError) as error:
        say_what_is_kept(report, isinstance(error, KeyboardInterrupt))
        raise
    return status(report, args)


def carry_out(report, args):
    """Tries, writes the page, prints."""
    with tempfile.TemporaryDirectory(prefix="quire-", dir=steering.folder_place()) as folder:
        try_program(report, args, folder)
        if not args.no_report and not report.budget.allows_page():
            ui.note(f"no time for the page: {render.command()} report {tracefile.typed(report.recording.path)}")
        elif not args.no_report:
            import report.trial as report_try  # here: pictures take longer to load than all the rest

            report_try.write(report, args, folder)
    if args.json:
        print(ui.json_text(report.document()))
    else:
        print("\n".join(ui.fit(report.text())))


def status(report, args):
    """The exit status: the program's own, but for what the tracer did to it and for --strict."""
    target = report.target
    if report.crashed and report.contest.first and not launch.crashed(report.contest.first.status):
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
