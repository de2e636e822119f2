# SPDX-License-Identifier: MIT
"""
prediction.py - how near the replay comes to the truth: what `try` says a peer saves, beside what preloading it saves.

    python3 test/tool/prediction.py -- jq . big.json

Not a test: it takes a minute and a quiet machine.  doc/advice.md shows its output.
"""

import json
import os
import statistics
import sys
import tempfile

from toolkit import quire

import launch
import peers
import target as targets

ROUNDS = 11


def actual(command):
    """CPU seconds of the command under libc and under each preloaded peer, medians of interleaved runs."""
    program, source = targets.resolve(command), launch.Input()
    times = {name: [] for name in ["libc"] + [p.name for p in peers.installed()]}
    for _ in range(ROUNDS):
        for name, library in [("libc", None)] + [(p.name, p.path) for p in peers.installed()]:
            env = launch.environment()
            if library:
                env["LD_PRELOAD"] = library
            times[name].append(launch.hidden(program, source, env).cpu_s)
    return {name: statistics.median(values) for name, values in times.items()}


def predicted(command):
    """Percent of CPU time that each peer saves, as `try` says."""
    with tempfile.TemporaryDirectory() as folder:
        done = quire(os.getcwd(), "try", "--json", "--no-report", "-o", f"{folder}/t.qtr", "--", *command)
        document = json.loads(done.stdout)
    return {row["name"]: row["saving_percent"]["value"] for row in document["allocators"]}


def main():
    """Prints one row for each peer."""
    command = sys.argv[2:] if sys.argv[1] == "--" else sys.argv[1:]
    says, does = predicted(command), actual(command)
    print(
        f"{'peer':12} {'try says':>9} {'preloading':>11}   saved of the CPU time of: {' '.join(command)}"
    )
    for peer in peers.installed():
        saved = 100 * (1 - does[peer.name] / does["libc"])
        print(f"{peer.name:12} {says[peer.name]:8.1f}% {saved:10.1f}%")


if __name__ == "__main__":
    main()
