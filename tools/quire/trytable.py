# SPDX-License-Identifier: MIT
"""
trytable.py - the table of a `try`: each allocator, what it took and saved, and what the model had said; as text and as JSON.

    run in the program itself:  libc, the allocator of today, each preload, the advice carried out        measured
    replayed:                   the advice put into the code; with --once all of them                       modelled

Not here: the figures (finding.py, rounds.py, measure.py).
"""


import render
import sequential
import ui
from lazily import statistics
from rounds import LIBC, STEERED, TODAY

CODE = render.CODE
CARRIED_OUT = "advice carried out"
NO_TIME = "there was no time to run it"
NO_TIME_FOR_ANY = "there was no time to run them"
WORDS = {
    "drop-in": "drop-in: Quire's heap in the place of malloc (libquire-malloc.so), the program as it is",
    STEERED: CARRIED_OUT + ": libquire-malloc.so with a plan{}; the program as it is",
    "mix": f"{CODE}: the same as a change of the code, with the frees gone that it makes needless; modelled by a replay",
}


def shown(name, today="the allocator of today"):
    """A row's name for readers."""
    return {STEERED: CARRIED_OUT, "mix": CODE, TODAY: today}.get(name, name)


def meaning(name, written):
    """What a row is; `written`: the plan of the advice carried out, or None where it is not known."""
    does = ["which call sites get arenas (not those that the heap serves as well)"] * bool(written and written.sites) + ["how much memory to expect"] * bool(written and written.memory_bytes)
    return WORDS[name].format(": " * bool(does) + ", and ".join(does))


def percent(value):
    """A saving with its interval."""
    return render.interval(value, ui.percent)


def best_text(who, saving):
    """What the best of what is not worth it saves, the number first."""
    saved = f"{percent(saving)} of the CPU time"
    return f"at most {saved} is saved, by {who}" if saving.value > 0 else f"none saves, at best {saved}, by {who}"


def measured_saving(finding, name):
    """What a row saves; of few rounds only between what, if there is no model beside them: one figure of theirs is noise."""
    found = finding.saving(name)
    if len(finding.contest.runs[name]) >= sequential.ROUNDS_MIN or name in finding.drawn or found.low == found.high:
        return percent(found)
    return f"{ui.percent(found.low)} to {ui.percent(found.high)}"


def measured_row(finding, row, today):
    """Cells of a row that was run."""
    contest, name = finding.contest, row.name
    if not contest.has(name):
        return [shown(name, today), "left out", "", "", "", ""]
    error = finding.model_error(name)
    said = "" if error is None else ui.percent(finding.expected(name))
    return [
        shown(name, today),
        ui.seconds(contest.middle(name, "cpu_s")),
        "" if name == LIBC else measured_saving(finding, name),
        ui.seconds(contest.middle(name, "wall_s")),
        ui.size(contest.middle(name, "peak_rss_bytes")),
        said,
    ]


def left_out_text(finding, today):
    """Why rows have no figures, a line for each reason."""
    contest, reasons = finding.contest, {}
    for name in (row.name for row in contest.rows if not contest.has(row.name)):
        reasons.setdefault(contest.failed.get(name, NO_TIME), []).append(shown(name, today))
    return [f"  left out: {', '.join(names)}: {NO_TIME_FOR_ANY if reason == NO_TIME and names[1:] else reason}" for reason, names in reasons.items()]


def few_text(finding):
    """A line on rows of few rounds, and whether the verdict leaves them out; none where all have enough."""
    few, judged = finding.contest.few, {row.name for row in finding.judged()}
    out = [name for name in few if name not in judged]
    them = "them" if out == few else ", ".join(map(shown, out))
    left = f", and the verdict does not hang on {them}" * bool(out)
    return [f"  No time was left for as many rounds of {', '.join(map(shown, few))}: their intervals are wide{left}."] * bool(few)


def modelled_row(finding, name):
    """Cells of a row that was only replayed."""
    saving = modelled_saving(finding, name)
    program_s = finding.program_s.value * (1 - saving.value / 100)
    said = "" if name == finding.outcome.before else percent(saving)
    return [shown(name), ui.seconds(program_s), said, "", "", "modelled"]


def modelled_saving(finding, name):
    """What a row saves by the model, its error included."""
    return finding.mix_saving if name == "mix" else finding.modelled(finding.outcome.saving_with(name))


def replayed(finding):
    """Names of the replayed rows, in the table's order; those that were run stand for themselves."""
    if not finding.has_model:
        return []
    series = finding.outcome.series
    names = [b.name for b in series.backends if not b.null and series.has(b.name)]
    return [n for n in names if not finding.measured or n == "mix"]


