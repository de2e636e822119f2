# SPDX-License-Identifier: MIT
"""
quire_gdb.py - Quire's objects in gdb: of a core file, or of a process that is being debugged.

    (gdb) source tools/gdb/quire_gdb.py
    (gdb) quire objects               every arena, slab, per-CPU pool and heap, with what it holds
    (gdb) quire owner 0x7f3a5c0004b0  whose an address is, which slot, and whether that lives
    (gdb) quire map [NAME|ID]         every page, and which of its slots live;  --json FILE: "quire.map/1"

    registries (statics of the library) ---> slabs, pools, heaps ---> their pages
    page map   (address -> owner)       ---> arenas, which are in no list; the owner of an address

Nothing of the process is run: its memory is read by the types that the library's debug information describes.
What threads keep to hand out again (magazines), and what others have freed, counts as free, as it does in a running process.
Works by itself: no other file is needed.
"""

import bisect
import json

import gdb

LEVEL_BITS, KIND_MASK = 18, 7
KINDS = {1: "arena", 2: "slab", 3: "percpu", 4: "heap"}
WORD_BITS = 64
HEAP_UNUSED, HEAP_MAGAZINE, LARGE_OWNER, SECURE_OWNER = 0, 5, 1, 2
PERCPU_PAGE_BYTES, PERCPU_EDGE_BYTES = 8192, 64
MAP_SLOTS_MAX = 4096
CHAIN_MAX, BAR = 1 << 22, 48
ANCHORS = (("pagemap_root", "pagemap.c"), ("registry", "slab_registry.c"), ("heap_of_process", "heap.c"))


class Struct:
    """A C struct's fields by name; `a.b` is a field of a field."""

    known = {}

    def __init__(self, name):
        self.type = gdb.lookup_type(f"struct {name}")
        self.bytes = self.type.sizeof
        self.places = {}

    @classmethod
    def of(cls, name):
        """The one of that name."""
        if name not in cls.known:
            cls.known[name] = cls(name)
        return cls.known[name]

    def place(self, path):
        """(offset, bytes) of a field."""
        if path not in self.places:
            offset, kind = 0, self.type
            for part in path.split("."):
                at, kind = next(f for f in fields_of(kind) if f[0] == part)[1:]
                offset += at
            self.places[path] = (offset, kind.strip_typedefs().sizeof)
        return self.places[path]


def fields_of(kind, at=0):
    """(name, offset, type) of each field, those of a union without a name too."""
    for field in kind.strip_typedefs().fields():
        if field.name:
            yield field.name, at + field.bitpos // 8, field.type
        else:
            yield from fields_of(field.type, at + field.bitpos // 8)


class Seen:
    """One struct in the memory of what is debugged, read at once."""

    def __init__(self, name, address):
        self.struct, self.address = Struct.of(name), address
        self.memory = memory(address, self.struct.bytes)

    def __getitem__(self, path):
        offset, size = self.struct.place(path)
        return int.from_bytes(self.memory[offset : offset + size], "little")

    def text(self, path):
        """A field that is an array of characters."""
        offset, size = self.struct.place(path)
        return self.memory[offset : offset + size].split(b"\0")[0].decode("utf-8", "replace")

    def end_of(self, path):
        """The address of a field, for what lies behind the struct."""
        return self.address + self.struct.place(path)[0]


def memory(address, size):
    """Bytes of what is debugged."""
    return bytes(gdb.selected_inferior().read_memory(address, size)) if size else b""


def words(address, count):
    """So many 64-bit words."""
    return memoryview(memory(address, 8 * count)).cast("Q")


def variables(name, file):
    """Addresses of a variable of one source file: one for each of the libraries that are loaded."""
    found = [s for s in gdb.lookup_static_symbols(name) if s.symtab.filename.endswith(f"/{file}")]
    for objfile in gdb.objfiles():
        symbol = objfile.lookup_global_symbol(name)
        if symbol is not None and symbol.symtab.filename.endswith(f"/{file}"):
            found.append(symbol)
    return sorted({int(s.value().address) for s in found})


def field_of(address, name, path):
    """One field of a variable whose struct has no name."""
    symbols = gdb.lookup_static_symbols(name)
    value = next(s.value() for s in symbols if int(s.value().address) == address)
    for part in path.split("."):
        value = value[part]
    return int(value)


def chain(first, name, link):
    """Structs of a list, each read once."""
    count = 0
    while first and count < CHAIN_MAX:
        seen = Seen(name, first)
        yield seen
        first, count = seen[link], count + 1


def bits_of(found):
    """64-bit words as one number, the first word lowest."""
    return int.from_bytes(found.tobytes(), "little")


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
            "live": self.live.bit_count(),
            "bits": f"{self.live:x}"[::-1] if self.live else "",
        }


