#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""first_code - which functions of the libraries every process runs, most programs, and some: src/preload/first.ld and src/first.ld are made by this.

    scripts/first_code.py            after ./quire has built build/release; a minute

Each function gets a breakpoint, which goes when it was met (gdb); the programs are those below, some real, some of bench and examples.
Of the drop-in all that one of them ran is in the list, but for what threads run that live long (`cross`): of that what another program
ran, too.  Of libquire.so what programs with different allocators run lies together, what those with a slab run, and what others do.
Not here: a judgement.  What a program of another kind runs is missing, which costs memory, nothing else.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
MICRO = f"{ROOT}/build/release/bench/micro --workload "
IDLE = "true"
SMALL = [MICRO + words for words in ("skewed", "fraction", "window", "simple", "thrash", "scratch --threads 2")]  # small blocks alone, and threads that end
GROWING = "perl -e 'for (1..3) { $h{$_} = $_ x 40 for 1..90000; delete $h{$_} for 1..80000; $s .= $_ x 1000 for 1..5000; @a = map { $_ x ($_ % 5000) } 1..5000 }'"  # by realloc, and so much that a clock runs
FORKING = "perl -e 'fork'"  # whose child is looked at
LONG_LIVED = MICRO + "cross --threads 4"
OTHERS = [
    "ls /usr", f"cat {ROOT}/README.md", f"sort {ROOT}/README.md", f"jq . {ROOT}/CMakePresets.json", "python3 -S -c 'print(1)'",
    "perl -e '$h{$_} = $_ x 20 for 1..20000; delete $h{$_} for 1..9999'", GROWING, MICRO + "cover", LONG_LIVED, FORKING,
]  # fmt: skip
SHAPES = f"{BUILD}/bench/shapes --cpu-ms 50 --shape "
# Of libquire.so; what is not linked with it in the build is made here: of these sources, with what stands before.
ALLOCATORS = {
    "slab": [SHAPES + words for words in ("local", "local --count 400000", "local --bytes 256", "ring --threads 2", "handover --threads 2")]
    + ["bench/slab.c --workload full --count 100000 --defrag --decay"],
    "arena": ["bench/query.c --allocator arena --rounds 10"],
    "percpu": [f"bench/percpu.c --workload {words} --allocator percpu --rounds 1 --count 20000" for words in ("objects", "add")],
    "heap": ["examples/heap.c", "test/preload/programs/small_linked.c heap"],
}
BESIDE = {"bench/slab.c": ["bench/bench.c", "bench/slab_*.c"], "bench/query.c": ["bench/bench.c"], "bench/percpu.c": ["bench/bench.c", "bench/area_map.c", "bench/percpu_*.c"]}
TARGETS = ("quire_objects", "quire_steer_objects", "quire_prof_objects", "quire_malloc")
GDB = """
import gdb
for words in ("pagination off", "confirm off", "breakpoint always-inserted on", "auto-solib-add off", "startup-with-shell on", "environment LC_ALL C", "environment LD_PRELOAD @LIBRARY@", "environment LD_LIBRARY_PATH @BUILD@"):
    gdb.execute("set " + words)
gdb.execute("set follow-fork-mode @FOLLOW@")
gdb.execute("handle all nostop noprint pass")
gdb.execute("handle SIGTRAP stop noprint nopass")
gdb.execute("catch load @NAME@")
gdb.execute("run " + @ARGUMENTS@ + " > /dev/null")
base = min(int(line.split()[0], 16) for line in gdb.execute("info proc mappings", to_string=True).splitlines() if "@NAME@" in line)
gdb.execute("delete")
for offset in [@OFFSETS@]:
    gdb.Breakpoint(f"*{base + offset:#x}", internal=True, temporary=True)
seen = set()
try:
    while True:
        gdb.execute("continue", to_string=True)
        seen.add(int(gdb.selected_frame().pc()) - base)
except gdb.error:  # it has ended
    pass
print("SEEN", *seen)
"""
TEXT = """/* SPDX-License-Identifier: MIT
 *
 * first.ld - {}: made by scripts/first_code.py.
 */
"""
GROUP = """SECTIONS
{{
  .text.{} :{} /* {} */
  {{
{}{}
  }}
}}
INSERT {};
"""
PAGES = " ALIGN(CONSTANT(MAXPAGESIZE))", "\n    . = ALIGN(CONSTANT(MAXPAGESIZE));"  # a segment of its own, between others


