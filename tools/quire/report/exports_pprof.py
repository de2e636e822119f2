# SPDX-License-Identifier: MIT
"""
exports_pprof.py - a trace's stacks as pprof's profile: a gzip-compressed protocol buffer (profile.proto).

    message = fields in order;  field = (number << 3 | type) as a varint, then a varint, or a length and bytes

    Profile 1 sample_type  2 sample  3 mapping  4 location  5 function  6 string_table  11 period_type  12 period
            9 time_nanos  10 duration_nanos  13 comment  14 default_sample_type

inuse_* are of the moment when most bytes were live, not of the end: at the end little is left to see.  Of a heap profile
(cmd_profile.py) they are of when it was written, and all figures estimates: `period` and `comment` say so.
Not here: other formats (report/exports_text.py).
"""

import gzip
import os

from report.flame import CUT

TYPES = [
    ("alloc_objects", "count", (1,)),
    ("alloc_space", "bytes", (2, 3)),
    ("inuse_objects", "count", (4,)),
    ("inuse_space", "bytes", (5,)),
]
UNKNOWN = "(unknown)"
COMMENT = "inuse_*: when most bytes were live; alloc_space: with what reallocs added"


def varint(value):
    """A number, seven bits a byte; one below 0 as 64 bits of two's complement."""
    out = bytearray()
    value &= 0xFFFFFFFFFFFFFFFF
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    """A field that is a number; 0 is the default and left out."""
    return varint(field << 3) + varint(value) if value else b""


def block(field, data):
    """A field that is bytes, a text or a message."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def packed(field, values):
    """A repeated number."""
    return block(field, b"".join(varint(value) for value in values))


class Strings:
    """The table of texts; number 0 is the empty one."""

    def __init__(self):
        self.numbers = {"": 0}

    def number(self, text):
        """A text's place in the table."""
        return self.numbers.setdefault(text, len(self.numbers))

    def field(self):
        """The table itself."""
        return b"".join(block(6, text.encode("utf-8", "replace")) for text in self.numbers)


def value_type(strings, name, unit):
    """What a figure is."""
    return number(1, strings.number(name)) + number(2, strings.number(unit))


def mappings(exported, strings):
    """({module: id}, fields): a mapping a module, without addresses but with names; the program's own is the first."""
    profile, program = exported["profile"], os.path.basename(exported["command"].split(" ")[0])
    modules = {function[3] for function in profile["functions"] if function[3]}
    ids = {name: i for i, name in enumerate(sorted(modules, key=lambda m: (m != program, m)), 1)}
    fields = [
        block(3, number(1, i) + number(5, strings.number(name)) + number(7, 1) + number(9, 1))
        for name, i in ids.items()
    ]
    return ids, b"".join(fields)


def functions(profile, strings):
    """Functions, numbered from 1; two more stand for what is not known and what was cut off."""
    names = [(f[0], f[1]) for f in profile["functions"]] + [(UNKNOWN, ""), (CUT, "")]
    out = []
    for i, (name, file) in enumerate(names, 1):
        text = strings.number(name)
        out.append(
            block(5, number(1, i) + number(2, text) + number(3, text) + number(4, strings.number(file)))
        )
    return b"".join(out)


def locations(profile, modules):
    """Locations, numbered from 1, each with its inlined functions, innermost first; two more as in `functions`."""
    count, out = len(profile["functions"]), []
    for i, held in enumerate(profile["locations"] + [[count], [count + 1]], 1):
        lines = b""
        module = 0
        for index in held:
            known = index < count
            line = profile["functions"][index][2] if known else 0
            module = modules.get(profile["functions"][index][3], 0) if known else 0
            lines += block(4, number(1, index + 1) + number(2, line))
        out.append(block(4, number(1, i) + number(2, module) + lines))
    return b"".join(out)


def samples(profile):
    """A sample a stack, innermost location first."""
    unknown, out = len(profile["locations"]) + 1, []
    for stack in profile["stacks"]:
        values = [sum(stack[c] for c in columns) for _, _, columns in TYPES]
        if any(values):
            ids = [i + 1 for i in stack[0]] or [unknown]
            if len(ids) >= profile["frames_max"]:
                ids.append(unknown + 1)
            out.append(block(2, packed(1, ids) + packed(2, values)))
    return b"".join(out)


def export(_, exported):
    """The file's bytes."""
    profile, strings = exported["profile"], Strings()
    modules, mapped = mappings(exported, strings)
    types = b"".join(block(1, value_type(strings, name, unit)) for name, unit, _ in TYPES)
    body = types + samples(profile) + mapped + locations(profile, modules)
    body += functions(profile, strings)
    body += number(10, int(1e9 * exported["facts"].get("wall_s", 0)))
    body += block(11, value_type(strings, "space", "bytes")) + number(12, exported.get("period", 1))
    body += number(13, strings.number(exported.get("comment", COMMENT))) + number(14, strings.number("inuse_space"))
    return gzip.compress(body + strings.field(), mtime=0)
