# SPDX-License-Identifier: MIT
"""
ui.py - how things are said: numbers with units, tables, progress.

    results  -> stdout                 progress, notes -> stderr
    on a terminal: one progress line with the time left;  elsewhere: one line a step

NO_COLOR and TERM=dumb switch colours and the moving line off; COLUMNS is the width of tables, and of prose on a
terminal. A table that is too wide even with its flexible column cut becomes a list: one block a row.
Not here: what is said.
"""

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import time

from lazily import textwrap

WIDTH_MIN = 30
WIDTH_MAX = 160


def plain_terminal():
    """Whether colours and cursor movements are unwelcome."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") in ("", "dumb")


def width():
    """Columns that a table may take."""
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size((100, 24)).columns))


@contextlib.contextmanager
def columns(number):
    """width() is that in here."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(number)
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def bold(text, stream=None):
    """The text, emphasised where the stream is a terminal that can."""
    stream = stream or sys.stdout
    return f"\033[1m{text}\033[0m" if stream.isatty() and not plain_terminal() else text


def count(number):
    """1234567 -> 1,234,567"""
    return f"{int(number):,}"


def size(number_bytes):
    """Bytes with a unit, three digits."""
    value = float(number_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 1000 or unit == "GB":
            break
        value /= 1000
    digits = 0 if unit == "B" or abs(value) >= 100 else 1
    return f"{value:.{digits}f} {unit}"


def seconds(value_s):
    """Seconds with a unit, three digits."""
    if abs(value_s) >= 1:
        return f"{value_s:.2f} s"
    if abs(value_s) >= 1e-3:
        return f"{value_s * 1e3:.{0 if abs(value_s) >= 0.1 else 1}f} ms"
    return f"{value_s * 1e6:.0f} us"


def percent(value):
    """A percentage; one digit behind the point below ten."""
    value = 0.0 if abs(value) < 0.05 else value  # never "-0.0 %"
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %"


def escape(char):
    """What a terminal would obey, or not show, written out; also a byte that is no text, as Python keeps it in names."""
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def printable(text):
    """The text with what a terminal would obey, or not show, written out: `\\x1b`, `\\n`, `\\xe9`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else escape(c) for c in text)


def word(text):
    """The text as one word of a command line that can be copied from a terminal: what is not printed there as `$'\\n'`."""
    if text.isprintable():
        return shlex.quote(text)
    said = {"\n": "\\n", "\t": "\\t", "\\": "\\\\", "'": "\\'"}
    said.update((c, "".join(f"\\x{byte:02x}" for byte in os.fsencode(c))) for c in set(text) - set(said) if not c.isprintable())
    return f"$'{''.join(said.get(c, c) for c in text)}'"


def words(texts):
    """A command line of such words."""
    return " ".join(map(word, texts))


def json_text(document):
    """A document as JSON that strict readers take: bytes that are no text as in `printable`, not as half a character."""
    pair_or_backslash, byte = r"\\u(?:d[89ab]..\\ud[c-f]..)|\\\\", r"\\udc([89a-f][0-9a-f])"
    said = json.dumps(document, indent=1)
    return re.sub(f"{pair_or_backslash}|{byte}", lambda m: rf"\\x{m[1]}" if m[1] else m[0], said)


def masked(text):
    """The same with a `?` for each: where a name must stay as wide as it is, or is one cell of a format."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def shorten(text, room):
    """At most `room` characters; what is cut shows as an ellipsis."""
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"


def table(header, rows, flexible=0, align=None):
    """Lines of a table; column `flexible` gives way when the window is narrow. align: a string of l and r."""
    align = align or "l" + "r" * (len(header) - 1)
    cells = [list(map(str, row)) for row in [header] + rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    total = sum(widths) + 2 * (len(widths) - 1) + 2
    if total > width():
        widths[flexible] = min(widths[flexible], max(12, widths[flexible] - (total - width())))
        if sum(widths) + 2 * len(widths) > width():
            return stacked(cells)
    lines = []
    for row in cells:
        row[flexible] = shorten(row[flexible], widths[flexible])
        parts = [c.ljust(w) if a == "l" else c.rjust(w) for c, w, a in zip(row, widths, align)]
        lines.append(("  " + "  ".join(parts)).rstrip())
    return lines


def stacked(cells):
    """A table whose rows are too wide, as blocks: the first column on top, then a line for each other that says anything."""
    lines = []
    names = cells[0]
    room = max(len(name) for name in names)
    for row in cells[1:]:
        lines.append("  " + shorten(row[0], width() - 2))
        for at, (name, cell) in enumerate(zip(names, row)):
            if at > 0 and cell:
                line = f"    {name.ljust(room)}  {cell}"
                lines += [line] if len(line) <= width() else [f"    {name}", f"      {cell}"]
    return lines


def fit(lines, stream=None):
    """The lines, those that are too long for a terminal folded at spaces under their own beginning."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return list(lines)
    folded = []
    for line in lines:
        hang = " " * (len(line) - len(line.lstrip()) + 2)
        if len(line.replace("\033[1m", "").replace("\033[0m", "")) <= width():
            folded.append(line)
            continue
        folded += textwrap.wrap(
            line,
            width(),
            subsequent_indent=hang,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
    return folded


def reflowed(text):
    """Paragraphs of a help text filled to the width; lines that are indented stay lines, folded where they must be."""
    found = []
    for indented, lines in itertools.groupby((text or "").splitlines(), lambda line: line.startswith(" ")):
        parts = list(lines) if indented else [" ".join(lines)]
        for part in parts:
            hang = " " * (len(part) - len(part.lstrip()) + 2) * indented
            found += textwrap.wrap(part, width() - 2, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(found)


def say(lines, stream=None):
    """Lines of a result, folded where a terminal is narrow; of none nothing."""
    if not (lines := list(lines)):
        return
    print("\n".join(fit(lines, stream)), file=stream or sys.stdout, flush=stream is not None)


def note(text):
    """One line for the user that is no result."""
    say([f"quire: {printable(text)}"], sys.stderr)


class Progress:
    """Steps of known number: `step("replaying with libc")` before each, `done()` after the last."""

    def __init__(self, steps, stream=None):
        self.steps = max(1, steps)
        self.taken = 0
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty() and not plain_terminal()
        self.began_s = time.monotonic()
        self.said = set()

    def step(self, text, quiet_repeat=False):
        """Begins a step. Elsewhere than on a terminal a repeated text is printed once."""
        text, left = printable(text), ""
        if self.taken:
            each_s = (time.monotonic() - self.began_s) / self.taken
            left = f"  about {max(1, round(each_s * (self.steps - self.taken)))} s left"
        if self.live:
            room = min(width(), shutil.get_terminal_size((100, 24)).columns) - 1
            bar = min(20, room // 5)
            done = int(bar * self.taken / self.steps)
            said = shorten(text, room - bar - 3 - len(left))
            line = f"[{'#' * done}{'.' * (bar - done)}] {said}{left}"
            self.stream.write("\r\033[K" + line[:room])
            self.stream.flush()
        elif not (quiet_repeat and text in self.said):
            print(f"quire: {text}", file=self.stream, flush=True)
        self.said.add(text)
        self.taken = min(self.taken + 1, self.steps)

    def done(self):
        """Takes the progress line away."""
        if self.live:
            self.stream.write("\r\033[K")
            self.stream.flush()
