# SPDX-License-Identifier: MIT
"""
steerplan.py - plan files for the library that steers: what stands in them, written and read.

    quire-steer 1
    # made by quire 0.2.0 from a run of: jq . big.json
    module 0 6a09e667f3bcc908 /usr/lib/libjq.so.1
    program 1
    memory 34600000
    frame 0 module 0 offset 1c307 from 23 of 96 ["jv_string_sized|jv.c:1234"]
    pool 1 arena peak 32900000
    site 17 pool 1 allocs 260010 bytes 5720220 jv_string_sized at jv.c:1234: its blocks die together, 2 times
    path 0 +5 1
    site 4 heap allocs 1 bytes 72 main at main.c:9: it is not among the busiest sites
    end 9

memory: bytes that lived at the peak; as much comes in huge pages. A frame is a return address: offset in its module, offset in its function and that function's size, and the lines that stand there, inlined
functions first. A path is frames from malloc's caller outwards; +N: the next return address lies N words further up.
The library reads the same lines and believes nothing either (src/steer/steer_plan.c).
Not here: which sites (steering.py).
"""

import json
import os
import re
from collections import namedtuple

import outputs
from errors import QuireError

VERSION_READ = 1
BYTES_MAX = 16 << 20
MODULES_MAX, FRAMES_MAX, POOLS_MAX, SITES_MAX, NODES_MAX, LEVELS_MAX = 256, 1 << 15, 63, 4096, 4095, 8
STEP_MAX, ID_BYTES_MAX = 512, 32

Module = namedtuple("Module", "build_id path")
Frame = namedtuple("Frame", "module offset from_function function_bytes lines")
Pool = namedtuple("Pool", "kind peak_bytes")
Site = namedtuple("Site", "number pool allocs bytes where reason paths")  # pool 0: the heap; paths: [[(step, frame), ...]]

MODULE = re.compile(r"module (\d+) ([0-9a-f]+) (.*)")
PROGRAM = re.compile(r"program (\d+)")
MEMORY = re.compile(r"memory (\d+)")
FRAME = re.compile(r"frame (\d+) module (\d+) offset ([0-9a-f]+) from (\d+) of (\d+) (\[.*\])")
POOL = re.compile(r"pool (\d+) (arena|slab) peak (\d+)")
SITE = re.compile(r"site (\d+) (?:pool (\d+)|heap) allocs (\d+) bytes (\d+) (.*?): (.*)")
PATH = re.compile(r"path (\d+(?: \+\d+ \d+)*)")
END = re.compile(r"end (\d+)")


def one_line(text):
    """A name from a traced program as part of a line."""
    return "".join(c if c.isprintable() else "?" for c in text)


class Plan:
    """A plan file's content."""

    def __init__(self, maker="", command=""):
        self.maker = maker
        self.command = command
        self.path = None
        self.modules, self.frames, self.pools, self.sites = [], [], [], []
        self.program = None
        self.memory_bytes = 0

    def lines(self):
        """Its lines, but for the first, the comments and the last."""
        lines = [f"module {i} {m.build_id} {one_line(m.path)}" for i, m in enumerate(self.modules)]
        lines += [f"program {self.program}"] if self.program is not None else []
        lines += [f"memory {self.memory_bytes}"] if self.memory_bytes else []
        for i, f in enumerate(self.frames):
            names = json.dumps(f.lines, ensure_ascii=True)
            lines.append(f"frame {i} module {f.module} offset {f.offset:x} from {f.from_function} of {f.function_bytes} {names}")
        lines += [f"pool {i + 1} {p.kind} peak {p.peak_bytes}" for i, p in enumerate(self.pools)]
        for site in self.sites:
            goes = f"pool {site.pool}" if site.pool else "heap"
            where = one_line(site.where).replace(": ", ":")
            lines.append(f"site {site.number} {goes} allocs {site.allocs} bytes {site.bytes} {where}: {site.reason}")
            for path in site.paths:
                steps = " ".join(f"+{step} {frame}" for step, frame in path[1:])
                lines.append(f"path {path[0][1]} {steps}".rstrip())
        return lines

    def text(self):
        """The whole file."""
        lines = self.lines()
        head = [f"quire-steer {VERSION_READ}", f"# made by {self.maker} from a run of: {one_line(self.command)}"]
        return "\n".join(head + lines + [f"end {len(lines)}"]) + "\n"

    def write(self, path):
        """Writes the file; whoever reads at the same time has the old one or the new."""
        self.path = path
        outputs.write(path, self.text().encode("utf-8", "backslashreplace"), True, "make room there, or choose another place")


