# SPDX-License-Identifier: MIT
"""
trystatic.py - what a `try` says of a program in whose malloc's place nothing can be put: a static one, or one that binds libraries past every preload.

    replay of the malloc that it has (libc's, or an installed library of the same name)  <-  compared with the replays of all others

Not here: bringing the recorder in (statics.py), the figures (finding.py).
"""

import advise.advice as advice
import trytable


def today_text(report):
    """What serves it, among the facts."""
    if not report.target.static:
        return ["  No other malloc can be preloaded: " + report.contest.stays + "."]
    return [f"  It is static, with {report.today_allocator} inside: no other malloc can be put in its place."]


def model_text(report):
    """How the figures came about."""
    number = len(report.runs)
    return [
        f"  The program ran {number} time{'s' * (number != 1)} as it is, and with no other malloc; all other figures are predicted, by replays, against that of "
        f"{report.outcome.before}, which stands for the malloc that it has; their intervals hold the error that the model usually has.",
    ]


def predicted(report, reason):
    """A verdict's reason, with what it stands on."""
    if not report.target.static:
        return f"{reason}: predicted, for {report.contest.stays}"
    return f"{reason}: predicted, for no other malloc can run in a static program; linked dynamically it would be measured"


def open_reason(report, judged):
    """Why replays alone leave the verdict open, and what settles it."""
    saved, who = trytable.percent(judged.saving), trytable.shown(judged.name)
    least = f"{advice.SAVING_PERCENT_MIN:.0f} %"
    return predicted(report, f"{saved} saved by {who}, {least} or not")
