# SPDX-License-Identifier: MIT
"""
prediction.py - is the prediction true? What `try` says beside what the program does.

    python3 test/tool/prediction.py --pairs FOLDER       the advised mix: a program with malloc, and changed as advised (prediction_pairs.py)
    python3 test/tool/prediction.py -- jq . big.json     the peers: preloaded

    record, plan, choose the mix as `try` does; then in each round, one beside the other:
    replays:  libc  null  mix  mix-null      the program      the changed program

so that a machine that drifts or is busy meets all of them alike. The prediction comes from `try`'s own code (mix, measure, advice).
Not a test: it takes minutes and a quiet machine. doc/prediction.md shows its output.
"""

import argparse
import datetime
import os
import sys
import tempfile
from collections import namedtuple

from prediction_pairs import made

import advise.advice as advice
import launch
import measure
import advise.mix as mix
import peers
import target as targets
import tracefile

ROUNDS = 15
SMALL_PERCENT = 3.0

Row = namedtuple("Row", "name said done ratio holds")


def recorded(command, source, folder):
    """One recorded run of a command, analysed."""
    path = f"{folder}/t.qtr"
    ran = launch.hidden(targets.resolve(command), source, launch.environment(trace=path))
    if ran.status != 0:
        sys.exit(f"{command[0]} failed: {ran.stderr}")
    return tracefile.analyse(path, folder)


def input_of(source):
    """A standard input: a file's, or none."""
    found = launch.Input()
    found.path = source or os.devnull
    return found


class Stopwatch:
    """CPU seconds of some commands, run in turns; `variants`: (name, command, environment)."""

    def __init__(self, variants, source=None):
        self.variants = variants
        self.source = input_of(source)
        self.times = {name: [] for name, _, _ in variants}

    def run(self, rounds):
        """So many rounds; every other one backwards."""
        for _ in range(rounds):
            backwards = len(self.times[self.variants[0][0]]) % 2
            for name, command, env in self.variants[:: -1 if backwards else 1]:
                program = targets.resolve(command)
                ran = launch.hidden(program, self.source, {**os.environ, **env})
                if ran.status != 0:
                    sys.exit(f"{name} failed: {ran.stderr}")
                self.times[name].append(ran.cpu_s)

    def saved_percent(self, name):
        """What a variant saves of the first one's CPU time, each round for itself: a slow minute is slow for both."""
        base = self.times[self.variants[0][0]]
        return measure.estimate([100 * (1 - b / a) for a, b in zip(base, self.times[name])])


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
    variants = [("malloc", pair.before), ("advised", pair.after)]
    watch = Stopwatch([(name, command + pair.arguments, {}) for name, command in variants], pair.source)
    with tempfile.TemporaryDirectory() as folder:
        recording = recorded(pair.before + pair.arguments, watch.source, folder)
        chosen = measure.backends([], mix.choose(recording, folder).path)
        series = measure.Series(chosen)
        for _ in range(rounds):
            measure.run_round(recording.program, chosen, series)
            watch.run(1)
    said = advice.Outcome(series, watch.times["malloc"]).saving_percent
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
    """One row for each peer: what the replay says, what preloading does."""
    found = peers.installed()
    watch = Stopwatch([("libc", command, {})] + [(p.name, command, {"LD_PRELOAD": p.path}) for p in found])
    with tempfile.TemporaryDirectory() as folder:
        recording = recorded(command, watch.source, folder)
        active = measure.backends(found, None)
        series = measure.Series(active)
        for _ in range(rounds):
            active = measure.run_round(recording.program, active, series)
            watch.run(1)
    outcome = advice.Outcome(series, watch.times["libc"])
    print(f"{'peer':12} {'try says':>9} {'preloading':>11}   saved of the CPU time of: {' '.join(command)}")
    for peer in found:
        says, does = outcome.saving_with(peer.name).value, watch.saved_percent(peer.name).value
        print(f"{peer.name:12} {says:8.1f}% {does:10.1f}%")


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
