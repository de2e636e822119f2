# SPDX-License-Identifier: MIT
"""
cmd_report.py - `quire report TRACE|try.json`: one HTML file, or an export for another tool; two inputs: their difference.

    one input   -> report/subject.py -> report/page.py            -> FILE.html
    --export    -> report/exports_pprof.py, report/exports_text.py -> FILE or stdout
    two inputs  -> report/diff.py                                 -> FILE.html or --text
    heap profiles -> cmd_profile.py                               -> a table
                   report/limits.py -> report/ci.py               -> --junit, --github-summary

Not here: any of these steps.
"""

import os
import sys
from types import SimpleNamespace

import measure
import outputs
import report.exports_text as exports_text
import report.inputs as report_inputs
import report.limits as limits
import report.page as report_page
import report.subject as report_subject
import tracefile
import ui
from errors import EXIT_CONDITION_FALSE, EXIT_OK, QuireError, UsageError
from lazily import tempfile

HELP = "a trace or a result as one HTML file, or as pprof, folded stacks, speedscope, CSV; two: their difference"
# Of --svg, as report/svg.py makes them.
PICTURES = ("time.svg", "memory.svg", "live.svg", "areas.svg", "heat.svg", "flame-*.svg", "map-*.svg")
EXPORTS = ("pprof", "folded", "speedscope", "csv")
SECONDS_DEFAULT = 10


