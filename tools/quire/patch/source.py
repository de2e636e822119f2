# SPDX-License-Identifier: MIT
"""
source.py - the line that allocates, changed, as a unified diff.

    n = malloc(sizeof *n);      ->   -    n = malloc(sizeof *n);
                                     +    n = make_alloc(sizeof *n);       and the header is included

Only what is certain on the line itself is changed: malloc, calloc and strdup (or functions whose names end so), and
`new T` in C++. Everything else is said in words.
Not here: the header (patch/c.py, patch/cpp.py).
"""

import os
import re
from collections import namedtuple

from lazily import difflib

CPP_ENDINGS = (".cc", ".cpp", ".cxx", ".c++", ".C", ".hh", ".hpp", ".hxx")
SOURCE_BYTES_MAX = 8 << 20

# How far from the recorded line the call may stand: compilers name the line of an argument, or of the statement.
NEARBY = (0, 1, -1, 2, -2, 3, -3)
# Beyond one of these is another statement.
STATEMENT_ENDS = re.compile(r"[;{}]")

GENERATED = "begin|end|alloc|alloc_zero|strdup|free|resize|realloc|arena|slab|phase|element|allocator|heap|memory"
CALLS = re.compile(r"(?<![\w.:>])(?:std::)?(\w*?(malloc|calloc|strdup|Malloc|Calloc|Strdup))\s*\(")
ENDS = {"malloc": "alloc", "calloc": "alloc_zero", "strdup": "strdup"}
NEW = re.compile(r"(?<![\w.:>])new\s+((?:struct\s+|class\s+)?[A-Za-z_][\w:]*)(?=\s*[;({,)])")
SIZEOF = re.compile(r"sizeof\s*\(\s*((?:struct\s+|union\s+)?[A-Za-z_]\w*)\s*\)")
DECLARED = re.compile(r"((?:struct\s+|union\s+)?[A-Za-z_][\w:]*)\s*\*\s*(?:const\s+)?\w+\s*=")

Diff = namedtuple("Diff", "text folder notes")


def is_cpp(path):
    """Whether a source file is C++, by its name."""
    return path.endswith(CPP_ENDINGS)


def place(site):
    """A site for people: function, file and line, as far as they are known."""
    where = f"{site.path}:{site.line}" if site.path and site.line else site.path
    return f"{site.name} {where}".strip()


def read(path):
    """The lines of a source file, with their ends; nothing when it cannot be read here."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > SOURCE_BYTES_MAX:
            return []
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read().splitlines(keepends=True)
    except OSError:
        return []


def uses(path, name):
    """Whether the source has a name of its own that generated code would have."""
    taken = re.compile(rf"\b{re.escape(name)}_(?:{GENERATED})\b")
    return any(taken.search(line) for line in read(path))


def find_call(lines, line):
    """(index, match) of the call that allocates, on or near a line counted from 1; nothing when there is none."""
    for step in NEARBY:
        index = line - 1 + step
        between = "".join(lines[max(0, min(line - 1, index)) : max(line - 1, index)])
        if 0 <= index < len(lines) and not STATEMENT_ENDS.search(between):
            calls = calls_on(lines[index])
            if calls:
                return index, calls[0]
    return None


def calls_on(line):
    """The calls of a line that allocate."""
    return [*CALLS.finditer(line), *NEW.finditer(line)]


def ended_by(sites):
    """What ends objects that these sites allocate, as C++ writes it, by the calls there; both where the source does not say."""
    found = {}
    for site in sites:
        lines = read(site.path)
        call = find_call(lines, site.line) if site.line else None
        found.update(dict.fromkeys({None: ["`delete`", "free()"], NEW: ["`delete`"], CALLS: ["free()"]}[call and call[1].re]))
    return sorted(found, reverse=True)


def type_of(site):
    """What the objects are, guessed from the line that allocates; empty when it does not say."""
    lines = read(site.path)
    found = find_call(lines, site.line) if site.line else None
    if not found:
        return ""
    index, match = found
    if match.re is NEW:
        return match.group(1)
    line = lines[index]
    sized = SIZEOF.search(line, match.start())
    declared = DECLARED.search(line, 0, match.start())
    return (sized or declared).group(1) if sized or declared else ""


def changed_call(line, match, change, cpp):
    """The line with its call replaced; nothing where that takes more than this line."""
    if match.re is NEW:
        if change.klass not in ("arena", "heap"):
            return None
        return f"{line[:match.start()]}new ({change.name}_alloc(sizeof({match.group(1)}))) {line[match.start(1):]}"
    ends = ENDS[match.group(2).lower()]
    if cpp and ends != "alloc":
        return None
    return f"{line[:match.start()]}{change.name}_{ends}({line[match.end():]}"


def based(lines, change, element):
    """In C++: the class of the objects gets its base; whether it was found with none yet."""
    opened = re.compile(rf"^(\s*(?:struct|class)\s+{re.escape(element)}(?:\s+final)?)\s*(\{{.*)$", re.S)
    for index, line in enumerate(lines):
        match = opened.match(line)
        if match:
            access = "public " if "class" in match.group(1) else ""
            lines[index] = f"{match.group(1)} : {access}{change.name}_element {match.group(2)}"
            return True
    return False


def include(lines, header):
    """The header goes behind the last #include that stands at the left margin."""
    at = [i for i, line in enumerate(lines) if re.match(r"#\s*include\b", line)]
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    lines.insert(at[-1] + 1 if at else 0, f'#include "{header}"{end}')


def placed(path):
    """(name, folder) for a diff that `patch -p0` takes in that folder: here, when the file lies below."""
    relative = os.path.relpath(path)
    if relative.startswith(".."):
        return os.path.basename(path), os.path.dirname(path)
    return relative, os.getcwd()


def sketch(site):
    """What to do by hand."""
    where = f"{site.path}:{site.line}" if site.line else "the source, which this program does not name (build it with -g)"
    return f"The call itself is not changed here: look at {where}."


def change_lines(lines, change, sites):
    """Changes the calls of these sites in place; what could not be changed, as notes. Sites of several callers are one call."""
    cpp, changed, notes, before = is_cpp(change.site.path), set(), [], list(lines)
    for site in sites:
        found = find_call(before, site.line)
        if found is None:
            notes.append(sketch(site))
            continue
        index, match = found
        if index in changed:
            continue
        line = changed_call(lines[index], match, change, cpp)
        if line is None and match.re is NEW and based(lines, change, match.group(1)):
            line = lines[index]
        if line is None:
            notes.append(sketch(site))
            continue
        lines[index] = line
        changed.add(index)
        calls = len(calls_on(before[index]))
        if calls > 1:
            notes.append(f"Line {index + 1} has {calls} calls that allocate, and the figures are of all of them: only {match.group().rstrip(' (')} is changed here.")
    return notes


def diff(change, sites):
    """The change of the file that these sites are in, as a Diff; without text when its source says too little."""
    site = change.site
    before = read(site.path)
    if not before or not site.line:
        return Diff("", "", [sketch(site)])
    after = list(before)
    notes = list(dict.fromkeys(change_lines(after, change, sites)))
    if after == before:
        return Diff("", "", notes)
    include(after, f"quire_{change.name}." + ("hpp" if is_cpp(site.path) else "h"))
    name, folder = placed(site.path)
    lines = []
    for line in difflib.unified_diff(before, after, name, name):
        lines.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return Diff("".join(lines), folder, notes)
