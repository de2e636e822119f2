# SPDX-License-Identifier: MIT
"""
cmd_run.py - `quire run -- PROGRAM`: the program under libquire-malloc.so, with a report when it ends.

    refuse what it cannot serve -> LD_PRELOAD, QUIRE_CONF -> the program, with our streams -> its report (JSON) -> text, JSON or Prometheus
                                                                                           -> --fail-on conditions

Exit: the program's own status, 128+n on a signal; of one that ended well: 1 when a --fail-on condition holds, 125 when it cannot be judged or the
report not be written; 126, 127; 3 when it cannot be served, with --strict also when it was not.  Only the standard library is imported.
Not here: what the report says (runreport.py), what the library writes (src/preload/report.c).
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys

import conditions
import deepbind
import launch
import leaksites
import options
import outputs
import rebuilt
import runreport
import serving
import steering
import steerplan
import suppressions
import ui
from errors import EXIT_CONDITION_FALSE, EXIT_ENVIRONMENT, EXIT_OK, EnvironmentLacks, QuireError, UsageError
from lazily import secrets, tempfile

HELP = "run a program under libquire-malloc.so, with a report at exit"
TAKES_PROGRAM = True
EPILOG = """The report goes to standard error, or to a file: --stats=json:FILE. QUIRE_CONF goes on to the program, with what
the options say added. Conditions: peak, rss, live, heap, leaks (bytes: K M G), blocks, time, cpu (s, ms), fragmentation (%);
> >= < <= == !=; of its children peak and cpu alone tell. Exit: the program's own status; 128+n when signal n ended it;
1 when it ended with 0 but a condition holds."""

FORMATS = ("text", "json", "prom")
PERCENT = re.compile(r"^([1-9][0-9]?|100)%$")
CRASHES = (signal.SIGSEGV, signal.SIGABRT)
WRITES_FILE = re.compile(r"(^|,)\s*(stats:exit=|stats_file:)")


def add_arguments(parser):
    """Options of `run`."""
    parser.add_argument(
        "--limit", metavar="SIZE", help="most memory, as 512M, 2G or 80%% of the cgroup's limit or of RAM: ENOMEM past it"
    )
    parser.add_argument(
        "--stats",
        default="text",
        metavar="FORMAT[:FILE]",
        help="text (default), json or prom; to FILE",
    )
    parser.add_argument(
        "--leaks",
        action="store_true",
        help="list blocks that are live at exit, and the stacks that allocated them (costs what `record` costs)",
    )
    parser.add_argument(
        "--suppressions",
        metavar="FILE",
        help="with --leaks: leave out stacks that lines of FILE name, as leak:PATTERN; LSAN_OPTIONS=suppressions=FILE counts too",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="canaries, guards, random order, zero on free, late reuse",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="COND",
        help="exit 1 when it holds at exit, as 'peak>24M'; may be repeated",
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="serve each call site as this plan says (quire advise -o FILE TRACE), without a change of the program",
    )
    parser.add_argument("--strict", action="store_true", help="exit 3 when the library served nothing, whatever `check` had said")
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE when it exists")


def split_stats(args):
    """(format, file or None) of --stats, checked before anything runs."""
    form, _, path = args.stats.partition(":")
    if form not in FORMATS:
        raise UsageError(
            f"--stats: there is no format `{form}`",
            f"there are: {', '.join(FORMATS)}",
            "quire run --help",
        )
    if path:
        outputs.check_file(path, args.force, "another place: --stats=json:/tmp/report.json")
    return form, path or None


def say_whose_report():
    """A file that the user's QUIRE_CONF names stays unwritten: there is one report, and this command takes it."""
    if WRITES_FILE.search(os.environ.get("QUIRE_CONF", "")):
        ui.note("the file for the report in QUIRE_CONF is not written: here it is --stats=text:FILE")


