# SPDX-License-Identifier: MIT
"""
percpu.py - both tables of the kernel's per-CPU allocators, and how cost grows.

    round: [libc, percpu] x [4 ... 1024 bytes]               objects
           [libc, percpu]                                    grow
           [percpu]                                          aligned, add
    once:  [area map, mimalloc, ...] x [4 ... 1024 bytes]    objects, in the first round
           [area map]                                        aligned, which is slow
        -> rows, growth -> bench/percpu_text.py, regressions

Not here: the workloads (bench/percpu_*.c, area_map.c), intervals and ratios (bench/figures.py),
words (bench/percpu_text.py).
"""

import time
from statistics import median

import bench.run as bench_run
import bench.slab as bench_slab
from bench.figures import above, ratio, values, with_interval
from bench.run import LIBC

OURS, AREA_MAP = "quire-percpu", "area-map"
SIZES = [4, 16, 64, 128, 1024]
COUNT = 1_000_000
LARGE_BYTES = 1024  # of these there are as many as the slab's burst has: memory is bounded
ORDERS = ["free_in_order_ms", "free_alternating_ms", "free_reverse_ms", "free_random_ms"]
AREA_LIMIT_MS, AREA_LIMIT_FULL_MS = 500, 5000
AREA_COUNT_QUICK, AREA_COUNT = 20_000, 100_000
GROW_COUNT_QUICK, GROW_COUNT = 1_000_000, 10_000_000
GROWTH_BAR = 1.25
ADD_COUNT, ADD_THREADS = 8_000_000, 2
COUNTERS = ["quire-percpu", "thread-local", "shared-atomic", "mutex"]

# Linux, a million objects in the worst order of freeing, milliseconds; as published with the bitmap
# allocator.
PUBLISHED = {
    "source": "published with the kernel's bitmap allocator",
    "object_bytes": SIZES,
    "area_map_alloc_ms": [335, 485, 445, 505, 3385],
    "area_map_free_ms": [4960, 1150, 280, 177, 140],
    "bitmap_alloc_ms": [725, 760, 855, 910, 3770],
    "bitmap_free_ms": [70, 70, 80, 90, 260],
    "aligned_area_map_s": 52 * 60,
    "aligned_bitmap_s": 14,
}


def measure(cast, budget_s, full):
    """What --json has under "percpu"."""
    driver = bench_run.find_driver("percpu")
    began = time.monotonic()
    limit_ms = AREA_LIMIT_FULL_MS if full else AREA_LIMIT_MS
    slow = _aligned(cast, driver, AREA_MAP, ("--limit-ms", limit_ms))
    others = _others(cast, driver, full)
    budget_s -= time.monotonic() - began
    samples = bench_run.rounds(lambda: _round(cast, driver, full), budget_s, "per-CPU", cast.limit)
    samples[0].update(others)
    names = [AREA_MAP, *cast.names(OURS)]
    return {
        "published": PUBLISHED,
        "rounds": len(samples),
        "rows": [row(samples, name, size) for name in names for size in SIZES],
        "aligned": aligned(samples, slow),
        "growth": growth(samples),
        "add": {
            "threads": ADD_THREADS,
            **{n: with_interval(values(samples, ("add", n), "ns_per_add")) for n in COUNTERS},
            "ratio_to_local": ratio(samples, ("add", OURS), ("add", "thread-local"), "ns_per_add"),
        },
    }


def _others(cast, driver, full):
    """{key: figure} of those who are measured once: they are context, no ratio is taken to them."""
    area_count = AREA_COUNT if full else AREA_COUNT_QUICK
    figures = {}
    for name in [AREA_MAP, *cast.names()]:
        if name != LIBC:
            figures.update(_objects(cast, driver, [name], full, "--area-count", area_count))
    return figures


def _objects(cast, driver, names, full, *options):
    """{key: figure} of a million objects of each size; a smaller number is scaled to a million."""
    entries = [
        (
            ("objects", name, size),
            name,
            _argv(
                driver, "objects", name, "--object", size, "--count", _count(size, full), *options
            ),
        )
        for size in SIZES
        for name in names
    ]
    figures = bench_run.sweep(cast, entries)
    for figure in figures.values():
        scale = COUNT / figure["count"]
        for field in ("alloc_ms", *ORDERS):
            figure[field] *= scale
    return figures


def _count(size, full):
    return bench_slab.burst_count_of(full) if size == LARGE_BYTES else COUNT


def _round(cast, driver, full):
    """{key: figure} of ours and libc, once."""
    figures = _objects(cast, driver, [LIBC, OURS], full)
    figures[("aligned", OURS)] = _aligned(cast, driver, OURS, ())
    for name in (OURS, LIBC):
        argv = _argv(driver, "grow", name, "--count", GROW_COUNT if full else GROW_COUNT_QUICK)
        for figure in bench_run.process_rows(cast, name, argv):
            figure["pair_ns"] = figure["alloc_ns"] + figure["free_in_order_ns"]
            figures[("grow", name, figure["cpus"], figure["count"])] = figure
    argv = [driver, "--json", "--workload", "add", "--threads", ADD_THREADS, "--count", ADD_COUNT]
    for figure in bench_run.process_rows(cast, OURS, [*map(str, argv), "--rounds", "1"]):
        figures.setdefault(("add", figure["allocator"]), figure)  # without rseq: last, or all
    return figures


