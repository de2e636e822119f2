#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_headers - each public header compiles alone, twice over, as C11 and as C++17, without a
warning.

Pedantic: -Wall -Wextra -Wpedantic -Werror, with nothing included before it; -Wconversion and -Wshadow in
C++.  quire.hpp and what it includes are C++ only.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import checklib

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
LANGUAGES = {
    "C11": [os.environ.get("CC", "gcc"), "-x", "c", "-std=c11"],
    "C++17": [os.environ.get("CXX", "g++"), "-x", "c++", "-std=c++17", "-Wconversion", "-Wshadow"],
}


def check(root):
    headers = [
        p for p in checklib.files(root, {".h", ".hpp"}) if p.parts[:2] == ("include", "quire")
    ]
    jobs = [
        (root, h, language)
        for h in headers
        for language in LANGUAGES
        if h.suffix == ".h" or language != "C11"
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return [
            finding
            for findings in pool.map(lambda job: _compile(*job), jobs)
            for finding in findings
        ]


def _compile(root, header, language):
    name = header.relative_to("include")
    program = f"#include <{name}>\n#include <{name}>\nint main(void) {{ return 0; }}\n"
    command = LANGUAGES[language] + WARNINGS + ["-I", str(root / "include"), "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    if done.returncode == 0:
        return []
    errors = [
        line for line in done.stderr.splitlines() if "error:" in line
    ] or done.stderr.splitlines()[:1]
    return [
        f"{header}:1: does not compile alone as {language}:"
        f" {errors[0].replace(str(root) + '/', '')}"
    ]


if __name__ == "__main__":
    sys.exit(checklib.run_check(check))
