# SPDX-License-Identifier: MIT
"""
scale.py - `quire bench scale`: what a pair costs over threads, over live objects, over configured CPUs.

    round: [libc, mimalloc, ..., ours] x points of an axis x [arena, slab, percpu, heap]
        -> rows {axis, part, at, allocator, ns}  -> ratios to libc and to the axis' first point
        -> bench/scale_text.py, bench/plots.py, regressions

A figure is nanoseconds of CPU time for one object allocated and freed; everything an allocator does for it is in it.

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
            B2  a ratio is taken between processes of one round, never between medians.
Not here: the workloads (bench/*.c), words and text charts (bench/scale_text.py), pictures (bench/plots.py).
"""

import os

import bench.mallocs as bench_mallocs
import bench.run as bench_run
from bench.figures import above, ratio, values, with_interval
from bench.run import LIBC

OURS = {
    "arena": "quire-arena",
    "slab": "quire-slab",
    "percpu": "quire-percpu",
    "heap": bench_mallocs.OURS,
}
AXES = {"threads": list(OURS), "objects": list(OURS), "cpus": ["percpu"]}
NS = "ns"
THREADS_LEAST = [1, 2, 4, 8, 16]
OBJECTS_QUICK = [1_000, 10_000, 100_000, 1_000_000]
OBJECTS = [*OBJECTS_QUICK, 10_000_000]
CPUS_QUICK = [1, 4, 16, 64, 256]
CPUS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CPUS_OBJECTS = 10_000
FULL_TIMES = 5  # as much work in a process

# Of the thread axis: pairs of all threads together, or charts of a query, of which each has 500 objects.
ARENA_CHARTS, ARENA_QUERIES, ARENA_WARM_UPS = 20, 96, 1
SLAB_ROUNDS, SLAB_THREAD_COUNT = 64, 10_000
PERCPU_PAIRS = 400_000
HEAP_PERCENT, HEAP_THREAD_LIVE = 5, 10_000
# Of the object axis.
CHART_OBJECTS = 500
ARENA_OBJECTS = 1_000_000  # built and thrown away in one process
REPLACED = 300_000
OBJECT_BYTES_ALL = 160  # memory that the greediest allocator takes for an object, its own list included


def measure(cast, budget_s, full, only=None):
    """What --json has under "scale"."""
    axes = {a: parts for a, parts in AXES.items() if not only or a in only}
    points = points_of(full)

    def one_round():
        return bench_run.collect(
            (key, lambda: bench_run.admitted(cast, name, one_figure(cast, key, name, argv)))
            for key, name, argv in plan(cast, axes, points, full)
            if name not in cast.refused
        )

    cast.limit.plan(budget_s)
    samples = bench_run.rounds_or_part(one_round, budget_s, "scale", cast.limit)
    curves = {(axis, part): cast_of(cast, part) for axis, parts in axes.items() for part in parts}
    whole = {
        (axis, part): names
        for (axis, part), names in curves.items()
        if all((axis, part, name, at) in samples[0] for name in names for at in points[axis])
    }
    rows = [
        row(samples, axis, part, name, at, points[axis])
        for (axis, part), names in whole.items()
        for name in names
        for at in points[axis]
    ]
    return {
        "rounds": len(samples),
        "points": {a: points[a] for a in axes},
        "rows": rows,
        "not_measured": [f"{part} over {axis}" for axis, part in curves if (axis, part) not in whole],
    }


def lines():
    """Names of all axes."""
    return list(AXES)


def points_of(full):
    """{axis: [point]}: what fits this machine."""
    cpus = len(os.sched_getaffinity(0))
    threads = list(THREADS_LEAST)
    while threads[-1] < 2 * cpus:
        threads.append(min(2 * threads[-1], 2 * cpus))
    return {
        "threads": threads,
        "objects": [n for n in (OBJECTS if full else OBJECTS_QUICK) if n <= most_objects()],
        "cpus": CPUS if full else CPUS_QUICK,
    }


