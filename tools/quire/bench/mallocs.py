# SPDX-License-Identifier: MIT
"""
mallocs.py - figures of mallocs side by side: rows by line and allocator, means relative to libc, what is worst.

    samples: one {(line, allocator): {"cpu_ns", "peak_rss_bytes", ...}} a round
        -> rows   each with its ratios to libc        -> means   geometric, over lines     -> text

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
            B2  a ratio is taken between processes of one round, never between medians.
Not here: what the lines are (bench/micro.py, bench/apps.py, bench/heap.py), running them (bench/run.py).
"""

from math import exp, log
from statistics import median

import bench.run as bench_run
import native
import peers
from bench.figures import above, interval_kind, ratio, values, with_interval
from bench.run import LIBC

OURS, SECURE = "libquire-malloc", "quire-secure"
SHORT = {OURS: "drop-in", SECURE: "secure"}
CPU, RSS = "cpu_ns", "peak_rss_bytes"
MIB = 1048576


class Cast(bench_run.Cast):
    """Who is measured; SECURE is the same library told to be."""

    def environment(self, name):
        """Nothing but the malloc's own library, and what SECURE is told."""
        told = {"QUIRE_CONF": "secure:1"} if name == SECURE else {}
        return {**super().environment(name), **told}

    def admit(self, name, figure):
        """B1; a secure heap is served by the same library."""
        if name == SECURE and figure["allocator"] == OURS:
            return True
        return super().admit(name, figure)


def cast(secure=False, limit=None):
    """libc, the installed peers and libquire-malloc; the last is named as refused when it is not built."""
    found = peers.installed()
    library = native.library(f"{OURS}.so")
    if library:
        ours = [OURS, SECURE] if secure else [OURS]
        found = [*found, *(peers.Peer(name, library) for name in ours)]
    everyone = Cast(found, limit)
    if not library:
        everyone.refused[OURS] = (
            "it is not built: cmake --preset release && cmake --build --preset release"
        )
    return everyone


def whole_lines(samples, lines, names):
    """(those lines of which a round has every allocator, the others)"""
    whole = [n for n in lines if any(all((n, name) in sample for name in names) for sample in samples)]
    return whole, [line for line in lines if line not in whole]


def rows(samples, lines, names, extras=()):
    """A row for each line and allocator that was measured in every round's libc process too."""
    found = []
    for line in lines:
        for name in names:
            key = (line, name)
            if not any(key in sample and (line, LIBC) in sample for sample in samples):
                continue
            row = {
                "line": line,
                "allocator": name,
                CPU: with_interval(values(samples, key, CPU)),
                RSS: with_interval(values(samples, key, RSS)),
                "cpu_ratio_to_libc": ratio(samples, key, (line, LIBC), CPU),
                "rss_ratio_to_libc": ratio(samples, key, (line, LIBC), RSS),
            }
            for field in extras:
                if all(field in sample[key] for sample in samples if key in sample):
                    row[field] = with_interval(values(samples, key, field))
            found.append(row)
    return found


def mean(ratios):
    """The geometric mean."""
    return exp(sum(log(max(r, 1e-9)) for r in ratios) / len(ratios))


def means(table, lines):
    """{allocator: {"lines", "cpu", "rss"}} over those lines; who misses one is compared on fewer, and says so."""
    found = {}
    for name in dict.fromkeys(row["allocator"] for row in table):
        mine = [r for r in table if r["allocator"] == name and r["line"] in lines]
        if mine:
            found[name] = {
                "lines": len(mine),
                "cpu": mean([r["cpu_ratio_to_libc"]["median"] for r in mine]),
                "rss": mean([r["rss_ratio_to_libc"]["median"] for r in mine]),
            }
    return found


def best_peer(means_of):
    """The peer with the lowest mean of CPU time, or None."""
    rivals = {n: m["cpu"] for n, m in means_of.items() if n not in (LIBC, OURS, SECURE)}
    return min(rivals, key=rivals.get) if rivals else None


def text(table, names, title, rounds):
    """CPU time in ms and times libc's; peak MiB and times libc's; a line each."""
    lines = [
        title,
        f"medians of {rounds} interleaved rounds, [{interval_kind(rounds)} in --json]; one process a figure, the malloc in it checked",
        f"{'':14}{'libc':>19}" + "".join(f"{short(n):>14}" for n in names if n != LIBC),
        f"{'':14}{'CPU ms':>9}{'peak MiB':>10}" + f"{'CPU   peak':>14}" * (len(names) - 1),
    ]
    by_line = {}
    for row in table:
        by_line.setdefault(row["line"], {})[row["allocator"]] = row
    for line, found in by_line.items():
        base = found[LIBC]
        cells = f"{base[CPU]['median'] / 1e6:9.1f}{base[RSS]['median'] / MIB:10.1f}"
        for name in names:
            if name != LIBC:
                cells += pair(found.get(name))
        lines.append(f"{line:14}{cells}")
    return "\n".join(lines)


def short(name):
    """A name that fits a column."""
    return SHORT.get(name, name[:12])


def pair(row):
    """Two ratios in a column."""
    if row is None:
        return f"{'-':>14}"
    return f"{row['cpu_ratio_to_libc']['median']:8.2f}{row['rss_ratio_to_libc']['median']:6.2f}"


def means_text(label, means_of, names):
    """One line: the geometric means."""
    cells = "".join(
        f"{means_of[n]['cpu']:8.2f}{means_of[n]['rss']:6.2f}" if n in means_of else f"{'-':>14}"
        for n in names
        if n != LIBC
    )
    return f"{label:14}{'':19}{cells}"


def worst(table, limit=5):
    """[(ratio, line, kind)] of ours against libc, the worst first."""
    found = [
        (row[f"{kind}_ratio_to_libc"]["median"], row["line"], kind)
        for row in table
        if row["allocator"] == OURS
        for kind in ("cpu", "rss")
    ]
    return sorted(found, reverse=True)[:limit]


def regressions(rows_now, rows_before, what):
    """[sentence] for each of our ratios that lies wholly above the baseline's interval."""
    before = {(r["line"], r["allocator"]): r for r in rows_before}
    found = []
    for row in rows_now:
        old = before.get((row["line"], OURS))
        if row["allocator"] != OURS or not old:
            continue
        for kind, words in (("cpu", "CPU"), ("rss", "peak memory")):
            share, was = row[f"{kind}_ratio_to_libc"], old[f"{kind}_ratio_to_libc"]
            if above(share, was):
                found.append(
                    f"{what} {row['line']}: {share['median']:.2f} of libc's {words}, it was"
                    f" {was['median']:.2f}"
                )
    return found


def middle(samples, key, field):
    """The median of one figure."""
    return median(values(samples, key, field))
