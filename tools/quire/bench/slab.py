# SPDX-License-Identifier: MIT
"""
slab.py - the Array Allocator's headline: its stress test over threads, and what memory costs.

    speed    round: [none, libc, mimalloc, ..., slab] x [1, 2, 4, 8, 16 threads]
    memory   round: [libc, mimalloc, ..., slab] x [full, burst]         burst also without allocator
        -> rows, curve -> bench/slab_text.py, regressions

Not here: the workloads (bench/slab_*.c), intervals and ratios (bench/figures.py), words
(bench/slab_text.py).
"""

from statistics import median

import bench.run as bench_run
from bench.figures import above, below, ratio, values, with_interval
from bench.run import LIBC

OURS, NONE, TOUCH = "quire-slab", "none", "touch"
THREADS = [1, 2, 4, 8, 16]
SPEED = "m_pairs_per_cpu_s"
CURVE_BAR = 0.9
STRESS_ROUNDS, STRESS_ROUNDS_QUICK = 400, 160  # over all threads: 400 are a tenth of a second of the faster allocators
FULL_COUNT = 1_000_000
BURST_COUNT_QUICK, BURST_COUNT = 50_000, 1_000_000
BURST_ELEMENT_BYTES = 1024
MEMORY_PART = 0.3  # of the time
OVERHEAD_NOISE_BYTES = 0.1

FULL_FIELDS = ["overhead_bytes_per_element", "held_freed_bytes", "held_trimmed_bytes"]
BURST_FIELDS = [
    "cold_cpu_ms", "warm_cpu_ms", "free_cpu_ms", "held_freed_mib", "held_trimmed_mib",
]  # fmt: skip

BURST_RATIOS = {"cold_cpu_ms": "cold", "warm_cpu_ms": "warm"}
HELD_DOUBT_BYTES = 4 << 20

# Array Allocator: 10,000 elements a thread on 24 cores, all threads together, as published.
PUBLISHED = {
    "source": "published with the Array Allocator: 24 cores, all threads together, a second of"
    " wall time",
    "m_pairs_per_s": {"1": 12.3, "2": 18.3, "4": 21.0, "8": 16.0, "16": 13.3},
}


def measure(cast, budget_s, full):
    """What --json has under "array_allocator"."""
    driver = bench_run.find_driver("slab")
    stress = STRESS_ROUNDS if full else STRESS_ROUNDS_QUICK
    speed = _speed_rounds(cast, driver, budget_s * (1 - MEMORY_PART), stress)
    burst_count = burst_count_of(full)
    memory = _memory_rounds(cast, driver, burst_count, budget_s * MEMORY_PART)
    names = cast.names(OURS)
    return {
        "published": PUBLISHED,
        "rounds": len(speed),
        "rows": [
            speed_row(speed, name, threads, names) for name in [NONE, *names] for threads in THREADS
        ],
        "curve": curve(speed),
        "memory": {
            "rounds": len(memory),
            "full_count": FULL_COUNT,
            "full": [memory_row(memory, "full", name, FULL_FIELDS) for name in names],
            "burst_count": burst_count,
            "burst": [memory_row(memory, "burst", n, BURST_FIELDS) for n in [TOUCH, *names]],
        },
    }


