#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
shapes_table.py - bench/shapes with the slab and with every malloc, in turn: M allocations a CPU-second, and the slab over the best of them.

    bench/shapes_table.py --rounds 5            # all columns, about three minutes
    bench/shapes_table.py ring local            # some shapes only
    bench/shapes_table.py --heap                # the heap instead of the slab: the drop-in, preloaded
    bench/shapes_table.py --secure              # the drop-in with secure:1, over libc's malloc
    bench/shapes_table.py --threads 1,4,16      # each shape with so many threads, 64 B

Each figure is the median of the rounds; a ratio is the median of the rounds' own ratios, the slab's figure over the best malloc's of the same round.
Not here: the shapes (shapes.c), other tables (`quire bench`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SHAPES = Path(__file__).resolve().parent.parent / "build" / "release" / "bench" / "shapes"
DROP_IN = str(SHAPES.parent.parent / "libquire-malloc.so")
OURS = {"slab": {}, "heap": {"LD_PRELOAD": DROP_IN}, "secure": {"LD_PRELOAD": DROP_IN, "QUIRE_CONF": "secure:1"}}
BEST = {"mimalloc": {"LD_PRELOAD": "libmimalloc.so.2"}, "tcmalloc": {"LD_PRELOAD": "libtcmalloc_minimal.so.4"}, "jemalloc": {"LD_PRELOAD": "libjemalloc.so.2"}}
PEERS = {"slab": BEST, "heap": BEST, "secure": {"libc": {}}}
#          shape, threads, bytes
COLUMNS = [
    ("local", 1, 64), ("local", 8, 64), ("local", 8, 256), ("local", 1, 16), ("ring", 2, 64), ("ring", 4, 64), ("replace", 1, 64), ("replace", 4, 64),
    ("produce", 2, 64), ("produce", 4, 64), ("produce", 8, 64), ("handover", 4, 64), ("handover", 8, 64),
]  # fmt: skip


def figure(allocator, shape, threads, size, cpu_ms):
    """One run; None where the malloc that was asked for is not the one that served."""
    words = [SHAPES, "--json", "--shape", shape, "--threads", threads, "--bytes", size, "--cpu-ms", cpu_ms]
    environment = os.environ | (OURS | BEST | PEERS["secure"])[allocator]
    if allocator != "slab":
        words += ["--allocator", "malloc"]
    done = subprocess.run([str(w) for w in words], env=environment, capture_output=True, text=True, timeout=60, check=True)
    row = json.loads(done.stdout)
    return row["m_allocations_per_cpu_s"] if row["allocator"] in (allocator, "quire-slab", "libquire-malloc", "quire") else None


def column(ours, shape, threads, size, rounds, cpu_ms):
    """By allocator its figures, one a round."""
    seen = {}
    for _ in range(rounds):
        for allocator in [ours, *PEERS[ours]]:
            seen.setdefault(allocator, []).append(figure(allocator, shape, threads, size, cpu_ms))
    return {allocator: figures for allocator, figures in seen.items() if None not in figures}


def columns_of(threads):
    """COLUMNS, or its shapes with each of `threads`, as typed, that the shape can have: all but two want more than one, `produce` pairs."""
    if not threads:
        return COLUMNS
    shapes = dict.fromkeys(shape for shape, _, _ in COLUMNS)
    counts = [int(word) for word in threads.split(",")]
    return [(shape, n, 64) for shape in shapes for n in counts if (n > 1 or shape in ("local", "replace")) and (n % 2 == 0 or shape != "produce")]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    arguments.add_argument("shapes", nargs="*", help="of local, replace, ring, produce, handover; none: all")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--cpu-ms", type=int, default=300, help="CPU time of one run")
    arguments.add_argument("--heap", dest="ours", action="store_const", const="heap", default="slab", help="the drop-in instead of the slab")
    arguments.add_argument("--secure", dest="ours", action="store_const", const="secure", help="the drop-in with secure:1, and libc's malloc beside it")
    arguments.add_argument("--threads", help="each shape with so many threads instead of the columns above: 1,4,16")
    chosen = arguments.parse_args()
    if not SHAPES.exists():
        sys.exit(f"{SHAPES} is missing: cmake --preset release && cmake --build --preset release")
    print(f"load {os.getloadavg()[0]:.1f}, {chosen.rounds} rounds")
    print(f"{'':22}" + "".join(f"{name:>10}" for name in [chosen.ours, *PEERS[chosen.ours]]) + f"  {chosen.ours} / best")
    for shape, threads, size in columns_of(chosen.threads):
        if chosen.shapes and shape not in chosen.shapes:
            continue
        seen = column(chosen.ours, shape, threads, size, chosen.rounds, chosen.cpu_ms)
        others = [figures for allocator, figures in seen.items() if allocator != chosen.ours]
        ratio = statistics.median(mine / max(of) for mine, *of in zip(seen[chosen.ours], *others)) if others else float("nan")
        cells = "".join(f"{statistics.median(seen[name]):10.0f}" if name in seen else f"{'-':>10}" for name in [chosen.ours, *PEERS[chosen.ours]])
        print(f"{shape:9} x{threads} {size:4} B   {cells}  {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