def plan_for(args, answer, folder):
    """The plan as it holds for the program, a rebuilt.Matched; None: none is wanted. What it cannot go with is refused."""
    if not args.plan:
        return None
    for wanted, option in ((args.limit, "--limit"), (args.leaks, "--leaks"), (args.secure, "--secure")):
        if wanted:
            raise UsageError(f"--plan and {option} do not go together: {option[2:]} is for the heap alone")
    matched = rebuilt.match(steerplan.read(args.plan), answer.target.binary, folder)
    if "," in os.path.abspath(matched.path):  # QUIRE_CONF cannot name it
        shutil.copyfile(matched.path, os.path.join(folder, "the.plan"))
        matched = matched._replace(path=os.path.join(folder, "the.plan"))
    for line in matched.notes:
        ui.note(f"--plan: {line}")
    return matched


def configuration(args, form, folder, matched=None):
    """QUIRE_CONF for the program: the user's, then ours, which wins."""
    parts = [os.environ["QUIRE_CONF"]] if os.environ.get("QUIRE_CONF") else []
    parts += ["stats:exit", f"stats_format:{'prom' if form == 'prom' else 'json'}"]
    parts.append(f"stats_file:{folder.replace('%', '%%')}/%p")
    parts += [f"limit:{args.limit}"] * bool(args.limit)
    parts += [f"plan:{os.path.abspath(matched.path)}"] if matched else []
    parts += ["leaks:1"] * args.leaks + ["secure:1"] * args.secure
    return ",".join(parts)


def environment(library, conf):
    """The program's environment: ours first among what is preloaded."""
    others = os.environ.get("LD_PRELOAD")
    return {
        **os.environ,
        "LD_PRELOAD": f"{library}:{others}" if others else library,
        "QUIRE_CONF": conf,
    }


def collect(folder, pid):
    """(report of the main process, [reports of others]) as bytes; the largest of the others when the main one left none."""
    texts = {}
    for name in os.listdir(folder):
        # Processes that outlive the main one may still be writing theirs.
        with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as file:
            texts[name] = file.read()
    return texts.pop(str(pid), None), list(texts.values())


def parsed(texts):
    """Those that are whole."""
    found = []
    for text in texts:
        try:
            document = json.loads(text)
        except ValueError:
            continue
        if document.get("schema") == "quire.exit/1":
            found.append(document)
    return found


def write(path, text, force):
    """To the file, whole or not at all, else to standard error; an error when it cannot be written."""
    try:
        if path is None:
            print(text, file=sys.stderr, flush=True)
            outputs.check_diagnostics()
            return None
        data = (text + "\n").encode("utf-8", "surrogateescape")
        if outputs.special(path):
            with open(path, "ab") as file:  # behind what the program wrote there
                file.write(data)
        else:
            outputs.write_whole(path, data, force)
    except OSError as error:
        what = f"cannot write the report to {path or 'standard error'}"
        return QuireError(what, error.strerror, "another place: --stats=json:/tmp/report.json")
    return None


def run(args):
    """Runs one program."""
    if not args.program:
        raise UsageError("no program to run", fix="quire run -- PROGRAM ARGS")
    if args.limit and not options.SIZE.match(args.limit) and not PERCENT.match(args.limit):
        raise UsageError(
            f"--limit: `{args.limit}` is no size", "a number, then K, M, G or T; or 1% to 100%", "--limit 2G"
        )
    form, path = split_stats(args)
    wanted = [conditions.parse(text) for text in args.fail_on]
    if args.strict and form == "prom":
        raise UsageError("--strict reads the JSON report", fix="--stats=json:FILE, or text")
    if wanted and form == "prom":
        raise UsageError("--fail-on reads the JSON report", fix="--stats=json:FILE, or text")
    args.leaks = args.leaks or any(c.key in conditions.LEAKS for c in wanted)  # with their stacks, which alone say what was asked for
    stacks = args.leaks and form != "prom"
    if args.suppressions and not stacks:
        raise UsageError("--suppressions needs the stacks of --leaks", fix="quire run --leaks --suppressions FILE -- PROGRAM")
    library = serving.drop_in()
    answer = serving.ask(args.program, library)
    if not answer.serves and answer.target.sure:
        raise EnvironmentLacks(
            f"{args.program[0]} cannot be served: {answer.reason}", fix=answer.fix
        )
    if not answer.serves:  # the run tells
        ui.note(f"{ui.printable(args.program[0])} may not be served: {ui.printable(answer.reason)}")
    known = suppressions.read(suppressions.files(args.suppressions, answer.target.binary)) if stacks else []
    say_whose_report()
    place = steering.folder_place()
    with scratch("quire-run-", place) as reports, scratch("quire-plan-", place) as others:
        folder, beside = open_to_others(reports), open_to_others(others)
        matched = plan_for(args, answer, beside)
        env = environment(library, configuration(args, form, folder, matched))
        ended = launch.visible(answer.target, leaksites.watching(env, beside) if stacks else env)
        main, others = collect(folder, ended.pid)
        leaks = leaksites.collect(beside, ended.pid, known) if stacks else None
    plan = matched.plan if matched else None
    return report(args, form, path, (answer.target, ended, main, others, plan, leaks), wanted)


