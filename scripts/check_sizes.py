#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_sizes - how long a file and a function may be: 500 and 50 lines, and never more than 800
and 70.

Between the soft limit and the hard one a file or function needs its line in
scripts/size-exceptions.txt:

    PATH             the reason, in words            for a file
    PATH:FUNCTION    the reason, in words            for a function

A line there that excuses nothing is a finding too, so the list only holds what is true.
Counted: C,
C++ and Python, ./quire and the scripts; every line from the first of the signature to the closing
brace.
"""

import ast
import sys
from pathlib import Path

import checklib

FILE_LINES_SOFT, FILE_LINES_HARD = 500, 800
FUNCTION_LINES_SOFT, FUNCTION_LINES_HARD = 50, 70
EXCEPTIONS = Path("scripts") / "size-exceptions.txt"


def check(root):
    findings, excused = _read_exceptions(root)
    used = set()
    for path in checklib.files(root):
        text = checklib.read(root, path) if _is_measured(path) else None
        if text is None:
            continue
        sized = [(str(path), 1, text.count("\n"), FILE_LINES_SOFT, FILE_LINES_HARD)]
        for name, first, last in _functions(path, text):
            sized.append(
                (
                    f"{path}:{name}",
                    first,
                    last - first + 1,
                    FUNCTION_LINES_SOFT,
                    FUNCTION_LINES_HARD,
                )
            )
        for key, line, lines, soft, hard in sized:
            if lines > hard:
                findings.append(
                    f"{path}:{line}: {key} has {lines} lines, the hard limit is {hard}; split it"
                )
            elif lines > soft and key not in excused:
                findings.append(
                    f"{path}:{line}: {key} has {lines} lines, over {soft}; split it, or give a"
                    f" reason in {EXCEPTIONS}"
                )
            elif lines > soft:
                used.add(key)
    stale = [key for key in excused if key not in used]
    return findings + [
        f"{EXCEPTIONS}:{excused[key]}: excuses {key}, which needs no excuse; remove the line"
        for key in stale
    ]


def _is_measured(path):
    return path.suffix in checklib.C_SUFFIXES | {".py"} or str(path) == "quire"


def _functions(path, text):
    if path.suffix in checklib.C_SUFFIXES:
        return checklib.functions_of(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (n.name, n.lineno, n.end_lineno) for n in ast.walk(ast.parse(text)) if isinstance(n, kinds)
    ]


def _read_exceptions(root):
    """(findings, {key: line number}) of the list of exceptions."""
    listed = root / EXCEPTIONS
    if not listed.is_file():
        return [], {}
    findings, excused = [], {}
    for number, line in enumerate(listed.read_text(encoding="utf-8").splitlines(), 1):
        key, _, reason = line.strip().partition(" ")
        if not key or key.startswith("#"):
            continue
        if len(reason.split()) < 3:
            findings.append(
                f"{EXCEPTIONS}:{number}: {key} has no reason; say why it is better whole"
            )
        excused[key] = number
    return findings, excused


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
