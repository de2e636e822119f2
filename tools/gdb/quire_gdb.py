# SPDX-License-Identifier: MIT
"""
quire_gdb.py - Quire's objects in gdb and in LLDB: of a core file, or of a process that is being debugged.

    (gdb) source tools/gdb/quire_gdb.py             (lldb) command script import tools/gdb/quire_gdb.py
    (gdb) quire objects               every arena, slab, per-CPU pool and heap, with what it holds
    (gdb) quire owner 0x7f3a5c0004b0  whose an address is, which slot, and whether that lives
    (gdb) quire map [NAME|ID]         every page, and which of its slots live;  --json FILE: "quire.map/1"

    .quire.layout, .quire.anchors (src/base/layout.h) ---> where fields lie in structs, and where the lists begin, of each library
    registries (statics of the library) ---> slabs, pools, heaps ---> their pages
    page map   (address -> owner)       ---> arenas, which are in no list; the owner of an address

Nothing of the process is run: its memory is read as the library's own sections describe it, so debug information and symbols are not needed.
What threads keep to hand out again (magazines), and what others have freed, counts as free, as it does in a running process.
Works by itself: no other file is needed.
"""

import bisect
import json
import re
import shlex
import struct

try:
    import gdb
except ImportError:
    gdb = None
    import lldb

LEVEL_BITS, KIND_MASK = 18, 7
KINDS = {1: "arena", 2: "slab", 3: "percpu", 4: "heap"}
WORD_BITS = 64
HEAP_UNUSED, HEAP_MAGAZINE, HEAP_CACHED, LARGE_OWNER, SECURE_OWNER = 0, 5, 6, 1, 2
PERCPU_EDGE_BYTES = 64
MAP_SLOTS_MAX = 4096
CHAIN_MAX, BAR = 1 << 22, 48
ROW_BYTES, ROW_NAME_BYTES = 64, 56


class Failure(Exception):
    """What the user is told, in one line."""


# ---- the two debuggers ----


class Gdb:
    """What is needed of gdb."""

    def pid(self):
        """The process's number."""
        return gdb.selected_inferior().pid

    def memory(self, address, size):
        """Bytes of what is debugged."""
        try:
            return bytes(gdb.selected_inferior().read_memory(address, size))
        except gdb.MemoryError as error:
            raise Failure(f"memory is not in the core file: {error}") from None

    def sections(self, name):
        """{file: (address, bytes)} of the sections of that name."""
        line = re.compile(rf"\s*(0x[0-9a-f]+) - (0x[0-9a-f]+) is {re.escape(name)}(?: in (.*))?$")
        found = map(line.match, gdb.execute("info files", to_string=True).splitlines())
        return {f[3]: (int(f[1], 16), int(f[2], 16) - int(f[1], 16)) for f in found if f}

    def value(self, expression):
        """An expression as a number."""
        try:
            return int(gdb.parse_and_eval(expression).cast(gdb.lookup_type("unsigned long")))
        except gdb.error as error:
            raise Failure(f"{expression}: {error}") from None


class Lldb:
    """The same of LLDB."""

    target = None  # of the command that is being carried out

    def pid(self):
        """The process's number."""
        return self.target.GetProcess().GetProcessID()

    def memory(self, address, size):
        """Bytes of what is debugged; what no core file has, for it does not change, of the file."""
        error = lldb.SBError()
        found = self.target.ReadMemory(lldb.SBAddress(address, self.target), size, error)
        if error.Fail() or len(found) != size:
            raise Failure(f"memory is not in the core file: {size} bytes at {address:#x}")
        return found

    def sections(self, name):
        """{file: (address, bytes)} of the sections of that name."""
        found = ((module.file.fullpath, module.FindSection(name)) for module in self.target.module_iter())
        return {file: (s.GetLoadAddress(self.target), s.GetByteSize()) for file, s in found if s.IsValid()}

    def value(self, expression):
        """An expression as a number; registers and variables are those of the selected frame."""
        frame = self.target.GetProcess().GetSelectedThread().GetSelectedFrame()
        found = (frame if frame.IsValid() else self.target).EvaluateExpression(expression)
        if found.GetError().Fail():
            raise Failure(f"{expression}: {found.GetError().GetCString()}")
        return found.GetValueAsUnsigned()


debugger = Gdb() if gdb else Lldb()