# ---- slabs ----


def slabs():
    """(kind, name, id, Seen) of every slab."""
    for registry in variables("registry", "slab_registry.c"):
        for slab in chain(field_of(registry, "registry", "slabs"), "quire_slab", "next"):
            yield "slab", slab.text("name"), slab["birth"], slab


def slab_caches(slab):
    """Every thread's cache of one slab."""
    at = slab["id"] * Struct.of("slab_cache").bytes
    for records in variables("records", "slab_thread.c"):
        for thread in chain(field_of(records, "records", "all.word"), "slab_thread", "next"):
            if slab["id"] < thread["count"]:
                cache = Seen("slab_cache", thread["caches"] + at)
                if cache["slab"] == slab.address:
                    yield cache


def slab_mags(slab):
    """(magazine, slots in it) of the slab's magazines and its threads'; of a current one the cache says how many."""
    for mag in chain(slab["depot"], "magazine", "next"):
        yield mag, mag["count"]
    for cache in slab_caches(slab):
        mag = Seen("magazine", cache["slots.cur"])
        yield mag, (cache["slots.top"] - mag.address - mag.struct.bytes) // 8
        if cache["slots.prev"]:
            mag = Seen("magazine", cache["slots.prev"])
            yield mag, mag["count"]
        for mag in chain(cache["slots.own"], "magazine", "next"):
            yield mag, mag["count"]


def slab_idle(slab):
    """Sorted addresses of slots that no free bit shows: those in magazines."""
    found = []
    for mag, count in slab_mags(slab):
        found += words(mag.address + mag.struct.bytes, min(max(count, 0), mag["room"]))
    return sorted(found)


def slab_page(thing, page, idle):
    """A slab's page: live is what is neither free in it nor in a magazine."""
    start, slots, slot_bytes = page["slots"], page["slot_count"], thing[3]["slot_bytes"]
    free = bits_of(words(page.end_of("free"), page["words"])) | idle_bits(idle, start, slot_bytes, slots)
    size = slots * slot_bytes if page["home"] else page["span.bytes"]
    return Page(thing, start, size, slot_bytes, slots, ~free & ((1 << slots) - 1))


def slab_pages(thing):
    """Pages of one slab."""
    idle = slab_idle(thing[3])
    for page in chain(thing[3]["all"], "slab_page", "all_next"):
        yield slab_page(thing, page, idle)


# ---- heaps ----


def heaps():
    """(kind, name, id, Seen) of every heap."""
    for first in variables("heap_of_process", "heap.c"):
        for heap in chain(first, "quire_heap", "next"):
            name = heap.text("name") or ("default" if heap.address == first else "")
            yield "heap", name, heap["serial"], heap


def heap_key(heap):
    """What hides the links of blocks on their way, in the library that has this heap."""
    keys = variables("heap_key_word", "heap.c")
    return words(min(keys, key=lambda k: abs(k - heap.address)), 1)[0] if keys else 0


def linked(first, key):
    """Addresses of blocks on their way."""
    count = 0
    while first and count < CHAIN_MAX:
        yield first
        first, count = words(first, 2)[1] ^ key, count + 1


