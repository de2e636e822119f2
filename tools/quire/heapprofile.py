# SPDX-License-Identifier: MIT
"""
heapprofile.py - heap profiles that libquire-malloc.so writes (QUIRE_CONF=prof): read, named, subtracted.

    heap profile: 21: 11010048 [ 90: 47185920] @ heapprofile        live blocks: bytes [all blocks: bytes]
    # quire.heap/1 period 524288 samples 88 lost 0 pid 4711 ...
    3: 1572864 [ 12: 6291456] @ 0x55d0c0a01139 0x7f2a1c0271ca       a stack: return addresses, innermost first
    MAPPED_LIBRARIES:
    55d0c0a01000-55d0c0a02000 r-xp 00001000 08:01 131 /usr/bin/prog
    # object slab 7 900 64800 nodes                                 kind, number, live count, live bytes, name; exact

    read(text) -> Raw -> named() -> profile as report/ has it: functions, locations, stacks -> exports, table

A profile is data that another process wrote: what cannot be read is refused with a line, and no file that it names is opened but to look for symbols.
Not here: asking a process (cmd_profile.py), formats (report/exports_pprof.py, report/exports_text.py).
"""

import os
import re
import struct

import rebuilt
from errors import UsageError

HEADER = re.compile(r"heap profile: *\d+: *\d+ *\[ *\d+: *\d+ *\] *@ *heapprofile\s*$")
STACK = re.compile(r"\s*(\d+): *(\d+) *\[ *(\d+): *(\d+) *\] *@((?: 0x[0-9a-fA-F]+)*)\s*$")
OBJECT = re.compile(r"# object ([a-z]+) (\d+) (\d+) (\d+) (.*)$")
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) \S+ \d+ *(.*)$")
FRAMES_MAX = 64
PT_LOAD = 1
SUMS = ("live_blocks", "live_bytes", "all_blocks", "all_bytes")


class Raw:
    """A profile as it was written: figures by stack of addresses, and where files lay."""

    def __init__(self, name, facts, stacks, mappings, objects=()):
        self.name = name
        self.facts = facts
        self.stacks = stacks  # [(addresses, [live blocks, live bytes, all blocks, all bytes])]
        self.mappings = mappings  # [(start, end, offset in the file, path)]
        self.objects = objects  # [(what stands for its stack, [live count, live bytes, 0, 0])]: of all bytes nothing is known

    def mapping_of(self, address):
        """Where the code at an address came from; None: from no file."""
        return next((m for m in self.mappings if m[0] <= address < m[1]), None)


def refused(name, why):
    """The error for a file that is none."""
    return UsageError(f"{name} is no heap profile", why=why, fix="QUIRE_CONF=prof:512K quire run -- PROGRAM   writes one")


def shown(text):
    """A name for people: bytes that are not UTF-8, which a path keeps as surrogates, as U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read(text, name):
    """The Raw of a profile's text, with surrogates for bytes that are not UTF-8."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # other ends of lines may stand in a path
    if not HEADER.match(lines[0]):
        raise refused(name, "its first line is not `heap profile: ... @ heapprofile`")
    facts, stacks, mappings, objects, at = {}, [], [], [], 1
    for at in range(1, len(lines)):
        line = lines[at]
        if line.startswith("# quire.heap/1"):
            words = line.split()[2:]
            facts.update({k: int(v) for k, v in zip(words[::2], words[1::2]) if v.isdigit()})
        elif line.startswith("MAPPED_LIBRARIES"):
            break
        elif line.strip() and not line.startswith("#"):
            found = STACK.match(line)
            if not found:
                raise refused(name, f"line {at + 1} is no stack: {shown(line[:60])}")
            stacks.append(([int(a, 16) for a in found[5].split()], [int(found[i]) for i in range(1, 5)]))
    else:
        raise refused(name, "it is cut short: MAPPED_LIBRARIES is missing")
    for line in lines[at + 1 :]:
        found = OBJECT.match(line)
        if found:
            objects.append((f"[{found[1]} {shown(found[5]) or found[2]}]", [int(found[3]), int(found[4]), 0, 0]))
            continue
        found = MAPPING.match(line)
        if found:
            mappings.append((int(found[1], 16), int(found[2], 16), int(found[3], 16), found[4]))
    return Raw(name, facts, stacks, mappings, objects)