# ---- what lies where ----


class Library:
    """One libquire that is loaded: where the fields of its structs lie, and where its lists begin."""

    def __init__(self, rows, anchors):
        self.places = {name: struct.unpack("<II", value) for name, value in rows}
        self.anchors = {name: int.from_bytes(value, "little") for name, value in anchors}

    def place(self, path):
        """(offset, bytes) of a field, `struct.field`, or of a whole struct."""
        if path not in self.places:
            raise Failure(f"libquire is of another version than this script: it has no {path}")
        return self.places[path]

    def bytes(self, name):
        """A struct's size."""
        return self.place(name)[1]

    def anchor(self, name):
        """The address of a variable; None: that part is not in this library."""
        return self.anchors.get(name)

    def first(self, name):
        """What a variable points to."""
        return words(self.anchor(name), 1)[0] if self.anchor(name) else 0

    def see(self, name, address):
        """A struct at an address."""
        return Seen(self, name, address)


def rows_of(section):
    """(name, eight bytes) of each row; between what different files gave there may be zeros."""
    data = memory(*section)
    for at in range(0, len(data) - ROW_BYTES + 1, ROW_BYTES):
        name = data[at : at + ROW_NAME_BYTES].split(b"\0")[0]
        if name:
            yield name.decode("ascii", "replace"), data[at + ROW_NAME_BYTES : at + ROW_BYTES]


def libraries():
    """Every libquire that is loaded: libquire.so, libquire-malloc.so, a program that libquire.a is linked into."""
    anchors = debugger.sections(".quire.anchors")
    found = [Library(rows_of(s), rows_of(anchors[file])) for file, s in debugger.sections(".quire.layout").items() if file in anchors]
    if not found:
        raise Failure("there is no libquire in it")
    return found


class Seen:
    """One struct in the memory of what is debugged, read at once."""

    def __init__(self, library, name, address):
        self.library, self.name, self.address = library, name, address
        self.memory = memory(address, library.bytes(name))

    def __getitem__(self, path):
        offset, size = self.library.place(f"{self.name}.{path}")
        return int.from_bytes(self.memory[offset : offset + size], "little")

    def text(self, path):
        """A field that is an array of characters."""
        offset, size = self.library.place(f"{self.name}.{path}")
        return self.memory[offset : offset + size].split(b"\0")[0].decode("utf-8", "replace")

    def end_of(self, path):
        """The address of a field, for what lies behind the struct."""
        return self.address + self.library.place(f"{self.name}.{path}")[0]

    @property
    def behind(self):
        """The address behind the struct."""
        return self.address + len(self.memory)


def memory(address, size):
    """Bytes of what is debugged."""
    return debugger.memory(address, size) if size else b""


def words(address, count):
    """So many 64-bit words."""
    return memoryview(memory(address, 8 * count)).cast("Q")


def chain(library, first, name, link):
    """Structs of a list, each read once."""
    count = 0
    while first and count < CHAIN_MAX:
        seen = library.see(name, first)
        yield seen
        first, count = seen[link], count + 1


def bits_of(found):
    """64-bit words as one number, the first word lowest."""
    return int.from_bytes(found.tobytes(), "little")


def ones(bits):
    """How many bits are set; older Python has no int.bit_count()."""
    return bin(bits).count("1")


def idle_bits(idle, start, slot_bytes, slots):
    """Bits of a page's slots that are among these sorted addresses."""
    bits = 0
    for address in idle[bisect.bisect_left(idle, start) : bisect.bisect_left(idle, start + slots * slot_bytes)]:
        bits |= 1 << (address - start) // slot_bytes
    return bits


class Page:
    """A page of slots: what quire.map/1 has of it."""

    def __init__(self, thing, start, size, slot_bytes, slots, live):
        self.thing, self.start, self.bytes = thing, start, size
        self.slot_bytes, self.slots, self.live = slot_bytes, slots, live

    def document(self):
        """As JSON has it."""
        kind, name, number, _ = self.thing
        return {
            "kind": kind,
            "name": name,
            "id": number,
            "address": hex(self.start),
            "page_bytes": self.bytes,
            "slot_bytes": self.slot_bytes,
            "slots": self.slots,
            "live": ones(self.live),
            "bits": f"{self.live:x}"[::-1] if self.live else "",
        }


