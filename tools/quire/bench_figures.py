# SPDX-License-Identifier: MIT
"""
bench_figures.py - from the rounds of a benchmark to medians with intervals, ratios, a table and a
comparison.

    samples: one {(name, callers): figure} a round  ->  row(): medians, intervals  ->  text()

An interval is that of the median by order statistics, at least 95 % where there are six rounds or
more, else the whole range.
Not here: running anything (cmd_bench.py).
"""

from math import comb
from statistics import median

CONFIDENCE = 0.95
BASE, OURS = "libc", "quire-arena"


def with_interval(values):
    """{"median", "low", "high"} of some numbers."""
    ordered = sorted(values)
    outside = (1 - CONFIDENCE) / 2
    cut, tail = 0, 0.5 ** len(ordered)
    while tail <= outside and cut < len(ordered) // 2:
        cut += 1
        tail += comb(len(ordered), cut) * 0.5 ** len(ordered)
    cut = max(cut - 1, 0)
    return {"median": median(ordered), "low": ordered[cut], "high": ordered[-1 - cut]}


def row(samples, name, callers, names):
    """The figures of one allocator at one number of callers, and its ratios to libc and to the best
    peer."""
    mine = [sample[name, callers] for sample in samples if (name, callers) in sample]
    figures = {
        "allocator": name,
        "callers": callers,
        "cpu_ns_per_query": with_interval([f["cpu_ns_per_query"] for f in mine]),
        "queries_per_s": with_interval([f["queries_per_s"] for f in mine]),
        "response_ns": {
            key: median(f["response_ns"][key] for f in mine) for key in ("min", "avg", "max")
        },
        "cpu_ratio_to_libc": ratio(samples, name, BASE, callers),
    }
    rivals = [other for other in names if other not in (BASE, OURS)]
    if name == OURS and rivals:
        best = min(
            rivals,
            key=lambda other: median(
                s[other, callers]["cpu_ns_per_query"] for s in samples if (other, callers) in s
            ),
        )
        figures["best_peer"] = best
        figures["cpu_ratio_to_best_peer"] = ratio(samples, name, best, callers)
    return figures


def ratio(samples, name, base, callers):
    """CPU of one against another, taken within each round."""
    pairs = [
        (s[name, callers], s[base, callers])
        for s in samples
        if (name, callers) in s and (base, callers) in s
    ]
    return with_interval([a["cpu_ns_per_query"] / b["cpu_ns_per_query"] for a, b in pairs])


def regressions(result, baseline):
    """[sentence] for each ratio of the arena's that lies wholly above the baseline's interval."""
    before = {(r["allocator"], r["callers"]): r for r in baseline["rows"]}
    found = []
    for now in result["rows"]:
        old = before.get((now["allocator"], now["callers"]))
        if now["allocator"] != OURS or old is None:
            continue
        if now["cpu_ratio_to_libc"]["low"] > old["cpu_ratio_to_libc"]["high"]:
            a, b = now["cpu_ratio_to_libc"]["median"], old["cpu_ratio_to_libc"]["median"]
            found.append(f"{now['callers']} callers: {a:.3f} of libc's CPU, it was {b:.3f}")
    return found


def comparison_text(result, baseline, slower):
    """The lines below the table when there is a baseline."""
    where = baseline["machine"]
    lines = [
        f"baseline: {where['cpu_model']}, {where['cpus_usable']} CPUs, {baseline['rounds']} rounds"
    ]
    if where["cpu_model"] != result["machine"]["cpu_model"]:
        lines.append("          another machine: only the ratios compare")
    return "\n".join(
        lines + ([f"SLOWER    {line}" for line in slower] or ["no slower than the baseline"])
    )


def text(result, published):
    """The whole table, for people."""
    return "\n\n".join([_head(result), _table(result["rows"]), _published(result, published)])


def _head(result):
    m, interval = result["machine"], "95 % interval" if result["rounds"] >= 6 else "whole range"
    lines = [
        (
            "Arena (One Way Allocator): a query over 1000 charts of 100 dimensions, 500,000"
            " objects, all touched"
        ),
        (
            f"{m['cpu_model']}, {m['cpus_usable']} CPUs, {m['kernel']}, {m['libc']}, load"
            f" {m['load_average_before']} before"
        ),
        (
            f"medians of {result['rounds']} interleaved rounds, [{interval}]; one process a figure,"
            " the malloc in it checked"
        ),
    ]
    return "\n".join(
        lines + [f"left out: {name}: {why}" for name, why in result["refused"].items()]
    )


def _table(rows):
    lines = [
        f"{'':12} {'callers':>7}  {'CPU ms a query':>24} {'of libc':>8} {'queries/s':>10} "
        f" {'response ms min/avg/max':>24}"
    ]
    for r in rows:
        cpu, answer = r["cpu_ns_per_query"], r["response_ns"]
        spread = f"{cpu['median'] / 1e6:.2f} [{cpu['low'] / 1e6:.2f} to {cpu['high'] / 1e6:.2f}]"
        response = " / ".join(f"{answer[key] / 1e6:.1f}" for key in ("min", "avg", "max"))
        share, speed = r["cpu_ratio_to_libc"]["median"], r["queries_per_s"]["median"]
        lines.append(
            f"{r['allocator']:12} {r['callers']:7}  {spread:>24} {share:8.3f} {speed:10.1f} "
            f" {response:>24}"
        )
    for r in rows:
        if "best_peer" in r:
            against = r["cpu_ratio_to_best_peer"]
            lines.append(
                f"{r['callers']} at a time: the arena takes {against['median']:.3f}"
                f" [{against['low']:.3f} to {against['high']:.3f}] of {r['best_peer']}'s CPU, the"
                " best peer here"
            )
    return "\n".join(lines)


def _published(result, published):
    ours = {(r["allocator"], r["callers"]): r["queries_per_s"]["median"] for r in result["rows"]}
    lines = [published["source"], f"{'':12} {'malloc':>10} {'One Way':>10} {'times':>6}   here"]
    most = max(r["callers"] for r in result["rows"])
    for kind, callers in (("sequential", 1), ("parallel", most)):
        before, after = published[kind]["malloc_s"], published[kind]["one_way_s"]
        here = f"{ours[OURS, callers] / ours[BASE, callers]:.2f} times libc's throughput"
        here += f" ({callers} at a time)"
        lines.append(f"{kind:12} {before:8.2f} s {after:8.2f} s {before / after:6.2f}   {here}")
    for key, label in (("malloc", "malloc"), ("one_way", "One Way")):
        answer = published["parallel"][f"{key}_response_s"]
        speed = published["parallel"][f"{key}_queries_per_s"]
        spread = " / ".join(f"{answer[part]:.2f}" for part in ("min", "avg", "max"))
        lines.append(f"{'':12} {label}: {speed:.2f} queries/s, response {spread} s")
    return "\n".join(lines)