class _Reader:
    """One file, line by line; what is wrong is said once, with the line."""

    def __init__(self, path):
        self.plan = Plan()
        self.plan.path = self.path = path
        self.number = 0

    def wrong(self, why):
        """The one line."""
        return QuireError(f"{one_line(self.path)}, line {self.number}: {why}", exit_code=3)

    def need(self, holds, why):
        """Or it is no plan."""
        if not holds:
            raise self.wrong(why)

    def head(self, line):
        """quire-steer VERSION"""
        words = line.split(" ")
        self.need(len(words) == 2 and words[0] == "quire-steer" and words[1].isdigit(), "it is no plan")
        self.need(int(words[1]) == VERSION_READ, f"it is a plan of version {words[1]}; this is quire for version {VERSION_READ}")

    def module(self, found):
        """module NUMBER BUILD-ID PATH"""
        self.need(int(found[1]) == len(self.plan.modules) < MODULES_MAX, "modules are numbered 0, 1, 2")
        self.need(len(found[2]) % 2 == 0 and len(found[2]) <= 2 * ID_BYTES_MAX, "a build id is hexadecimal bytes")
        self.plan.modules.append(Module(found[2], found[3]))

    def program(self, found):
        """program MODULE"""
        self.need(int(found[1]) < len(self.plan.modules), "there is no such module")
        self.plan.program = int(found[1])

    def memory(self, found):
        """memory BYTES"""
        self.need(int(found[1]) < 1 << 63, "a size is too large")
        self.plan.memory_bytes = int(found[1])

    def frame(self, found):
        """frame NUMBER module NUMBER offset HEX from N of N LINES"""
        self.need(int(found[1]) == len(self.plan.frames) < FRAMES_MAX, "frames are numbered 0, 1, 2")
        self.need(int(found[2]) < len(self.plan.modules), "there is no such module")
        try:
            names = json.loads(found[6])
        except ValueError as error:
            raise self.wrong("the names of a frame are no list") from error
        self.need(all(isinstance(name, str) for name in names), "the names of a frame are no list")
        self.need(int(found[3], 16) < 1 << 63, "an offset is too large")
        self.plan.frames.append(Frame(int(found[2]), int(found[3], 16), int(found[4]), int(found[5]), names))

    def pool(self, found):
        """pool NUMBER arena|slab peak BYTES"""
        self.need(int(found[1]) == len(self.plan.pools) + 1 <= POOLS_MAX, "pools are numbered 1, 2, 3")
        self.need(int(found[3]) < 1 << 63, "a size is too large")
        self.plan.pools.append(Pool(found[2], int(found[3])))

    def site(self, found):
        """site NUMBER pool NUMBER|heap allocs N bytes N WHERE: WHY"""
        pool = int(found[2] or 0)
        self.need(int(found[1]) < 1 << 32, "a number is too large")
        self.need(found[2] is None or 0 < pool <= len(self.plan.pools), "there is no such pool")
        self.plan.sites.append(Site(int(found[1]), pool, int(found[3]), int(found[4]), found[5], found[6], []))

    def way(self, found):
        """path FRAME [+STEP FRAME]..."""
        words = found[1].replace("+", "").split(" ")
        path = [(0, int(words[0]))] + list(zip(map(int, words[1::2]), map(int, words[2::2])))
        self.need(self.plan.sites and self.plan.sites[-1].pool, "a path belongs to a site that has a pool")
        self.need(len(path) <= LEVELS_MAX, "a path is too long")
        self.need(all(frame < len(self.plan.frames) for _, frame in path), "there is no such frame")
        self.need(all(step <= STEP_MAX for step, _ in path), "a step is too large")
        self.plan.sites[-1].paths.append(path)

    def line(self, line):
        """One of the kinds above."""
        kinds = ((MODULE, self.module), (PROGRAM, self.program), (MEMORY, self.memory), (FRAME, self.frame), (POOL, self.pool), (SITE, self.site), (PATH, self.way))
        for pattern, take in kinds:
            found = pattern.fullmatch(line)
            if found:
                take(found)
                return
        raise self.wrong("it is no line of a plan")

    def whole(self, text):
        """All of it."""
        counted, lines = 0, text.split("\n")
        self.number = len(lines)
        self.need(lines[-1] == "", "the last line is cut")
        for self.number, line in enumerate(lines[:-1], 1):
            if self.number == 1:
                self.head(line)
            elif END.fullmatch(line):
                self.need(int(END.fullmatch(line)[1]) == counted and self.number == len(lines) - 1, "the number of lines is wrong")
                tree_check(self)
                return self.plan
            elif line and not line.startswith("#"):
                self.line(line)
                counted += 1
        raise self.wrong("the end is missing: it was cut")


def tree_check(reader):
    """Paths part at one return address: none goes on where another ends, and the way to the next is the same for all."""
    plan, step_at, ends = reader.plan, {}, set()
    for site in plan.sites:
        for path in site.paths:
            keys = [plan.frames[frame][:2] for _, frame in path]
            for level in range(1, len(path)):
                node = tuple(keys[:level])
                reader.need(step_at.setdefault(node, path[level][0]) == path[level][0], "the way up the stack differs between two paths")
            reader.need(tuple(keys) not in ends, "two paths are one")
            ends.add(tuple(keys))
    reader.need(not ends & set(step_at), "one path goes on where another ends")
    reader.need(len(step_at) <= NODES_MAX and sum(bool(s.pool) for s in plan.sites) <= SITES_MAX, "there are more sites than can be")


def read(path):
    """A plan file, checked."""
    reader = _Reader(path)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe that nobody writes to is empty
            raw = file.read(BYTES_MAX + 1) or b""
    except OSError as error:
        raise QuireError(f"the plan {one_line(path)} cannot be read: {error.strerror}", exit_code=3) from error
    if len(raw) > BYTES_MAX or b"\0" in raw:
        raise QuireError(f"{one_line(path)}: it is no plan", exit_code=3)
    return reader.whole(raw.decode("utf-8", "surrogateescape"))
