# SPDX-License-Identifier: MIT
"""
more.py - the smaller tables of the systems Quire replaces: one process answers for one allocator on some lines of a table.

    PROBES(scale): [Probe(table, allocator, argv, {line: rows -> number})]
        round: each probe once -> rows {table, line, allocator, value, against} -> text, regressions

    arena     single operations; 256 queries at once
    slab      frees by another thread; a random 90 % freed, with and without the defragmenter; pages in files
    percpu    sizes that come and go; threads; lists; copies nobody writes; pages that come back

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
            B2  a ratio is taken between processes of one round, never between medians.
Not here: the headline tables (bench/arena.py, bench/slab.py, bench/percpu.py, bench/heap.py), words (bench/more_text.py).
"""

import os
import tempfile
from collections import namedtuple

import bench.run as bench_run
from bench.figures import above, below, ratio, values, with_interval
from bench.run import LIBC

ARENA, SLAB, PERCPU, AREA_MAP = "quire-arena", "quire-slab", "quire-percpu", "area-map"
DEFRAG, FILES = f"{SLAB} defrag", f"{SLAB} files"  # the first word is whose it is

Probe = namedtuple("Probe", "table allocator argv picks")
# `base`: whom a ratio is taken to, or None; `less`: whether less is better; `published`: words.
Table = namedtuple("Table", "title unit base less published")

TABLES = {
    "arena_operations": Table(
        "Arena: single operations", "ns", None, True,
        "the One Way Allocator, built again: 7,700 ns for create + destroy, 31 to 34 ns for 64 bytes",
    ),
    "arena_256": Table(
        "Arena: 256 queries at once", "CPU ms a query", LIBC, True,
        "published: 256 queries on 24 cores take 84.72 s with malloc, 39.35 s with the One Way Allocator",
    ),
    "slab_remote": Table(
        "Slab: every element freed by another thread", "M pairs a CPU-second", LIBC, False,
        "the Array Allocator, built again: 8.4, 5.3, 3.6 singly with 2, 4, 8 threads",
    ),
    "slab_fragment": Table(
        "Slab: a random 90 % freed, then 300 rounds of 1 %; memory held", "times what lives", LIBC, True,
        "the Array Allocator, built again: 1.4 (its first version), 6.3 (today's)",
    ),
    "slab_files": Table(
        "Slab: the stress test with pages in files, shared with children", "M pairs a CPU-second", SLAB,
        False, "the Array Allocator keeps such pages too; no figure was published",
    ),
    "percpu_churn": Table(
        "Per-CPU: objects of 4 bytes to 1 KiB, one freed and one allocated", "ns a pair", LIBC, True,
        "the kernel's, built again: area map 4,840 ns, bitmap 1,115 to 1,630; librseq's pools 229 to 298",
    ),
    "percpu_threads": Table(
        "Per-CPU: threads over one pool", "M pairs a CPU-second", LIBC, False,
        "from 1 thread to 2: the kernel's 11.5 to 4.3, librseq's 30 to 6.4",
    ),
    "percpu_list": Table(
        "Per-CPU: push and pop from 2 threads", "ns a pair", "mutex", True,
        "restartable sequences in C: 1.8; mutex 27 to 127",
    ),
    "percpu_memory": Table(
        "Per-CPU: objects of 64 bytes for 64 CPUs, of which 2 write", "times what was written", None, True,
        "100,000 of them, 12.2 MiB: the kernel's 392 MB, librseq's 13 to 20 MB",
    ),
    "percpu_returned": Table(
        "Per-CPU: pages that come back after a random 90 % was freed", "of the pages that could", None, False,
        "the kernel's keep 96 % of their pages then, librseq's all until the pool is destroyed",
    ),
}  # fmt: skip

