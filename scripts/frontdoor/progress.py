# SPDX-License-Identifier: MIT
"""progress - how far a command has come, as its own output says, and the line that shows it.

    [45/130] Building C object ...       ninja     -->  45 of 130
    Get:7 ...  Unpacking ...  Setting up ...  apt  -->  three steps a package
    anything else                        nothing is counted: the seconds so far

    quire: building release  [########............]  45 of 130, about 20 s left

On a terminal the line is rewritten in place; NO_COLOR and TERM=dumb switch that off, COLUMNS is its
width. Elsewhere there is no such line: say.py has one a step.
Not here: running the command, writing the line (say.py).
"""

import os
import re
import shutil
import sys
import time

BAR_CELLS = 20
TITLE_CELLS = 16  # of a title that is longer, before the bar goes
_NINJA = re.compile(r"^\[(\d+)/(\d+)\] ", re.MULTILINE)
_APT_TOTAL = re.compile(r"^\d+ upgraded, (\d+) newly installed", re.MULTILINE)
_APT_STEP = re.compile(r"^(?:Get:\d+|Unpacking|Setting up) ", re.MULTILINE)


def is_live():
    """Whether stderr is a terminal where a line may be rewritten."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("", "dumb")
    return sys.stderr.isatty() and not plain


def counted(text):
    """(steps done, steps) of a command that has said so much; None when it counts nothing."""
    of_ninja = _NINJA.findall(text)
    if of_ninja:
        return tuple(map(int, of_ninja[-1]))
    of_apt = _APT_TOTAL.search(text)
    if of_apt and int(of_apt.group(1)):
        steps = 3 * int(of_apt.group(1))
        return min(len(_APT_STEP.findall(text, of_apt.end())), steps), steps
    return None


def text(title, steps, seconds, columns):
    """The line: what is done, how much of it, how long it may still take."""
    if steps is None:
        return f"quire: {title} ... {seconds:.0f} s"[: columns - 1]
    done, total = steps
    filled = BAR_CELLS * done // max(total, 1)
    bar = f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}]  "
    said = f"{done} of {total}"
    if done:
        said += f", about {max(1, round(seconds / done * (total - done)))} s left"
    room = columns - 1 - len(f"quire:   {bar}{said}")
    if room < min(len(title), TITLE_CELLS):
        bar, room = "", room + len(bar)
    return f"quire: {title[:max(room, 8)]}  {bar}{said}"[: columns - 1]


class Line:
    """The moving line of one command whose output goes to the end of a log."""

    def __init__(self, title, log):
        self.title, self.log, self.began_s = title, log, time.monotonic()
        self.offset = log.stat().st_size

    def text(self):
        """What it says now."""
        with open(self.log, "rb") as output:
            output.seek(self.offset)
            said = output.read().decode("utf-8", "replace")
        columns = shutil.get_terminal_size((80, 24)).columns
        return text(self.title, counted(said), time.monotonic() - self.began_s, columns)
