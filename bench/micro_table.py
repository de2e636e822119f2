#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
micro_table.py - from a recorded trace to a table of micro_tables.h: how often which size lives how long.

    quire record -o jq.qtr -- jq . big.json
    quire-analyse jq.qtr --program jq.qrp && bench/micro_table.py jq.qrp micro_jq

A life is counted in allocations from birth to death; one row is (size, life as a power of 2, share in parts per 10,000).
Sizes are rounded up to multiples of 8, above 256 to an eighth of a doubling; the rarest rows are added to their neighbours in size.
Not here: recording (`quire record`), reading traces (quire-analyse), playing a table (micro_mixed.c).
"""

import array
import struct
import sys
from collections import Counter

HEADER_BYTES, THREAD_BYTES, OP_BYTES = 72, 24, 16
ALLOC, CALLOC, ALIGNED, REALLOC, FREE, SIZE_HI = 1, 2, 3, 4, 5, 6
LIVES_LOG2 = (2, 5, 8, 11, 14, 17)
FOREVER_LOG2 = 31
ROWS_MAX = 60
SHARES = 10_000


def ops(path):
    """(kind, slot, size) of every operation."""
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
        if head[:4] != b"QRP1":
            sys.exit(f"{path} is no replay program; quire-analyse TRACE --program FILE makes one")
        _, threads, count = struct.unpack_from("<IIQ", head, 8)
        file.seek(HEADER_BYTES + threads * THREAD_BYTES)
        words = array.array("I", file.read(count * OP_BYTES))
    for at in range(0, len(words), 4):
        yield words[at] & 255, words[at + 2], words[at + 3]


def rounded(size):
    """The size of a row."""
    if size <= 256:
        return (max(size, 1) + 7) // 8 * 8
    step = 1 << (size.bit_length() - 4)
    return (size + step - 1) // step * step


def lives(path):
    """Counter of (size, life_log2)."""
    born, rows, clock = {}, Counter(), 0
    for kind, slot, size in ops(path):
        if kind in (ALLOC, CALLOC, ALIGNED):
            clock += 1
            born[slot] = (clock, size)
        elif kind == REALLOC and slot in born:
            born[slot] = (born[slot][0], size)
        elif kind == FREE and slot in born:
            at, size = born.pop(slot)
            life = next((l for l in LIVES_LOG2 if clock - at < 1 << l), FOREVER_LOG2)
            rows[rounded(size), life] += 1
    for _, size in born.values():
        rows[rounded(size), FOREVER_LOG2] += 1
    return rows


def thinned(rows):
    """At most ROWS_MAX rows; a rare one goes to the nearest size with its life, or without."""
    kept = dict(rows.most_common(ROWS_MAX))
    for (size, life), count in rows.items():
        if (size, life) not in kept:
            near = min(
                kept, key=lambda k: (k[1] != life, abs(k[0].bit_length() - size.bit_length()))
            )
            kept[near] += count
    return kept


def main(path, name):
    rows = thinned(lives(path))
    total = sum(rows.values())
    cells = [(size, life, round(SHARES * n / total)) for (size, life), n in sorted(rows.items())]
    cells = [f"{{{size}, {life}, {share}}}" for size, life, share in cells if share]
    print(f"static const struct micro_row {name}[] = {{")
    for at in range(0, len(cells), 8):
        print("    " + ", ".join(cells[at : at + 8]) + ",")
    print("};")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: micro_table.py PROGRAM.qrp NAME")
    main(sys.argv[1], sys.argv[2])