# (quick, full)
QUERY_CHARTS = (20, 200)  # published with 1000: 256 such queries hold 6 GB
REMOTE = (300_000, 2_000_000)
FRAGMENT = (200_000, 1_000_000)
FILE_ROUNDS = (80, 400)
CHURN, CHURN_MIB = (100_000, 500_000), (2, 8)
THREAD_PAIRS, LIST_PAIRS = (500_000, 4_000_000), (300_000, 5_000_000)
COPIES = (20_000, 100_000)
RETURNED_BYTES = (256, 1024, 4096)
KINDS = {PERCPU: "percpu", AREA_MAP: AREA_MAP, "thread-local": "local", "mutex": "mutex"}
REMOTE_LINES = {"2 threads": (2, 1), "4 threads": (4, 1), "8 threads": (8, 1), "4, by 256": (4, 256)}


def measure(cast, budget_s, full):
    """What --json has under "more"."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=files_place()) as folder:
        samples = bench_run.rounds(
            lambda: one_round(cast, probes(cast, full, folder)), budget_s, "the smaller tables", cast.limit
        )
    found = {}
    for probe in probes(cast, full, ""):
        for line in probe.picks:
            key = (probe.table, line, probe.allocator)
            if any(key in sample for sample in samples):
                found.setdefault(key[:2], []).append(row(samples, key))
    order = {name: i for i, name in enumerate(TABLES)}
    rows = [row for key in sorted(found, key=lambda k: order[k[0]]) for row in found[key]]
    return {"rounds": len(samples), "rows": rows}


def files_place():
    """Where files are memory, so that no disk is measured; else where temporary files are."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def one_round(cast, wanted):
    """{(table, line, allocator): {"value"}}."""
    figures = {}
    for probe in wanted:
        if probe.allocator in cast.refused:
            continue
        argv = [str(word) for word in probe.argv]
        found = bench_run.process_rows(cast, probe.allocator, argv)
        own = probe.allocator.split()[0]
        if "allocator" in found[0] and not cast.admit(own, named(found, own)):
            continue
        for line, pick in probe.picks.items():
            figures[probe.table, line, probe.allocator] = {"value": pick(found)}
    return figures


def named(found, own):
    """The row that says whose it is; a driver that measures several has one for each."""
    return next((r for r in found if r["allocator"] == own), found[0])


def row(samples, key):
    """One figure, and its ratio to the table's base."""
    table, line, allocator = key
    base = (table, line, TABLES[table].base)
    figure = {
        "table": table,
        "line": line,
        "allocator": allocator,
        "value": with_interval(values(samples, key, "value")),
    }
    if TABLES[table].base and any(base in s and s[base]["value"] for s in samples):
        figure["ratio_to_base"] = ratio(samples, key, base, "value")
    return figure


def field(name, factor=1.0, **where):
    """A pick: that field of the first row in which all of `where` holds."""

    def pick(found):
        return next(
            r[name] * factor for r in found if all(r.get(k) == v for k, v in where.items())
        )

    return pick


def probes(cast, full, folder):
    """All of one round; allocators of a table next to each other."""
    return [
        *_arena_probes(cast, full),
        *_slab_probes(cast, full, folder),
        *_percpu_probes(cast, full),
    ]


def _arena_probes(cast, full):
    names = ("create + destroy", "alloc 64", "reset after 1000 blocks", "mark, alloc 64, rewind")
    picks = {name: field("cpu_ns", row=name) for name in names}
    yield Probe("arena_operations", ARENA, [bench_run.find_driver("arena"), "--json"], picks)
    charts = QUERY_CHARTS[full]
    words = [bench_run.find_driver("query"), "--json", "--callers", 256, "--rounds", 1]
    words += ["--warm-ups", 1, "--charts", charts, "--allocator"]
    line = {f"of {charts} charts": field("cpu_ns_per_query", 1e-6)}
    for name in cast.names(ARENA):
        yield Probe("arena_256", name, [*words, "arena" if name == ARENA else "malloc"], line)


def _slab(name, workload, *words):
    kind = "slab" if name.split()[0] == SLAB else "malloc"
    driver = bench_run.find_driver("slab")
    return [driver, "--json", "--workload", workload, "--allocator", kind, *words]


