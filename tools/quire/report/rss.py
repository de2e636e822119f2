# SPDX-License-Identifier: MIT
"""
rss.py - resident memory explained: of which parts it is the sum, where live bytes were most.

    libc (mallinfo2)     live | headers and rounding | free chunks | not explained
    drop-in (its stats)  live | rounding | page slack | cached | metadata          - of these not in memory = resident

Not here: measuring (the replayer), the same of a real run (`quire run --stats`).
"""

from collections import namedtuple

import render

WORDS = {
    "live": "what the program asked for and has not freed",
    "rounding": "what sizes are rounded up by, and each block's header where there is one",
    "page slack": "free room in pages and chunks that also hold live blocks: fragmentation",
    "cached": "pages that are wholly free and kept, to be handed out again without asking the system",
    "metadata": "the allocator's own books: page headers, tables, maps",
    "all else": "headers, rounding, free room, caches, books: this allocator does not tell them apart",
    "other": "resident, but none of these: the allocator's code and data that the replay touched first",
    "not in memory": "reserved and counted above, but never touched, so not resident: taken away",
}
COLOURS = dict(zip(WORDS, ("s0", "s3", "s1", "s2", "s4", "s6", "s7", "s7")))

Part = namedtuple("Part", "word bytes colour")
Explained = namedtuple("Explained", "name rss_bytes live_bytes parts absent_bytes")


def close(name, rss_bytes, parts):
    """The parts with what is missing to, or too much for, the resident memory."""
    total = sum(parts.values())
    absent = max(0, total - rss_bytes)
    parts = {**parts, "other": max(0, rss_bytes - total)}
    rows = [Part(word, parts[word], COLOURS[word]) for word in WORDS if parts.get(word)]
    return Explained(name, rss_bytes, parts["live"], rows, absent)


def libc(figures):
    """From mallinfo2."""
    _, live, rss = figures["largest"]
    info = figures["mallinfo"]
    rounding = max(0, info["used_bytes"] + info["mapped_bytes"] - live)
    return close("libc", rss, {"live": live, "rounding": rounding, "page slack": info["free_bytes"]})


def drop_in(figures):
    """From the statistics of libquire-malloc."""
    _, live, rss = figures["largest"]
    heaps, sources = figures["stats"]["heaps"], figures["stats"]["sources"]

    def of(rows, key):
        return sum(row[key] for row in rows)

    parts = {
        "live": live,
        "rounding": max(0, of(heaps, "live_bytes") - live),
        "page slack": of(heaps, "free_bytes"),
        "cached": of(sources, "idle_bytes"),
        "metadata": of(heaps, "meta_bytes") + of(sources, "meta_bytes"),
    }
    return close("drop-in", rss, parts)


def plain(name, figures):
    """An allocator that says nothing of itself."""
    _, live, rss = figures["largest"]
    return close(name, rss, {"live": live, "all else": max(0, rss - live)})


def explain(timelines):
    """Every allocator of the timelines, as far as it can be told."""
    found = []
    for name, figures in timelines.items():
        if "stats" in figures and figures["stats"]["heaps"]:
            found.append(drop_in(figures))
        elif name == "libc" and "mallinfo" in figures:
            found.append(libc(figures))
        else:
            found.append(plain(render.CODE if name == "mix" else name, figures))
    return found
