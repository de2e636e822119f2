# SPDX-License-Identifier: MIT
"""
corefile.py - a core file, read by gdb: which program it is of, and which slots lived.

    core (ELF) -> its notes: AT_PHDR of NT_AUXV, files of NT_FILE -> the program
    gdb PROGRAM core, with tools/gdb/quire_gdb.py -> quire.map/1

gdb is run without the user's start-up files, and without looking for anything on a network.
Not here: how objects lie in memory (tools/gdb/quire_gdb.py).
"""

import json
import os
import shutil
import struct
import subprocess
import tempfile

from errors import EnvironmentLacks, QuireError, UsageError

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.normpath(os.path.join(HERE, "..", "..", "gdb", "quire_gdb.py"))
ET_CORE, PT_NOTE, NT_AUXV, NT_FILE, AT_PHDR = 4, 4, 6, 0x46494C45, 3
NOTES_BYTES_MAX = 1 << 26
GDB_S = 300


def notes(path):
    """{kind: contents} of the notes of a 64-bit little-endian core file; UsageError when it is none."""
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 16)[0] != ET_CORE:
            raise UsageError(f"{path} is no core file", why="it is not of that format, or not of a 64-bit machine")
        place, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(place)
        table = file.read(size * count)
        found = {}
        for at in range(0, len(table) - size + 1, size):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", table, at)
            if kind == PT_NOTE and length <= NOTES_BYTES_MAX:
                file.seek(offset)
                found.update(notes_of(file.read(length)))
    return found


def notes_of(data):
    """Notes of one segment, the first of each kind."""
    found, at = {}, 0
    while at + 12 <= len(data):
        name, length, kind = struct.unpack_from("<III", data, at)
        at += 12 + (name + 3) // 4 * 4
        found.setdefault(kind, data[at : at + length])
        at += (length + 3) // 4 * 4
    return found


def program_of(path):
    """The program that a core file is of, as the file says; None when it does not."""
    found = notes(path)
    auxv, files = found.get(NT_AUXV, b""), found.get(NT_FILE, b"")
    entries = dict(struct.iter_unpack("<QQ", auxv[: len(auxv) // 16 * 16]))
    if AT_PHDR not in entries or len(files) < 16:
        return None
    count = min(struct.unpack_from("<Q", files)[0], (len(files) - 16) // 24)
    names = files[16 + 24 * count :].split(b"\0")
    for i in range(count):
        start, end, _ = struct.unpack_from("<QQQ", files, 16 + 24 * i)
        if start <= entries[AT_PHDR] < end and i < len(names):
            return os.fsdecode(names[i])
    return None


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
    program = program or program_of(path)
    if not program or not os.path.isfile(program):
        raise UsageError(
            f"the program of {path} is not here" + (f": {program}" if program else ""),
            fix=f"quire map {path} --exe PROGRAM",
        )
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "map.json")
        words = [gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off"]
        words += ["-ex", f"source {SCRIPT}", "-ex", f"quire map --json {answer}", program, os.path.abspath(path)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=GDB_S
            )
        except subprocess.TimeoutExpired:
            raise QuireError(f"gdb did not end within {GDB_S} s", fix=f"gdb {program} {path}") from None
        if not os.path.exists(answer):
            raise QuireError(f"gdb could not read {path}", why=reason(done), fix=f"gdb {program} {path}")
        with open(answer, encoding="utf-8") as file:
            return {**json.load(file), "program": program}


def reason(done):
    """What gdb said last that sounds like ours, or its last line."""
    lines = [x for x in (done.stderr + done.stdout).splitlines() if x.strip()]
    ours = [x for x in lines if "quire:" in x]
    return (ours or lines or [f"exit {done.returncode}, and it said nothing"])[-1]