def text(finding, today):
    """The table, and what its names mean."""
    rows = [measured_row(finding, row, today) for row in finding.contest.rows] if finding.measured else []
    rows += [modelled_row(finding, name) for name in replayed(finding)]
    header = ["allocator", "CPU time", "saves", "wall time", "peak memory", "the model said"]
    names = {row.name for row in finding.contest.rows} if finding.measured else set()
    written = finding.steered.written if finding.steered else None
    meanings = [f"  {meaning(n, written)}" for n in WORDS if n in names or n in replayed(finding)]
    if not any(row[-1] for row in rows):  # no model
        header, rows = header[:-1], [row[:-1] for row in rows]
    return ui.table(header, rows, flexible=1) + (left_out_text(finding, today) if finding.measured else []) + meanings


def served(finding, name):
    """What the load told of a row: median requests a CPU-second, median latencies; None where it told nothing."""
    runs = [run for run in finding.contest.runs[name] if run.served] if finding.has(name) else []
    first = finding.contest.load.requests if finding.contest.load else None  # cpu_s is for as many
    timed = zip(finding.contest.runs[name], finding.contest.column(name, "cpu_s")) if runs and first else ()
    rates = [first / cpu_s for run, cpu_s in timed if run.served and run.served.requests]
    shares = sorted({share for run in runs for share in run.served.latency_ms}, key=lambda s: float(s[1:]))
    latency = {s: statistics.median(run.served.latency_ms[s] for run in runs if s in run.served.latency_ms) for s in shares}
    return {"requests_per_cpu_s": statistics.median(rates) if rates else None, "latency_ms": latency} if rates or latency else None


def served_text(finding, today):
    """Requests a CPU-second and latency by allocator, where the load told them."""
    if not finding.measured or not finding.contest.load:
        return []
    found = {row.name: served(finding, row.name) for row in finding.contest.rows}
    found = {name: figures for name, figures in found.items() if figures}
    if not found:
        return ["  CPU time is that of the program during the load."]
    shares = list(dict.fromkeys(share for figures in found.values() for share in figures["latency_ms"]))
    rows = [
        [shown(name, today), ui.count(f["requests_per_cpu_s"]) if f["requests_per_cpu_s"] else ""]
        + [ui.seconds(f["latency_ms"][s] / 1e3) if s in f["latency_ms"] else "" for s in shares]
        for name, f in found.items()
    ]
    head = ["under load", "requests a CPU-second"] + [f"latency {s}" for s in shares]
    return ui.table(head, rows) + ["  CPU time is that of the program during the load, for as many requests as the first run had."]


# JSON


def replay_json(finding, name):
    """What the replays have of a row, whether it was run or not."""
    series = finding.outcome.series if finding.has_model else None
    if not series or not series.has(name):
        return {}
    return {
        "library": series.runs[name][0]["malloc_library"],
        "cpu_ns_per_op": render.estimate_json(finding.outcome.ns_per_op(name)),
        "modelled_saving_percent": render.estimate_json(finding.outcome.saving_with(name)),
        "replay_peak_rss_bytes": int(series.peak_bytes(name)),
        "failures": sum(series.column(name, "failures")),
    }


def measured_json(finding, row):
    """A row that was run."""
    contest, name = finding.contest, row.name
    start = {"name": name, "library": row.library, **replay_json(finding, name), "measured": True}
    if not contest.has(name):
        return {**start, "error": contest.failed.get(name, NO_TIME)}
    error = finding.model_error(name)
    return {
        **start,
        "rounds": len(contest.runs[name]),
        "program_cpu_s": round(contest.middle(name, "cpu_s"), 6),
        "program_wall_s": round(contest.middle(name, "wall_s"), 6),
        "peak_rss_bytes": int(contest.middle(name, "peak_rss_bytes")),
        "saving_percent": render.estimate_json(finding.saving(name)),
        "saving_by_runs_percent": render.estimate_json(finding.measured_saving(name)),
        "under_load": served(finding, name),
        "saving_wall_percent": render.estimate_json(contest.saved_percent(name, key="wall_s")),
        "model_error_percent": None if error is None else round(error, 3),
    }


def modelled_json(finding, name):
    """A row that was only replayed; its interval holds the model's error."""
    error, saving = finding.model_error_max, modelled_saving(finding, name)
    return {
        "name": name,
        **replay_json(finding, name),
        "measured": False,
        "program_cpu_s": round(finding.program_s.value * (1 - saving.value / 100), 6),
        "saving_percent": render.estimate_json(saving),
        "model_error_percent": None if error is None else round(error, 3),
    }


def failed_json(finding):
    """Rows whose replay failed, where they were not run either."""
    failed = finding.outcome.series.failed if not finding.measured else {}
    return [{"name": name, "measured": False, "error": why} for name, why in failed.items()]


def json_rows(finding):
    """The table as JSON."""
    rows = [measured_json(finding, row) for row in finding.contest.rows] if finding.measured else []
    return rows + [modelled_json(finding, name) for name in replayed(finding)] + failed_json(finding)