class Library:
    """One of the two, and which of its code lies where."""

    def __init__(self, name, list_, preloads):
        self.path, self.list, self.preloads = (BUILD / name).resolve(), ROOT / list_, preloads
        self.at = self.functions()

    def functions(self):
        """{offset: [(name, bytes)]}"""
        at = {}
        for line in subprocess.run(["nm", "-S", self.path], capture_output=True, text=True, check=True).stdout.splitlines():
            if found := re.match(r"(\w+) (\w+) [tT] ([^@\s]+)", line):
                at.setdefault(int(found[1], 16), []).append((found[3], int(found[2], 16)))
        return at

    def seen(self, words):
        """The offsets that a program runs."""
        program, _, arguments = words.partition(" ")
        text = GDB.replace("@LIBRARY@", str(self.path) if self.preloads else "").replace("@BUILD@", str(BUILD))
        text = text.replace("@NAME@", self.path.name.partition(".so")[0] + ".so").replace("@ARGUMENTS@", repr(arguments))
        text = text.replace("@FOLLOW@", "child" if words == FORKING else "parent").replace("@OFFSETS@", ",".join(map(str, self.at)))
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(text)
            script.flush()
            done = subprocess.run(["gdb", "-q", "-nx", "-batch", "-iex", "set auto-load no", "-x", script.name, program], capture_output=True, text=True, check=False)
        found = re.search(r"^SEEN(.*)", done.stdout, re.MULTILINE)
        if not found:
            sys.exit(f"{words}: {done.stderr[-1000:]}")
        return {int(offset) for offset in found[1].split()}

    def pattern(self, offset, files):
        """The linker's word for a function; of names that several files have, the file is said, too."""
        if len(files) == 1:
            return f"*({next(iter(files.values()))})"
        where = subprocess.run(["addr2line", "-i", "-e", self.path, hex(offset)], capture_output=True, text=True, check=True).stdout
        file = Path(where.split()[-1].partition(":")[0]).stem  # the last: into which the others are inlined
        return f"*/{file}.*o({files[file]})"

    def listed(self, offsets, where):
        """What is in the list, in words, and the list."""
        names = [(offset, *entry) for offset in offsets for entry in self.at.get(offset, []) if entry[0] in where]
        patterns = sorted({self.pattern(offset, where[name]) for offset, name, _ in names})
        alone = [words[2:-1] for words in patterns if words.startswith("*(")]
        lines = ["   "]
        for words in [*(words for words in patterns if words.startswith("*/")), "*(" + alone[0], *alone[1:-1], alone[-1] + ")"]:
            if len(lines[-1]) + len(words) > 155:
                lines.append("   ")
            lines[-1] += " " + words
        return f"{len(names)} functions of {(sum(size for _, _, size in names) + 512) // 1024} KB", "\n".join(lines)

    def write(self, what, groups):
        """groups: (name, offsets, place)"""
        where = sections()
        text = [GROUP.format(name, pages[0], *self.listed(offsets, where), pages[1], place) for name, offsets, place, pages in groups]
        self.list.write_text(TEXT.format(what) + "".join(text))


def sections():
    """{function: {file: section}}: a part that is seldom run, a destructor, a clone have sections of other names."""
    found = {}
    for target in TARGETS:
        for path in (BUILD / "src").rglob(f"{target}.dir/**/*.o"):
            for line in subprocess.run(["objdump", "-t", path], capture_output=True, text=True, check=True).stdout.splitlines():
                if row := re.match(r"\w{16} .{6}F (\.text\S+)\t\w+\s+(?:\.hidden )?(\S+)$", line):
                    found.setdefault(row[2], {})[path.name.partition(".")[0]] = row[1]
    return found


def drop_in():
    library = Library("libquire-malloc.so", "src/preload/first.ld", True)
    runs = {words: library.seen(words) for words in SMALL + OTHERS}
    first = library.seen(IDLE)
    times = Counter(offset for run in runs.values() for offset in run - first)
    usual = {o for o in times if times[o] > 1 or o not in runs[LONG_LIVED]}
    most = {o for o in usual if 2 * times[o] >= len(runs) or any(o in runs[words] for words in SMALL)}
    groups = ("first", first, "BEFORE .text", ("", "")), ("most", most, "AFTER .rodata", PAGES), ("some", usual - most, "AFTER .eh_frame", PAGES)
    library.write("what every process runs, what most programs run that allocate, and what some do", groups)


def made(words, folder):
    """The words; where they begin with a source, a program that is made of it stands in its place."""
    source, _, arguments = words.partition(" ")
    if not source.endswith(".c"):
        return words
    sources = [source, *(str(path.relative_to(ROOT)) for name in BESIDE.get(source, []) for path in ROOT.glob(name))]
    program = Path(folder, Path(source).stem)
    subprocess.run(["cc", "-O2", "-w", "-D_GNU_SOURCE", "-Iinclude", "-Isrc", "-Ibench", "-o", program, *sources, f"-L{BUILD}", "-lquire", "-lpthread"], check=True, cwd=ROOT, capture_output=True)
    return f"{program} {arguments}".strip()


def linked():
    library = Library("libquire.so", "src/first.ld", False)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: set().union(*(library.seen(made(words, folder)) for words in programs)) for name, programs in ALLOCATORS.items()}
        first = library.seen(made("bench/query.c --help", folder))
    times = Counter(offset for run in runs.values() for offset in run - first)
    many = {o for o in times if times[o] > 1}
    slab = runs["slab"] - many - first
    groups = (
        ("first", first, "BEFORE .text", ("", "")),
        ("most", many, "AFTER .rodata", PAGES),
        ("slab", slab, "AFTER .eh_frame_hdr", PAGES),
        ("some", set(times) - many - slab, "AFTER .eh_frame", PAGES),
    )
    library.write("what every process runs, what programs with different allocators run, what one with a slab does, and others", groups)


if __name__ == "__main__":
    drop_in()
    linked()
