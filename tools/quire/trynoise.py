# SPDX-License-Identifier: MIT
"""
trynoise.py - how far runs of one and the same thing lie apart, what else the machine did, and what a `try` says of both.

    two runs of one row differ by 12 % here (median); other programs kept 14 tasks ready on 2 CPUs

Not here: intervals (sequential.py), how the CPU is asked for its pace (pace.py), the rest of the report (tryreport.py).
"""

import os

import sequential
import ui

SCATTER_PERCENT_MIN = 5.0  # below it nobody needs to know
APART_PERCENT = 5  # below it the CPU kept its pace
STOLEN_PERCENT = 2  # below it the host left the machine alone
BUSY = 1.0  # tasks for each CPU, before ours came


def load_before():
    """Tasks that were ready to run, the mean of the last minute, before ours came; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _cpus():
    """Of the machine, whose load it is; we may be allowed some of them alone."""
    return os.cpu_count() or 1


def others(load):
    """What else the machine did, in words; empty where that was little."""
    cpus = _cpus()
    if load is None or load < BUSY * cpus:
        return ""
    return f"other programs kept {load:.0f} task{'s' * (round(load) != 1)} ready on {cpus} CPU{'s' * (cpus != 1)} when this began"


def crowd(load):
    """How many times as long as on a quiet machine work takes that nobody waits for; 1 where the load is not known."""
    return max(1.0, (load or 0.0) / _cpus())


def text(scatter_percent, load):
    """A line among those on the rounds; none where runs agree."""
    if scatter_percent is None or scatter_percent < SCATTER_PERCENT_MIN:
        return []
    busy = others(load)
    return [f"  Two runs with one and the same malloc differ by {ui.percent(scatter_percent)} here (median)" + (f": {busy}." if busy else ".")]


def pace_text(contest):
    """Lines on the CPU's pace, and what the host of a virtual machine took away; none where both were alike in all runs."""
    apart, stolen = contest.pace_spread_percent(), contest.stolen_percent()
    lines = []
    if apart is not None and apart >= APART_PERCENT:
        lines.append(f"  The CPU was up to {apart:.0f} % slower in some runs than in others, by what else it did: times are as at one and the same pace.")
    if stolen is not None and stolen >= STOLEN_PERCENT:
        lines.append(f"  The host of this virtual machine gave up to {stolen:.0f} % of its CPU time to others in some runs: times are as with as much in each.")
    return lines


def drawn_text(finding):
    """A line on what the runs alone say, where the model counts too; none where that is the same."""
    alone = {name: ui.percent(finding.measured_saving(name).value) for name in finding.drawn}
    said = ", ".join(f"{name} {percent}" for name, percent in alone.items() if percent != ui.percent(finding.drawn[name]))
    part = f" (times {finding.scale:.2f}, since it says more than what was seen)" if finding.scale < 1 else ""
    return [f"  Savings are drawn towards what the model says{part}, by how little the runs can be told from noise. By the runs alone: {said}."] if said else []


def pace_json(contest):
    """How unlike the CPU's paces were, and how much the program shares of that; the same of stolen time; None where nobody asked."""
    apart, stolen = contest.pace_spread_percent(), contest.stolen_percent()
    if apart is None:
        return None
    shares = contest.evened().sensitivity
    return {
        "spread_percent": round(apart, 3),
        "sensitivity": round(shares["spin_ns"], 3),
        "stolen_percent": stolen and round(stolen, 3),
        "stolen_sensitivity": round(shares["stretch"], 3),
    }


def too_few(number, limit_s, args):
    """Why so few rounds give no verdict, and what gives one."""
    said = f"{number} round{'s' * (number != 1)} cannot be told from noise"
    if args.rounds is not None:
        return f"{said}: --rounds {sequential.LOOKS[1]}"
    return f"{said}: --time-limit {max(1, limit_s * sequential.LOOKS[1] / max(1, number)):.0f}"


def open_reason(saved, scatter_percent, load):
    """Why a verdict is open where no number of rounds in reach would settle it."""
    if scatter_percent is None or scatter_percent < SCATTER_PERCENT_MIN:
        return f"{saved} saved: the runs of this program scatter more than that"
    advice = "a quieter machine tells more than more rounds" if others(load) else "its own runs scatter more than what could be saved"
    return f"{saved} saved, where two runs with one and the same malloc differ by {ui.percent(scatter_percent)}: {advice}"