def _slab_probes(cast, full, folder):
    for line, (threads, batch) in REMOTE_LINES.items():
        for name in cast.names(SLAB):
            words = ["--threads", threads, "--batch", batch, "--count", REMOTE[full]]
            argv = _slab(name, "remote", *words)
            yield Probe("slab_remote", name, argv, {line: field("m_pairs_per_cpu_s")})
    held = {
        "right away": field("held_over_live"),
        "given back": field("held_over_live_trimmed"),
    }
    for name in cast.names(SLAB, DEFRAG):
        words = ["--count", FRAGMENT[full], *(["--defrag"] if name == DEFRAG else [])]
        yield Probe("slab_fragment", name, _slab(name, "fragment", *words), held)
    for name in (SLAB, FILES):
        words = ["--rounds", FILE_ROUNDS[full], *(["--file", folder] if name == FILES else [])]
        speed = {"1 thread": field("m_pairs_per_cpu_s")}
        yield Probe("slab_files", name, _slab(name, "stress", *words), speed)


def _percpu_probes(cast, full):
    def argv(name, workload, *words):
        kind = KINDS.get(name, "malloc")
        fixed = ["--json", "--rounds", 1, "--workload", workload, "--allocator", kind]
        return [bench_run.find_driver("percpu"), *fixed, *words]

    for name in (AREA_MAP, LIBC, PERCPU):
        words = ["--count", CHURN[full], "--fill-mib", CHURN_MIB[full]]
        picks = {f"{p} % full": field("ns_per_pair", full_percent=p) for p in (50, 95)}
        yield Probe("percpu_churn", name, argv(name, "churn", *words), picks)
    for name in cast.names(PERCPU):
        words = ["--threads", 2, "--count", THREAD_PAIRS[full]]
        picks = {f"{n} thread{'s' * (n > 1)}": field("m_pairs_per_cpu_s", threads=n) for n in (1, 2)}
        yield Probe("percpu_threads", name, argv(name, "threads", *words), picks)
    for name in (PERCPU, "thread-local", "mutex"):
        words = ["--threads", 2, "--count", LIST_PAIRS[full]]
        picks = {"push + pop": field("ns_per_push_pop")}
        yield Probe("percpu_list", name, argv(name, "list", *words), picks)
    yield from _memory_probes(argv(PERCPU, "memory", "--count", COPIES[full]))


def _memory_probes(argv):
    def above(found):
        return field("resident_mib", what="resident")(found) / field("payload_mib")(found)

    yield Probe("percpu_memory", PERCPU, argv, {"resident": above})
    picks = {
        f"{size:,} bytes": field("returned_of_possible", what="returned", object_bytes=size)
        for size in RETURNED_BYTES
    }
    yield Probe("percpu_returned", PERCPU, argv, picks)


def regressions(result, baseline):
    """[sentence] for each figure of ours that lies wholly on the worse side of the baseline's interval: its ratio, where the table has a base."""
    now, old = result.get("more"), baseline.get("more")
    if not now or not old:
        return []
    key = ("table", "line", "allocator")
    before = {tuple(r[k] for k in key): r for r in old["rows"]}
    found = []
    for row in now["rows"]:
        was = before.get(tuple(row[k] for k in key))
        if not row["allocator"].startswith("quire-") or not was:
            continue
        kind = "ratio_to_base" if "ratio_to_base" in row and "ratio_to_base" in was else "value"
        if worse(row[kind], was[kind], TABLES[row["table"]].less):
            base = TABLES[row["table"]].base
            unit = f"times {base}'s" if kind == "ratio_to_base" else TABLES[row["table"]].unit
            found.append(
                f"{TABLES[row['table']].title}, {row['line']}: {row['allocator']}"
                f" {row[kind]['median']:.2f} {unit}, it was {was[kind]['median']:.2f}"
            )
    return found


def worse(now, was, less_is_better):
    """Whether an interval lies wholly on the worse side of another, and by more than what is in doubt anyway."""
    if less_is_better:
        return above(now, was)
    return below(now, was)
