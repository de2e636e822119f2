# SPDX-License-Identifier: MIT
"""
rebuilt.py - a plan for the files that are there now: the recorded builds, or others whose call sites are found again.

    plan + program --build ids--> all the same: the plan as it is
                              --> another program: refused
                              --> another build: each return address is looked for by function and line -> a new plan, or refused with what differs

A return address is found again where its function has the same name and size and a call ends at the same place in it; else where the function's calls
of what it called then (malloc and its like; the wrapper), on the recorded line, are as many as were recorded. How far apart return
addresses lie on the stack is believed to be as it was: the library looks at run time, and what it does not know goes to the heap.
Not here: the file's format (steerplan.py).
"""

import json
import os
import re
import struct
import subprocess
from collections import namedtuple

import native
from errors import QuireError
from steerplan import Frame, Module, Plan, one_line

PT_LOAD, PT_NOTE, NT_GNU_BUILD_ID = 1, 4, 3
SHT_SYMTAB, SHT_RELA, SHT_DYNSYM, STT_FUNC = 2, 4, 11, 2
CLONE = re.compile(r"\.(constprop|part|isra|cold|lto_priv)(\.\d+)*")
ALLOCATES = {"malloc", "calloc", "realloc", "reallocarray", "memalign", "aligned_alloc", "posix_memalign", "_Znwm", "_Znam"}

Matched = namedtuple("Matched", "plan path notes")  # path: a plan file that holds for the files as they are


