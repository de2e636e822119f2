# SPDX-License-Identifier: MIT
"""
subject.py - all that a report is about, as one document ("quire.report/1").

    a try in this process     --+
    TRACE: analyse and replay --+->  {findings, facts, profile, timelines, machine}  ->  report/page.py, report/diff.py
    try.json (its trace too)  --+

`findings` is what `try` found out ("quire.try/1"), or as much of it as a trace alone can tell.
Not here: pictures, words, files that are written.
"""

import json
import os
import time

import advise.advice as advice
import cmd_env
import measure
import advise.mix as mix
import native
import peers
import render
import report.advice as report_advice
import tracefile
import ui
from errors import QuireError
from version import VERSION

SCHEMA = "quire.report/1"
SAMPLES = 160
STACKS_KEPT = 2000
TIMELINE_SECONDS_MAX = 3.0
SITES_KEPT = 200
PROFILE_TOTALS = range(1, 8)  # the figures of a stack in quire.profile/1


def machine():
    """What `quire env` says, as [label, text]."""
    rows = []
    for key, label, value in cmd_env.facts():
        text = cmd_env.size_text(value) if key in cmd_env.IN_BYTES else value
        rows.append([label, "none" if text is None else str(text)])
    return rows


def profile(path, folder, wrappers=()):
    """The analyser's profile of a trace, whole."""
    out = os.path.join(folder, "profile.json")
    arguments = [path, "--profile", out]
    for name in wrappers:
        arguments += ["--wrapper", name]
    native.call("quire-analyse", arguments)
    with open(out, encoding="utf-8") as file:
        return json.load(file)


def analysed(path, folder, wrappers=(), span_ns=None):
    """(Recording, profile) of a trace, or of what was called between two moments, by one run of the analyser."""
    out = os.path.join(folder, "profile.json")
    recording = tracefile.analyse(path, folder, wrappers, out, span_ns)
    with open(out, encoding="utf-8") as file:
        return recording, json.load(file)


def bounded(whole):
    """The profile with its heaviest stacks alone; the others are one sum, so that totals stay."""
    stacks = sorted(whole["stacks"][:-1], key=lambda s: (s[5], s[2]), reverse=True)
    kept, rest = stacks[:STACKS_KEPT], stacks[STACKS_KEPT:] + whole["stacks"][-1:]
    others = [[]] + [sum(stack[i] for stack in rest) for i in PROFILE_TOTALS]
    return {**whole, "stacks": kept + [others]}


def timelines(program, plan, skip=()):
    """One replay with samples of memory for each allocator, as time allows, the most important first."""
    found, began_s = {}, time.monotonic()
    chosen = [b for b in measure.backends(peers.with_drop_in(), plan) if not b.null]
    rank = {"libc": 0, "mix": 1, peers.DROP_IN: 2}
    for backend in sorted(chosen, key=lambda b: rank.get(b.name, 3)):
        if backend.name in skip or time.monotonic() - began_s > TIMELINE_SECONDS_MAX:
            continue
        try:
            figures = measure.run_once(program, backend, extra=["--timeline", SAMPLES])
        except QuireError:
            continue  # an allocator that cannot be replayed is named with the reason in the table
        kept = ("timeline", "largest", "mallinfo", "base_rss_bytes", "peak_rss_bytes")
        found[backend.name] = {key: figures[key] for key in kept if key in figures}
        if backend.name == peers.DROP_IN and "stats" in figures:
            found[backend.name]["stats"] = {k: figures["stats"][k] for k in ("sources", "heaps")}
    return found


def subject(title, findings, rest):
    """The document."""
    findings.setdefault("advice", None)
    return {
        "schema": SCHEMA,
        "title": title,
        "version": VERSION,
        "made": time.strftime("%Y-%m-%d %H:%M %Z"),
        "findings": findings,
        **rest,
        "machine": machine(),
    }


def of_try(report, wrappers, folder):
    """From a `try` that just ended, its files still in `folder`."""
    recording = report.recording
    skip = report.outcome.series.failed if report.outcome else ()
    runs = {}
    if report.mix:
        runs = timelines(recording.program, report.mix.path, skip)
    whole = profile(recording.path, folder, wrappers)
    findings = report.document()
    findings["advice"] = report_advice.advice_of(report.mix, report.rows, recording.path)
    rest = {"facts": recording.facts, "profile": bounded(whole), "timelines": runs}
    return subject(" ".join(report.target.argv), findings, rest)


