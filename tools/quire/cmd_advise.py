# SPDX-License-Identifier: MIT
"""
cmd_advise.py - `quire advise TRACE...`: call sites, their classes, which of them an arena or a slab serves, and
roughly what each saves. Several traces of one program: what they agree on.

Not here: the saving of the whole beside other allocators (cmd_replay.py), the verdict (cmd_try.py).
"""

import os
import sys

import advise.advice as advice
import advise.evidence as advise_evidence
import advise.intersect as advise_intersect
import advise.wrappers as advise_wrappers
import advise.mix as mix
import patch.code as patch
import options
import outputs
import render
import steering
import tracefile
import ui
from errors import UsageError
from lazily import tempfile

HELP = "for each call site of a trace: its class, and what an arena or a slab would save there"


def add_arguments(parser):
    """Options of `advise`."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="a .qtr file")
    parser.add_argument(
        "--json", action="store_true", help='JSON alone on stdout, "schema":"quire.advise/1"'
    )
    tracefile.add_wrapper_option(parser)
    parser.add_argument("--span", type=options.span, metavar="NS-NS", help="only what was called between these moments (CLOCK_MONOTONIC), as a load's: try prints it")
    parser.add_argument(
        "--waste-percent",
        type=options.at_least(0),
        metavar="N",
        help="how much more than the peak of live bytes arenas may hold (25)",
    )
    parser.add_argument(
        "--sites", type=options.at_least(1), default=25, metavar="N", help="how many call sites to show (25)"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the plan there, for quire run --plan FILE: the advice carried out without a change of the program",
    )
    parser.add_argument("--small", action="store_true", help="with -o: also arenas of less than 2 MiB, whose blocks the heap hands out again as fast")
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE when it exists")
    parser.add_argument(
        "--patch",
        metavar="SITE",
        help="the change of one site as code, for C and for C++; SITE: a function, FILE:LINE, or the number in the JSON",
    )


def print_patch(judged, args):
    """The change of one site; 1 when there is nothing to change."""
    found = patch.document(*judged, args.patch)
    sys.stdout.reconfigure(errors="surrogateescape")  # a source file's bytes go out as they came in
    print(ui.json_text(found) if args.json else "\n".join(patch.text(found)))
    return 0 if found["c"] else 1


def document(recording, mixed, rows):
    """One trace as JSON."""
    return {
        "trace": recording.path,
        "facts": recording.facts,
        "peak_live_bytes": mixed.planned["peak_live_bytes"],
        "peak_planned_bytes": mixed.planned["peak_planned_bytes"],
        "arenas": mixed.planned["arenas"],
        "slabs": mixed.planned["slabs"],
        "parts": render.parts_json(mixed),
        "sites": render.sites_json(rows, mixed, limit=None),
        "classes": render.classes_json(rows),
        "refused": mixed.planned["refused"],
        "wrappers": advise_wrappers.document(rows),
    }


def text(recording, mixed, rows, limit):
    """One trace as lines."""
    planned = mixed.planned
    lines = [
        ui.bold(ui.printable(recording.command)),
        f"  {ui.count(planned['allocs'])} allocations, {ui.count(len(rows))} call site{'s' * (len(rows) != 1)}, "
        f"at most {ui.size(planned['peak_live_bytes'])} live",
    ]
    lines += [f"  note: {said}" for said in [recording.begun_late] if said]
    if recording.facts.get("note"):
        lines.append(f"  note: {ui.printable(recording.facts['note'])}")
    lines += [""] + render.classes_text(rows, mixed)
    placed = render.arenas_text(planned, rows) + render.slabs_text(planned, rows, mixed)
    if placed:
        lines += ["", "Arenas and slabs"] + placed
        lines.append(
            f"  memory at the peak: {ui.size(planned['peak_planned_bytes'])} instead of {ui.size(planned['peak_live_bytes'])}"
        )
    lines += ["", "Call sites (saves: CPU time of one run, an estimate)"]
    lines += render.sites_text(rows, render.saves_time(mixed), limit, render.saves_much(mixed))
    lines += advise_wrappers.text(rows) + advise_evidence.text(planned, rows)
    for site in rows[: min(limit, 5)]:
        if site.stack:
            lines += ["", f"  {render.called(site)}"] + render.stack_text(site)
    return lines


def judge(path, folder, args, progress):
    """One trace: its recording, the mix that is advised, its sites."""
    shown = ui.printable(tracefile.shown(path))
    progress.step(f"reading {shown}")
    recording = tracefile.analyse(path, folder, args.wrapper, span_ns=args.span)
    if args.patch:  # a name that is wrong is said before anything is measured
        planned = advice.plan(recording, os.path.join(folder, "first.plan"))
        patch.find(advice.sites(recording, planned), args.patch)
    progress.step(f"replaying the parts of the plan for {shown} a few times, to see which of them gain")
    mixed = mix.choose(recording, folder, waste_percent=args.waste_percent)
    return advise_intersect.Judged(recording, mixed, advice.sites(recording, mixed.planned))


def check_output(args):
    """Whether the plan can be written, before anything is measured."""
    if args.output is None:
        return
    if len(args.traces) > 1:
        raise UsageError("-o takes one trace", fix=f"{render.command()} advise -o FILE TRACE")
    if args.output == outputs.STDOUT:
        raise UsageError("a plan is a file, for quire run --plan; the advice is on stdout", fix="name one: -o program.plan")
    outputs.check_file(args.output, args.force, "another place: -o /tmp/program.plan")


def write_plan(judged, path, small_too):
    """The plan file of one trace, and a line about it."""
    written = steering.write_plan(judged.recording, judged.mixed, path, small_too)
    if not written.sites:
        memory = f"; {ui.size(written.memory_bytes)} are expected, in huge pages" if written.memory_bytes else ""
        ui.note(f"{path}: a plan without a call site: an arena serves none better than the heap does{memory}")
        return
    share = ui.percent(100 * written.steered_allocs / max(1, written.allocs))
    ui.note(f"{path}: {ui.count(written.sites)} call site{'s' * (written.sites > 1)}, {share} of the allocations; quire run --plan {ui.word(path)} -- PROGRAM")


def together(judged):
    """What several traces have in common, and the lines that say why there is nothing; both empty for one trace."""
    if len(judged) < 2:
        return None, []
    programs = advise_intersect.other_programs(judged)
    if len(programs) > 1:
        named = ui.printable(", ".join(programs))
        return None, [f"These are traces of different programs ({named}): each is judged alone."]
    return advise_intersect.Intersection(judged), []


def run(args):
    """Judges each trace, and what all of them have in common."""
    if args.patch == "":
        raise UsageError("--patch names no call site", fix=f"{render.command()} advise --sites 100 TRACE   (lists them)")
    if args.patch and len(args.traces) > 1:
        raise UsageError("--patch takes one trace", fix=f"{render.command()} advise --patch SITE TRACE")
    check_output(args)
    judged, progress = [], ui.Progress(2 * len(args.traces))
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        try:
            for number, path in enumerate(args.traces):
                own = os.path.join(folder, str(number))
                os.mkdir(own)
                judged.append(judge(path, own, args, progress))
        finally:
            progress.done()
        if args.output:
            write_plan(judged[0], args.output, args.small)
    if args.patch:
        return print_patch(judged[0], args)
    common, apart = together(judged)
    if args.json:
        result = {"schema": "quire.advise/1", "traces": [document(*one) for one in judged]}
        if len(judged) > 1:
            result["intersection"] = common.document() if common else None
        print(ui.json_text(result))
        return 0
    parts = [text(*one, args.sites) for one in judged]
    parts += [advise_intersect.text(common, args.sites)] if common else []
    parts += [apart] if apart else []
    print("\n\n".join("\n".join(ui.fit(lines)) for lines in parts))
    return 0
