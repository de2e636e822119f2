# SPDX-License-Identifier: MIT
"""
slab_text.py - the Array Allocator's table, its curve and its memory, for people.

Not here: figures (bench/slab.py), drawing (bench/chart.py).
"""

import bench.slab as bench_slab
from bench.chart import COLUMN_WIDTH, chart
from bench.figures import interval_kind, spread
from bench.slab import NONE, OURS, SPEED, THREADS, TOUCH

LABELS = {NONE: "no allocator", TOUCH: "fresh memory"}
MIB = 1048576


def counted(threads):
    return f"{threads} thread{'s' if threads > 1 else ''}"


def text(table):
    return "\n\n".join(
        [_head(table), _table(table), curve(table), verdict(table["curve"]), memory(table)]
    )


def _head(table):
    return (
        "Slab (Array Allocator): 10,000 elements of 64 bytes a thread, all written and verified,"
        " freed in blocks and strides\n"
        f"M malloc + free a CPU-second, medians of {table['rounds']} interleaved rounds,"
        f" [{interval_kind(table['rounds'])}]; one process a figure, the malloc in it checked"
    )


def _table(table):
    by_name = {}
    for row in table["rows"]:
        by_name.setdefault(row["allocator"], []).append(row)
    lines = [f"{'threads':12}" + "".join(f"{threads:{COLUMN_WIDTH}}" for threads in THREADS)]
    for name, rows in by_name.items():
        cells = "".join(f"{row[SPEED]['median']:{COLUMN_WIDTH}.1f}" for row in rows)
        lines.append(f"{LABELS.get(name, name):12}{cells}")
    published = table["published"]
    cells = "".join(f"{published['m_pairs_per_s'][str(t)]:{COLUMN_WIDTH}.1f}" for t in THREADS)
    lines.append(f"{'published':12}{cells}")
    lines.append(f"{'':12} {published['source']}")
    for row in by_name.get(OURS, []):
        if "best_peer" in row:
            lines.append(
                f"{counted(row['threads'])}: the slab does"
                f" {spread(row['ratio_to_best_peer'])} times the pairs of {row['best_peer']}, the best"
                " peer here"
            )
    return "\n".join(lines)


def _series(table):
    """{name: [figure a number of threads]}, the slab first, without what is no allocator."""
    series = {OURS: []}
    for row in table["rows"]:
        if row["allocator"] != NONE:
            series.setdefault(row["allocator"], []).append(row[SPEED]["median"])
    return series


def curve(table):
    """The scaling curve in text."""
    return chart(_series(table), THREADS, "M pairs per CPU-second over threads")


def verdict(curve):
    """Whether the curve falls, in one line."""
    said = "FALLS" if curve["falls"] else "does not fall"
    return (
        f"{counted(curve['threads_last'])} do {spread(curve['ratio'])} of what"
        f" {counted(curve['threads_first'])} does, per CPU-second: the slab's curve {said}"
        f" (bar: {curve['bar']})"
    )


def memory(table):
    """What a million small elements cost, and a burst of large ones."""
    part = table["memory"]
    lines = [
        f"{part['full_count']:,} elements of 64 bytes, medians of {part['rounds']} rounds",
        f"{'':12} {'bytes above each':>17} {'MiB held, all freed':>20} {'and given back':>15}",
    ]
    for row in part["full"]:
        held, trimmed = row["held_freed_bytes"], row["held_trimmed_bytes"]
        lines.append(
            f"{row['allocator']:12} {row['overhead_bytes_per_element']['median']:17.2f}"
            f" {held['median'] / MIB:20.1f} {trimmed['median'] / MIB:15.1f}"
        )
    lines += [
        "",
        f"{part['burst_count']:,} elements of {bench_slab.BURST_ELEMENT_BYTES} bytes at once, first"
        " word written; CPU ms, then MiB held",
        f"{'':12} {'cold':>8} {'warm':>8} {'freeing':>8} {'all freed':>10} {'given back':>11}",
    ]
    for row in part["burst"]:
        figures = [row[field]["median"] for field in bench_slab.BURST_FIELDS]
        lines.append(
            f"{LABELS.get(row['allocator'], row['allocator']):12}"
            " {:8.1f} {:8.1f} {:8.1f} {:10.1f} {:11.1f}".format(*figures)
        )
    return "\n".join(lines)
