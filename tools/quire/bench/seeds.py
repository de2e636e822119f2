# SPDX-License-Identifier: MIT
"""
seeds.py - `quire bench seeds`: the headline tables of the systems Quire replaces, part after part.

    PARTS: arena, slab, per-CPU, heap, the smaller tables        each measured by its own module
        -> one result, text, regressions

When time is up the parts that have not one whole round are left out, and named: always the last ones.
Not here: the parts (bench/arena.py, bench/slab.py, bench/percpu.py, bench/heap.py, bench/more.py).
"""

import time
from collections import namedtuple

import bench.arena as bench_arena
import bench.heap as bench_heap
import bench.more as bench_more
import bench.more_text as bench_more_text
import bench.percpu as bench_percpu
import bench.percpu_text as bench_percpu_text
import bench.run as bench_run
import bench.slab as bench_slab
import bench.slab_text as bench_slab_text
import peers
from bench.limit import OutOfTime

# `key`: where it stands in the result, the arena's at its top level; `share`: of the time.
Part = namedtuple("Part", "name key share module text")

PARTS = [
    Part("arena", None, 0.16, bench_arena, bench_arena.text),
    Part("slab", "array_allocator", 0.3, bench_slab, bench_slab_text.text),
    Part("per-CPU allocator", "percpu", 0.25, bench_percpu, bench_percpu_text.text),
    Part("heap", "heap", 0.15, bench_heap, bench_heap.text),
    Part("table of the smaller ones", "more", 0.14, bench_more, lambda found: "The smaller tables: " + bench_more_text.text(found)),
]  # fmt: skip


def measure(budget_s, full, limit):
    """What --json has of all parts; "not_measured" names those for which there was no time."""
    for driver in ("query", "slab", "percpu", "micro", "arena"):
        bench_run.find_driver(driver)  # before a minute is spent
    cast = bench_run.Cast(peers.installed(), limit)
    began, found, left_out, rest = time.monotonic(), {}, [], 1.0
    for part in PARTS:
        limit.plan(budget_s * rest)
        rest -= part.share
        try:
            found[part.name] = part.module.measure(cast, budget_s * part.share, full)
        except OutOfTime:
            left_out.append(part.name)
    arena = found.get("arena", {"rounds": 0, "rows": []})
    return {
        "published": bench_arena.PUBLISHED,
        "rounds": arena["rounds"],
        "seconds": round(time.monotonic() - began, 1),
        "refused": cast.refused,
        "not_measured": left_out,
        "rows": arena["rows"],
        **{part.key: found[part.name] for part in PARTS[1:] if part.name in found},
    }


def of(result, part):
    """A part's own figures within a result, or None."""
    return result.get(part.key) if part.key else (result if result["rows"] else None)


def rounds_of(found):
    """The fewest that any figure of a part is made of."""
    return min(found["rounds"], found.get("memory", found).get("rounds", found["rounds"]))


def texts(result):
    """What was measured, for people."""
    return [part.text(of(result, part)) for part in PARTS if of(result, part)]


def compared(result, baseline):
    """(parts that both have of enough rounds, [why another is not compared])."""
    both, others = [], []
    for part in PARTS:
        now, old = of(result, part), of(baseline, part)
        if now and old and min(rounds_of(now), rounds_of(old)) >= bench_run.ROUNDS_MIN:
            both.append(part)
        elif now and old:
            others.append(f"fewer than {bench_run.ROUNDS_MIN} rounds of the {part.name}: it is not compared")
        elif now and part.name in baseline.get("not_measured", []):
            others.append(f"its run had no time for the {part.name}: that is not compared")
        elif now:
            others.append(f"it is from before there was a {part.name}: that is not compared")
        elif old:
            others.append(f"there was no time for the {part.name} now: it is not compared")
    return both, others


def regressions(result, baseline):
    """[sentence]: what lies wholly on the worse side of the baseline's intervals."""
    parts, _ = compared(result, baseline)
    return [sentence for part in parts for sentence in part.module.regressions(result, baseline)]
