# SPDX-License-Identifier: MIT
"""
micro.py - `quire bench micro`: small programs that only allocate, under each malloc.

    round: [libc, mimalloc, ..., libquire-malloc] x lines of bench/micro        a process each
        -> geometric means of the micro set, the seed's interpreter, walks, and what memory stays

Not here: the programs (bench/micro*.c), ratios and means (bench/mallocs.py).
"""

import bench.mallocs as bench_mallocs
import bench.run as bench_run
from bench.mallocs import MIB, OURS, SECURE, short
from bench.run import LIBC

# line: (workload, further arguments)
MICRO = {
    "one": ("one",),
    "jq": ("jq",),
    "python3": ("python3",),
    "cc1": ("cc1",),
    "producer/2": ("producer", "--threads", "2"),
    "producer/4": ("producer", "--threads", "4"),
    "producer/8": ("producer", "--threads", "8"),
    "server": ("server",),
    "scratch": ("scratch",),
    "thrash": ("thrash",),
    "realloc": ("realloc",),
    "large": ("large",),
    "threads": ("threads",),
    "flood": ("flood",),
}
# The programs that allocators are compared by elsewhere, written anew; bench/README.md says which is which.
SHAPES = {
    "fraction": ("fraction",),
    "cover": ("cover",),
    "bodies": ("bodies",),
    "pareto": ("pareto",),
    "pareto/2": ("pareto", "--threads", "2"),
    "relay/2": ("relay", "--threads", "2"),
    "relay/8": ("relay", "--threads", "8"),
    "window": ("window",),
    "window/4": ("window", "--threads", "4"),
    "bursts/4": ("bursts", "--threads", "4"),
    "backlog/4": ("backlog", "--threads", "4"),
    "backlog/8": ("backlog", "--threads", "8"),
    "scratch/1": ("scratch", "--threads", "1"),
    "scratch/2": ("scratch", "--threads", "2"),
    "thrash/1": ("thrash", "--threads", "1"),
    "thrash/2": ("thrash", "--threads", "2"),
    "simple": ("simple",),
    "skewed": ("skewed",),
    "skewed/2": ("skewed", "--threads", "2"),
    "swap/2": ("swap", "--threads", "2"),
    "swap/4": ("swap", "--threads", "4"),
    "cross/2": ("cross", "--threads", "2"),
    "cross/4": ("cross", "--threads", "4"),
    "spawn": ("spawn",),
    "spawn/40": ("spawn", "--threads", "40"),
    "again": ("again",),
}
SEED = {"interpreter": ("interpreter",), "sweeps": ("sweeps",)}
WALKS = {"lists": ("lists",), "trees": ("trees",), "objects": ("objects",)}
MEMORY = {
    "once": ("once",),
    "freed": ("freed",),
    "idle": ("idle",),
    "drift": ("drift",),
    "leaked": ("threads",),
}
MEMORY_FIELDS = {
    "once": "thread_bytes",
    "freed": "held_bytes",
    "idle": "held_bytes",
    "drift": "last_to_second",
    "leaked": "leaked_bytes",
}
MEMORY_WORDS = {
    "once": ("of a thread that allocates once", "KB", 1e3),
    "freed": ("two decays after freeing everything", "MiB", MIB),
    "idle": ("3 s after freeing 1,000,000 x 400 bytes", "MiB", MIB),
    "drift": ("drifting sizes: last quarter / second quarter", "times", 1),
    "leaked": ("left by 10,000 threads that ended", "MiB", MIB),
}
DRIFT_SECONDS_QUICK, DRIFT_SECONDS_FULL = 2, 20
MEMORY_LIMIT_S = 300  # it sleeps, and drifts for some 20 s of CPU time on a machine that may be busy
MEMORY_S = {False: 18, True: 150}  # quick, full: what that takes, with a limit
MEMORY_AT_ONCE = 3  # processes of which only the memory is asked
PERCENT_QUICK = 15  # of a program's operations
BARS = {"cpu": 0.70, "rss": 1.15, "line": 1.10, "seed": 0.50, "walk": 1.00}
BARS_SHAPES = {"cpu": 0.62, "rss": 1.05, "line": 1.15}  # the last: times the best peer's CPU
# (times, bytes) of a saved figure that are in doubt anyway: each is of one process.
MEMORY_DOUBT = {
    "once": (1.25, 2e3), "freed": (1.25, MIB), "idle": (1.25, MIB), "drift": (1.05, 0), "leaked": (1.25, MIB),
}  # fmt: skip
BARS_MEMORY = {"once": 20e3, "freed": 4 * MIB, "idle": 4 * MIB, "drift": 1.05, "leaked": 4 * MIB}


def measure(cast, budget_s, full, only=None):
    """What --json has of this table."""
    driver = bench_run.find_driver("micro")
    percent = "100" if full else str(PERCENT_QUICK)
    timed = {n: a for n, a in {**MICRO, **SHAPES, **SEED, **WALKS}.items() if not only or n in only}

    def one_round():
        entries = [
            ((line, name), name, [driver, "--json", "--percent", percent, "--workload", *arguments])
            for line, arguments in timed.items()
            for name in cast.names()
        ]
        return bench_run.sweep(cast, entries)

    cast.limit.plan(budget_s + MEMORY_S[full])
    samples = bench_run.rounds_or_part(one_round, budget_s, "small programs", cast.limit) if timed else []
    held = _memory(cast, driver, full, only)
    names = cast.names()
    whole, left_out = bench_mallocs.whole_lines(samples, timed, names)
    table = bench_mallocs.rows(samples, whole, names)
    return {
        "rounds": len(samples),
        "rows": table,
        "means": bench_mallocs.means(table, MICRO),
        "means_shapes": bench_mallocs.means(table, SHAPES),
        "memory": held,
        "not_measured": left_out + [n for n in MEMORY if n not in held and (not only or n in only)],
    }