def chunk_headers(owner, kind):
    """Headers of an object's pages, in use or not; of a heap's large blocks and magazines too."""
    for chunk in chain(owner.library, owner["headers.chunks"], "header_chunk", "next"):
        first = chunk.address + len(chunk.memory)
        for i in range(chunk["cut"]):
            yield owner.library.see(kind, first + i * chunk["stride_bytes"])


# ---- slabs ----


def slabs(library):
    """(kind, name, id, Seen) of every slab."""
    for slab in chain(library, library.first("slab_first"), "quire_slab", "next"):
        yield "slab", slab.text("name"), slab["birth"], slab


def slab_caches(slab):
    """Every thread's cache of one slab."""
    library = slab.library
    at = slab["id"] * library.bytes("slab_cache")
    for thread in chain(library, library.first("records.all"), "slab_thread", "record.next"):
        if slab["id"] < thread["count"]:
            cache = library.see("slab_cache", thread["caches"] + at)
            if cache["slab"] == slab.address:
                yield cache


def slab_mags(slab):
    """(magazine, slots in it) of the slab's magazines and its threads'; of a current one the cache says how many."""
    library = slab.library
    for mag in chain(library, slab["depot.full"], "magazine", "next"):
        yield mag, mag["count"]
    for cache in slab_caches(slab):
        mag = library.see("magazine", cache["slots.cur"])
        yield mag, (cache["slots.top"] - mag.behind) // 8
        if cache["slots.prev"]:
            mag = library.see("magazine", cache["slots.prev"])
            yield mag, mag["count"]
        for mag in chain(library, cache["slots.own"], "magazine", "next"):
            yield mag, mag["count"]


def slab_idle(slab):
    """Sorted addresses of slots that no free bit shows: those in magazines."""
    found = []
    for mag, count in slab_mags(slab):
        found += words(mag.behind, min(max(count, 0), mag["room"]))
    return sorted(found)


