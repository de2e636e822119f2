# SPDX-License-Identifier: MIT
"""
arena.py - the One Way Allocator's headline table: 256 context queries, one and eight at once.

    round: [libc, mimalloc, ..., arena] x [1 caller, 8 callers]    one process each
        -> rows -> text, regressions

Not here: the workload (bench/query.c), intervals and ratios (bench/figures.py).
"""

from statistics import median

import bench.run as bench_run
from bench.figures import above, interval_kind, ratio, spread, values, with_interval
from bench.run import LIBC

CALLERS = [1, 8]
OURS = "quire-arena"
CPU = "cpu_ns_per_query"
# For each caller: long enough to time, short enough for many rounds; and before the clock starts.
QUERIES_BY_CALLERS = {True: {1: 16, 8: 5}, False: {1: 8, 8: 3}}  # full, quick
WARM_UPS = {True: 4, False: 2}

# One Way Allocator: 256 queries over 1000 charts of 100 dimensions on 24 cores, as published.
PUBLISHED = {
    "source": "published with the One Way Allocator: 256 queries, 24 cores",
    "sequential": {"malloc_s": 322.35, "one_way_s": 310.19},
    "parallel": {
        "malloc_s": 84.72, "malloc_queries_per_s": 3.02,
        "malloc_response_s": {"min": 50.20, "avg": 68.43, "max": 84.71},
        "one_way_s": 39.35, "one_way_queries_per_s": 6.51,
        "one_way_response_s": {"min": 20.55, "avg": 34.48, "max": 39.34},
    },
}  # fmt: skip


def measure(cast, budget_s, full):
    """{"rounds", "rows"}: what --json has of this table."""
    driver = bench_run.find_driver("query")

    def one_round():
        entries = [
            ((name, callers), name, _argv(driver, name, callers, full))
            for callers in CALLERS
            for name in cast.names(OURS)
        ]
        return bench_run.sweep(cast, entries)

    samples = bench_run.rounds(one_round, budget_s, "the arena", cast.limit)
    names = cast.names(OURS)
    return {
        "rounds": len(samples),
        "rows": [row(samples, name, callers, names) for callers in CALLERS for name in names],
    }


def _argv(driver, name, callers, full):
    kind = "arena" if name == OURS else "malloc"
    words = ["--callers", callers, "--rounds", QUERIES_BY_CALLERS[full][callers]]
    words += ["--warm-ups", WARM_UPS[full], "--allocator", kind]
    return [driver, "--json", *map(str, words)]


def row(samples, name, callers, names):
    """The figures of one allocator at one number of callers, and its ratios to libc and to the best
    peer."""
    key = (name, callers)
    answers = values(samples, key, "response_ns")
    figures = {
        "allocator": name,
        "callers": callers,
        CPU: with_interval(values(samples, key, CPU)),
        "queries_per_s": with_interval(values(samples, key, "queries_per_s")),
        "response_ns": {part: median(a[part] for a in answers) for part in ("min", "avg", "max")},
        "cpu_ratio_to_libc": ratio(samples, key, (LIBC, callers), CPU),
        "throughput_ratio_to_libc": ratio(samples, key, (LIBC, callers), "queries_per_s"),
    }
    rivals = [other for other in names if other not in (LIBC, OURS)]
    if name == OURS and rivals:
        best = min(rivals, key=lambda other: median(values(samples, (other, callers), CPU)))
        figures["best_peer"] = best
        figures["cpu_ratio_to_best_peer"] = ratio(samples, key, (best, callers), CPU)
    return figures


def regressions(result, baseline):
    """[sentence] for each ratio of the arena's that lies wholly above the baseline's interval."""
    before = {(r["allocator"], r["callers"]): r for r in baseline["rows"]}
    found = []
    for now in result["rows"]:
        old = before.get((now["allocator"], now["callers"]))
        if now["allocator"] != OURS or old is None:
            continue
        if above(now["cpu_ratio_to_libc"], old["cpu_ratio_to_libc"]):
            a, b = now["cpu_ratio_to_libc"]["median"], old["cpu_ratio_to_libc"]["median"]
            found.append(f"{now['callers']} callers: {a:.3f} of libc's CPU, it was {b:.3f}")
    return found


def text(result):
    """The table and what was published, for people."""
    head = (
        "Arena (One Way Allocator): a query over 1000 charts of 100 dimensions, 500,000 objects,"
        f" all touched\nmedians of {result['rounds']} interleaved rounds,"
        f" [{interval_kind(result['rounds'])}]; one process a figure, the malloc in it checked"
    )
    return "\n\n".join([head, _table(result["rows"]), _published(result)])


def _table(rows):
    lines = [
        f"{'':12} {'callers':>7}  {'CPU ms a query':>24} {'of libc':>8} {'queries/s':>10} "
        f" {'response ms min/avg/max':>24}"
    ]
    for r in rows:
        ms = {part: ns / 1e6 for part, ns in r[CPU].items()}
        response = " / ".join(f"{r['response_ns'][k] / 1e6:.1f}" for k in ("min", "avg", "max"))
        share, speed = r["cpu_ratio_to_libc"]["median"], r["queries_per_s"]["median"]
        lines.append(
            f"{r['allocator']:12} {r['callers']:7}  {spread(ms):>24} {share:8.3f} {speed:10.1f} "
            f" {response:>24}"
        )
    for r in rows:
        if "best_peer" in r:
            lines.append(
                f"{r['callers']} at a time: the arena takes"
                f" {spread(r['cpu_ratio_to_best_peer'], 3)} of {r['best_peer']}'s CPU, the best"
                " peer here"
            )
    return "\n".join(lines)


def _published(result):
    ours = {r["callers"]: r for r in result["rows"] if r["allocator"] == OURS}
    lines = [PUBLISHED["source"], f"{'':12} {'malloc':>10} {'One Way':>10} {'times':>6}   here"]
    most = max(r["callers"] for r in result["rows"])
    for kind, callers in (("sequential", 1), ("parallel", most)):
        before, after = PUBLISHED[kind]["malloc_s"], PUBLISHED[kind]["one_way_s"]
        times = ours[callers]["throughput_ratio_to_libc"]["median"]
        here = f"{times:.2f} times libc's throughput"
        here += f" ({callers} at a time)"
        lines.append(f"{kind:12} {before:8.2f} s {after:8.2f} s {before / after:6.2f}   {here}")
    for key, label in (("malloc", "malloc"), ("one_way", "One Way")):
        answer = PUBLISHED["parallel"][f"{key}_response_s"]
        speed = PUBLISHED["parallel"][f"{key}_queries_per_s"]
        spans = " / ".join(f"{answer[part]:.2f}" for part in ("min", "avg", "max"))
        lines.append(f"{'':12} {label}: {speed:.2f} queries/s, response {spans} s")
    return "\n".join(lines)