class Image:
    """What is asked of one ELF file: its build id, its functions by name, its bytes by address."""

    def __init__(self, path):
        self.build_id = ""
        self.functions = {}
        self.name_at = {}  # of functions, by address
        self.slots = {}  # of the table that calls of other files go through: address to name
        self.loads = []
        with open(path, "rb") as file:
            self.data = file.read()
        try:
            if self.data[:6] == b"\x7fELF\x02\x01":
                self._segments()
                self._sections()
        except (struct.error, IndexError):
            pass  # damaged: it has what could be read

    def _segments(self):
        (offset,) = struct.unpack_from("<Q", self.data, 32)
        each, number = struct.unpack_from("<HH", self.data, 54)
        for i in range(number):
            kind, _, at, address, _, in_file = struct.unpack_from("<IIQQQQ", self.data, offset + i * each)
            if kind == PT_LOAD:
                self.loads.append((address, at, in_file))
            elif kind == PT_NOTE and not self.build_id:
                self._note(at, at + in_file)

    def _note(self, at, end):
        while at + 12 <= end:
            name, bytes_, kind = struct.unpack_from("<III", self.data, at)
            start = at + 12 + (name + 3 & ~3)
            if kind == NT_GNU_BUILD_ID and self.data[at + 12 : at + 16] == b"GNU\0":
                self.build_id = self.data[start : start + bytes_].hex()
            at = start + (bytes_ + 3 & ~3)

    def _sections(self):
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        each, number = struct.unpack_from("<HH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, offset + i * each) for i in range(number)]
        for _, kind, _, _, at, in_file, link, _, _, _ in headers:
            if kind in (SHT_SYMTAB, SHT_DYNSYM) and link < number:
                self._symbols(self.data[at : at + in_file - in_file % 24], headers[link][4])
            elif kind == SHT_RELA and link < number and headers[link][1] == SHT_DYNSYM:
                self._slots(self.data[at : at + in_file - in_file % 24], headers[link][4], headers[headers[link][6]][4])

    def _name(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode("utf-8", "replace").split("@")[0]

    def _symbols(self, symbols, strings):
        for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", symbols):
            if info & 15 == STT_FUNC and section and size:
                text = whole(self._name(strings + name))
                self.functions.setdefault(text, set()).add((value, size))
                self.name_at[value] = text

    def _slots(self, entries, symbols, strings):
        for slot, info, _ in struct.iter_unpack("<QQq", entries):
            if info >> 32:
                (name,) = struct.unpack_from("<I", self.data, symbols + 24 * (info >> 32))
                self.slots[slot] = self._name(strings + name)

    def callee(self, address):
        """The name of what the call that ends there calls (x86-64); "" when it cannot be said."""
        code = self.code(address - 6, 6)
        if len(code) == 6 and code[:2] == b"\xff\x15":
            return self.slots.get(address + struct.unpack("<i", code[2:])[0], "")
        if len(code) == 6 and code[1] == 0xE8:
            return self._called(address + struct.unpack("<i", code[2:])[0])
        return ""

    def _called(self, address):
        stub = self.code(address, 16)
        jump = stub.find(b"\xff\x25")
        if address not in self.name_at and 0 <= jump <= 5:  # a way station: jump by the table
            return self.slots.get(address + jump + 6 + struct.unpack_from("<i", stub, jump + 2)[0], "")
        return self.name_at.get(address, "")

    def code(self, address, size):
        """Bytes at an address of the file."""
        for start, at, in_file in self.loads:
            if start <= address and address + size <= start + in_file:
                return self.data[at + address - start : at + address - start + size]
        return b""

    def returns(self, address, size):
        """Addresses in a function right behind what reads as a call (x86-64)."""
        code = self.code(address, size)
        return [address + i for i in range(2, len(code) + 1) if ends_call(code[max(0, i - 7) : i])]


def ends_call(code):
    """Whether a call may end here: call rel32, or call through a register or memory."""
    if len(code) >= 5 and code[-5] == 0xE8:
        return True
    return any(len(code) >= n and code[-n] == 0xFF and code[-n + 1] & 0x38 == 0x10 for n in (2, 3, 4, 6, 7))


def lines_of(path, addresses):
    """{address: the lines there, inlined functions first}, by the analyser."""
    if not addresses:
        return {}
    text = "\n".join(f"{a:x}" for a in addresses)
    done = subprocess.run(
        [native.helper("quire-analyse"), "--lines", path], input=text, capture_output=True, text=True, errors="replace", check=False
    )
    return {int(k, 16): v for k, v in json.loads(done.stdout).items()} if done.returncode == 0 else {}


def function_of(frame):
    """The name of the function that a frame lies in."""
    return frame.lines[-1].split("|", 1)[0] if frame.lines else ""


def whole(name):
    """The function that a part or a clone was made of: f.constprop.0 is f."""
    return CLONE.sub("", name)


def plain(name):
    """A name as symbol tables have it, as far as that can be had from a demangled one."""
    return whole(name.split("(")[0])


def alike(lines):
    """Lines as they are compared between builds."""
    return [whole(line.split("|", 1)[0]) + "|" + line.split("|", 1)[-1] for line in lines]


class Finder:
    """Frames of one changed file found again in the file that is there."""

    def __init__(self, path, image, called):
        self.path = path
        self.image = image
        self.called = called  # {number of a frame: names of what it may have called}
        self.lost = []  # names of functions

    def find(self, frames):
        """{number: new Frame} of {number: Frame}."""
        found = {}
        for number, frame in frames.items():
            name = plain(function_of(frame))
            places = self.image.functions.get(name, set()) if name else set()
            at = self._same_shape(frame, places) or self._same_line(number, places, frames)
            if at:
                found[number] = at
            else:
                self.lost.append(name or f"offset {frame.offset:x}")
        return found

    def _same_shape(self, frame, places):
        if not frame.function_bytes or len(places) != 1:
            return None
        ((start, size),) = places
        address = start + frame.from_function
        if size != frame.function_bytes or not ends_call(self.image.code(address - 7, 7)):
            return None
        return frame._replace(offset=address)

    def _same_line(self, number, places, frames):
        frame = frames[number]
        if len(places) != 1 or not frame.lines[-1].rsplit(":", 1)[-1].strip("0"):
            return None
        ((start, size),) = places
        there = lines_of(self.path, self.image.returns(start, size))
        here = sorted(a for a, names in there.items() if alike(names) == alike(frame.lines) and self.image.callee(a) in self.called[number])
        same = sorted(f.offset for i, f in frames.items() if alike(f.lines) == alike(frame.lines) and self.called[i] == self.called[number])
        if len(here) != len(same):
            return None
        address = here[same.index(frame.offset)]
        return Frame(frame.module, address, address - start, size, frame.lines)


def called_by(plan):
    """{number of a frame: names of functions}: malloc and its like by the first of a path, by others the function below."""
    called = {number: set() for number in range(len(plan.frames))}
    for site in plan.sites:
        for path in site.paths:
            called[path[0][1]] |= ALLOCATES
            for (_, below), (_, frame) in zip(path, path[1:]):
                called[frame].add(plain(function_of(plan.frames[below])))
    return called


def difference(plan, binary):
    """Which modules of the plan are other builds now: {module number: (path, Image)}; those that are not there have no Image."""
    changed = {}
    for number, module in enumerate(plan.modules):
        path = binary if number == plan.program else module.path
        if not os.path.isfile(path):
            changed[number] = (path, None)
            continue
        image = Image(path)
        if image.build_id != module.build_id:
            changed[number] = (path, image)
    return changed


def is_other_program(plan, binary):
    """Whether the plan's program is another one by name."""
    recorded = os.path.realpath(plan.modules[plan.program].path)
    return os.path.basename(recorded) != os.path.basename(os.path.realpath(binary))


def match(plan, binary, folder):
    """A Matched for the program; QuireError (exit 3, one line) when nothing of the plan holds for it."""
    changed = difference(plan, binary)
    if plan.program in changed and is_other_program(plan, binary):
        recorded = one_line(plan.modules[plan.program].path)
        raise QuireError(f"{one_line(plan.path)} is a plan of another program: of {recorded}, not of {one_line(binary)}", exit_code=3)
    if not changed:
        return Matched(plan, plan.path, [])
    moved, notes, frames, called = {}, [], dict(enumerate(plan.frames)), called_by(plan)
    for number, (path, image) in changed.items():
        own = {i: f for i, f in frames.items() if f.module == number}
        finder = Finder(path, image, called) if image else None
        found = finder.find(own) if image and image.build_id else {}
        moved.update({i: found.get(i) for i in own})
        if own:
            notes.append(note(path, image, finder, len(found), len(own)))
    fresh = rewritten(plan, moved, changed)
    if any(site.paths for site in plan.sites) and not any(site.paths for site in fresh.sites):
        raise QuireError(f"{one_line(plan.path)} is of another build, and none of its call sites is found again: {'; '.join(notes)}", exit_code=3)
    fresh.write(os.path.join(folder, "matched.plan"))
    return Matched(fresh, fresh.path, notes)


def note(path, image, finder, found, all_):
    """What differs, in words."""
    name = one_line(os.path.basename(path))
    if image is None:
        return f"{name} is not there"
    if not image.build_id:
        return f"{name} has no build id"
    lost = sorted(set(finder.lost))
    without = f", not {', '.join(lost[:3])}{' and more' if len(lost) > 3 else ''}" if lost else ""
    return f"{name} is another build: {found} of {all_} places found again{without}"


def rewritten(plan, moved, changed):
    """The plan with the frames that were found; sites keep the paths that are whole."""
    fresh = Plan(f"{plan.maker or 'quire'}, matched to another build", plan.command)
    fresh.program, fresh.pools, fresh.memory_bytes = plan.program, plan.pools, plan.memory_bytes
    fresh.modules = [
        Module(changed[i][1].build_id, m.path) if i in changed and changed[i][1] and changed[i][1].build_id else m for i, m in enumerate(plan.modules)
    ]
    fresh.frames = [moved.get(i) or f for i, f in enumerate(plan.frames)]
    gone = {i for i, f in moved.items() if f is None}
    for site in plan.sites:
        paths = [path for path in site.paths if not gone & {frame for _, frame in path}]
        lost = site.pool and not paths
        fresh.sites.append(site._replace(pool=0 if lost else site.pool, paths=paths, reason="not found in this build" if lost else site.reason))
    return fresh