def lines():
    """Names of all lines."""
    return [*MICRO, *SHAPES, *SEED, *WALKS, *MEMORY]


def _memory(cast, driver, full, only):
    """{line: {allocator: figure}}: one process each, a few at a time: they sleep or take long. Lines that all had time for."""
    seconds = str(DRIFT_SECONDS_FULL if full else DRIFT_SECONDS_QUICK)
    lines = {n: a for n, a in MEMORY.items() if not only or n in only}
    entries = [
        ((line, name), name, [driver, "--json", "--seconds", seconds, "--workload", *arguments])
        for line, arguments in lines.items()
        for name in cast.names()
    ]
    shown_s = min(MEMORY_S[full], max(cast.limit.left_s(), 0))
    bench_run.progress("memory that stays", 0 if entries else None, 0, shown_s)
    figures = bench_run.sweep_together(cast, entries, MEMORY_LIMIT_S, MEMORY_AT_ONCE)
    bench_run.progress("memory that stays", None, 0, 0)
    return {
        line: {
            name: figures[line, name][MEMORY_FIELDS[line]]
            for name in cast.names()
            if (line, name) in figures
        }
        for line in lines
        if all((line, name) in figures for name in cast.names())
    }


def verdicts(table):
    """[(what, ours, bar, held)]: each bar of the heap, where ours was measured."""
    mine = {
        r["line"]: r["cpu_ratio_to_libc"]["median"] for r in table["rows"] if r["allocator"] == OURS
    }
    found = []
    if OURS in table["means"]:
        found.append(("micro, mean CPU", table["means"][OURS]["cpu"], BARS["cpu"]))
        found.append(("micro, mean peak memory", table["means"][OURS]["rss"], BARS["rss"]))
    for kind, words in (("cpu", "mean CPU"), ("rss", "mean peak memory")):
        if OURS in table.get("means_shapes", {}):
            found.append((f"shapes, {words}", table["means_shapes"][OURS][kind], BARS_SHAPES[kind]))
    found += _beside_the_best(table)
    for line, share in mine.items():
        if line in SHAPES:
            continue
        bar = BARS["seed"] if line in SEED else BARS["walk"] if line in WALKS else BARS["line"]
        found.append((f"{line}, CPU", share, bar))
    for line, figures in table["memory"].items():
        if OURS in figures:
            unit = MEMORY_WORDS[line][2]
            found.append((MEMORY_WORDS[line][0], figures[OURS] / unit, BARS_MEMORY[line] / unit))
    return [(what, value, bar, value <= bar) for what, value, bar in found]


def _beside_the_best(table):
    """Of each shape: the drop-in's CPU time over the best peer's."""
    by_line = {}
    for row in table["rows"]:
        if row["line"] in SHAPES:
            by_line.setdefault(row["line"], {})[row["allocator"]] = row["cpu_ratio_to_libc"]["median"]
    found = []
    for line, shares in by_line.items():
        peers = [s for name, s in shares.items() if name not in (LIBC, OURS, SECURE) and s]
        if OURS in shares and peers:
            found.append((f"{line}, CPU over the best peer's", shares[OURS] / min(peers), BARS_SHAPES["line"]))
    return found


def text(table, names):
    """The table for people."""
    parts = [
        bench_mallocs.text(
            table["rows"],
            names,
            "Small programs: CPU time and peak memory, times libc's",
            table["rounds"],
        )
        + "\n"
        + bench_mallocs.means_text("mean of micro", table["means"], names)
        + _shapes_text(table, names),
        _memory_text(table["memory"], names),
        _verdict_text(table),
    ]
    return "\n\n".join(p for p in parts if p)


def _shapes_text(table, names):
    """Their means, where any was measured."""
    means = table.get("means_shapes")
    return "\n" + bench_mallocs.means_text("of shapes", means, names) if means else ""


def _memory_text(held, names):
    lines = [f"{'Memory that stays':48}" + "".join(f"{short(n):>12}" for n in names)]
    for line, figures in held.items():
        words, unit, scale = MEMORY_WORDS[line]
        cells = "".join(
            f"{figures[n] / scale:12.2f}" if n in figures else f"{'-':>12}" for n in names
        )
        lines.append(f"{f'{words}, {unit}':48}{cells}")
    return "\n".join(lines) if held else ""


def _verdict_text(table):
    missed = [v for v in verdicts(table) if not v[3]]
    if not any(r["allocator"] == OURS for r in table["rows"]):
        return ""
    if not missed:
        return "The drop-in holds every bar."
    return "\n".join(
        ["Where the drop-in misses its bar:"]
        + [f"  {what}: {value:.2f}, bar {bar:.2f}" for what, value, bar, _ in missed]
    )


def regressions(result, baseline):
    """[sentence] of ours that became worse."""
    now, old = result["micro"], baseline["micro"]
    return bench_mallocs.regressions(now["rows"], old["rows"], "micro") + [
        f"micro, memory {words}: {held[OURS] / scale:.2f} {unit}, it was"
        f" {old['memory'][line][OURS] / scale:.2f}"
        for line, held in now["memory"].items()
        for words, unit, scale in [MEMORY_WORDS[line]]
        if OURS in held
        and OURS in old["memory"].get(line, {})
        and held[OURS] > old["memory"][line][OURS] * MEMORY_DOUBT[line][0] + MEMORY_DOUBT[line][1]
    ]
