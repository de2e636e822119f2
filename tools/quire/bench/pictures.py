# SPDX-License-Identifier: MIT
"""
pictures.py - the names of a table's pictures, before there are any.

    scale   scale-threads-arena.svg ...       seeds   seeds-arena.svg ...       micro, apps   micro-cpu.svg, micro-memory.svg

Drawing is loaded after measuring alone: a process begins with the peak memory of the one that started it.
Not here: drawing (bench/plots.py).
"""

import bench.scale as bench_scale


def files(table):
    """[file name]: all that a table may have."""
    if table == "scale":
        names = [f"{axis}-{part}" for axis, parts in bench_scale.AXES.items() for part in parts]
    else:
        names = ["arena", "slab", "heap"] if table == "seeds" else ["cpu", "memory"]
    return [f"{table}-{name}.svg" for name in names]
