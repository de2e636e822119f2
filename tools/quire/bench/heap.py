# SPDX-License-Identifier: MIT
"""
heap.py - the BiBOP allocator's headline: an interpreter's requests a second, and its memory after each phase.

    round: [libc, mimalloc, ..., libquire-malloc] x bench/micro --workload session, interpreter, sweeps
        -> rows -> text, regressions

Not here: the workloads (bench/micro_session.c, micro_interpreter.c), ratios (bench/mallocs.py).
"""

import bench.mallocs as bench_mallocs
import bench.run as bench_run
from bench.figures import below, interval_kind, ratio, spread, values, with_interval
from bench.mallocs import CPU, MIB, OURS, middle, short
from bench.run import LIBC

SESSION, TRACES = "session", ("interpreter", "sweeps")
REQUESTS = "requests_per_cpu_s"
PHASES = ["load_bytes", "libraries_bytes", "test_bytes", "given_back_bytes"]
BAR_TIMES = 2.0
MEMORY_DOUBT = (1.1, 2 * MIB)  # times, bytes
TRACE_PERCENT_QUICK = "50"

# BiBOP: 100 requests, 10 at once, as published; and the same experiment built again on a system of today.
PUBLISHED = {
    "source": "published with BiBOP: ab -n 100 -c 10; malloc did about half the requests",
    "rows": [
        {"allocator": "malloc", "requests_per_s": None, "memory_mb": [41, 170, 283]},
        {"allocator": "BiBOP", "requests_per_s": 18.93, "memory_mb": [37, 150, 253]},
    ],
    "again": "built again here, memory only (its speed-up did not come back: 10 to 20 % slower)",
    "again_rows": [
        {"allocator": "malloc", "memory_mb": [42, 148, 259]},
        {"allocator": "BiBOP", "memory_mb": [38, 127, 228]},
    ],
}


def measure(others, budget_s, full):
    """What --json has under "heap"; its cast is its own: the drop-in is a malloc like its peers."""
    cast = bench_mallocs.cast(limit=others.limit)
    cast.refused.update(others.refused)
    driver = bench_run.find_driver("micro")

    def one_round():
        entries = [
            ((line, name), name, [driver, "--json", "--workload", line, *shorter(line, full)])
            for line in (SESSION, *TRACES)
            for name in cast.names()
        ]
        return bench_run.sweep(cast, entries)

    samples = bench_run.rounds(one_round, budget_s, "the heap", cast.limit)
    names = cast.names()
    return {
        "published": PUBLISHED,
        "rounds": len(samples),
        "refused": cast.refused,
        "session": [session_row(samples, name) for name in names],
        "traces": [trace_row(samples, line, name) for line in TRACES for name in names],
    }


def shorter(line, full):
    """Fewer operations in a quick run; a session's memory is published, and stays what it is."""
    return [] if full or line == SESSION else ["--percent", TRACE_PERCENT_QUICK]


def session_row(samples, name):
    """One allocator's session."""
    key = (SESSION, name)
    return {
        "allocator": name,
        REQUESTS: with_interval(values(samples, key, REQUESTS)),
        "ratio_to_libc": ratio(samples, key, (SESSION, LIBC), REQUESTS),
        **{field: middle(samples, key, field) for field in PHASES},
    }


def trace_row(samples, line, name):
    """One allocator's cost an operation."""
    key = (line, name)
    return {
        "line": line,
        "allocator": name,
        "ns_per_op": with_interval(values(samples, key, "ns_per_op")),
        "times_libc": ratio(samples, (line, LIBC), key, CPU),
    }


def text(table):
    """The table, what was published, and the bar."""
    head = (
        "Heap (BiBOP): an interpreter's objects, 1 to 512 bytes, most of them 48; medians of"
        f" {table['rounds']} interleaved rounds, [{interval_kind(table['rounds'])}]"
    )
    return "\n\n".join([head, _session(table), _published(table), _traces(table)])


def _session(table):
    lines = [
        f"{'':12} {'requests a CPU-second':>28} {'of libc':>8}   MiB after {'load':>6} {'libraries':>10}"
        f" {'test':>7} {'giving back':>12}"
    ]
    for row in table["session"]:
        mib = [row[field] / MIB for field in PHASES]
        lines.append(
            f"{short(row['allocator']):12} {spread(row[REQUESTS], 0):>28}"
            f" {row['ratio_to_libc']['median']:8.2f}             {mib[0]:6.0f} {mib[1]:10.0f} {mib[2]:7.0f} {mib[3]:12.1f}"
        )
    return "\n".join(lines)


def _published(table):
    published = table["published"]
    lines = [published["source"]]
    for row in published["rows"]:
        speed = "about half" if row["requests_per_s"] is None else f"{row['requests_per_s']:.2f}"
        a, b, c = row["memory_mb"]
        lines.append(
            f"{row['allocator']:12} {speed:>28} {'':8}          MB {a:6} {b:10} {c:7} {'never':>12}"
        )
    lines.append(published["again"])
    for row in published["again_rows"]:
        a, b, c = row["memory_mb"]
        lines.append(
            f"{row['allocator']:12} {'':28} {'':8}          MB {a:6} {b:10} {c:7} {'never':>12}"
        )
    return "\n".join(lines)


def _traces(table):
    lines = [f"{'ns an operation':12}" + "".join(f"{line:>32}" for line in TRACES)]
    by_name = {}
    for row in table["traces"]:
        by_name.setdefault(row["allocator"], []).append(row)
    for name, found in by_name.items():
        lines.append(
            f"{short(name):15}" + "".join(f"{spread(row['ns_per_op'], 1):>32}" for row in found)
        )
    for row in table["traces"]:
        if row["allocator"] == OURS:
            lines.append(
                f"{row['line']}: the drop-in is {spread(row['times_libc'])} times as fast as libc (bar: {BAR_TIMES})"
            )
    return "\n".join(lines)


def regressions(result, baseline):
    """[sentence] of ours that lies wholly on the worse side; nothing when the baseline is from before there was a heap."""
    now, old = result.get("heap"), baseline.get("heap")
    if not now or not old:
        return []
    return _slower_session(now, old) + _slower_traces(now, old)


def _slower_session(now, old):
    """Requests, relative to libc's; and memory, where it grew by more than is in doubt."""
    mine, before = (
        next((r for r in part["session"] if r["allocator"] == OURS), None) for part in (now, old)
    )
    if not mine or not before:
        return []
    found = []
    if below(mine["ratio_to_libc"], before["ratio_to_libc"]):
        found.append(
            f"heap, requests: {mine['ratio_to_libc']['median']:.2f} times libc's, it was"
            f" {before['ratio_to_libc']['median']:.2f}"
        )
    return found + [
        f"heap, memory after {phase.removesuffix('_bytes').replace('_', ' ')}:"
        f" {mine[phase] / MIB:.0f} MiB, it was {before[phase] / MIB:.0f}"
        for phase in PHASES
        if mine[phase] > before[phase] * MEMORY_DOUBT[0] + MEMORY_DOUBT[1]
    ]


def _slower_traces(now, old):
    before = {r["line"]: r["times_libc"] for r in old["traces"] if r["allocator"] == OURS}
    return [
        f"heap, {row['line']}: {row['times_libc']['median']:.2f} times as fast as libc, it was"
        f" {before[row['line']]['median']:.2f}"
        for row in now["traces"]
        if row["allocator"] == OURS
        and row["line"] in before
        and below(row["times_libc"], before[row["line"]])
    ]
