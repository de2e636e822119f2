#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check - runs every house-rule check; one line a check, its findings below it, the sum last.

    scripts/check.py                 all of them
    scripts/check.py sizes tags      these only

Exit 0 when all pass, 1 when one fails, 2 when there is no check of that name.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def main(names):
    known = sorted(path.stem.removeprefix("check_") for path in HERE.glob("check_*.py"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(
            f"scripts/check.py: no check named {unknown[0]}; there are: {' '.join(known)}",
            file=sys.stderr,
        )
        return 2
    failed = 0
    for name in names or known:
        try:
            findings = importlib.import_module(f"check_{name}").check(HERE.parent)
        except OSError as problem:
            findings = [f"scripts/check_{name}.py:1: cannot run: {problem}"]
        failed += bool(findings)
        print(f"{'FAIL' if findings else 'ok  '} {name}")
        for finding in findings:
            print(f"  {finding}")
    print(f"checks: {len(names or known) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
