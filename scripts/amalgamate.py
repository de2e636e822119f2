#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""amalgamate - the library as two files, quire.c and quire.h, for who takes source into a program of their own.

    amalgamate.py FOLDER        then: gcc -O2 -pthread quire.c main.c

    include/quire/*.h  --> quire.h     one behind the other, each allocator's under #ifndef QUIRE_NO_...
    src/**/*.h         --> quire.c     first every header, then every source, from os to look: what includes say comes before who says it
    src/**/*.c

A file's own names are its own no longer: where two files have one, each gets its file's name behind it.  Names that are global in the library but not
public begin with quire_inner_, so that a program may have a panic() too.  Names are told by the lines at which declarations begin; what that
misses the compiler finds (test/install/test_amalgamation.py).

Not here: compat/, preload/ and the tool, which are more than a library.
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

import checklib

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["os", "base", "pages", "slots", "owner", "arena", "slab", "percpu", "heap", "look"]
PUBLIC = ["export", "quire", "source", "arena", "slab_inline", "slab", "heap", "percpu_inline", "percpu", "counter", "histogram", "stats"]
PARTS = ["ARENA", "SLAB", "HEAP", "PERCPU", "COUNTERS", "STATS"]
PART_OF_LAYER = {"arena": "ARENA", "slab": "SLAB", "percpu": "PERCPU", "heap": "HEAP", "look": "STATS"}
PART_OF_STEM = {"counter": "COUNTERS", "counter_policy": "COUNTERS", "histogram": "COUNTERS", "histogram_buckets": "COUNTERS",
                "histogram_snapshot": "COUNTERS", "percpu_inline": "PERCPU", "slab_inline": "SLAB", "os_rseq": "PERCPU", "stats": "STATS"}  # fmt: skip