@contextlib.contextmanager
def scratch(prefix, place):
    """A folder that is gone afterwards, whatever the program has put into it."""
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_to_others(folder):
    """Where the program's processes write their reports: of root's program also those that gave up its rights.  Nobody else finds the name."""
    if os.geteuid() != 0:
        return folder
    inner = os.path.join(folder, secrets.token_hex(8))
    os.chmod(folder, 0o711)
    os.mkdir(inner)
    os.chmod(inner, 0o1733)
    return inner


def report(args, form, path, outcome, wanted):
    """Says what there is to say; the exit status."""
    target, ended, main, others, plan, leaks = outcome
    if ended.status < 0 and (path or form != "text"):  # else the report says it
        ui.note(f"{target.name} {launch.describe(ended.status)}")
    if form == "prom":
        text = (main or b"".join(others[:1])).decode("utf-8", "replace").rstrip()
        return passed_on(ended, write(path, text, args.force), None)
    rest = sorted(parsed(others), key=lambda d: d.get("rss_peak_bytes", 0), reverse=True)
    document = next(iter(parsed([main] if main else [])), None)
    full = runreport.document(target, ended, document, rest)
    runreport.name_sites([document, *rest], plan)
    if leaks:
        full["leak_sites"], full["leak_suppressed"], full["leak_sites_note"] = leaks
    full["failed"], unjudged = judged(wanted, full, target.name)
    lines = [ui.json_text(full)]
    if form == "text":
        lines = [ui.printable(line) for line in runreport.text(full)]
        lines = lines if path else ui.fit(lines, sys.stderr)
    unwritten = write(path, "\n".join(lines), args.force)
    for text in full["failed"]:
        ui.note(f"--fail-on: {text} holds")
    if any(c.key in conditions.LEAKS and c.text not in full["failed"] for c in wanted) and (more := runreport.live_at_exit(rest)):
        ui.note(f"--fail-on looks at {target.name} alone; its other processes had{more.removeprefix(',')}")
    if -ended.status in CRASHES:
        for library in serving.opening_past(target):
            ui.note(ui.printable(f"suspect: {library} {deepbind.MAY}"))
    if full["unserved"] and (document or args.strict):  # else the report says that there is none
        ui.note(ui.printable(f"nothing was served: {full['unserved']}" if document else full["unserved"]))
    status = passed_on(ended, unwritten, unjudged)
    if args.strict and status == EXIT_OK and full["unserved"]:
        return EXIT_ENVIRONMENT
    return EXIT_CONDITION_FALSE if status == EXIT_OK and full["failed"] else status


def judged(wanted, full, name):
    """([texts of conditions that hold], the error of the first that the report says nothing of)."""
    held, unjudged = [], None
    for condition in wanted:
        try:
            held += [condition.text] * conditions.holds(condition, full, name)
        except QuireError as error:
            unjudged = unjudged or error
    return held, unjudged


def passed_on(ended, unwritten, unjudged):
    """The program's own status; of one that ended well, what we could not do is the error."""
    status = launch.exit_code(ended.status)
    if status == EXIT_OK and (unwritten or unjudged):
        raise unwritten or unjudged
    if unwritten:
        ui.say(unwritten.text().splitlines(), sys.stderr)
    return status
