# SPDX-License-Identifier: MIT
"""
corefile.py - a core file, read by gdb: which program it is of, and which slots lived.

    core (ELF) -> its notes: AT_PHDR of NT_AUXV, files of NT_FILE -> the program, and the build id that it must have
    gdb PROGRAM core, with tools/gdb/quire_gdb.py -> quire.map/1

gdb is run without the user's start-up files, and without looking for anything on a network.
Not here: how objects lie in memory (tools/gdb/quire_gdb.py).
"""

import json
import os
import shutil
import struct
import subprocess

import ui
from errors import EnvironmentLacks, QuireError, UsageError
from lazily import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.normpath(os.path.join(HERE, "..", "..", "gdb", "quire_gdb.py"))
ET_CORE, PT_LOAD, PT_NOTE, NT_BUILD_ID, NT_AUXV, NT_FILE, AT_PHDR = 4, 1, 4, 3, 6, 0x46494C45, 3
EHDR_BYTES = 64
NOTES_BYTES_MAX = 1 << 26
GDB_S = 300


class Elf64:
    """What an ELF file says of itself. `read`: its bytes, by offset; of a program in a core file by the distance from its header."""

    def __init__(self, read):
        self.read, head = read, read(0, 64)
        self.kind = struct.unpack_from("<H", head, 16)[0] if len(head) == 64 and head[:6] == b"\x7fELF\x02\x01" else 0
        self.segments = []
        if self.kind:
            place, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            table = read(place, size * count)
            self.segments = [struct.unpack_from("<IIQQQQ", table, at) for at in range(0, len(table) - 55, max(size, 56))]

    @property
    def end(self):
        """Where the last of its segments ends, in the file."""
        return max((offset + length for _, _, offset, _, _, length in self.segments), default=0)

    def notes(self):
        """{kind: contents} of its notes."""
        found = {}
        for kind, _, offset, _, _, length in self.segments:
            if kind == PT_NOTE and length <= NOTES_BYTES_MAX:
                found.update(notes_of(self.read(offset, length)))
        return found


def reader(path):
    """read(offset, size) of a file."""

    def read(offset, size):
        if offset >= os.path.getsize(path):
            return b""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    return read


class Core(Elf64):
    """A core file: the program that it is of, and what of it is missing. UsageError when the file is none."""

    def __init__(self, path):
        super().__init__(reader(path))
        if self.kind != ET_CORE:
            raise UsageError(f"{path} is no core file", why="it is not of that format, or not of a 64-bit machine", fix=f"file {ui.word(path)}")
        self.bytes, said = os.path.getsize(path), self.notes()
        auxv, self.files = said.get(NT_AUXV, b""), said.get(NT_FILE, b"")
        self.table_at = dict(struct.iter_unpack("<QQ", auxv[: len(auxv) // 16 * 16])).get(AT_PHDR)

    @property
    def cut(self):
        """That the file is not whole, in words; else nothing."""
        whole = "" if self.bytes >= self.end else f"the core file is cut off: {ui.size(self.bytes)} of {ui.size(self.end)} are there"
        return whole and whole + " (no space left, or `ulimit -c`?)"

    @property
    def program(self):
        """The program's path, as the file says; None when it does not."""
        if self.table_at is None or len(self.files) < 16:
            return None
        count = min(struct.unpack_from("<Q", self.files)[0], (len(self.files) - 16) // 24)
        names = self.files[16 + 24 * count :].split(b"\0")
        for i in range(count):
            start, end, _ = struct.unpack_from("<QQQ", self.files, 16 + 24 * i)
            if start <= self.table_at < end and i < len(names):
                return os.fsdecode(names[i])
        return None

    def memory(self, address, size):
        """Bytes of the process, as far as they are in the file."""
        for kind, _, offset, start, _, length in self.segments:
            if kind == PT_LOAD and start <= address < start + length:
                return self.read(offset + address - start, min(size, start + length - address))
        return b""

    def is_of(self, program):
        """Whether it may be of that program: False when both have a build id, and not the same."""
        of_file = Elf64(reader(program)).notes().get(NT_BUILD_ID)
        if self.table_at is None:
            return True
        header_at = self.table_at - EHDR_BYTES  # where every linker puts the table
        in_core = Elf64(lambda offset, size: self.memory(header_at + offset, size)).notes().get(NT_BUILD_ID)
        return not of_file or not in_core or of_file == in_core


def notes_of(data):
    """Notes of one segment, the first of each kind."""
    found, at = {}, 0
    while at + 12 <= len(data):
        name, length, kind = struct.unpack_from("<III", data, at)
        at += 12 + (name + 3) // 4 * 4
        found.setdefault(kind, data[at : at + length])
        at += (length + 3) // 4 * 4
    return found


def tools():
    """gdb's path; an error with the command that brings it."""
    gdb = shutil.which("gdb")
    if not gdb:
        raise EnvironmentLacks("core files are read by gdb, which is not installed", fix="apt-get install -y gdb")
    if not os.path.exists(SCRIPT):
        raise EnvironmentLacks(f"gdb's script is missing: {SCRIPT}", fix="install Quire anew")
    return gdb


def map_of(path, program=None):
    """quire.map/1 of a core file, and the program's name."""
    gdb = tools()
    core = Core(path)
    program = program or core.program
    if not program or not os.path.isfile(program):
        raise UsageError(
            f"the program of {path} is not here" + (f": {program}" if program else ""),
            why=core.cut,
            fix=f"quire map {ui.word(path)} --exe PROGRAM",
        )
    if not core.is_of(program):
        its_own = core.program or "the program that wrote it"
        raise UsageError(f"{path} is no core file of {program}", why=f"their build ids differ; it is of {its_own}", fix=f"quire map {ui.word(path)} --exe {ui.word(its_own)}" if core.program else "")
    if core.cut:
        ui.note(core.cut)
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "map.json")
        words = [gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off"]
        words += ["-ex", f"source {SCRIPT}", "-ex", f"quire map --json {answer}", program, os.path.abspath(path)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=GDB_S
            )
        except subprocess.TimeoutExpired:
            raise QuireError(f"gdb did not end within {GDB_S} s", fix=f"gdb {ui.word(program)} {ui.word(path)}") from None
        if not os.path.exists(answer):
            raise EnvironmentLacks(f"gdb could not read {path}", why=core.cut or reason(done), fix=f"gdb {ui.word(program)} {ui.word(path)}")
        with open(answer, encoding="utf-8") as file:
            return {**json.load(file), "program": program}


def reason(done):
    """What gdb said last that sounds like ours, or its last line."""
    lines = [x for x in (done.stderr + done.stdout).splitlines() if x.strip()]
    ours = [x for x in lines if "quire:" in x]
    return (ours or lines or [f"exit {done.returncode}, and it said nothing"])[-1]
