#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
slabs_table.py - the heap against a malloc that is an array of slabs (slabs_malloc.c): CPU time and peak RSS over the drop-in's, interleaved.

    bench/slabs_table.py --rounds 5                 # shapes of bench/micro, about five minutes
    bench/slabs_table.py --rounds 5 -- jq . big.json     # a program of yours

A ratio is the median of the rounds' own.  Not here: the shapes (micro.c), other mallocs (`quire bench micro`).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RELEASE = Path(__file__).resolve().parent.parent / "build" / "release"
LIBRARIES = {"drop-in": RELEASE / "libquire-malloc.so", "slabs": RELEASE / "bench" / "libslabs-malloc.so"}
SHAPES = (
    ["fraction", "skewed", "window", "simple", "interpreter", "server", "session", "bodies"]
    + [f"{shape} --threads 4" for shape in ("relay", "backlog", "swap", "cross", "bursts", "spawn")]
)  # fmt: skip


def run(library, words, out):
    """CPU seconds and peak bytes of one run."""
    command = [RELEASE / "bench" / "timed", "--preload", library, "--out", out, "--", *words]
    subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=True, timeout=300)
    row = json.loads(Path(out).read_text(encoding="utf-8"))
    if row["status"] != 0:
        sys.exit(f"{words}: status {row['status']} with {library}")
    return row["cpu_ns"] / 1e9, row["peak_rss_bytes"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--percent", type=int, default=60, help="of a shape's usual work")
    arguments.add_argument("program", nargs="*", help="instead of the shapes")
    chosen = arguments.parse_args()
    programs = {shape: [RELEASE / "bench" / "micro", "--workload", *shape.split(), "--percent", chosen.percent] for shape in SHAPES}
    if chosen.program:
        programs = {chosen.program[0]: chosen.program}
    print(f"load {os.getloadavg()[0]:.1f}, {chosen.rounds} rounds; slabs over the drop-in\n{'':24}{'CPU':>8}{'RSS':>8}")
    means = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in programs.items():
            seen = [{of: run(library, words, f"{folder}/row.json") for of, library in LIBRARIES.items()} for _ in range(chosen.rounds)]
            ratios = [statistics.median(row["slabs"][i] / row["drop-in"][i] for row in seen) for i in (0, 1)]
            means.append(ratios)
            print(f"{name:24}{ratios[0]:8.3f}{ratios[1]:8.3f}", flush=True)
    print(f"{'geometric mean':24}" + "".join(f"{math.exp(statistics.mean(math.log(row[i]) for row in means)):8.3f}" for i in (0, 1)))


if __name__ == "__main__":
    main()