def segments(path):
    """[(offset, bytes, address)] of a file's loaded parts; empty: none to be had."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return []
            (at,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            file.seek(at)
            table = file.read(size * count)
        rows = [struct.unpack_from("<IIQQQQ", table, i * size) for i in range(count)]
    except (OSError, struct.error):
        return []
    return [(row[2], row[5], row[3]) for row in rows if row[0] == PT_LOAD]


def file_address(found, offset):
    """An offset in a file as its symbol table has it."""
    return next((offset - start + address for start, size, address in found if start <= offset < start + size), offset)


def places_of(raw):
    """{address: (path, address in the file)} of all return addresses; path "": nobody's."""
    known, loaded = {}, {}
    for address in {a for addresses, _ in raw.stacks for a in addresses}:
        mapping = raw.mapping_of(address - 1)
        path = mapping[3] if mapping and mapping[3].startswith("/") else ""
        if not path:
            known[address] = (mapping[3] if mapping else "", address)
            continue
        if path not in loaded:
            loaded[path] = segments(path)
        known[address] = (path, file_address(loaded[path], address - mapping[0] + mapping[2]))
    return known


def seen_from_here(path, root):
    """A file of a process that may have another root."""
    inside = root + path
    return inside if root and os.path.exists(inside) else path


def names_of(places, root=""):
    """{(path, address): [(function, file, line)], innermost first}."""
    wanted, names = {}, {}
    for path, address in places:
        if path.startswith("/"):
            wanted.setdefault(path, []).append(address)
    for path, addresses in wanted.items():
        lines = rebuilt.lines_of(seen_from_here(path, root), addresses)
        for address in addresses:
            found = [split(line) for line in lines.get(address, [])]
            names[path, address] = [f for f in found if f[0]]
    return names


def split(line):
    """"function|file:line" in three."""
    function, _, place = line.partition("|")
    file, _, number = place.rpartition(":")
    return function, file, int(number) if number.isdigit() else 0


class Named:
    """Functions, locations and stacks as report/ has them: a stack is [locations, all blocks, all bytes, 0, live blocks, live bytes]."""

    def __init__(self):
        self.functions, self.locations, self.stacks = [], [], []
        self._function_numbers, self._location_numbers, self._stack_numbers = {}, {}, {}

    def _function(self, entry):
        if entry not in self._function_numbers:
            self._function_numbers[entry] = len(self.functions)
            self.functions.append([*entry, 0])
        return self._function_numbers[entry]

    def location(self, place, names):
        """The number of a place in a file."""
        path, address = place
        key = (path, address)
        if key not in self._location_numbers:
            module = shown(os.path.basename(path)) or "(no file)"
            lines = names or [(f"{module}+0x{address:x}", "", 0)]
            self._location_numbers[key] = len(self.locations)
            self.locations.append([self._function((function, file, line, module)) for function, file, line in lines])
        return self._location_numbers[key]

    def add(self, locations, figures, sign=1):
        """Figures of a stack, or less of them."""
        key = tuple(locations)
        if key not in self._stack_numbers:
            self._stack_numbers[key] = len(self.stacks)
            self.stacks.append([list(locations), 0, 0, 0, 0, 0])
        stack = self.stacks[self._stack_numbers[key]]
        live_blocks, live_bytes, all_blocks, all_bytes = figures
        for column, figure in ((1, all_blocks), (2, all_bytes), (4, live_blocks), (5, live_bytes)):
            stack[column] += sign * figure

    def document(self):
        """The profile."""
        kept = [s for s in self.stacks if any(s[1:])]
        return {"functions": self.functions, "locations": self.locations, "stacks": kept, "frames_max": FRAMES_MAX}


def named(raw, less=None, root=""):
    """The profile with names; `less`: what has changed since that one."""
    result = Named()
    for profile, sign in ((raw, 1), (less, -1)):
        if profile is None:
            continue
        places = places_of(profile)
        names = names_of(sorted(set(places.values())), root)
        for addresses, figures in profile.stacks:
            result.add([result.location(places[a], names.get(places[a])) for a in addresses], figures, sign)
        for label, figures in profile.objects:
            result.add([result.location(("[objects]", label), [(label, "", 0)])], figures, sign)
    return result.document()


def sums(document):
    """{live_blocks, live_bytes, all_blocks, all_bytes} over all stacks."""
    columns = {"live_blocks": 4, "live_bytes": 5, "all_blocks": 1, "all_bytes": 2}
    return {name: sum(stack[column] for stack in document["stacks"]) for name, column in columns.items()}
