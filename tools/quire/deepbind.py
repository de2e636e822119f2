# SPDX-License-Identifier: MIT
"""
deepbind.py - files whose code opens libraries with RTLD_DEEPBIND: such a library is bound to libc's malloc, past every preload.

    mov $0x109, %esi        RTLD_DEEPBIND | RTLD_GLOBAL | RTLD_LAZY          arm64: mov w1, #0x109
    ...                     at most WINDOW bytes
    call dlopen@plt         or through the table itself: call *slot(%rip)    bl dlopen@plt

Seen where the flags are a constant near the call, in x86-64 and arm64 code; a program that computes them (Python's setdlopenflags) is not.
Not here: what follows from it (serving.py).
"""

import mmap
import re
import struct

SHT_DYNSYM, SHT_RELA = 11, 4
SHF_EXECINSTR = 4
EM_X86_64, EM_AARCH64 = 62, 183
WINDOW = 40
# mov $flags, %esi with RTLD_DEEPBIND (8), lazy or now, perhaps NOLOAD, GLOBAL, NODELETE.
FLAGS = re.compile(rb"\xbe[\x09\x0a\x0d\x0e][\x00\x01\x10\x11]\x00\x00", re.DOTALL)
JUMP_BY_TABLE = b"\xff\x25"
# The same in arm64's words, and what the jump table's entries have behind an adrp: ldr x17, [x16, #rest of the slot's address].
DEEP = [8 | lazy_or_now | more for lazy_or_now in (1, 2, 5, 6) for more in (0, 0x100, 0x1000, 0x1100)]
FLAGS_ARM64 = re.compile(b"|".join(re.escape(struct.pack("<I", 0x52800001 | flags << 5)) for flags in DEEP), re.DOTALL)
LOADS_SLOT = re.compile(rb"\x11[%b][\x40-\x7f]\xf9" % re.escape(bytes(range(2, 256, 4))), re.DOTALL)
WORD_BYTES = 4


STAYS = "it opens libraries with RTLD_DEEPBIND, which are bound to libc's malloc past every preload"
MAY = "may open libraries with RTLD_DEEPBIND: these are bound to libc's malloc past every preload, and what one allocates the other frees"


def opens_past_preloads(path):
    """Whether a file has such a call; False for what cannot be read or understood."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            return _has_call(data)
    except (OSError, ValueError, OverflowError, struct.error, IndexError):
        return False


def _has_call(data):
    machine = struct.unpack_from("<H", data, 18)[0] if data[:5] == b"\x7fELF\x02" else None
    if machine not in (EM_X86_64, EM_AARCH64):
        return False
    entries_of, calls = (_entries, _calls) if machine == EM_X86_64 else (_entries_arm64, _calls_arm64)
    sections = _sections(data)
    slots = {slot for slot in _slots(data, sections)}
    if not slots:
        return False
    code = [(address, at, size) for _, flags, address, at, size, _ in sections if flags & SHF_EXECINSTR]
    entries = {entry for section in code for entry in entries_of(data, *section, slots)}
    return any(calls(data, *section, slots, entries) for section in code)


def _sections(data):
    """[(kind, flags, address, offset, bytes, link)]"""
    (offset,) = struct.unpack_from("<Q", data, 40)
    each, number = struct.unpack_from("<HH", data, 58)
    found = []
    for i in range(number):
        _, kind, flags, address, at, size, link, _, _, _ = struct.unpack_from("<IIQQQQIIQQ", data, offset + i * each)
        found.append((kind, flags, address, at, size, link))
    return found


def _slots(data, sections):
    """Addresses of the words through which dlopen is called."""
    for kind, _, _, at, size, link in sections:
        if kind != SHT_RELA or link >= len(sections) or sections[link][0] != SHT_DYNSYM:
            continue
        symbols, names = sections[link], sections[sections[link][5]]
        wanted = _symbol(data, symbols, names)
        for i in range(at, at + size, 24) if wanted else ():
            slot, info, _ = struct.unpack_from("<QQq", data, i)
            if info >> 32 == wanted:
                yield slot


def _symbol(data, symbols, names):
    """The number of dlopen among the file's dynamic symbols; 0: not there."""
    text = data[names[3] : names[3] + names[4]]
    for i in range(symbols[4] // 24):
        (name,) = struct.unpack_from("<I", data, symbols[3] + 24 * i)
        if text.startswith(b"dlopen\0", name):
            return i
    return 0


def _target(data, at, address_of_next):
    return address_of_next + struct.unpack_from("<i", data, at)[0]


def _entries(data, address, at, size, slots):
    """Where the jump table's entries for these slots begin; before the jump itself may stand endbr64, and bnd."""
    place = data.find(JUMP_BY_TABLE, at, at + size)
    while place >= 0 and place + 6 <= at + size:
        here = address + place - at
        if _target(data, place + 2, here + 6) in slots:
            yield from (here, here - 1, here - 4, here - 5)
        place = data.find(JUMP_BY_TABLE, place + 1, at + size)


def _calls(data, address, at, size, slots, entries):
    for match in FLAGS.finditer(data, at, at + size):
        for place in range(match.end(), min(match.end() + WINDOW, at + size - 6)):
            here = address + place - at
            if data[place] in (0xE8, 0xE9) and _target(data, place + 1, here + 5) in entries:
                return True
            if data[place] == 0xFF and data[place + 1] in (0x15, 0x25) and _target(data, place + 2, here + 6) in slots:
                return True
    return False


def _signed(number, bits):
    return number - ((number & 1 << bits - 1) << 1)


def _entries_arm64(data, address, at, size, slots):
    """adrp x16, the slot's page; ldr x17: where the entry begins, or a word before, where bti may stand."""
    for match in LOADS_SLOT.finditer(data, at + WORD_BYTES, at + size):
        here = address + match.start() - at - WORD_BYTES
        adrp, load = struct.unpack_from("<II", data, match.start() - WORD_BYTES)
        page = (here & ~0xFFF) + (_signed(adrp >> 29 & 3 | (adrp >> 5 & 0x7FFFF) << 2, 21) << 12)
        if here % WORD_BYTES == 0 and adrp & 0x9F00001F == 0x90000010 and page + (load >> 10 & 0xFFF) * 8 in slots:
            yield from (here, here - WORD_BYTES)


def _calls_arm64(data, address, at, size, _slots, entries):
    for match in FLAGS_ARM64.finditer(data, at, at + size):
        for place in range(match.end(), min(match.end() + WINDOW, at + size - WORD_BYTES), WORD_BYTES):
            (word,) = struct.unpack_from("<I", data, place)
            is_call = (word >> 26) in (0x25, 0x05)  # bl, b
            if is_call and address + place - at + WORD_BYTES * _signed(word & 0x3FFFFFF, 26) in entries:
                return True
    return False