def add_arguments(parser):
    """Options of `report`."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a .qtr file, or what `try --json`, `bench --json` or `map --json` printed;"
        " two of a kind (not of map): what changed from A to B; a heap profile, or two: as `profile` shows them",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write there, - for stdout (default: INPUT.html, made unique)"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE when it exists")
    parser.add_argument("--export", choices=EXPORTS, help="not a page, but a file for another tool")
    parser.add_argument(
        "--svg", metavar="DIR", help="not a page, but its pictures, each as a file in DIR"
    )
    parser.add_argument("--text", action="store_true", help="the difference of two inputs as text")
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="of two inputs: exit 1 when a figure changed by more, as 'cpu>+3%%', 'peak>10%%', 'allocations<-5%%' (also live, leaks, or a figure's whole "
        "name); beyond the noise, where there are intervals; may be given again",
    )
    parser.add_argument("--junit", metavar="FILE", help="of --fail-on: each limit as a test case, in JUnit's XML")
    parser.add_argument(
        "--github-summary",
        nargs="?",
        const="",
        metavar="FILE",
        help="of two inputs: the limits and what changed, as Markdown, appended to FILE (default: where $GITHUB_STEP_SUMMARY says); behind the inputs",
    )
    parser.add_argument(
        "--no-replay", action="store_true", help="do not replay the trace: no figures of allocators"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="exactly so many rounds of replays")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=SECONDS_DEFAULT,
        metavar="S",
        help=f"begin no round of replays after S seconds ({SECONDS_DEFAULT})",
    )
    tracefile.add_wrapper_option(parser)


def refuse_wrong(args):
    """Combinations that mean nothing."""
    if len(args.inputs) > 2:
        raise UsageError("quire report: one input, or two to compare", fix="quire report --help")
    if args.export and len(args.inputs) > 1:
        raise UsageError("--export takes one trace", fix=f"quire report {ui.word(args.inputs[0])} --export {args.export}")
    if args.text and len(args.inputs) < 2:
        raise UsageError(
            "--text is for two inputs",
            "one trace as text is what `advise` prints",
            f"quire advise {args.inputs[0]}",
        )
    if args.fail_on and len(args.inputs) < 2:
        raise UsageError("--fail-on is for two inputs", "one alone has not changed", "quire report BEFORE AFTER --fail-on 'cpu>+3%'")
    if args.junit and not args.fail_on:
        raise UsageError("--junit is for limits", "there is no --fail-on to judge", "quire report BEFORE AFTER --fail-on 'cpu>+3%' --junit quire.xml")
    if args.github_summary is not None:
        refuse_wrong_summary(args)
    if args.svg and (args.export or len(args.inputs) > 1):
        raise UsageError("--svg takes one input and no --export", fix="quire report --help")
    measure.check_limits(args)


def refuse_wrong_summary(args):
    """--github-summary, whose file is found where none is named."""
    fix = "quire report BEFORE AFTER --github-summary summary.md"
    if len(args.inputs) < 2:
        raise UsageError("--github-summary is for two inputs", fix=fix)
    args.github_summary = args.github_summary or os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not args.github_summary:
        raise UsageError("--github-summary: there is no file to append to", "GITHUB_STEP_SUMMARY is not set, as it is outside of GitHub's actions", fix)
    if any(os.path.exists(path) and os.path.exists(args.github_summary) and os.path.samefile(path, args.github_summary) for path in args.inputs):
        raise UsageError(f"--github-summary: {args.github_summary} is an input", "it would be appended to", fix)


def refuse_outputs(args):
    """What could not be written in the end, before any work is done for it."""
    if args.junit:
        outputs.check_file(args.junit, args.force, "another place: --junit /tmp/quire.xml")
    if args.github_summary is not None:
        outputs.check_file(args.github_summary, True, "another place: --github-summary /tmp/summary.md")
    if args.svg:
        outputs.check_folder(args.svg, PICTURES, args.force)
    elif args.output:
        outputs.check_file(args.output, args.force)
    elif not args.export and not args.text:
        outputs.check_file(unique("report", "html"), args.force)  # of whatever name, in this directory


def unique(stem, ending):
    """STEM.ENDING, or the first STEM.N.ENDING that does not exist yet."""
    number, path = 0, f"{stem}.{ending}"
    while os.path.lexists(path):
        number += 1
        path = f"{stem}.{number}.{ending}"
    return path


def stem_of(path):
    """A path without its last ending, in this directory."""
    return os.path.splitext(os.path.basename(path))[0] or "report"


def export(args, folder):
    """One of EXPORTS."""
    what = report_inputs.read(args.inputs[0])
    if what.kind != "trace":
        raise UsageError("--export takes a trace (.qtr)", f"{args.inputs[0]} is {what.kind} JSON")
    if args.export == "pprof":
        import report.exports_pprof as maker
    else:
        maker = exports_text
    content = maker.export(args.export, report_subject.exported(what.path, args.wrapper, folder))
    to_terminal = sys.stdout.isatty() and args.output is None
    path = unique(stem_of(what.path), exports_text.ENDINGS[args.export]) if to_terminal else args.output or "-"
    outputs.write(path, content, args.force)
    if path != "-":
        ui.note(f"{args.export}: {path}")
    return 0


def for_ci(args, found, judged):
    """The files of --junit and --github-summary."""
    import report.ci as ci

    if args.junit:
        outputs.write(args.junit, ci.junit(found.names, judged), args.force, "another place: --junit /tmp/quire.xml")
    if args.github_summary is not None:
        outputs.append(args.github_summary, ci.summary(found, judged), "another place: --github-summary /tmp/summary.md")


def compare(args, folder):
    """Two inputs."""
    import report.diff as report_diff

    documents = [report_inputs.read(path) for path in args.inputs]
    for what in documents:
        if what.kind == "map":
            raise UsageError("two maps are not compared", f"{what.path} is of `map`", f"quire report {what.path}")
    wanted = [limits.parse(text) for text in args.fail_on]
    found = report_diff.difference(documents, args.wrapper, folder)
    judged = [limits.judge(limit, found.figures, found.partial) for limit in wanted]
    failed = [limits.line(one) for one in judged if one.is_broken]
    for_ci(args, found, judged)
    if args.text:
        print("\n".join(report_diff.text(found)))
    else:
        report_page.need_packages()
        names = "-".join(stem_of(path) for path in args.inputs)
        finish(args, report_diff.page(found), unique(names, "html"))
    for line in failed:
        ui.note(line)
    return EXIT_CONDITION_FALSE if failed else EXIT_OK


def pictures(args, document):
    """The pictures as files."""
    import report.svg as report_svg

    os.makedirs(args.svg, exist_ok=True)
    drawn = report_svg.files(document)
    outputs.check_folder(args.svg, list(drawn), args.force)  # all of them or none
    for name, content in drawn.items():
        path = os.path.join(args.svg, name)
        outputs.write(path, content, args.force, "another place: --svg /tmp/pictures")
        print(f"picture: {path}")
    return 0


def document_of(what, args, folder):
    """The document of a trace or a try."""
    if what.kind == "trace":
        return report_subject.of_trace(what.path, args, folder)
    return report_subject.of_json(what.path, what.document, folder)


def finish(args, content, path):
    """The page into its file, and its name on stdout."""
    path = args.output or path
    outputs.write(path, content, args.force)
    if path != "-":
        print(f"report: {path}")


def of_profiles(args):
    """Heap profiles: there is no page of them, but the table of `profile`."""
    import cmd_profile

    if args.output or args.export or args.svg or args.fail_on or args.junit or args.github_summary is not None:
        raise UsageError("heap profiles have no page and no limits", fix=f"quire profile {ui.words(args.inputs)}")
    given = {"files": args.inputs, "pid": None, "output": None, "raw": False, "allocated": False, "rows": cmd_profile.ROWS_DEFAULT}
    return cmd_profile.run(SimpleNamespace(**given))


def run(args):
    """One report."""
    if all(map(report_inputs.is_profile, args.inputs)):
        return of_profiles(args)
    refuse_wrong(args)
    refuse_outputs(args)
    try:
        return carry_out(args)
    except (QuireError, OSError):
        raise
    except Exception as error:
        if all(report_inputs.read(path).kind == "trace" for path in args.inputs):
            raise  # our own mistake; in a document anything may stand where anything else should
        named = " and ".join(args.inputs)
        raise report_inputs.refuse(named, f"a part of it is missing or another ({error!r})") from error


def carry_out(args):
    """What the inputs and options ask for."""
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        if args.export:
            return export(args, folder)
        if len(args.inputs) == 2:
            return compare(args, folder)
        what = report_inputs.read(args.inputs[0])
        report_page.need_packages()
        if what.kind == "bench" or (what.kind == "map" and args.svg):
            raise UsageError(
                f"one result of `{what.kind}` has no {'pictures' if args.svg else 'page'} of its own",
                "two of `bench` can be compared, one of `map` has a page",
                "quire report --help",
            )
        path = unique(stem_of(what.path), "html")
        if what.kind == "map":
            import report.slots as report_slots

            finish(args, report_slots.page(what.document), path)
            return 0
        document = document_of(what, args, folder)
        if args.svg:
            return pictures(args, document)
        finish(args, report_page.page(document), path)
    return 0
