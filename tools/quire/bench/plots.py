# SPDX-License-Identifier: MIT
"""
plots.py - pictures of a benchmark's result: curves of `scale`, bars of the others.

    scale   a curve an allocator for each part of each axis     scale-threads-slab.svg, ...
    seeds   queries, pairs over threads, requests               seeds-arena.svg, seeds-slab.svg, seeds-heap.svg
    micro, apps   geometric means of CPU time and peak memory   micro-cpu.svg, micro-memory.svg, ...

An allocator has one colour in all pictures; ours is the first.
Not here: drawing (report/plots.py), text charts (bench/chart.py).
"""

import os

import bench.scale as bench_scale
import bench.scale_text as bench_scale_text
import outputs
import report.plots as plots
from bench.arena import CPU
from bench.figures import tight
from bench.mallocs import short
from bench.scale import NS
from bench.slab import NONE, SPEED, THREADS

COLOUR = {"libc": "s7", "mimalloc": "s1", "jemalloc": "s2", "tcmalloc": "s3", "tbbmalloc": "s4"}
OURS_COLOUR, OTHERS_COLOUR = "s0", "s5"


def pictures(result):
    """[plots.Picture] of a result, whichever table it is of."""
    return {"scale": of_scale, "seeds": of_seeds, "micro": of_mallocs, "apps": of_mallocs}[
        result["table"]
    ](result)


def write(result, folder, force=False):
    """Writes them as files that follow the viewer's light or dark; [path]."""
    os.makedirs(folder, exist_ok=True)
    drawn = [(os.path.join(folder, f"{one.name}.svg"), one) for one in pictures(result)]
    outputs.check_folder(folder, [os.path.basename(path) for path, _ in drawn], force)
    for path, one in drawn:
        outputs.write(path, one.file(), force, "another place: --svg /tmp/pictures")
    return [path for path, _ in drawn]


def colour(name):
    """One colour an allocator."""
    ours = name.startswith(("quire-", "libquire"))
    return OURS_COLOUR if ours else COLOUR.get(name, OTHERS_COLOUR)


def curve(name, points, intervals):
    """A series with its band."""
    return plots.Series(
        name, points, [i["median"] for i in intervals], [i["low"] for i in intervals],
        [i["high"] for i in intervals], colour(name),
    )  # fmt: skip


def of_scale(result):
    table, drawn = result["scale"], []
    for axis, points in table["points"].items():
        for part in bench_scale.AXES[axis]:
            found = bench_scale_text.series(table, axis, part)
            if not found:
                continue  # no time for it
            curves = [
                curve(bench_scale_text.NAMES.get(name, name), points, [row[NS] for row in rows])
                for name, rows in found.items()
            ]
            drawn.append(
                plots.lines(
                    curves,
                    plots.Axes(
                        f"scale-{axis}-{part}",
                        title=bench_scale_text.title(axis, part),
                        x=bench_scale_text.OVER[axis],
                        y="ns a pair",
                        x_log=True,
                        y_log=wide(curves),
                    ),
                )
            )
    return drawn


def wide(curves):
    """Whether figures differ so much that a linear axis would hide the small ones."""
    values = [y for one in curves for y in one.ys]
    return max(values) > 20 * max(min(values), 1e-9)


def of_seeds(result):
    drawn = [arena_bars(result["rows"])]
    if "array_allocator" in result:
        drawn.append(slab_curves(result["array_allocator"]["rows"]))
    if "heap" in result:
        drawn.append(bars("seeds-heap", "An interpreter's requests", "requests a CPU-second", [
            (short(r["allocator"]), r["allocator"], r["requests_per_cpu_s"])
            for r in result["heap"]["session"]
        ]))  # fmt: skip
    return drawn


def slab_curves(rows):
    """Pairs over threads, ours first."""
    slab = [r for r in rows if r["allocator"] != NONE]
    names = sorted(dict.fromkeys(r["allocator"] for r in slab), key=lambda n: colour(n) != OURS_COLOUR)
    curves = [
        curve(name, THREADS, [r[SPEED] for r in slab if r["allocator"] == name]) for name in names
    ]
    axes = plots.Axes(
        "seeds-slab", title="The Array Allocator's stress test", x="threads", y="M pairs a CPU-second",
        x_log=True,
    )  # fmt: skip
    return plots.lines(curves, axes)


def arena_bars(rows):
    """CPU time of one query, by callers."""
    found = [
        (f"{r['allocator']}, {r['callers']}", r["allocator"], tight(r[CPU], 1e-6)) for r in rows
    ]
    return bars("seeds-arena", "A context query, callers at once", "CPU ms a query", found)


def of_mallocs(result):
    table, drawn = result["table"], []
    means = result[table]["means"]
    for field, words in (("cpu", "CPU time"), ("rss", "peak memory")):
        found = [
            (short(name), name, {"median": m[field], "low": None, "high": None})
            for name, m in means.items()
        ]
        name = f"{table}-{'cpu' if field == 'cpu' else 'memory'}"
        drawn += [bars(name, f"{table}: {words}", f"{words}, times libc's", found)] if found else []
    return drawn


def bars(name, title, unit, found):
    """[(label, allocator, interval)] as bars."""
    rows = [
        plots.Bar(label, i["median"], i["low"], i["high"], colour(allocator))
        for label, allocator, i in found
    ]
    return plots.bars(rows, plots.Axes(name, title=title, x=unit, x_form="plain"))