HEAD = """/*
 * Quire {version}, in two files: quire.c and quire.h.  Made by scripts/amalgamate.py; change the files that it reads, not this one.
 *
 *     gcc -O2 -pthread quire.c main.c
 *
 * Leave out what you do not need, by the same words wherever either file is compiled: -DQUIRE_NO_ARENA -DQUIRE_NO_SLAB -DQUIRE_NO_HEAP
 * -DQUIRE_NO_PERCPU -DQUIRE_NO_COUNTERS (with PERCPU) -DQUIRE_NO_STATS.
 *
{licence}
 */
"""
SOURCE_HEAD = """#define _GNU_SOURCE 1 /* before the first header of libc's */
#define QUIRE_ARENA_INLINE 0 /* here are the functions themselves */
#define QUIRE_PERCPU_INLINE 0
#define QUIRE_SLAB_INLINE 0
#pragma GCC diagnostic ignored "-Wunused-function" /* clang's opinion of inline functions that no header holds */
#pragma GCC diagnostic ignored "-Wpedantic" /* __int128, and enumerators above an int */
#pragma GCC diagnostic ignored "-Wshadow" /* one file's names and another's arguments */
#include "quire.h"
"""
KEYWORDS = {"struct", "enum", "union", "void", "const", "_Static_assert", "ElfW"}
X86_ONLY = "#include <emmintrin.h>"
_TOKEN = re.compile(r"""(//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^[ \t]*#[ \t]*include[^\n]*|\b[A-Za-z_]\w*\b)""", re.DOTALL | re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">][^\n]*\n', re.MULTILINE)
_CPLUSPLUS = re.compile(r"^#ifdef __cplusplus\n(?:extern \"C\" \{|\})\n#endif\n|^C_DECLARATIONS_(?:BEGIN|END)\n", re.MULTILINE)
_ATTRIBUTE = re.compile(r"__(?:attribute|asm)__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")


def strip(text):
    """A file without its licence line, its guard, its extern "C" and the includes of ours."""
    text = re.sub(r"\A// SPDX[^\n]*\n|\A/\* SPDX[^\n]*\n", "", text)
    guard = re.search(r"^#ifndef (QUIRE_\w+_H)\n#define \1\n", text, re.MULTILINE)
    if guard:
        text = text[: guard.start()] + re.sub(r"#endif\s*\Z", "", text[guard.end() :])
    text = _CPLUSPLUS.sub("", text)
    return _INCLUDE.sub(lambda m: m.group() if m.group(1) == "<" and not m.group(2).startswith("quire/") else "", text)


def top_level(text):
    """The statements outside all braces, each as (what it begins with, what stands in its first braces)."""
    code = checklib.without_preprocessor(checklib.code_of(text))
    code = _ATTRIBUTE.sub(" ", code)
    found, begin, depth, body = [], 0, 0, None
    for at, letter in enumerate(code):
        if letter == "{":
            if depth == 0 and body is None:
                body = at
            depth += 1
        elif letter == "}":
            depth -= 1
            head = code[begin:body]
            if depth == 0 and re.search(r"\)\s*$", head) and "=" not in head:  # a function's
                found.append((head, ""))
                begin, body = at + 1, None
        elif letter == ";" and depth == 0:
            end = at if body is None else body
            found.append((code[begin:end], "" if body is None else code[body:at]))
            begin, body = at + 1, None
    return found


def names_of(text):
    """(names, tags, global names) that a file declares at its outermost level."""
    names, tags, inner = set(), set(), set()
    for head, body in top_level(text):
        head = " ".join(re.sub(r"\b(struct|enum|union) [A-Z_]+\b", r"\1", head).split())  # CACHE_ALIGNED
        tag = re.search(r"^(?:typedef |static |const )*(struct|enum|union) (\w+)$", head)
        if tag and body:
            tags.add(tag.group(2))
        if re.match(r"(?:typedef |static |const )*enum\b", head) and body:
            names |= set(re.findall(r"[{,]\s*([A-Za-z_]\w*)\s*(?=[=,}])", body))
        head = re.sub(r"\(\*(?:const )?(\w+).*", r"\1", head)  # a pointer to a function
        word = re.match(r"(?:[\w\s*]*[\s*])?([A-Za-z_]\w*) ?\(", head)
        declared = []
        if word and not word.group(1).isupper() and word.group(1) not in KEYWORDS:
            declared = [word.group(1)]
        elif head and not head.startswith("typedef") and not re.match(r"(?:struct|enum|union)(?: \w+)?$", head):
            plain = re.sub(r"=.*|\[[^\]]*\]", " ", head)
            declared = re.findall(r"(\w+)\s*(?=,|$)", plain.strip())
        if not re.match(r"(?:extern )?[A-Z_]+ ?\(", head):
            (names if "static" in head.split() else inner).update(declared)
    names |= set(re.findall(r"^(?:static )?\} (\w+)(?= = \{|;|\[)", text, re.MULTILINE))  # static struct {...} name;
    return names - KEYWORDS, tags, {n for n in inner - KEYWORDS if not n.startswith(("quire_", "__"))}


def renamed(text, names, members, tags):
    """The text with those identifiers replaced, other ones behind a dot or an arrow; comments and strings are left alone."""

    def replace(match):
        word = match.group()
        before = text[max(match.start() - 8, 0) : match.start()].rstrip()
        if before.endswith((".", "->")) and not before.endswith("..."):
            return members.get(word, word)
        if re.search(r"\b(?:struct|union|enum)$", before):
            return tags.get(word, word)
        return names.get(word, word)

    return _TOKEN.sub(replace, text)


class Tree:
    """The files of the layers, and what they are called behind each other."""

    def __init__(self, root):
        self.root = root
        self.sources = [p for layer in LAYERS for p in sorted((root / "src" / layer).glob("*.c"))]
        self.headers = [root / "src/base/compiler.h"]  # says which parts there are
        for layer in LAYERS:
            for path in sorted((root / "src" / layer).glob("*.h")):
                self._add_header(path)
        self.text = {p: strip(p.read_text()) for p in self.headers + self.sources}
        self._name()

    def _add_header(self, path):
        if path in self.headers:
            return
        for quote, name in re.findall(r'^#include (["<])([^">]+)', path.read_text(), re.MULTILINE):
            if quote == '"':
                self._add_header(self.root / "src" / name)
        self.headers.append(path)

    def _name(self):
        owners, tag_owners, self.inner = defaultdict(set), defaultdict(set), {}
        for path, text in self.text.items():
            names, tags, inner = names_of(text)
            owner = path if path.suffix == ".c" else self.root
            for name in names:
                owners[name].add(owner)
            for tag in tags:
                tag_owners[tag].add(owner)
            for name in inner:
                owners[name].add(self.root)
                self.inner[name] = f"quire_inner_{name}"
        public = set(_TOKEN.findall(header(self.root)))
        self.members = {n: new for n, new in self.inner.items() if n not in public}
        self.own = {
            path: [{n: f"{n}_{path.stem}" for n, who in kind.items() if path in who and len(who) > 1} for kind in (owners, tag_owners)]
            for path in self.sources
        }

    def put(self, path):
        """A file as it stands in quire.c."""
        names, tags = self.own.get(path, ({}, {}))
        text = renamed(_INCLUDE.sub("", self.text[path]), self.inner | names, self.members, tags)
        text = re.sub(r"^#define QUIRE_(?:ARENA|PERCPU|SLAB)_INLINE 0[^\n]*\n", "", text, flags=re.MULTILINE)
        macros = re.findall(r"^#define (\w+)", text, re.MULTILINE) if path.suffix == ".c" else []
        text = text.strip("\n") + "\n" + "".join(f"#undef {name}\n" for name in dict.fromkeys(macros))
        condition = " && ".join(f"WITH_{part}" for part in parts_of(path))
        return under(f"#if {condition}" if condition else "", f"/* ==== src/{path.relative_to(self.root / 'src')} ==== */\n{text}")


def parts_of(path):
    """What has to be there for a source or header to be there; look_slab.c: the statistics and slabs."""
    words = {PART_OF_STEM.get(path.stem) or PART_OF_LAYER.get(path.parent.name)}
    if path.stem.startswith("look_"):
        words.add(PART_OF_LAYER.get(path.stem[5:]))
    return sorted(words - {None})


def chosen(part):
    """What asks for a part in quire.c: WITH_ARENA and the like."""
    return f"#ifdef QUIRE_NO_{part}\n#define WITH_{part} 0\n#else\n#define WITH_{part} 1\n#endif"


def under(condition, text):
    return f"{condition}\n{text}#endif\n" if condition else text


def header(root):
    pieces = []
    for stem in PUBLIC:
        text = strip((root / "include/quire" / f"{stem}.h").read_text()).strip("\n") + "\n"
        text = re.sub(r"\n{3,}", "\n\n", text)
        part = PART_OF_STEM.get(stem) or (stem.upper() if stem in PART_OF_LAYER else None)
        pieces.append(under(part and f"#ifndef QUIRE_NO_{part}", f"/* ==== quire/{stem}.h ==== */\n{text}"))
    implied = "#if defined(QUIRE_NO_PERCPU) && !defined(QUIRE_NO_COUNTERS)\n#define QUIRE_NO_COUNTERS 1\n#endif\n"
    opened, closed = '#ifdef __cplusplus\nextern "C" {\n#endif\n', "#ifdef __cplusplus\n}\n#endif\n"
    body = "\n".join(pieces)
    system = sorted(set(re.findall(r"^#include <[^>]+>", body, re.MULTILINE)))
    body = _INCLUDE.sub("", body)
    return "\n".join(["#ifndef QUIRE_AMALGAMATION_H\n#define QUIRE_AMALGAMATION_H", *system, implied, opened, body, closed, "#endif\n"])


def source(root):
    tree = Tree(root)
    system = sorted({m.group().strip() for text in tree.text.values() for m in _INCLUDE.finditer(text) if m.group(1) == "<"})
    system = [f"#if defined(__x86_64__)\n{line}\n#endif" if line == X86_ONLY else line for line in system]
    hidden = "#pragma GCC visibility push(hidden) /* what is not public, as the headers declare it */\n"
    return "\n".join([SOURCE_HEAD, *map(chosen, PARTS), *system, "", hidden, *(tree.put(p) for p in tree.headers), "#pragma GCC visibility pop\n", *(tree.put(p) for p in tree.sources)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where quire.c and quire.h are written")
    folder = parser.parse_args().folder
    version = re.search(r"VERSION ([\d.]+) DESCRIPTION", (ROOT / "CMakeLists.txt").read_text()).group(1)
    licence = "\n".join(f" * {line}".rstrip() for line in (ROOT / "LICENSE").read_text().strip().splitlines())
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (("quire.h", header), ("quire.c", source)):
        text = "// SPDX-License-Identifier: MIT\n" + HEAD.format(version=version, licence=licence) + make(ROOT)
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
