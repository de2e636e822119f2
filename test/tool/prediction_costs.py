# SPDX-License-Identifier: MIT
"""
prediction_costs.py - what `try`'s own instruments cost on the programs of doc/prediction.md: a plan carried out, and recording.

    steered      libc, each installed peer, the drop-in, and the drop-in with the plan that `advise -o` writes: CPU time saved, peak memory
    recording    recorded beside plain, in turn: CPU time of one over that of the other, the trace's size

Both with rounds in random order and at one pace of the CPU. Not here: whether what `try` prints is true (prediction.py).
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from statistics import median

import prediction
import prediction_programs as programs
from toolkit import BUILD, ROOT

PEAKS = 3  # runs of which the middle is a row's peak memory


def timed(job, changes):
    """A function of the CPUs for prediction.in_rounds(): CPU seconds of one run with these variables."""
    command, source, prepare = job

    def run(cpus):
        os.environ.update(changes)
        try:
            return prediction.cpu_s(command, source, prepare, None, None, cpus)
        finally:
            for name in changes:
                del os.environ[name]

    return run


def peak_mb(job, changes, folder):
    """Peak memory of the program alone: `time` forks it from a small process."""
    command, source, prepare = job
    said, peaks = folder / "peak", []
    for _ in range(PEAKS):
        if prepare:
            subprocess.run(["/bin/sh", "-c", prepare], check=True)
        words = ["/usr/bin/time", "-f", "%M", "-o", str(said), "env", *(f"{k}={v}" for k, v in changes.items()), *command]
        with open(source or os.devnull, "rb") as stdin:
            subprocess.run(words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=programs.settings(command), check=True)
        peaks.append(int(said.read_text().split()[-1]) * 1024 / 1e6)
    return median(peaks)


def planned(job, folder):
    """The plan of one recorded run, and how many of its sites are steered."""
    command, source, prepare = job
    trace, plan = folder / "a.qtr", folder / "a.plan"
    if prepare:
        subprocess.run(["/bin/sh", "-c", prepare], check=True)
    with open(source or os.devnull, "rb") as stdin:
        words = [ROOT / "quire", "record", "-f", "-o", trace, "--", *command]
        subprocess.run(words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=programs.settings(command), check=True)
    subprocess.run([ROOT / "quire", "advise", "-f", "-o", plan, trace], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return plan, sum(line.startswith("site ") for line in plan.read_text().splitlines())


def steered(name, job, rounds, folder):
    """One program's row."""
    import peers
    import sequential

    plan, sites = planned(job, folder)
    drop_in = str(BUILD / "libquire-malloc.so")
    rows = {peer.name: {"LD_PRELOAD": peer.path} for peer in peers.with_drop_in()} | {"steered": {"LD_PRELOAD": drop_in, "QUIRE_CONF": f"plan:{plan}"}}
    rows = {"libc": {}, **rows}
    times = prediction.in_rounds({row: timed(job, changes) for row, changes in rows.items()}, rounds, True)["times"]
    cells = []
    for row, changes in rows.items():
        saved = sequential.estimate([100 * (1 - after / before) for before, after in zip(times["libc"], times[row])], True)
        said = f"{1000 * median(times[row]):.0f} ms" if row == "libc" else f"{saved.value:.1f} ({saved.low:.1f} to {saved.high:.1f})"
        cells.append(f"{said}, {peak_mb(job, changes, folder):.1f} MB")
    return f"| {name} | {sites} | " + " | ".join(cells) + " |", list(rows)


def recorded(name, job, rounds, folder):
    """One program's row."""
    recorder = {"LD_PRELOAD": str(BUILD / "tools" / "libquire-record.so"), "QUIRE_RECORD": str(folder / "r.qtr")}
    plain, beside, bytes_max = timed(job, {}), timed(job, recorder), 0
    pairs = []
    for _ in range(rounds):
        before = plain(None)
        pairs.append((before, beside(None)))
        traces = list(folder.glob("r.qtr*"))
        bytes_max = max(bytes_max, sum(path.stat().st_size for path in traces))
        for path in traces:
            path.unlink()
    times = median(after / before for before, after in pairs)
    return f"| {name} | {1000 * median(before for before, _ in pairs):.0f} | {times:.2f} | {bytes_max / 1e6:.1f} |", ["program", "plain, ms", "recorded ×", "trace, MB"]


def main():
    parser = argparse.ArgumentParser(description="what a plan carried out, and recording, cost")
    parser.add_argument("what", choices=["steered", "recording"])
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tools" / "quire"))
    print(f"load at the start: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as place:
        for number, program in enumerate(p for p in programs.PROGRAMS if not args.only or programs.name_of(p) in args.only):
            row = (steered if args.what == "steered" else recorded)(programs.name_of(program), programs.ready(program, programs.FOLDER), args.rounds, pathlib.Path(place))
            if number == 0:
                print(" | ".join(row[1]))
            print(row[0], flush=True)


if __name__ == "__main__":
    main()