def _speed_rounds(cast, driver, budget_s, stress):
    def one_round():
        entries = [
            (
                (name, threads),
                name,
                _argv(driver, "stress", name, threads, rounds=max(stress // threads, 1)),
            )
            for threads in THREADS
            for name in [NONE, *cast.names(OURS)]
        ]
        return bench_run.sweep(cast, entries)

    return bench_run.rounds(one_round, budget_s, "the slab", cast.limit)


def _memory_rounds(cast, driver, burst_count, budget_s):
    def one_round():
        names = cast.names(OURS)
        entries = [
            (("full", n), n, _argv(driver, "full", n, 1, count=FULL_COUNT)) for n in names
        ] + [
            (("burst", n), n, _argv(driver, "burst", n, 1, count=burst_count))
            for n in [TOUCH, *names]
        ]
        return bench_run.sweep(cast, entries)

    return bench_run.rounds(one_round, budget_s, "the slab's memory", cast.limit)


def _argv(driver, workload, name, threads, **numbers):
    kind = {OURS: "slab", NONE: NONE, TOUCH: TOUCH}.get(name, "malloc")
    argv = [driver, "--json", "--workload", workload, "--allocator", kind, "--threads", threads]
    for option, number in numbers.items():
        argv += [f"--{option}", number]
    return [str(word) for word in argv]


def burst_count_of(full):
    """As many as a quarter of the free memory has room for."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free_kib = {line.split(":")[0]: int(line.split()[1]) for line in file}["MemAvailable"]
    except (OSError, KeyError, ValueError):
        free_kib = 0
    fits = max(free_kib * 1024 // 4 // BURST_ELEMENT_BYTES, 1000)
    return min(BURST_COUNT if full else BURST_COUNT_QUICK, fits)


def speed_row(samples, name, threads, names):
    """One allocator at one number of threads, and its ratios to libc and to the best peer."""
    key = (name, threads)
    figures = {
        "allocator": name,
        "threads": threads,
        SPEED: with_interval(values(samples, key, SPEED)),
        "ratio_to_libc": ratio(samples, key, (LIBC, threads), SPEED),
    }
    rivals = [other for other in names if other not in (LIBC, OURS)]
    if name == OURS and rivals:
        best = max(rivals, key=lambda other: median(values(samples, (other, threads), SPEED)))
        figures["best_peer"] = best
        figures["ratio_to_best_peer"] = ratio(samples, key, (best, threads), SPEED)
    return figures


def curve(samples):
    """Whether the slab's figure falls from the fewest to the most threads."""
    first, last = THREADS[0], THREADS[-1]
    share = ratio(samples, (OURS, last), (OURS, first), SPEED)
    return {
        "threads_first": first,
        "threads_last": last,
        "ratio": share,
        "bar": CURVE_BAR,
        "falls": share["median"] < CURVE_BAR,
    }


def memory_row(samples, workload, name, fields):
    key = (workload, name)
    figures = {
        "allocator": name,
        **{field: with_interval(values(samples, key, field)) for field in fields},
    }
    if workload == "burst" and name != TOUCH:
        for field in BURST_RATIOS:
            figures[f"{field}_ratio_to_libc"] = ratio(samples, key, (workload, LIBC), field)
    return figures


def regressions(result, baseline):
    """[sentence] for each figure of the slab's that lies wholly on the worse side of the baseline's
    interval; nothing when the baseline is from before there was a slab."""
    now, old = result.get("array_allocator"), baseline.get("array_allocator")
    if not now or not old:
        return []
    before = {(r["allocator"], r["threads"]): r["ratio_to_libc"] for r in old["rows"]}
    found = []
    for row in now["rows"]:
        was, share = before.get((row["allocator"], row["threads"])), row["ratio_to_libc"]
        if row["allocator"] == OURS and was and below(share, was):
            found.append(
                f"slab, threads {row['threads']}: {share['median']:.2f} times libc's pairs, it was"
                f" {was['median']:.2f}"
            )
    share, was = _overhead(now), _overhead(old)
    if share and was and share["low"] > was["high"] + OVERHEAD_NOISE_BYTES:
        found.append(
            f"slab: {share['median']:.2f} bytes an element above its own, it was"
            f" {was['median']:.2f}"
        )
    return found + _slower_burst(now, old)


def _slower_burst(now, old):
    """A burst's times relative to libc's; and what stays when all was freed and given back."""
    mine, before = (
        {r["allocator"]: r for r in part["memory"]["burst"]}.get(OURS, {}) for part in (now, old)
    )
    found = []
    for field, words in BURST_RATIOS.items():
        share, was = (row.get(f"{field}_ratio_to_libc") for row in (mine, before))
        if share and was and above(share, was):
            found.append(
                f"slab, a burst, {words}: {share['median']:.2f} of libc's time, it was {was['median']:.2f}"
            )
    held, was = (row.get("held_trimmed_mib") for row in (mine, before))
    if held and was and (held["low"] - was["high"]) * (1 << 20) > HELD_DOUBT_BYTES:
        found.append(
            f"slab, a burst: {held['median']:.1f} MiB stay, it was {was['median']:.1f}"
        )
    return found


def _overhead(table):
    rows = [r for r in table["memory"]["full"] if r["allocator"] == OURS]
    return rows[0]["overhead_bytes_per_element"] if rows else None
