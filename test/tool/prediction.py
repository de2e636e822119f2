# SPDX-License-Identifier: MIT
"""
prediction.py - is the prediction true? What `try` says beside what the program does.

    python3 test/tool/prediction.py --pairs FOLDER       the advised mix: a program with malloc, and changed as advised (prediction_pairs.py)
    python3 test/tool/prediction.py -- jq . big.json     the peers: preloaded

    program    program    try     program    program         half of the rounds before `try`, half after it,
    changed    changed   (15)     changed    changed         so that a machine that drifts meets all alike

Not a test: it takes minutes and a quiet machine. doc/prediction.md shows its output.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import namedtuple

from prediction_pairs import made
from toolkit import BUILD, TOOL

import launch
import measure
import peers
import target as targets

ROUNDS = 30
SMALL_PERCENT = 3.0

Row = namedtuple("Row", "name said done ratio holds")


def predicted(command, source=None, rounds=15):
    """The document of `quire try --json`."""
    with tempfile.TemporaryDirectory() as folder, open(source or os.devnull, "rb") as stdin:
        words = ["try", "--json", "--rounds", str(rounds), "-o", f"{folder}/t.qtr", "--", *command]
        env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD)}
        done = subprocess.run(
            [sys.executable, str(TOOL), *words], stdin=stdin, stdout=subprocess.PIPE, env=env, check=False
        )
        if done.returncode:
            sys.exit(f"`try` of {command[0]} ended with {done.returncode}")
        return json.loads(done.stdout)


class Stopwatch:
    """CPU seconds of some commands, run in turns; `variants`: (name, command, environment)."""

    def __init__(self, variants, source=None):
        self.variants = variants
        self.source = launch.Input()
        self.source.path = source or os.devnull
        self.times = {name: [] for name, _, _ in variants}

    def run(self, rounds):
        """So many rounds; every other one backwards."""
        for number in range(rounds):
            for name, command, env in self.variants[:: -1 if number % 2 else 1]:
                program = targets.resolve(command)
                ran = launch.hidden(program, self.source, {**os.environ, **env})
                if ran.status != 0:
                    sys.exit(f"{name} failed: {ran.stderr}")
                self.times[name].append(ran.cpu_s)

    def saved_percent(self, name):
        """What a variant saves of the first one's CPU time: medians, and the interval of the differences of rounds."""
        base = self.times[self.variants[0][0]]
        median = statistics.median(base)
        differences = [100 * (a - b) / median for a, b in zip(base, self.times[name])]
        middle = 100 * (1 - statistics.median(self.times[name]) / median)
        found = measure.estimate(differences)
        return measure.Estimate(middle, min(found.low, middle), max(found.high, middle))


def judge(said, done):
    """How said compares with done, both Estimates in percent: the ratio, and whether the prediction holds."""
    ratio = said.value / done.value if done.value else float("inf")
    near = abs(said.value - done.value) <= abs(done.value) / 3
    overlap = said.low <= done.high and done.low <= said.high
    if near:
        return ratio, "yes"
    if max(abs(said.value), abs(done.value)) < SMALL_PERCENT and overlap:
        return ratio, "intervals overlap"
    return ratio, "no"


def pair_row(pair, rounds):
    """One program measured: predicted beside done."""
    watch = Stopwatch(
        [("malloc", pair.before + pair.arguments, {}), ("advised", pair.after + pair.arguments, {})],
        pair.source,
    )
    watch.run(rounds // 2)
    document = predicted(pair.before + pair.arguments, pair.source)
    watch.run(rounds - rounds // 2)
    said = measure.Estimate(*(document["saving_percent"][k] for k in ("value", "low", "high")))
    done = watch.saved_percent("advised")
    return Row(pair.name, said, done, *judge(said, done))


def shown(estimate):
    """12.3 (10.1 to 13.0), with a sign that prints."""
    return f"{estimate.value:.1f} ({estimate.low:.1f} to {estimate.high:.1f})".replace("-", "−")


def print_pairs(folder, rounds, only):
    """The Markdown table of doc/prediction.md."""
    print(f"{datetime.date.today()}, {rounds} rounds, load at the start {os.getloadavg()[0]:.1f}\n")
    print("| program | `try` says, % | the changed program does, % | ratio | within a third |")
    print("|---|---|---|---|---|")
    for pair in made(folder, only):
        row = pair_row(pair, rounds)
        print(f"| {row.name} | {shown(row.said)} | {shown(row.done)} | {row.ratio:.2f} | {row.holds} |", flush=True)


def print_peers(command, rounds):
    """One row for each peer: what `try` says, what preloading does."""
    watch = Stopwatch(
        [("libc", command, {})] + [(p.name, command, {"LD_PRELOAD": p.path}) for p in peers.installed()]
    )
    watch.run(rounds)
    says = {r["name"]: r["saving_percent"]["value"] for r in predicted(command)["allocators"]}
    print(f"{'peer':12} {'try says':>9} {'preloading':>11}   saved of the CPU time of: {' '.join(command)}")
    for peer in peers.installed():
        print(f"{peer.name:12} {says[peer.name]:8.1f}% {watch.saved_percent(peer.name).value:10.1f}%")


def main():
    """See the top."""
    parser = argparse.ArgumentParser(description="what try says, beside what the program does")
    parser.add_argument("--pairs", metavar="FOLDER", help="where changed programs are, or will be built")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", action="append", metavar="NAME", help="with --pairs: this one")
    parser.add_argument("command", nargs="*")
    args = parser.parse_args()
    if args.pairs:
        print_pairs(args.pairs, args.rounds, args.only)
    elif args.command:
        print_peers(args.command, args.rounds)
    else:
        parser.error("give --pairs FOLDER, or -- PROGRAM ARGS")


if __name__ == "__main__":
    main()
