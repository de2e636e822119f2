# SPDX-License-Identifier: MIT
"""
prediction_tables.py - what prediction.py measured, judged and as Markdown.

    printed   what `try` printed of a row: value and interval           real   what plain runs say, percent of CPU time saved
    hit       |printed - real| <= max(2 points, a fifth of the real one)
    held      the interval holds the real one
    error     what a replay said of a row (the model), less the real one

Of the runs only medians over the rounds are used here: nothing of the tool's own statistics.
Not here: running anything (prediction.py).
"""

from collections import namedtuple
from statistics import median, stdev

POINTS, PART, THIRD = 2.0, 1 / 5, 1 / 3
ROUNDS_FEW = 5  # below it there is no interval, only a range
AGAIN = "libc again"  # the row of libc's malloc beside itself, where there is one
RELATIVE_FROM = 2.0  # points that the model must say before its error in percent of them means anything

Line = namedtuple("Line", "program row printed real halves modelled measured rounds by_runs", defaults=(None,))
Errors = namedtuple("Errors", "number points relative too_much")


def saved(libc, other):
    """Percent that a row saves: the median over the rounds, each for itself."""
    return median(100 * (1 - b / a) for a, b in zip(libc, other))


def halves(libc, other):
    """The same by the odd rounds and by the even ones: how far the truth itself is known."""
    return sorted(saved(libc[i::2] or libc, other[i::2] or other) for i in (0, 1))


def is_hit(printed, real):
    """Whether a printed saving is the real one, for a reader."""
    return abs(printed - real) <= max(POINTS, PART * abs(real))


def is_held(interval, real):
    """Whether an interval holds it."""
    return interval["low"] <= real <= interval["high"]


def is_within_a_third(said, real):
    """How what is not measured is judged."""
    return abs(said - real) <= THIRD * abs(real)


def libcs(times):
    """Times of libc's malloc: where it ran twice a round, the mean of both, for all else is held against it."""
    return [(a * b) ** 0.5 for a, b in zip(times.get("libc", []), times.get(AGAIN, times.get("libc", [])))]


def lines(program):
    """A Line for each row of a stored program that both were told of and ran; without a real saving: the advice carried out."""
    times = program["times"]
    libc = libcs(times)
    for row in program["rows"]:
        other = times.get(row["name"])
        real, both = (saved(libc, other), halves(libc, other)) if other else (None, None)
        yield Line(program["name"], row["name"], row["printed"], real, both, row["modelled"], row["measured"], row["rounds"], row.get("by_runs"))


def percentile(values, part):
    """The value that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def errors(found):
    """The model's errors on rows that were run: points, and as a part of what the model said."""
    known = [line for line in found if line.modelled is not None and line.real is not None]
    points = [abs(line.modelled - line.real) for line in known]
    relative = [abs(line.modelled - line.real) / abs(line.modelled) for line in known if abs(line.modelled) >= RELATIVE_FROM]
    return Errors(len(known), points, relative, sum(line.modelled > line.real for line in known))


# Markdown


def number(value):
    """One decimal, with a sign that prints."""
    return "" if value is None else f"{value:.1f}".replace("-", "−")


def interval(found):
    """Value and interval of a printed saving."""
    return f"{number(found['value'])} ({number(found['low'])} to {number(found['high'])})"


def said(yes, word):
    """A verdict as a cell: what goes wrong is what the eye looks for."""
    return word if yes else f"**no {word}**"


def program_rows(found):
    """The table's rows."""
    for line in found:
        cells = [line.program, line.row, f"{interval(line.printed)}, {line.rounds} rounds" if line.measured else f"{interval(line.printed)}, modelled"]
        if line.real is None:
            cells += ["", "", "", ""]
        else:
            cells += [f"{number(line.real)} ({number(line.halves[0])}, {number(line.halves[1])})"]
            cells += [said(is_hit(line.printed["value"], line.real), "hit"), said(is_held(line.printed, line.real), "held"), number(line.modelled)]
        yield "| " + " | ".join(cells) + " |"


def hits_and_held(known):
    """Both counts of rows that were run, as a sentence."""
    hits = sum(is_hit(line.printed["value"], line.real) for line in known)
    held = sum(is_held(line.printed, line.real) for line in known)
    return f"Within {POINTS:.0f} points or a fifth: {hits} of {len(known)}. The interval holds the real saving: {held} of {len(known)}."


def counts(found):
    """How many hits, and how wrong the model is, as sentences."""
    known = [line for line in found if line.real is not None]
    few = [line for line in known if line.rounds < ROUNDS_FEW]
    wrong = errors(found)
    yield hits_and_held(known)
    if few:
        yield f"Of these {len(few)} rows had fewer than {ROUNDS_FEW} rounds. {hits_and_held(few)}"
    if wrong.points:
        usual, far = median(wrong.points), percentile(wrong.points, 0.9)
        yield f"The model on the same {wrong.number} rows: wrong by {usual:.1f} points (median), {far:.1f} (90th percentile); too much in {wrong.too_much}."
    if wrong.relative:
        usual, far = median(wrong.relative), percentile(wrong.relative, 0.9)
        yield f"In parts of what it said, {len(wrong.relative)} rows of {RELATIVE_FROM:.0f} points or more: {usual:.2f} (median), {far:.2f} (90th percentile)."


