# SPDX-License-Identifier: MIT
"""
rebuilt.py - a plan for the files that are there now: the recorded builds, or others whose call sites are found again.

    plan + program --build ids--> all the same: the plan as it is
                              --> another program: refused
                              --> another build: each return address is looked for by function and line -> a new plan, or refused with what differs

A return address is found again where its function has the same name and size and a call ends at the same place in it; else where exactly one call of
the function of that name stands on the recorded line, or where there are as many calls of that line as were recorded. How far apart return
addresses lie on the stack is believed to be as it was: the library looks at run time, and what it does not know goes to the heap.
Not here: the file's format (steerplan.py).
"""

import json
import os
import struct
import subprocess
from collections import namedtuple

import native
from errors import QuireError
from steerplan import Frame, Module, Plan, one_line

PT_LOAD, PT_NOTE, NT_GNU_BUILD_ID = 1, 4, 3
SHT_SYMTAB, SHT_DYNSYM, STT_FUNC = 2, 11, 2

Matched = namedtuple("Matched", "plan path notes")  # path: a plan file that holds for the files as they are


class Image:
    """What is asked of one ELF file: its build id, its functions by name, its bytes by address."""

    def __init__(self, path):
        self.build_id = ""
        self.functions = {}
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

    def _symbols(self, symbols, strings):
        for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", symbols):
            if info & 15 == STT_FUNC and section and size:
                end = self.data.index(b"\0", strings + name)
                text = self.data[strings + name : end].decode("utf-8", "replace")
                self.functions.setdefault(text.split("@")[0], set()).add((value, size))

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


def plain(name):
    """A name as symbol tables have it, as far as that can be had from a demangled one."""
    return name.split("(")[0]


class Finder:
    """Frames of one changed file found again in the file that is there."""

    def __init__(self, path, image):
        self.path = path
        self.image = image
        self.lost = []  # names of functions

    def find(self, frames):
        """{number: new Frame} of {number: Frame}."""
        found = {}
        for number, frame in frames.items():
            name = plain(function_of(frame))
            places = self.image.functions.get(name, set()) if name else set()
            at = self._same_shape(frame, places) or self._same_line(frame, places, frames)
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

    def _same_line(self, frame, places, frames):
        if len(places) != 1 or not frame.lines[-1].rsplit(":", 1)[-1].strip("0"):
            return None
        ((start, size),) = places
        there = lines_of(self.path, self.image.returns(start, size))
        here = sorted(a for a, names in there.items() if names == frame.lines)
        same = sorted(f.offset for f in frames.values() if f.lines == frame.lines)
        if len(here) != len(same):
            return None
        address = here[same.index(frame.offset)]
        return Frame(frame.module, address, address - start, size, frame.lines)


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
    moved, notes, frames = {}, [], dict(enumerate(plan.frames))
    for number, (path, image) in changed.items():
        own = {i: f for i, f in frames.items() if f.module == number}
        finder = Finder(path, image) if image else None
        found = finder.find(own) if image and image.build_id else {}
        moved.update({i: found.get(i) for i in own})
        if own:
            notes.append(note(path, image, finder, len(found), len(own)))
    fresh = rewritten(plan, moved, changed)
    if not any(site.paths for site in fresh.sites):
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
