# SPDX-License-Identifier: MIT
"""
run.py - one benchmark process under one allocator, and rounds of them until the time is up.

    sweep(entries) ──> [process, process, ...]    one round, interleaved: drift hits all alike
    rounds(...)    ──> round, round, ...          at least ROUNDS_MIN, but none beyond a --time-limit

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
Not here: which processes (bench/arena.py, bench/slab.py, bench/percpu.py), medians
(bench/figures.py), how much time is left (bench/limit.py).
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import native
import ui
from bench.limit import Limit, OutOfTime
from errors import EnvironmentLacks, QuireError

ROUNDS_MIN = 3
PROCESS_LIMIT_S = 60
BAR_CELLS = 20
LIBC = "libc"
# What would let another malloc in, or change the one that is measured.
MEDDLING = ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES", "QUIRE_CONF")


class Cast:
    """Who is measured, and until when: libc, the installed peers, and ours.  `refused` grows as
    peers turn out not to be loaded."""

    def __init__(self, installed, limit=None):
        self.limit = limit or Limit()
        self.path_of = {peer.name: peer.path for peer in installed}
        self.refused = {}

    def names(self, *ours):
        return [n for n in (LIBC, *self.path_of, *ours) if n not in self.refused]

    def environment(self, name):
        """Nothing but the peer's library may be preloaded there."""
        clean = {key: value for key, value in os.environ.items() if key not in MEDDLING}
        return {**clean, "LD_PRELOAD": self.path_of[name]} if name in self.path_of else clean

    def admit(self, name, figure):
        """B1: whether the figure is that allocator's; says so once when it is not."""
        if figure["allocator"] == name:
            return True
        if name not in self.refused:
            self.refused[name] = f"preloaded, but malloc was {figure['allocator']}'s"
            print(f"quire: {name} is left out: {self.refused[name]}", file=sys.stderr)
        return False


def process(cast, name, argv, limit_s=None):
    """What one process printed as JSON: one figure."""
    return process_rows(cast, name, argv, limit_s)[0]


def process_rows(cast, name, argv, limit_s=None):
    """The same of a process that prints several, a line each; PROCESS_LIMIT_S unless it is a long one."""
    limit_s, left_s = limit_s or PROCESS_LIMIT_S, cast.limit.left_s()
    cast.limit.check()
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env=cast.environment(name),
            timeout=min(limit_s, left_s),
        )
    except subprocess.TimeoutExpired:
        if left_s < limit_s:
            raise OutOfTime() from None
        raise QuireError(
            f"the benchmark under {name} did not end in {limit_s} s",
            why="it should take a small part of that",
            fix=" ".join(argv),
        ) from None
    if done.returncode != 0:
        raise QuireError(
            f"the benchmark failed under {name} (status {done.returncode})",
            why=done.stderr.strip() or "it said nothing",
            fix=" ".join(argv),
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def sweep(cast, entries, limit_s=None):
    """One round: {key: figure} of [(key, name, argv)]."""
    return collect(
        (key, lambda: admitted(cast, name, process(cast, name, argv, limit_s)))
        for key, name, argv in entries
        if name not in cast.refused
    )


def admitted(cast, name, figure):
    """The figure, or None when it is another allocator's."""
    return figure if cast.admit(name, figure) else None


def collect(pairs):
    """{key: figure} of (key, function that measures it), without those that are None; what there is of it when time is up."""
    figures = {}
    for key, measured in pairs:
        try:
            figure = measured()
        except OutOfTime:
            raise OutOfTime(figures) from None
        if figure is not None:
            figures[key] = figure
    return figures


def sweep_together(cast, entries, limit_s, workers):
    """The same of processes that mostly sleep, or of which only the memory is asked: several at a time. Without those that were out of time."""

    def one(entry):
        try:
            return process(cast, entry[1], entry[2], limit_s)
        except OutOfTime:
            return None

    entries = [entry for entry in entries if entry[1] not in cast.refused]
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, entries))
    return {
        key: figure
        for (key, name, _), figure in zip(entries, found)
        if figure is not None and cast.admit(name, figure)
    }


def rounds(one_round, budget_s, what, limit=None):
    """[one_round(), ...] until the next would not fit into the budget, ROUNDS_MIN at least; under a
    limit as many of these as fit.  OutOfTime when that is none."""
    limit = limit or Limit()
    samples, began, round_s = [], time.monotonic(), 0.0
    spent_s, shown_s = 0.0, min(budget_s, limit.room_s(budget_s))
    try:
        progress(what, 0, 0, shown_s)
        while not samples or (
            spent_s + round_s < limit.room_s(budget_s)
            and (len(samples) < ROUNDS_MIN or spent_s + round_s < budget_s)
        ):
            samples.append(one_round())
            now_s = time.monotonic() - began
            spent_s, round_s = now_s, now_s - spent_s
            progress(what, len(samples), spent_s, shown_s)
    except OutOfTime:
        if not samples:
            raise
    finally:
        progress(what, None, 0, 0)
    return samples


def rounds_or_part(one_round, budget_s, what, limit):
    """The same; of a first round that was cut, what there is of it."""
    try:
        return rounds(one_round, budget_s, what, limit)
    except OutOfTime as cut:
        return [cut.found]


def find_driver(name):
    """bench/NAME of the checkout's build, or of the installation."""
    for place in native.directories():
        for candidate in (
            os.path.join(place, "..", "bench", name),
            os.path.join(place, "bench", name),
        ):
            if os.access(os.path.normpath(candidate), os.X_OK):
                return os.path.normpath(candidate)
    raise EnvironmentLacks(
        f"the benchmark driver `{name}` is not built",
        why="looked beside the tool's helpers",
        fix="cmake --preset release && cmake --build --preset release",
    )


def progress(what, count, spent_s, budget_s):
    """A bar that moves on a terminal, None takes it away; elsewhere one line, at the start."""
    if sys.stderr.isatty() and not ui.plain_terminal():
        line = "" if count is None else ui.shorten(bar(what, count, spent_s, max(budget_s, 0)), ui.width() - 1)
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif count == 0:
        print(f"quire: measuring {what}, about {max(budget_s, 0):.0f} s", file=sys.stderr, flush=True)


def bar(what, count, spent_s, budget_s):
    """[######..............] the slab: 3 rounds, about 20 s left"""
    cells = min(BAR_CELLS, round(BAR_CELLS * spent_s / budget_s)) if budget_s else 0
    left_s = f", about {budget_s - spent_s:.0f} s left" if budget_s - spent_s >= 1 else ""
    rounds_done = f": {count} round{'s' * (count != 1)}" if count else ""
    return f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {what}{rounds_done}{left_s}"
