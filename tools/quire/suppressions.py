# SPDX-License-Identifier: MIT
"""
suppressions.py - leaks that are known and not to be told again, in LeakSanitizer's own format.

    # a comment
    leak:pattern        function, source file or module of any frame of the stack; * is anything, ^ the name's beginning, $ its end

Files: --suppressions FILE, then LSAN_OPTIONS=suppressions=FILE. A relative name that is not here is looked for beside the program, as LeakSanitizer does.
The first line that fits takes a stack.  Not here: the stacks (leaksites.py).
"""

import os
import re
from collections import namedtuple

from errors import EXIT_ENVIRONMENT, QuireError

Line = namedtuple("Line", "text fits")

KIND = "leak:"
OPTION = re.compile(r"""(?:^|[\s,:])suppressions=("[^"]*"|'[^']*'|[^\s,:]*)""")


def files(given, program):
    """The files to read: what was given, then what LSAN_OPTIONS names."""
    found = [given] if given else []
    for match in OPTION.finditer(os.environ.get("LSAN_OPTIONS", "")):
        path = match.group(1).strip("\"'")
        beside = os.path.join(os.path.dirname(os.path.abspath(program)), path)
        if path:
            found.append(beside if not os.path.exists(path) and os.path.exists(beside) else path)
    return found


def read(paths):
    """[Line] of all files, or an error of one line."""
    return [line for path in paths for line in lines_of(path)]


def lines_of(path):
    """[Line] of one file."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            texts = [text.strip() for text in file]
    except OSError as error:
        raise QuireError(f"cannot read the suppressions {path}: {error.strerror}", exit_code=EXIT_ENVIRONMENT) from error
    found = []
    for number, text in enumerate(texts, 1):
        if not text or text.startswith("#"):
            continue
        if not text.startswith(KIND) or text == KIND:
            raise QuireError(f"{path}:{number}: `{text}` is no suppression: a line is leak:pattern, or a comment after #", exit_code=EXIT_ENVIRONMENT)
        found.append(Line(text, pattern(text[len(KIND) :]).search))
    return found


def pattern(text):
    """The regular expression of a pattern."""
    start, end = "^" * text.startswith("^"), r"\Z" * text.endswith("$")
    middle = text[len(start) : len(text) - bool(end)]
    return re.compile(start + ".*".join(re.escape(part) for part in middle.split("*")) + end, re.DOTALL)


def taken_by(lines, names):
    """The first line that fits one of a stack's names; None."""
    return next((line for line in lines if any(line.fits(name) for name in names if name)), None)
