#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_contracts - every exported declaration says who may call it, and what errno can be.

The comment directly above a declaration (or beside it) has MT-Safe or MT-Unsafe, the latter with
what is raced for (`MT-Unsafe race:arena`).  A function that can fail, one that returns an int or a
pointer the caller may write through, names its errors (`ENOMEM`) or says that there are none
("never NULL", "never fails", "leaves errno alone").
"""

import re
import sys

import checklib

_THREADS = re.compile(r"\bMT-(?:Safe\b|Unsafe\s+race:\w+)")
_UNSAFE_BARE = re.compile(r"\bMT-Unsafe\b")
_ERRORS = re.compile(
    r"\bE[A-Z][A-Z0-9]{2,}\b|[Nn]ever NULL|[Nn]ever fails|errno alone|[Kk]eeps errno|errno is"
    r" kept|[Nn]ever returns"
)
_CAN_FAIL = re.compile(r"^(?!.*\bconst\b.*\*)(?:.*\*|.*\bint)$")


def check(root):
    findings = []
    for path in checklib.public_headers(root):
        for declaration in checklib.declarations_of(checklib.read(root, path) or ""):
            findings += [
                f"{path}:{declaration.line}: {declaration.name} {problem}"
                for problem in _problems(declaration)
            ]
    return findings


def _problems(declaration):
    if not declaration.comment:
        return [
            "has no comment directly above it; say result, errno, cost and MT-Safe or MT-Unsafe"
        ]
    problems = []
    if not _THREADS.search(declaration.comment):
        bare = _UNSAFE_BARE.search(declaration.comment)
        problems.append(
            "is MT-Unsafe without saying for what; write MT-Unsafe race:OBJECT"
            if bare
            else "has no thread-safety word; write MT-Safe or MT-Unsafe race:OBJECT"
        )
    if _CAN_FAIL.match(declaration.result) and not _ERRORS.search(declaration.comment):
        problems.append(
            "can fail and names no errno; name each with its condition, or say that it never fails"
        )
    return problems


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
