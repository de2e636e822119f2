# SPDX-License-Identifier: MIT
"""
qrp.py - writes small replay programs (.qrp) for the tests, from ops in the order they happen.

    p = Program(); a = p.alloc(0, site=1, size=32); p.free(0, a); p.write(path)

Slots are reused unless two threads touched them, as the format asks for.
Not here: real programs; those come from the tracer.
"""

import struct

ALLOC, CALLOC, ALIGNED, REALLOC, FREE, SIZE_HI = 1, 2, 3, 4, 5, 6
CROSS = 1


class Program:
    """Ops by thread, and the order in which they happened."""

    def __init__(self, sites=8, reuse=True):
        self.sites = sites
        self.reuse = reuse
        self.ops = {}
        self.order = []
        self.slots = 0
        self.idle = {}
        self.objects = {}

    def emit(self, thread, op):
        self.ops.setdefault(thread, []).append(op)
        if self.order and self.order[-1][0] == thread:
            self.order[-1][1] += 1
        else:
            self.order.append([thread, 1])

    def birth(self, thread, kind, site, size, align_log2=0):
        if self.idle.get(thread):
            slot = self.idle[thread].pop()
        else:
            slot = self.slots
            self.slots += 1
        self.objects[slot] = [site, thread, False]
        if size >> 32:
            self.emit(thread, (SIZE_HI, 0, 0, site, slot, size >> 32))
        self.emit(thread, (kind, align_log2, 0, site, slot, size & 0xFFFFFFFF))
        return slot

    def alloc(self, thread, site=0, size=32):
        return self.birth(thread, ALLOC, site, size)

    def touch(self, thread, slot):
        site, toucher, _ = self.objects[slot]
        cross = toucher != thread
        self.objects[slot][1] = thread
        self.objects[slot][2] |= cross
        return site, CROSS if cross else 0

    def realloc(self, thread, slot, size):
        site, flags = self.touch(thread, slot)
        self.emit(thread, (REALLOC, 0, flags, site, slot, size))

    def free(self, thread, slot):
        site, flags = self.touch(thread, slot)
        self.emit(thread, (FREE, 0, flags, site, slot, 0))
        _, _, crossed = self.objects.pop(slot)
        if self.reuse and not crossed:
            self.idle.setdefault(thread, []).append(slot)

    def bytes(self, runs=False):
        names = sorted(self.ops)
        total = sum(len(self.ops[t]) for t in names)
        out = [
            struct.pack(
                "<8sIIQQIIQ3Q",
                b"QRP1",
                1,
                len(names),
                total,
                self.slots,
                self.sites,
                0,
                0,
                len(self.order) if runs else 0,
                0,
                0,
            )
        ]
        first = 0
        for t in names:
            out.append(struct.pack("<QQII", first, len(self.ops[t]), 1000 + t, 0))
            first += len(self.ops[t])
        for t in names:
            out += [struct.pack("<BBHIII", *op) for op in self.ops[t]]
        if runs:
            out += [struct.pack("<II", names.index(t), n) for t, n in self.order]
        return b"".join(out)

    def write(self, path, runs=False):
        path.write_bytes(self.bytes(runs))
        return path
