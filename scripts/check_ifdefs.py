#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_ifdefs - `#ifdef`, `#ifndef` and `defined` stand only in src/os, src/base/compiler.h and,
for users, quire/export.h.

Everywhere else a feature is a macro that is always 0 or 1, asked by `#if FEATURE`, so that -Wundef
catches a misspelt one.
Allowed besides: a header's include guard, and `#ifdef __cplusplus` around
the extern "C" of a header.
"""

import re
import sys

import checklib

_CONDITION = re.compile(
    r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elif)\b[ \t]*((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE
)
_HOMES = ("src/base/compiler.h", "include/quire/export.h")
_TREES = ("src", "include", "tools", "bench", "test", "examples", "fuzz")


def check(root):
    findings = []
    for path in checklib.files(root, checklib.C_SUFFIXES):
        if path.parts[0] not in _TREES or path.parts[:2] == ("src", "os") or str(path) in _HOMES:
            continue
        code = checklib.code_of(checklib.read(root, path) or "")
        for match in _CONDITION.finditer(code):
            word, condition = match.group(1), " ".join(match.group(2).split())
            asks_defined = word in ("ifdef", "ifndef") or re.search(r"\bdefined\b", condition)
            if asks_defined and not _allowed(path, code, match):
                line = checklib.line_at(code, match.start())
                findings.append(
                    f"{path}:{line}: #{word} {condition}: make it a 0/1 macro in {_home(path)} and"
                    " ask #if"
                )
    return findings


def _home(path):
    return _HOMES[1] if path.parts[0] == "include" else _HOMES[0]


def _allowed(path, code, match):
    word, name = match.group(1), match.group(2).strip()
    if name == "__cplusplus" and path.suffix == ".h":
        return True
    is_first = "#" not in code[: match.start()]
    return (
        word == "ifndef"
        and path.suffix in (".h", ".hpp")
        and is_first
        and re.match(rf"\s*#\s*define\s+{name}\b", code[match.end() :])
    )


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
