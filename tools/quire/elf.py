# SPDX-License-Identifier: MIT
"""
elf.py - what a program file says about itself: static or not, its libraries, whether it brings its own malloc.

    file -> Elf(interpreter, needed, defines_malloc, lends_malloc, becomes_another)  or None when it is no 64-bit little-endian ELF file

A program that is not position independent and takes malloc's address has a *canonical PLT entry*: an undefined symbol with a
value, to which the loader binds everybody's pointers. That is no malloc of its own; the entry jumps to whoever serves the program.

Not here: what follows from it (target.py).
"""

import mmap
import struct

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
SHT_SYMTAB, SHT_DYNSYM = 2, 11
DT_NULL, DT_NEEDED, DT_STRTAB = 0, 1, 5
STT_FUNC, STT_GNU_IFUNC = 2, 10
EXECUTES = {b"execve", b"execv", b"execvp", b"execvpe", b"execl", b"execlp", b"execle", b"fexecve"}
STARTS = {b"fork", b"vfork", b"clone", b"posix_spawn", b"posix_spawnp", b"system", b"popen"}
SYMBOL_BYTES = 24
LIBC_STARTS = {"glibc": b"__libc_setup_tls", "musl": b"__init_tls"}  # what lays out thread-local storage in a static program


class Elf:
    """One file, read once. Every offset in it is distrusted: damaged files give what could be read."""

    def __init__(self, path):
        self.interpreter, self.entry = "", 0
        self.dynamic = False
        self.needed = []
        self.defines_malloc = self.lends_malloc = False
        self.is_go = False
        self.libc, self.has_libc_malloc = "", False  # of a static program: whose start is in it, and whether its malloc is that libc's
        self.becomes_another = False  # it can execute another program, and not start one beside itself
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.cut = True  # until its segments have been read: the kernel takes no such file
        try:
            self._segments()
            self.cut = False
            self._sections()
        except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
            pass  # damaged: the loader will say so better than this can
        finally:
            self.data.close()

    @property
    def static(self):
        """No dynamic loader runs, so nothing can be preloaded."""
        return not self.interpreter

    @property
    def is_library(self):
        """No program: it would need a loader and names none, or has nowhere to begin."""
        return self.static and bool(self.needed or not self.entry)

    def _text(self, offset):
        end = self.data.find(b"\0", offset)
        return self.data[offset:end].decode("utf-8", "replace")

    def _segments(self):
        self.entry, offset = struct.unpack_from("<QQ", self.data, 24)
        each, number = struct.unpack_from("<HH", self.data, 54)
        loads, dynamic = [], None
        for i in range(number):
            kind, _, at, address, _, in_file = struct.unpack_from(
                "<IIQQQQ", self.data, offset + i * each
            )
            if kind == PT_INTERP:
                self.interpreter = self._text(at)
            elif kind == PT_LOAD:
                loads.append((address, at, in_file))
            elif kind == PT_DYNAMIC:
                dynamic = (at, in_file)
        if dynamic:
            self.dynamic = True
            self._dynamic(*dynamic, loads)

    def _dynamic(self, at, in_file, loads):
        tags = [struct.unpack_from("<QQ", self.data, at + i) for i in range(0, in_file, 16)]
        strings = next((v for t, v in tags if t == DT_STRTAB), None)
        base = next(
            (a - v + strings for v, a, n in loads if strings and v <= strings < v + n), None
        )
        if base is not None:
            self.needed = [self._text(base + v) for t, v in tags if t == DT_NEEDED]

    def _sections(self):
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        each, number = struct.unpack_from("<HH", self.data, 58)
        headers = [
            struct.unpack_from("<IIQQQQIIQQ", self.data, offset + i * each) for i in range(number)
        ]
        (names,) = struct.unpack_from("<H", self.data, 62)
        names = headers[names][4] if names < number else None
        for name, kind, _, _, at, in_file, link, _, _, _ in headers:
            self.is_go |= names is not None and self._text(names + name) == ".go.buildinfo"
            if kind in (SHT_SYMTAB, SHT_DYNSYM) and link < number:
                self._look_at_symbols(at, in_file, self.data[headers[link][4] : headers[link][4] + headers[link][5]])

    def _look_at_symbols(self, at, in_file, table):
        self.libc = self.libc or next((libc for libc, start in LIBC_STARTS.items() if _places(table, (start,))), "")
        self.has_libc_malloc |= bool(_places(table, (b"__libc_malloc",)))
        malloc, executes, starts = _places(table, (b"malloc",)), _places(table, EXECUTES), _places(table, STARTS)
        if not malloc and not executes:
            return
        can_execute = can_start = False
        symbols = self.data[at : at + in_file - in_file % SYMBOL_BYTES]
        for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", symbols):
            if name in malloc and info & 15 in (STT_FUNC, STT_GNU_IFUNC):
                self.defines_malloc |= section != 0
                self.lends_malloc |= section == 0 and value != 0
            elif section == 0 and name:
                can_execute |= name in executes
                can_start |= name in starts
        self.becomes_another |= can_execute and not can_start


def _places(table, names):
    """Every place where one of the names ends a string: a name may be the tail of a longer one (linkers share strings)."""
    places = set()
    for name in names:
        found = table.find(name + b"\0")
        while found >= 0:
            places.add(found)
            found = table.find(name + b"\0", found + 1)
    return places


def read(path):
    """The file as Elf, or None when it is another kind of file."""
    with open(path, "rb") as file:
        head = file.read(64)
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] != 2 or head[5] != 1:
        return None
    return Elf(path)