def chunk_headers(heap):
    """Headers of a heap's pages, large blocks and magazines, in use or not."""
    align = 128
    for chunk in chain(heap["chunks"], "heap_chunk", "next"):
        first = chunk.address + -(-Struct.of("heap_chunk").bytes // align) * align
        for i in range(chunk["cut"]):
            yield Seen("heap_page", first + i * chunk["stride_bytes"])


def currents(local):
    """Slots in the current magazines of a heap's local: `top` says how many."""
    bins_at, bins_bytes = Struct.of("heap_local").place("bin")
    bin_type, mag_bytes = Struct.of("heap_bin"), Struct.of("magazine").bytes
    cur_at, top_at = bin_type.place("slots.cur")[0], bin_type.place("slots.top")[0]
    for at in range(bins_at, bins_at + bins_bytes, bin_type.bytes):
        cur, top = (int.from_bytes(local.memory[at + of : at + of + 8], "little") for of in (cur_at, top_at))
        if cur:
            mag = Seen("magazine", cur)
            yield from words(cur + mag_bytes, min(max((top - cur - mag_bytes) // 8, 0), mag["room"]))


def heap_idle(heap):
    """Sorted addresses of slots that no free bit shows: those in magazines, and those on their way to their owner."""
    key, found, local_type = heap_key(heap), [], Struct.of("heap_local")
    out_at, out_bytes = local_type.place("out")
    out_one, mag_type = Struct.of("heap_out"), Struct.of("magazine")
    for header in chunk_headers(heap):
        if header["state"] == HEAP_MAGAZINE:
            mag = Seen("magazine", header.end_of("free"))
            found += words(mag.address + mag_type.bytes, min(mag["count"], mag["room"]))
    for local in chain(heap["locals"], "heap_local", "next"):
        found += currents(local)
        for at in range(out_at, out_at + out_bytes, out_one.bytes):
            first = at + out_one.place("first")[0]
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
            os_page = 1 << next(roots())[1]
            size = -(-max(page["asked_bytes"], 1) // os_page) * os_page
        return Page(thing, start + guard, size, size, 1, 1)
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
    for page in chunk_headers(heap):
        if page["state"] not in (HEAP_UNUSED, HEAP_MAGAZINE) and page["owner"]:
            yield heap_page(thing, page, idle)


# ---- per-CPU pools ----


def pools():
    """(kind, name, id, Seen) of every per-CPU pool."""
    for registry in variables("pools", "percpu_pool.c"):
        for pool in chain(field_of(registry, "pools", "first"), "quire_percpu", "next"):
            yield "percpu", pool.text("name"), pool["birth"], pool


def mark(slot_bytes, at, size):
    """Bits of the slots that [at, at + size) lies in."""
    first, last = at // slot_bytes, (at + size - 1) // slot_bytes
    return ((1 << (last - first + 1)) - 1) << first


def paged_objects(chunk):
    """(offset, bytes) of the objects of a chunk of pages."""
    count = (Seen("quire_percpu", chunk["pool"])["unit_words"] * 4) // PERCPU_PAGE_BYTES
    offset = Struct.of("percpu_page").place("free")[0]
    fields = {n: Struct.of("percpu_page").place(n) for n in ("start", "words", "slots", "free_words")}
    for i in range(count):
        raw = memory(chunk["pages"] + i * chunk["page_stride"], offset + 8)
        start, size, slots, free_words = (int.from_bytes(raw[a : a + b], "little") for a, b in fields.values())
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
    for chunk in chain(thing[3]["all"], "percpu_chunk", "all_next"):
        live = 0
        for at, size in (mapped_objects if chunk["map.taken"] else paged_objects)(chunk):
            live |= mark(slot_bytes, at, size)
        yield Page(thing, chunk["base"], unit_bytes, slot_bytes, unit_bytes // slot_bytes, live)


# ---- arenas, and the page map ----


def roots():
    """(the page map's first table, its shift) of each library that has set one up."""
    shifts = variables("pagemap_shift", "pagemap.c")
    for root in variables("pagemap_root", "pagemap.c"):
        nearest = min(shifts, key=lambda s: abs(s - root))
        shift = int.from_bytes(memory(nearest, 4), "little")
        if shift:
            yield root, shift


def owners():
    """Every owner that stands in a page map."""
    found = set()
    for root, _ in roots():
        for entry in words(root, 1 << LEVEL_BITS):
            if entry and entry & KIND_MASK:
                found.add(entry)
            elif entry:
                found.update(words(entry, 1 << LEVEL_BITS))
    return found - {0}


def owner_of(address):
    """(kind, address of the owner) of an address; None: nobody's."""
    for root, shift in roots():
        page = address >> shift
        if page >> 2 * LEVEL_BITS:
            continue
        entry = words(root + 8 * (page >> LEVEL_BITS), 1)[0]
        if entry and not entry & KIND_MASK:
            entry = words(entry + 8 * (page & ((1 << LEVEL_BITS) - 1)), 1)[0]
        if entry:
            return KINDS.get(entry & KIND_MASK, "?"), entry & ~KIND_MASK
    return None


def arenas():
    """(kind, name, id, Seen) of every arena; those that are in no list have the id 0."""
    for entry in sorted(owners()):
        if entry & KIND_MASK == 1:
            arena = Seen("quire_arena", entry & ~KIND_MASK)
            yield "arena", arena.text("name"), arena["list_order"], arena


# ---- what the commands say ----

PAGES = {"slab": slab_pages, "percpu": percpu_pages, "heap": heap_pages}


def paged_things():
    """Every object that has pages of slots."""
    yield from slabs()
    yield from pools()
    yield from heaps()


def said(name):
    """A name that can do nothing to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name) or "-"


def object_rows():
    """(kind, name, id, address, bytes, live bytes, pages) of every object."""
    for kind, name, number, arena in arenas():
        used = arena["used_before"] + arena["window.cursor"] - arena["data"] + arena["large_bytes"]
        yield kind, name, number, arena.address, arena["mapped_bytes"], used, ""
    for thing in paged_things():
        pages = list(PAGES[thing[0]](thing))
        held = sum(p.bytes for p in pages)
        live = sum(p.live.bit_count() * p.slot_bytes for p in pages)
        yield thing[0], thing[1], thing[2], thing[3].address, held, live, len(pages)


def percpu_slot(chunk, address):
    """The object of a chunk that an address lies in, in words."""
    pool = Seen("quire_percpu", chunk["pool"])
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
    kind, owner = found
    if kind == "arena":
        arena = Seen("quire_arena", owner)
        return f"{address:#x}: arena {said(arena.text('name'))} at {owner:#x}"
    if kind == "percpu":
        pool, what = percpu_slot(Seen("percpu_chunk", owner), address)
        return f"{address:#x}: percpu {said(pool.text('name'))} (id {pool['birth']}): {what}"
    for thing in slabs() if kind == "slab" else heaps():
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
        live = (page.live >> first & ((1 << (end - first)) - 1)).bit_count()
        signs.append("." if live == 0 else "#" if live == end - first else "+")
    return "".join(signs)


class QuireCommand(gdb.Command):
    """What a program's memory is to Quire: objects, owner, map."""

    def __init__(self, name, prefix=False):
        super().__init__(name, gdb.COMMAND_DATA, prefix=prefix)

    def invoke(self, words_, from_tty):
        """Runs the command; what is missing is one line."""
        try:
            if not any(variables(name, file) for name, file in ANCHORS):
                raise gdb.GdbError("quire: there is no libquire in it, or one without debug information")
            self.say(gdb.string_to_argv(words_))
        except gdb.MemoryError as error:
            raise gdb.GdbError(f"quire: memory is not in the core file: {error}") from None
        except gdb.error as error:
            raise gdb.GdbError(f"quire: no debug information of libquire: {error}") from None

    def say(self, argv):
        """Of `quire` alone: what there is."""
        print(f"quire objects | quire owner ADDRESS | quire map [NAME|ID] [--json FILE]{' ?' * bool(argv)}")


class QuireObjects(QuireCommand):
    """Every arena, slab, per-CPU pool and heap, with what it holds."""

    def say(self, argv):
        print(f"{'kind':8}{'id':>4}  {'address':>18}{'holds_bytes':>14}{'live_bytes':>14}{'pages':>8}  name")
        for kind, name, number, address, held, live, pages in object_rows():
            print(f"{kind:8}{number:>4}  {address:>#18x}{held:>14}{live:>14}{pages:>8}  {said(name)}")


class QuireOwner(QuireCommand):
    """Whose an address is: quire owner EXPRESSION."""

    def say(self, argv):
        if not argv:
            raise gdb.GdbError("quire owner ADDRESS")
        for word in argv:
            print(owner_words(int(gdb.parse_and_eval(word).cast(gdb.lookup_type("unsigned long")))))


class QuireMap(QuireCommand):
    """Every page, and which of its slots live: quire map [NAME|ID] [--json FILE]."""

    def say(self, argv):
        file = argv[argv.index("--json") + 1] if "--json" in argv[:-1] else None
        wanted = next((w for w in argv if w != "--json" and w != file), None)
        things = [t for t in paged_things() if wanted in (None, t[1], str(t[2]))]
        pages = [page for thing in things for page in PAGES[thing[0]](thing)]
        if file:
            document = {"schema": "quire.map/1", "process": gdb.selected_inferior().pid}
            document.update(pages=[p.document() for p in pages], pages_left_out=0)
            with open(file, "w", encoding="utf-8") as out:
                json.dump(document, out)
            return
        for page in pages:
            kind, name, number, _ = page.thing
            share = f"{page.live.bit_count()}/{page.slots}"
            print(f"{kind} {said(name)} {number}: {page.start:#x} {page.slot_bytes:>6} B {share:>9} |{bar(page)}|")


QuireCommand("quire", prefix=True)
QuireObjects("quire objects")
QuireOwner("quire owner")
QuireMap("quire map")
