# SPDX-License-Identifier: MIT
"""The kinds of misuse in programs/misuse.cc, which of them stop the process where, and how one is run."""

import re

from preload_kit import PROGRAMS, complaints, run

NAMES = re.findall(r"\bKIND\((\w+)\)", re.sub(r"#define KIND.*", "", (PROGRAMS / "misuse.cc").read_text()))
ENDS = NAMES[NAMES.index("string_to_the_end") :]
CAUGHT = NAMES[: len(NAMES) - len(ENDS)]
REFUSED = (
    "quire: QUIRE_CONF: the plan ", "quire: QUIRE_CONF: tags go with secure:1;", "quire: QUIRE_CONF: tags: this processor ",
    "quire: QUIRE_CONF: prof_at and prof_signal go with prof:1;", "quire: QUIRE_CONF: plan_control and plan_timed go with plan:FILE;",
    "quire: QUIRE_CONF: stats_file goes with stats:exit and leaks:1;",
)  # fmt: skip
REFUSED_SAMPLES = re.compile("quire: QUIRE_CONF: (prof|guard) does not go with plan; ")
SIGSEGV, SIGBUS, SIGILL, SIGTRAP = 11, 7, 4, 5


def said(done):
    """A plan that is not used says so, and so do a profile, guards, tags and keys without theirs; that is no complaint about the program."""
    return [line for line in complaints(done.stderr) if not line.startswith(REFUSED) and not REFUSED_SAMPLES.match(line)]


def is_caught(done):
    """Stopped by one line of ours, or by a fault at the very access; not by the program's own words."""
    if "done" in done.stdout:
        return False
    if done.returncode in (-SIGILL, -SIGTRAP):
        return len(said(done)) == 1
    return done.returncode in (-SIGSEGV, -SIGBUS) and said(done) == []


def ends(done):
    return (done.returncode, done.stdout, said(done)) == (0, "done\nsound\n", [])


def try_kind(program, kind, conf):
    return run(program, kind, conf=conf)