def by_runs_text(found):
    """What rows of a load would have been without the model: they are drawn towards it."""
    known = [line for line in found if line.real is not None and line.by_runs is not None]
    if any(line.by_runs != line.printed["value"] for line in known):
        yield f"By the runs alone, before they were drawn towards the model: {sum(is_hit(line.by_runs, line.real) for line in known)} of {len(known)}."


def known_text(found):
    """How many of the rows whose odd and even rounds agree: of the others nobody knows what is real. And whether what was printed errs to one side."""
    real = [line for line in found if line.real is not None]
    known = [line for line in real if is_hit(*line.halves)]
    if real:
        yield f"More than is real was printed in {sum(line.printed['value'] > line.real for line in real)} of {len(real)} rows."
        yield f"Of {len(known)} rows the odd and the even rounds agree so far. {hits_and_held(known)}"


def shares_text(programs):
    """What share of the CPU time allocation is, both ways that `try` has."""
    yield "| program | verdict | share of allocation, looked at in the program, % | the model's, % |"
    yield "|---|---|---|---|"
    for program in programs:
        shares = program["shares"]
        yield f"| {program['name']} | {program['verdict'] or ''} | {number(shares.get('sampled'))} | {number(shares.get('modelled'))} |"


def conditions(runs):
    """When and how it was measured: a sentence a file."""
    for run in runs:
        yield (
            f"{run['date']}: {run['rounds']} rounds with the output to {run['stdout']}, `try` with its usual time limit"
            if run["time_limit_s"] is None
            else f"{run['date']}: {run['rounds']} rounds with the output to {run['stdout']}, `try` with --time-limit {run['time_limit_s']:g}"
        ) + f"; {run['processors']} processors, load {run['load'][0]:.1f} at the start and {run['load'][1]:.1f} at the end."


def scatter(programs, keys=("times", "clock_times")):
    """Median over the rows of the standard deviation of a round's saving, in points: at one pace of the CPU, and as the clock said."""
    found = []
    for key in keys:
        columns = [(p[key]["libc"], times) for p in programs for name, times in p.get(key, {}).items() if name != "libc"]  # a run of an earlier day may lack one
        spreads = [stdev(100 * (1 - b / a) for a, b in zip(libc, other)) for libc, other in columns if len(other) > 1]
        found.append(median(spreads) if spreads else None)
    return found


def scatter_text(programs):
    """The same as a sentence."""
    paced, clock = scatter(programs)
    if paced is not None and clock is not None:
        yield f"A plain round's saving scatters by {paced:.1f} points (standard deviation, median of the rows), by the clock alone by {clock:.1f}."


def programs_text(runs):
    """The table of programs under each preload."""
    programs = [p for run in runs for p in run.get("programs", [])]
    found = [line for p in programs if "rows" in p for line in lines(p)]
    if programs:
        yield "| program | row | `try` printed, % | real, % (odd rounds, even rounds) | within 2 points or a fifth | interval holds it | the model said, % |"
        yield "|---|---|---|---|---|---|---|"
        yield from program_rows(found)
        yield ""
        yield from counts(found)
        yield from scatter_text(programs)
        yield ""
        yield from shares_text(programs)
        for program in programs:
            yield from (f"- {program['name']}: {why}" for why in program["left_out"])
        yield ""


def pairs_text(runs):
    """The table of programs that were changed as advised."""
    pairs = [p for run in runs for p in run.get("pairs", [])]
    if pairs:
        yield "| program | the changed program saves, % (odd rounds, even rounds) | row | `try` printed, % | within a third |"
        yield "|---|---|---|---|---|"
    for pair in pairs:
        real = saved(pair["times"]["libc"], pair["times"]["changed"])
        both = halves(pair["times"]["libc"], pair["times"]["changed"])
        shown = f"{number(real)} ({number(both[0])}, {number(both[1])})"
        for row in pair["rows"]:
            near = "yes" if is_within_a_third(row["printed"]["value"], real) else "**no**"
            yield f"| {pair['name']} | {shown} | {row['name']} | {interval(row['printed'])} | {near} |"
        if not pair["rows"]:
            yield f"| {pair['name']} | {shown} | none | {'; '.join(pair['left_out'])} | |"
    if pairs:
        yield ""


def text(runs):
    """All of it as Markdown."""
    return "\n".join([*programs_text(runs), *pairs_text(runs), *conditions(runs)])
