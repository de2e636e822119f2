# SPDX-License-Identifier: MIT
"""
cmd_advise.py - `quire advise TRACE...`: call sites, their classes, and which of them an arena can serve.

Not here: what it would save (cmd_replay.py measures that).
"""

import json
import tempfile

import advice
import render
import tracefile
import ui

HELP = "for each call site of a trace: its class, and which sites an arena can serve"


def add_arguments(parser):
    """Options of `advise`."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="a .qtr file")
    parser.add_argument(
        "--json", action="store_true", help='JSON alone on stdout, "schema":"quire.advise/1"'
    )
    tracefile.add_wrapper_option(parser)
    parser.add_argument(
        "--waste-percent",
        type=int,
        metavar="N",
        help="how much more than the peak of live bytes arenas may hold (25)",
    )
    parser.add_argument(
        "--sites", type=int, default=25, metavar="N", help="how many call sites to show (25)"
    )


def document(recording, planned, rows):
    """One trace as JSON."""
    return {
        "trace": recording.path,
        "facts": recording.facts,
        "peak_live_bytes": planned["peak_live_bytes"],
        "peak_planned_bytes": planned["peak_planned_bytes"],
        "arenas": planned["arenas"],
        "sites": render.sites_json(rows),
    }


def text(recording, planned, rows, limit):
    """One trace as lines."""
    lines = [
        ui.bold(f"{recording.command}"),
        f"  {ui.count(planned['allocs'])} allocations, {len(rows)} call sites, "
        f"at most {ui.size(planned['peak_live_bytes'])} live",
    ]
    if recording.facts.get("note"):
        lines.append(f"  note: {recording.facts['note']}")
    lines += [""] + render.classes_text(rows)
    if planned["arenas"]:
        lines += ["", "Arenas"] + render.arenas_text(planned, rows)
        lines.append(
            f"  memory at the peak: {ui.size(planned['peak_planned_bytes'])} instead of {ui.size(planned['peak_live_bytes'])}"
        )
    lines += ["", "Call sites"] + render.sites_text(rows, limit=limit)
    for site in rows[: min(limit, 5)]:
        if site.stack:
            lines += ["", f"  {site.name}"] + [f"    {frame}" for frame in site.stack[:6]]
    return lines


def run(args):
    """Judges each trace."""
    documents = []
    with tempfile.TemporaryDirectory(prefix="quire-") as folder:
        for path in args.traces:
            recording = tracefile.analyse(path, folder, args.wrapper)
            planned = advice.plan(recording, f"{folder}/plan", args.waste_percent)
            rows = advice.sites(recording, planned)
            if args.json:
                documents.append(document(recording, planned, rows))
            else:
                print("\n".join(text(recording, planned, rows, args.sites)))
    if args.json:
        print(json.dumps({"schema": "quire.advise/1", "traces": documents}, indent=1))
    return 0