def _argv(driver, workload, name, *options):
    kind = {OURS: "percpu", AREA_MAP: AREA_MAP}.get(name, "malloc")
    argv = [driver, "--json", "--workload", workload, "--allocator", kind, "--rounds", 1, *options]
    return [str(word) for word in argv]


def _aligned(cast, driver, name, options):
    """The contrived case: 4-byte objects at multiples of 8."""
    argv = _argv(driver, "aligned", name, "--object", 4, *options)
    rows = bench_run.process_rows(cast, name, argv)
    return next(r for r in rows if r["align_bytes"] == 8)


def row(samples, name, size):
    """One allocator at one size, in the order of freeing that is its worst, and its ratios to
    libc."""
    key, libc = ("objects", name, size), ("objects", LIBC, size)
    for sample in samples:
        for one in (key, libc):
            if one in sample:
                sample[one]["free_worst_ms"] = sample[one][_worst(samples, one)]
    return {
        "allocator": name,
        "object_bytes": size,
        "count": COUNT,
        "measured": values(samples, key, "measured")[0],
        "worst_order": _worst(samples, key).removeprefix("free_").removesuffix("_ms"),
        "alloc_ms": with_interval(values(samples, key, "alloc_ms")),
        "free_worst_ms": with_interval(values(samples, key, "free_worst_ms")),
        "alloc_ratio_to_libc": ratio(samples, key, libc, "alloc_ms"),
        "free_ratio_to_libc": ratio(samples, key, libc, "free_worst_ms"),
    }


def _worst(samples, key):
    return max(ORDERS, key=lambda order: median(values(samples, key, order)))


def aligned(samples, slow):
    key = ("aligned", OURS)
    return {
        "count": COUNT,
        "area_map_measured": slow["measured"],
        "area_map_ms": slow["alloc_ms"],
        "area_map_projected_ms": slow["projected_ms"],
        "alloc_ms": with_interval(values(samples, key, "alloc_ms")),
        "over_plain": with_interval(values(samples, key, "over_plain")),
    }


def growth(samples):
    """Nanoseconds of an allocation and a free over objects and CPUs, and whether they grow."""
    keys = sorted((k for k in samples[0] if k[0] == "grow"), key=lambda k: (k[1] == LIBC, k[2:]))
    ours = [key for key in keys if key[1] == OURS]
    first, last = (min(ours, key=lambda k: k[2:]), max(ours, key=lambda k: k[2:]))
    share = ratio(samples, last, first, "pair_ns")
    return {
        "rows": [
            {
                "allocator": name,
                "cpus": cpus,
                "count": count,
                "pair_ns": with_interval(values(samples, ("grow", name, cpus, count), "pair_ns")),
                "free_random_ns": with_interval(
                    values(samples, ("grow", name, cpus, count), "free_random_ns")
                ),
            }
            for _, name, cpus, count in keys
        ],
        "first": {"cpus": first[2], "count": first[3]},
        "last": {"cpus": last[2], "count": last[3]},
        "ratio": share,
        "bar": GROWTH_BAR,
        "grows": share["median"] > GROWTH_BAR,
    }


def regressions(result, baseline):
    """[sentence] for each ratio to libc that lies wholly above the baseline's interval; nothing
    when the baseline is from before there was this table."""
    now, old = result.get("percpu"), baseline.get("percpu")
    if not now or not old:
        return []
    before = {(r["allocator"], r["object_bytes"]): r for r in old["rows"]}
    found = []
    for line in now["rows"]:
        was = before.get((line["allocator"], line["object_bytes"]))
        if line["allocator"] != OURS or not was:
            continue
        for field, what in (("alloc_ratio_to_libc", "allocate"), ("free_ratio_to_libc", "free")):
            if above(line[field], was[field]):
                found.append(
                    f"per-CPU objects of {line['object_bytes']} bytes: to {what} them takes"
                    f" {line[field]['median']:.2f} of libc's time, it was"
                    f" {was[field]['median']:.2f}"
                )
    return found + _slower_elsewhere(now, old)


def _slower_elsewhere(now, old):
    """The same of the contrived alignment, of growth and of counters: each a ratio of ours to ours, or to a thread's own word."""
    places = (
        ("aligned", "over_plain", "at multiples of 8, times as long as at multiples of 4"),
        ("growth", "ratio", "most objects and CPUs, times as long a call as the fewest"),
        ("add", "ratio_to_local", "adding to a counter, times a thread's own word"),
    )
    return [
        f"per-CPU, {words}: {share['median']:.2f}, it was {was['median']:.2f}"
        for part, field, words in places
        for share, was in [(now[part].get(field), old[part].get(field))]
        if share and was and above(share, was)
    ]
