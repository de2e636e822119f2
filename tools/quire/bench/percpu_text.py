# SPDX-License-Identifier: MIT
"""
percpu_text.py - both tables of the kernel's per-CPU allocators and the growth plot, for
people.

Not here: figures (bench/percpu.py), drawing (bench/chart.py).
"""

from bench.chart import chart
from bench.figures import interval_kind, spread
from bench.percpu import AREA_MAP, COUNTERS, OURS, SIZES

CELL_WIDTH = 14
LABELS = {AREA_MAP: "area map *"}


def text(table):
    parts = [_head(table), _objects(table), _aligned(table)]
    return "\n\n".join([*parts, _growth(table["growth"]), _add(table["add"])])


def _head(table):
    return (
        "Per-CPU (the kernel's area map and bitmap): a million objects, freed in order,"
        " alternating, in reverse and at random\n"
        "CPU ms to allocate / free all, the worst order;"
        f" medians of {table['rounds']} interleaved rounds, [{interval_kind(table['rounds'])}]"
    )


def _objects(table):
    lines = [f"{'':14}" + "".join(f"{f'{size} bytes':>{CELL_WIDTH}}" for size in SIZES)]
    names = dict.fromkeys(row["allocator"] for row in table["rows"])
    for name in names:
        rows = [row for row in table["rows"] if row["allocator"] == name]
        cells = [(r["alloc_ms"]["median"], r["free_worst_ms"]["median"]) for r in rows]
        lines.append(_cells(LABELS.get(name, name), cells))
    published = table["published"]
    for key, label in (("area_map", "area map"), ("bitmap", "bitmap")):
        cells = zip(published[f"{key}_alloc_ms"], published[f"{key}_free_ms"])
        lines.append(_cells(f"  {label}", cells) + ("   published" if key == "area_map" else ""))
    measured = min(row["measured"] for row in table["rows"] if row["allocator"] == AREA_MAP)
    lines += [
        f"{'':14} * built here after its description; {measured:,} objects, scaled to a million.",
        f"{'':14}   It and the peers were measured once, before the rounds.",
        f"{'':14}   malloc has one copy of an object, the others have one for each CPU.",
        f"{'':14}   {published['source']}: another machine, the worst order of each",
    ]
    for row in table["rows"]:
        if row["allocator"] == OURS:
            lines.append(
                f"{row['object_bytes']} bytes: {spread(row['alloc_ratio_to_libc'])} of libc's time"
                f" to allocate, {spread(row['free_ratio_to_libc'])} to free"
            )
    return "\n".join(lines)


def _cells(label, cells):
    return f"{label:14}" + "".join(f"{f'{a:.0f} / {b:.0f}':>{CELL_WIDTH}}" for a, b in cells)


def _aligned(table):
    case, published = table["aligned"], table["published"]
    return (
        f"{case['count']:,} objects of 4 bytes at multiples of 8: half of every chunk is holes that"
        " are of no use\n"
        f"{'area map *':14}{case['area_map_measured']:,} in {case['area_map_ms'] / 1000:.1f} s; all"
        f" of them would take about {case['area_map_projected_ms'] / 60000:.0f} minutes\n"
        f"{OURS:14}all in {spread(case['alloc_ms'], 1)} ms: {spread(case['over_plain'])} times as"
        " long as at multiples of 4\n"
        f"{'published':14}area map {published['aligned_area_map_s'] // 60} minutes, bitmap"
        f" {published['aligned_bitmap_s']} s"
    )


def _growth(growth):
    counts = sorted({row["count"] for row in growth["rows"]})
    series = {}
    for row in growth["rows"]:
        name = f"{row['cpus']} CPUs" if row["allocator"] == OURS else row["allocator"]
        series.setdefault(name, []).append(row["pair_ns"]["median"])
    drawn = chart(
        series, [f"{count:,}" for count in counts], "ns to allocate and free one of so many objects"
    )
    said = "GROWS" if growth["grows"] else "does not grow"
    return (
        f"{drawn}\n{_point(growth['last'])} take {spread(growth['ratio'])} times as long a call as"
        f" {_point(growth['first'])}: cost {said} (bar: {growth['bar']})"
    )


def _point(point):
    return f"{point['count']:,} objects for {point['cpus']} CPUs"


def _add(add):
    parts = [f"{name} {spread(add[name])}" for name in COUNTERS]
    return f"adding to one counter from {add['threads']} threads, ns, all sums exact\n" + "\n".join(
        f"  {part}" for part in parts
    )
