# SPDX-License-Identifier: MIT
"""
trysmall.py - a `try` of a program that allocates seldom: nothing to advise; under a load, or where its blocks are large, each malloc is run all the same.

    memcached, 1,300 allocations under a load; dwz, 510 of 40 MB:  no replays, no plan  ->  rounds of each preload: CPU time, requests a CPU-second, latencies

Not here: everybody else's report (tryreport.py).
"""

import advise.advice as advice
import render
import tracefile
import trytable
import ui
from statistics import median

NOTHING = "nothing worth looking at"
LARGE_BYTES = 4 << 20  # live at once: by whom such memory comes, and in which pages, may take more time than the calls do


def is_compared(report):
    """Whether the preloads are run, although there is nothing to advise."""
    contest = report.contest
    under_load = contest.load is not None and contest.load.command is not None
    is_large = report.recording.facts.get("peak_live_bytes", 0) >= LARGE_BYTES
    return (under_load or is_large) and not report.target.static and not contest.stays


def settle(report, args):
    """The verdict, from the rounds."""
    judged = report.finding.verdict
    report.verdict = advice.Verdict(advice.NO, NOTHING)
    if judged.name and judged.verdict.word == advice.YES:
        report.settle(args)
    elif judged.name:
        saved = f"{trytable.percent(judged.saving)} of the CPU time"
        report.verdict = advice.Verdict(advice.NO, f"{NOTHING}; most by {trytable.shown(judged.name)} in the place of malloc: {saved}")


def text(report):
    """The report's lines."""
    facts, found = report.recording.facts, report.finding
    makes = f"{report.target.name} makes {ui.count(facts['allocations'])} allocations in {ui.seconds(median(r.cpu_s for r in report.runs))} of CPU time"
    if not found:
        lines = [f"  N{NOTHING[1:]}: {makes}."]
    else:
        lines = [f"  {makes}, at most {ui.size(facts['peak_live_bytes'])} live at once: too few to replay, or to advise on."] + report.today_text() + [""]
        lines += report.verdict_text()
        lines += trytable.text(found, report.today_allocator) + trytable.served_text(found, report.today_allocator) + report.rounds_text() + [""]
    return lines + report.status_text() + [f"  The trace is {tracefile.shown(report.recording.path)}."]


def document(report):
    """What it has to say as JSON."""
    found, verdict = report.finding, report.verdict
    if not found:
        return {"verdict": {"word": advice.NO, "reason": NOTHING}}
    judged = found.verdict
    return {
        "verdict": {"word": verdict.word, "reason": verdict.reason},
        "saving_of": judged.name,
        "saving_percent": render.estimate_json(found.saving(judged.name) if judged.name else judged.saving),
        "saving_today_percent": render.estimate_json(judged.saving),
        "measured": True,
        "rounds": report.contest.rounds,
        "time_limit_s": report.limit_s,
        "allocators": trytable.json_rows(found),
    }
