# SPDX-License-Identifier: MIT
"""
trysmall.py - a `try` without replays and advice: of a program that allocates seldom, or where --time-limit leaves no time for them.

    memcached, 1,300 allocations under a load; dwz, 510 of 40 MB:  no replays, no plan  ->  rounds of each preload: CPU time, requests a CPU-second, latencies
    pygmentize with --time-limit 8:                                the same             ->  ...; a longer limit, or `advise`, says where it allocates

Not here: everybody else's report (tryreport.py).
"""

import advise.advice as advice
import render
import rounds
import tracefile
import trytable
import ui
import workers
from lazily import statistics

NOTHING = "nothing worth looking at"
SECONDS_MAX = 60  # of rounds, where few blocks are all that could matter and nobody asked for more
HURRY_FACTOR = 4  # of a limit that was too short for replays: as long is worth a try
LARGE_BYTES = 4 << 20  # live at once: by whom such memory comes, and in which pages, may take more time than the calls do
NULLS = (
    "allocation_share_percent", "allocation_share_sampled_percent", "allocation_share_modelled_percent", "most_saving_percent", "saving_percent",
    "saving_of", "saving_today_percent", "saving_cpu_s", "model_error_percent", "peak_memory_saved_bytes", "rounds", "scatter_percent", "replay_rounds",
    "pace", "time_limit_s", "steered",
)  # fmt: skip
LISTS = ("allocators", "arenas", "slabs", "sites", "classes", "parts")


def unsaid():
    """Every member that a verdict may have, of a report that has none of them to say: who reads JSON need not ask which are there."""
    return {"verdict": None, **dict.fromkeys(NULLS), "measured": False, **{name: [] for name in LISTS}}


def is_compared(report):
    """Whether the preloads are run, although there is nothing to advise."""
    contest = report.contest
    under_load = contest.load is not None and contest.load.command is not None
    is_large = report.recording.facts.get("peak_live_bytes", 0) >= LARGE_BYTES
    return (under_load or is_large) and not report.target.static and not contest.stays


def settle(report, args):
    """The verdict, from the rounds."""
    if report.hurried or report.unreplayed or report.is_cut:
        report.settle(args)
        return
    judged = report.finding.verdict
    report.verdict = advice.Verdict(advice.NO, NOTHING)
    if judged.name and judged.verdict.word == advice.YES:
        report.settle(args)
    elif judged.name:
        best = trytable.best_text(f"{trytable.shown(judged.name)} in the place of malloc", judged.saving)
        noise = ", in runs that scatter more than that" if judged.verdict.word == advice.INCONCLUSIVE else ""
        report.verdict = advice.Verdict(advice.NO, f"{NOTHING}; {best}{noise}")


def of_stretch(report):
    """Of which part of the run that is, where only a part was recorded; else empty."""
    recording = report.recording
    return f", in the stretch of {ui.seconds(recording.facts['wall_s'])} that was recorded; before and after nobody looked" if recording.begun_late else ""


def without(report):
    """Why there are no replays."""
    if report.is_cut:
        return "only these were recorded: no replays, no advice"
    if report.unreplayed:
        return f"no replays, no advice: it {report.unreplayed}"
    return "no time for replays and advice" if report.hurried else "too few to replay, or to advise on"


def text(report):
    """The report's lines."""
    facts, found = report.recording.facts, report.finding
    cpu_s = found.program_s.value if found else statistics.median(r.cpu_s for r in report.runs)  # the table's, at its pace, where there is one
    live = f", at most {ui.size(facts['peak_live_bytes'])} live at once" if found else ""
    if found and facts["peak_live_bytes"] > found.contest.middle(rounds.LIBC, "peak_rss_bytes"):
        live += ", not all of it touched"
    name = report.target.name if report.process_count < 2 else report.recording.executable
    makes = f"{ui.printable(name)} makes {'at least ' * report.is_cut}{workers.makes(report, cpu_s, live)}{of_stretch(report)}"
    if not found:
        lines = [f"  N{NOTHING[1:]}: {makes}."]
    else:
        lines = [f"  {makes}: {without(report)}."] + report.today_text() + [""]
        lines += report.verdict_text()
        lines += trytable.text(found, report.today_allocator) + trytable.served_text(found, report.today_allocator) + report.rounds_text() + [""]
    lines += workers.outside_text(report) + workers.python_text(report) + report.whole_text() + report.status_text()
    if not report.hurried:
        return lines + [f"  The trace is {tracefile.shown(report.recording.path)}."]
    return lines + [f"  Where it allocates: {render.command()} advise {tracefile.typed(report.recording.path)}; or a longer --time-limit, {HURRY_FACTOR} times as long or more."]


def document(report):
    """What it has to say as JSON."""
    found, verdict = report.finding, report.verdict
    if not found:
        return {"verdict": {"word": advice.NO, "reason": NOTHING + of_stretch(report)}}
    return {"verdict": {"word": verdict.word, "reason": verdict.reason}, **report.runs_json()}