def note_others(path):
    """A run of several processes has a trace each: of which one most was recorded."""
    others = tracefile.family(path)
    largest = max(others, key=tracefile.stream_bytes)
    if largest != path:
        shown = tracefile.typed(largest)
        ui.note(
            f"{len(others)} processes were recorded, this is the first of them; most was recorded of"
            f" another: {render.command()} report {shown}"
        )


def of_trace(path, args, folder):
    """From a trace alone: its replays, but no run of the program, so no verdict."""
    recording, whole = analysed(path, folder, args.wrapper)
    note_others(path)
    findings = {"schema": None, "verdict": None, "trace": {"path": path, **recording.facts}}
    findings["cannot_show"] = render.blind_spots()
    findings["next"] = [c for c, _ in render.next_commands(tracefile.typed(path))]
    runs = {}
    if recording.events and not args.no_replay:
        runs = replayed(recording, findings, args, folder)
    elif recording.events:
        planned = advice.plan(recording, f"{folder}/plan")
        rows = advice.sites(recording, planned)
        findings.update(sites=render.sites_json(rows, limit=SITES_KEPT), classes=render.classes_json(rows))
    rest = {"facts": recording.facts, "profile": bounded(whole), "timelines": runs}
    return subject(recording.command, findings, rest)


def replayed(recording, findings, args, folder):
    """Replays of a trace into the findings; the timelines."""
    ui.note("replaying the trace (--no-replay leaves that out)")
    mixed = mix.choose(recording, folder, args.rounds)
    rows = advice.sites(recording, mixed.planned)
    chosen = measure.backends(peers.with_drop_in(), mixed.path)
    series = measure.replay(
        recording.program, chosen, measure.Limits(args.rounds, args.time_limit)
    )
    outcome = advice.Outcome(series, [recording.facts.get("cpu_s") or 1.0])
    table = render.allocators_json(outcome)
    for row in table:
        row.pop("program_cpu_s", None)  # the tracer's time is in it
        row.pop("saving_percent", None)
    findings.update(
        rounds=series.rounds,
        allocators=table,
        parts=render.parts_json(mixed),
        sites=render.sites_json(rows, mixed, limit=SITES_KEPT),
        classes=render.classes_json(rows),
        advice=report_advice.advice_of(mixed, rows, recording.path),
        arenas=mixed.planned["arenas"],
        slabs=mixed.planned["slabs"],
    )
    return timelines(recording.program, mixed.path, series.failed)


def of_trace_of(trace, known, folder):
    """What the trace of a `try` adds to its JSON; None, with a note, when it is another one by now."""
    try:
        recording, whole = analysed(trace, folder, span_ns=known.get("span_ns"))
    except QuireError as error:
        ui.note(f"without its trace: {error.what}: {error.why}")
        return None
    if recording.facts.get("allocations") != known.get("allocations"):
        ui.note(f"without its trace: {tracefile.shown(trace)} is of another run")
        return None
    return {
        "facts": recording.facts,
        "profile": bounded(whole),
        "timelines": timelines(recording.program, None) if recording.events else {},
    }


def of_json(path, document, folder):
    """From what `try --json` printed; with its trace where that is still there."""
    rest = {"facts": document.get("trace", {}), "profile": None, "timelines": {}}
    trace = document.get("trace", {}).get("path")
    if trace and not os.path.isabs(trace):
        trace = os.path.join(os.path.dirname(os.path.abspath(path)), trace)
    if trace and os.path.exists(trace):
        rest = of_trace_of(trace, document["trace"], folder) or rest
    return subject(" ".join(document["program"]["argv"]), document, rest)


def exported(path, wrappers, folder):
    """What exports need: the whole profile and the sites, nothing left out."""
    recording, whole = analysed(path, folder, wrappers)
    return {
        "command": recording.command,
        "facts": recording.facts,
        "sites": recording.document["sites"],
        "profile": whole,
    }