def most_objects():
    """As many as a quarter of the free memory has room for."""
    with open("/proc/meminfo", encoding="ascii") as file:
        free_kib = {line.split(":")[0]: int(line.split()[1]) for line in file}["MemAvailable"]
    return max(free_kib * 1024 // 4 // OBJECT_BYTES_ALL, OBJECTS[1])


def cast_of(cast, part):
    """libc and the peers, and ours of that part; the drop-in is a malloc, but no rival of the other parts."""
    names = [n for n in cast.names() if n != OURS["heap"]]
    return names if OURS[part] in cast.refused else [*names, OURS[part]]


def plan(cast, axes, points, full):
    """[(key, allocator, argv)] of one round: all allocators at a point stand next to each other."""
    work = FULL_TIMES if full else 1
    return [
        ((axis, part, name, at), name, [str(word) for word in ARGV[axis, part](name, at, work)])
        for axis, parts in axes.items()
        for part in parts
        for at in points[axis]
        for name in cast_of(cast, part)
    ]


def _arena(name, *words):
    kind = "arena" if name == OURS["arena"] else "malloc"
    return [bench_run.find_driver("query"), "--json", "--allocator", kind, *words]


def _slab(name, workload, *words):
    kind = "slab" if name == OURS["slab"] else "malloc"
    return [
        bench_run.find_driver("slab"), "--json", "--allocator", kind, "--workload", workload, *words
    ]  # fmt: skip


def _percpu(name, workload, *words):
    kind = "percpu" if name == OURS["percpu"] else "malloc"
    fixed = ["--json", "--rounds", 1, "--allocator", kind, "--workload", workload]
    return [bench_run.find_driver("percpu"), *fixed, *words]


def _heap(_name, *words):
    return [bench_run.find_driver("micro"), "--json", "--workload", "replace", *words]


def arena_threads(name, threads, work):
    """The context query, a fiftieth of it, by so many callers."""
    queries = max(ARENA_QUERIES * work // threads, 1)
    words = ["--callers", threads, "--rounds", queries, "--charts", ARENA_CHARTS]
    return _arena(name, *words, "--warm-ups", ARENA_WARM_UPS)


def slab_threads(name, threads, work):
    """The Array Allocator's stress test."""
    rounds = max(SLAB_ROUNDS * work // threads, 1)
    return _slab(
        name, "stress", "--threads", threads, "--rounds", rounds, "--count", SLAB_THREAD_COUNT
    )


def percpu_threads(name, threads, work):
    """A thousand objects and their frees, over one pool."""
    return _percpu(name, "threads", "--threads", threads, "--count", PERCPU_PAIRS * work)


def heap_threads(name, threads, work):
    """Random ones of each thread's blocks replaced."""
    words = ["--threads", threads, "--live", HEAP_THREAD_LIVE, "--percent", HEAP_PERCENT * work]
    return _heap(name, *words)


def arena_objects(name, count, work):
    """Queries of so many objects; small ones again and again."""
    queries = max(ARENA_OBJECTS * work // count, 1)
    return _arena(
        name, "--charts", count // CHART_OBJECTS, "--rounds", queries, "--warm-ups", ARENA_WARM_UPS
    )


def slab_objects(name, count, work):
    """Random ones of so many replaced."""
    return _slab(name, "replace", "--count", count, "--rounds", REPLACED * work)


def percpu_objects(name, count, _work):
    """So many allocated, then freed: in order and at random."""
    return _percpu(name, "grow", "--count", count, "--cpus", 2)


def heap_objects(name, count, work):
    """Random ones of so many replaced."""
    return _heap(name, "--live", count, "--percent", HEAP_PERCENT * work)


def percpu_cpus(name, cpus, _work):
    """Some objects for so many CPUs; a malloc has one copy whatever the CPUs."""
    return _percpu(name, "grow", "--count", CPUS_OBJECTS, "--cpus", cpus)


ARGV = {
    ("threads", "arena"): arena_threads,
    ("threads", "slab"): slab_threads,
    ("threads", "percpu"): percpu_threads,
    ("threads", "heap"): heap_threads,
    ("objects", "arena"): arena_objects,
    ("objects", "slab"): slab_objects,
    ("objects", "percpu"): percpu_objects,
    ("objects", "heap"): heap_objects,
    ("cpus", "percpu"): percpu_cpus,
}


def one_figure(cast, key, name, argv):
    """{"allocator", "ns"} of one process; of several rows the one of that point."""
    axis, part, _, at = key
    found = bench_run.process_rows(cast, name, argv)
    if (axis, part) == ("threads", "percpu"):
        found = [row for row in found if row["threads"] == at]
    elif (axis, part) == ("objects", "percpu"):
        found = [row for row in found if row["count"] == at]
    return {"allocator": found[-1]["allocator"], NS: nanoseconds(part, found[-1])}


def nanoseconds(part, figure):
    """Of one object allocated and freed."""
    if part == "arena":
        return figure["cpu_ns_per_query"] / figure["objects"]
    if "alloc_ns" in figure:
        return figure["alloc_ns"] + figure["free_in_order_ns"]
    if "m_pairs_per_cpu_s" in figure:
        return 1e3 / figure["m_pairs_per_cpu_s"]
    return figure["ns_per_pair"]


def row(samples, axis, part, name, at, points):
    """One allocator at one point, and its ratios to libc there and to itself at the first point."""
    key = (axis, part, name, at)
    return {
        "axis": axis,
        "part": part,
        "at": at,
        "allocator": name,
        NS: with_interval(values(samples, key, NS)),
        "ratio_to_libc": ratio(samples, key, (axis, part, LIBC, at), NS),
        "ratio_to_first": ratio(samples, key, (axis, part, name, points[0]), NS),
    }


def regressions(result, baseline):
    """[sentence] for each ratio of ours to libc that lies wholly above the baseline's interval."""
    key = ("axis", "part", "at", "allocator")
    before = {tuple(r[k] for k in key): r for r in baseline["scale"]["rows"]}
    found = []
    for now in result["scale"]["rows"]:
        old = before.get(tuple(now[k] for k in key))
        if now["allocator"] != OURS[now["part"]] or not old:
            continue
        share, was = now["ratio_to_libc"], old["ratio_to_libc"]
        if above(share, was):
            found.append(
                f"scale, {now['part']}, {now['at']:,} {now['axis']}: {share['median']:.2f} of libc's"
                f" time, it was {was['median']:.2f}"
            )
    return found