def slab_page(thing, page, idle):
    """A slab's page: live is what is neither free in it nor in a magazine."""
    start, slots, slot_bytes = page["slots"], page["slot_count"], thing[3]["slot_bytes"]
    free = bits_of(words(page.end_of("free"), (slots + 63) // 64)) | idle_bits(idle, start, slot_bytes, slots)
    size = page["span_steps"] * 4096 or slots * slot_bytes  # in steps of 4 KiB, whatever an OS page is; home has none
    return Page(thing, start, size, slot_bytes, slots, ~free & ((1 << slots) - 1))


def slab_pages(thing):
    """Pages of one slab."""
    slab = thing[3]
    idle = slab_idle(slab)
    for page in [slab.library.see("slab_page", slab["home"]), *chunk_headers(slab, "slab_page")]:
        if page["slot_count"]:
            yield slab_page(thing, page, idle)


# ---- heaps ----


def heaps(library):
    """(kind, name, id, Seen) of every heap."""
    default = library.anchor("heap_of_process")
    for heap in chain(library, library.first("heap_first") or default, "quire_heap", "next"):
        name = heap.text("name") or ("default" if heap.address == default else "")
        yield "heap", name, heap["serial"], heap


def linked(first, key):
    """Addresses of blocks on their way."""
    count = 0
    while first and count < CHAIN_MAX:
        yield first
        first, count = words(first, 2)[1] ^ key, count + 1


def currents(local):
    """Slots in the current magazines of a heap's local: `top` says how many."""
    library = local.library
    bins_at, bins_bytes = library.place("heap_local.bin")
    cur_at, top_at = library.place("heap_bin.slots.cur")[0], library.place("heap_bin.slots.top")[0]
    for at in range(bins_at, bins_at + bins_bytes, library.bytes("heap_bin")):
        cur, top = (int.from_bytes(local.memory[at + of : at + of + 8], "little") for of in (cur_at, top_at))
        if cur:
            mag = library.see("magazine", cur)
            yield from words(mag.behind, min(max((top - mag.behind) // 8, 0), mag["room"]))


def heap_idle(heap):
    """Sorted addresses of slots that no free bit shows: those in magazines, and those on their way to their owner."""
    library, found = heap.library, []
    key = library.first("heap_key_word")  # what hides their links
    out_at, out_bytes = library.place("heap_local.out")
    for header in chunk_headers(heap, "heap_page"):
        if header["state"] == HEAP_MAGAZINE:
            mag = library.see("magazine", header.end_of("free"))
            found += words(mag.behind, min(mag["count"], mag["room"]))
    for local in chain(library, heap["locals"], "heap_local", "next"):
        found += currents(local)
        for at in range(out_at, out_at + out_bytes, library.bytes("heap_out")):
            first = at + library.place("heap_out.first")[0]
            found += linked(int.from_bytes(local.memory[first : first + 8], "little"), key)
        found += linked(local["inbox"], key)
    return sorted(found)


def heap_page(thing, page, idle):
    """A heap's page, or a large block."""
    start, size = page["span.start"], page["span.bytes"]
    if page["owner"] & LARGE_OWNER:
        guard = 1 << page["guard_shift"] if page["guard_shift"] else 0
        size -= 2 * guard
        if guard and page["is_mapped"]:  # what is reserved behind it cannot be touched
            os_page = 1 << page_shift(page.library)
            size = -(-max(page["asked_bytes"], 1) // os_page) * os_page
        return Page(thing, start + guard, size, size, 1, int(page["state"] != HEAP_CACHED))
    slots, slot_bytes, count = page["slots"], page["slot_bytes"], page["words"]
    free = bits_of(words(page.end_of("free"), count))
    if page["owner"] & SECURE_OWNER:
        free |= bits_of(words(page.end_of("free") + 8 * count, count))
    free |= idle_bits(idle, start, slot_bytes, slots)
    return Page(thing, start, size, slot_bytes, slots, ~free & ((1 << slots) - 1))


def heap_pages(thing):
    """Pages and large blocks of one heap."""
    heap = thing[3]
    idle = heap_idle(heap)
    for page in chunk_headers(heap, "heap_page"):
        if page["state"] not in (HEAP_UNUSED, HEAP_MAGAZINE) and page["owner"]:
            yield heap_page(thing, page, idle)


# ---- per-CPU pools ----


def pools(library):
    """(kind, name, id, Seen) of every per-CPU pool."""
    for pool in chain(library, library.first("percpu_first"), "quire_percpu", "next"):
        yield "percpu", pool.text("name"), pool["birth"], pool


def mark(slot_bytes, at, size):
    """Bits of the slots that [at, at + size) lies in."""
    first, last = at // slot_bytes, (at + size - 1) // slot_bytes
    return ((1 << (last - first + 1)) - 1) << first


def paged_objects(chunk):
    """(offset, bytes) of the objects of a chunk of pages."""
    library = chunk.library
    count = (library.see("quire_percpu", chunk["pool"])["unit_words"] * 4) >> chunk["bit_log2"]
    offset = library.place("percpu_page.free")[0]
    fields = [library.place(f"percpu_page.{n}") for n in ("start", "words", "slots", "free_words")]
    for i in range(count):
        raw = memory(chunk["pages"] + i * chunk["page_stride"], offset + 8)
        start, size, slots, free_words = (int.from_bytes(raw[a : a + b], "little") for a, b in fields)
        if not size:
            continue
        free = bits_of(words(chunk["pages"] + i * chunk["page_stride"] + offset, free_words))
        for slot in range(slots):
            if not free >> slot & 1:
                yield start + slot * size * 4, size * 4


def mapped_objects(chunk):
    """(offset, bytes) of the objects of a chunk with a map."""
    count = -(-chunk["map.bits"] // WORD_BITS)
    every = (1 << chunk["map.bits"]) - 1
    taken = bits_of(words(chunk["map.taken"], count)) & every
    starts = bits_of(words(chunk["map.starts"], count)) & taken
    first = PERCPU_EDGE_BYTES >> chunk["bit_log2"]
    begins = [i for i, bit in enumerate(f"{starts:b}"[::-1]) if bit == "1" and i >= first] if starts else []
    ends = ~taken & every | 1 << chunk["map.bits"]
    free_at = [i for i, bit in enumerate(f"{ends:b}"[::-1]) if bit == "1"]
    for i, begin in enumerate(begins):
        end = free_at[bisect.bisect_left(free_at, begin)]
        if i + 1 < len(begins):
            end = min(end, begins[i + 1])
        yield begin << chunk["bit_log2"], (end - begin) << chunk["bit_log2"]


def percpu_pages(thing):
    """One CPU's unit of each chunk of one pool."""
    unit_bytes, slot_bytes = thing[3]["unit_words"] * 4, PERCPU_EDGE_BYTES
    while unit_bytes // slot_bytes > MAP_SLOTS_MAX:
        slot_bytes *= 2
    for chunk in chain(thing[3].library, thing[3]["all"], "percpu_chunk", "all_next"):
        live = 0
        for at, size in (mapped_objects if chunk["map.taken"] else paged_objects)(chunk):
            live |= mark(slot_bytes, at, size)
        yield Page(thing, chunk["base"], unit_bytes, slot_bytes, unit_bytes // slot_bytes, live)


# ---- arenas, and the page map ----


def page_shift(library):
    """log2 of the OS page; 0: the page map has no entry yet."""
    return int.from_bytes(memory(library.anchor("pagemap_shift"), 4), "little")


def owners(library):
    """Every owner that stands in a page map."""
    found = set()
    for entry in words(library.anchor("pagemap_root"), 1 << LEVEL_BITS):
        if entry and entry & KIND_MASK:
            found.add(entry)
        elif entry:
            found.update(words(entry, 1 << LEVEL_BITS))
    return found - {0}


def owner_of(address):
    """(library, kind, address of the owner) of an address; None: nobody's."""
    for library in libraries():
        page = address >> (page_shift(library) or WORD_BITS)
        if page >> 2 * LEVEL_BITS:
            continue
        entry = words(library.anchor("pagemap_root") + 8 * (page >> LEVEL_BITS), 1)[0]
        if entry and not entry & KIND_MASK:
            entry = words(entry + 8 * (page & ((1 << LEVEL_BITS) - 1)), 1)[0]
        if entry:
            return library, KINDS.get(entry & KIND_MASK, "?"), entry & ~KIND_MASK
    return None


def arenas(library):
    """(kind, name, id, Seen) of every arena; those that are in no list have the id 0."""
    for entry in sorted(owners(library)):
        if entry & KIND_MASK == 1:
            arena = library.see("quire_arena", entry & ~KIND_MASK)
            yield "arena", arena.text("name"), arena["list_order"], arena


# ---- what the commands say ----

PAGES = {"slab": slab_pages, "percpu": percpu_pages, "heap": heap_pages}


def paged_things():
    """Every object that has pages of slots."""
    found = libraries()
    for things in (slabs, pools, heaps):
        for library in found:
            yield from things(library)


def said(name):
    """A name that can do nothing to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name) or "-"


def object_rows():
    """(kind, name, id, address, bytes, live bytes, pages) of every object."""
    for kind, name, number, arena in (found for library in libraries() for found in arenas(library)):
        used = arena["used_before"] + arena["window.cursor"] - arena["data"] + arena["large_bytes"]
        yield kind, name, number, arena.address, arena["mapped_bytes"], used, ""
    for thing in paged_things():
        pages = list(PAGES[thing[0]](thing))
        held = sum(p.bytes for p in pages)
        live = sum(ones(p.live) * p.slot_bytes for p in pages)
        yield thing[0], thing[1], thing[2], thing[3].address, held, live, len(pages)


def percpu_slot(chunk, address):
    """The object of a chunk that an address lies in, in words."""
    pool = chunk.library.see("quire_percpu", chunk["pool"])
    unit_bytes = 1 << pool["window.unit_shift"]
    unit, offset = divmod(address - chunk["base"], unit_bytes)
    for at, size in (mapped_objects if chunk["map.taken"] else paged_objects)(chunk):
        if at <= offset < at + size:
            return pool, f"unit {unit}, object at offset {at:#x} of {size} bytes, live"
    return pool, f"unit {unit}, offset {offset:#x}: no live object"


def slot_words(page, address):
    """The slot of a page that an address lies in, in words."""
    slot = (address - page.start) // page.slot_bytes
    if address < page.start or slot >= page.slots:
        return "beside the slots"
    at = page.start + slot * page.slot_bytes
    state = "live" if page.live >> slot & 1 else "free"
    return f"slot {slot} of {page.slots}, at {at:#x} + {address - at}, {page.slot_bytes} bytes, {state}"


def owner_words(address):
    """Whose an address is, in one line."""
    found = owner_of(address)
    if not found:
        return f"{address:#x}: nobody's"
    library, kind, owner = found
    if kind == "arena":
        arena = library.see("quire_arena", owner)
        return f"{address:#x}: arena {said(arena.text('name'))} at {owner:#x}"
    if kind == "percpu":
        pool, what = percpu_slot(library.see("percpu_chunk", owner), address)
        return f"{address:#x}: percpu {said(pool.text('name'))} (id {pool['birth']}): {what}"
    for thing in slabs(library) if kind == "slab" else heaps(library):
        for page in PAGES[kind](thing):
            if page.start <= address < page.start + page.bytes:
                return f"{address:#x}: {kind} {said(thing[1])} (id {thing[2]}): {slot_words(page, address)}"
    return f"{address:#x}: {kind}, its bookkeeping"


def bar(page):
    """A page in at most BAR signs."""
    count = min(BAR, page.slots)
    signs = []
    for i in range(count):
        first, end = i * page.slots // count, (i + 1) * page.slots // count
        live = ones(page.live >> first & ((1 << (end - first)) - 1))
        signs.append("." if live == 0 else "#" if live == end - first else "+")
    return "".join(signs)


# ---- the commands: what each says, line by line ----


def say_objects(argv):
    """Every arena, slab, per-CPU pool and heap, with what it holds."""
    rows = list(object_rows())
    yield f"{'kind':8}{'id':>4}  {'address':>18}{'holds_bytes':>14}{'live_bytes':>14}{'pages':>8}  name"
    for kind, name, number, address, held, live, pages in rows:
        yield f"{kind:8}{number:>4}  {address:>#18x}{held:>14}{live:>14}{pages:>8}  {said(name)}"


def say_owner(argv):
    """Whose an address is: quire owner EXPRESSION."""
    if not argv:
        raise Failure("quire owner ADDRESS")
    for word in argv:
        yield owner_words(debugger.value(word))


def say_map(argv):
    """Every page, and which of its slots live: quire map [NAME|ID] [--json FILE]."""
    file = argv[argv.index("--json") + 1] if "--json" in argv[:-1] else None
    wanted = next((w for w in argv if w != "--json" and w != file), None)
    things = [t for t in paged_things() if wanted in (None, t[1], str(t[2]))]
    pages = [page for thing in things for page in PAGES[thing[0]](thing)]
    if file:
        document = {"schema": "quire.map/1", "process": debugger.pid()}
        document.update(pages=[p.document() for p in pages], pages_left_out=0)
        with open(file, "w", encoding="utf-8") as out:
            json.dump(document, out)
        return
    for page in pages:
        kind, name, number, _ = page.thing
        share = f"{ones(page.live)}/{page.slots}"
        yield f"{kind} {said(name)} {number}: {page.start:#x} {page.slot_bytes:>6} B {share:>9} |{bar(page)}|"


COMMANDS = {"objects": say_objects, "owner": say_owner, "map": say_map}
USAGE = "quire objects | quire owner ADDRESS | quire map [NAME|ID] [--json FILE]"

if gdb:

    class QuireCommand(gdb.Command):
        """What a program's memory is to Quire: objects, owner, map."""

        def __init__(self, name, lines=None):
            super().__init__(f"quire {name}".strip(), gdb.COMMAND_DATA, prefix=not name)
            self.lines = lines

        def invoke(self, argument, from_tty):
            """Runs the command; what is missing is one line."""
            try:
                for line in self.lines(gdb.string_to_argv(argument)) if self.lines else (USAGE,):
                    print(line)
            except Failure as failure:
                raise gdb.GdbError(f"quire: {failure}") from None

    QuireCommand("")
    for command, lines_of in COMMANDS.items():
        type(command, (QuireCommand,), {"__doc__": lines_of.__doc__})(command, lines_of)


def lldb_quire(its_debugger, command_line, result, _):
    """What a program's memory is to Quire: quire objects | quire owner ADDRESS | quire map [NAME|ID] [--json FILE]"""
    debugger.target = its_debugger.GetSelectedTarget()
    try:
        name, *argv = shlex.split(command_line) or [""]
        for line in COMMANDS[name](argv) if name in COMMANDS else (USAGE,):
            result.AppendMessage(line)
    except (Failure, ValueError) as failure:
        result.SetError(f"quire: {failure}")


def __lldb_init_module(its_debugger, _):
    its_debugger.HandleCommand(f"command script add -f {__name__}.lldb_quire quire")
