# SPDX-License-Identifier: MIT
"""header - a public header as a manual page of section 3: the header's comments are the page.

    /* quire/arena.h - purpose ... Threads: ... */   NAME DESCRIPTION THREADS "SIGNALS AND FORK"
    /* comment */ struct, enum, #define              TYPES
    /* comment */ QUIRE_API ...;                     SYNOPSIS FUNCTIONS

What only the compiler needs (`#if`, bodies, what is "not to be used otherwise") is left out.
Not here: the text around it (doc/man/*.3.scd), checking that contracts are complete
(scripts/check_contracts.py).
"""

import re

from manual import scd

_ITEM = re.compile(r"/\*.*?\*/|[^\n]*\n?", re.DOTALL)
_FIELD = re.compile(
    r"\s*((?:[^;/]|/(?!\*))+;)((?:[ \t]*/\*.*?\*/)?(?:\s*(?<=\n)[ \t]*/\*.*?\*/)?)", re.DOTALL
)


class Item:
    """One declaration with the comment above it."""

    def __init__(self, kind, code, comment):
        self.kind, self.code, self.comment = kind, code, comment

    def name(self):
        if self.kind == "function":
            return re.search(r"(\w+)\s*\(", prototype(self)).group(1)
        if self.kind == "define":
            return re.match(r"#define (\w+)", self.code).group(1)
        named = re.search(r"^(?:struct|enum) (\w+)|(\w+);$", self.code)
        return (named.group(1) or named.group(2)) if named else ""


def comment_lines(comment):
    """The lines of a /* */ comment without its stars; the indent after `* ` is kept."""
    body = comment.strip()[2:-2]
    lines = [re.sub(r"^\s*\*( |$)", "", line) for line in body.split("\n")]
    return [lines[0].strip(), *[line.rstrip() for line in lines[1:]]]


def items_of(text):
    """(the opening comment's lines, the items in their order)."""
    text = _without_conditionals(text)
    opening = re.search(r"/\*.*?\*/", text, re.DOTALL)
    found, comment, at = [], "", opening.end()
    while at < len(text):
        piece = _ITEM.match(text, at).group()
        if piece.startswith("/*"):
            comment = piece
            at += len(piece) + (text[at + len(piece) : at + len(piece) + 1] == "\n")
            continue
        if not piece.strip():
            comment = ""
            at += max(len(piece), 1)
            continue
        kind, end = _declaration(text, at)
        if kind:
            found.append(Item(kind, " ".join(text[at:end].split(" ")), comment))
        at = end
    return comment_lines(opening.group()), [item for item in found if not _is_private(item)]


def _is_private(item):
    return "do not use it otherwise" in " ".join(item.comment.split()).lower()


def _declaration(text, at):
    """(kind, end) of what begins at `at`; kind None: nothing for the page."""
    rest = text[at:]
    end_of_line = at + (rest.find("\n") + 1 or len(rest))
    if rest.startswith("QUIRE_API"):
        return "function", at + rest.index(";") + 1
    if rest.startswith("extern inline"):
        return "function", at + re.search(r"^}", rest, re.MULTILINE).end()
    if re.match(r"(struct|enum)\b[^;{]*\{", rest):
        return rest.split()[0], at + re.search(r"};", rest).end()
    if rest.startswith("typedef"):
        return "typedef", end_of_line
    if rest.startswith("#define") and not re.match(r"#define \w+_H\b", rest):
        line = text[at:end_of_line]
        goes_on = line.rfind("/*") > line.rfind("*/")  # what stands beside it has several lines
        return "define", text.index("*/", end_of_line) + 3 if goes_on else end_of_line
    return None, end_of_line


def _without_conditionals(text):
    """The text without its include guard's lines and without #if blocks inside it."""
    out, depth = [], 0
    for line in text.split("\n"):
        if re.match(r"\s*#\s*if", line):
            depth += 1
        if depth <= 1 and not re.match(r"\s*#\s*(if|endif|include)", line):
            out.append(line)
        if re.match(r"\s*#\s*endif", line):
            depth -= 1
    return "\n".join(out)


def prototype(item):
    """The function's declaration on one line, as a caller sees it."""
    code = item.code.split("{")[0].rstrip().rstrip(";")
    code = re.sub(r"__attribute__\s*\(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\)", "", code)
    code = re.sub(r"^(QUIRE_API|extern inline)\s*", "", code.strip())
    return " ".join(code.split()) + ";"


def page(header, text):
    """The scdoc lines of `header` (such as "quire/arena.h") from NAME to SIGNALS AND FORK."""
    opening, items = items_of(text)
    title = next(line for line in opening if line.strip())
    purpose = title.partition(" - ")[2].rstrip(".")
    parts = _split_opening(opening[opening.index(title) + 1 :])
    page_name = page_of(header)
    lines = ["# NAME", "", f"{page_name} - {purpose}", "", "# SYNOPSIS", ""]
    lines += [f"*#include <{header.replace('_', chr(92) + '_')}>*", ""]
    functions = [item for item in items if item.kind == "function"]
    shown = [scd.bold(prototype(item)) for item in functions]
    lines += [line + "++" for line in shown[:-1]] + shown[-1:]
    lines += ["", "Compile with _$(pkg-config --cflags --libs quire)_.", ""]
    lines += ["# DESCRIPTION", ""] + scd.blocks(parts["Description"]) + [""]
    types = [item for item in items if item.kind != "function"]
    if types:
        lines += ["# TYPES AND CONSTANTS", ""] + _types(types)
    lines += ["# FUNCTIONS", ""] + _functions(functions)
    for heading in ("Threads", "Signals and fork"):
        if parts.get(heading):
            lines += [f"# {heading.upper()}", ""] + scd.blocks(parts[heading]) + [""]
    return lines


def page_of(header):
    """quire/arena.h -> quire-arena; quire/quire.h -> quire; quire/compat/netdata.h -> quire-netdata."""
    noun = header.rsplit("/", 1)[1][:-2]
    return "quire" if noun == "quire" else f"quire-{noun.replace('_', '-')}"


def _split_opening(lines):
    """The opening comment by its headings: what comes first, Threads, Signals and fork."""
    text = "\n".join(lines)
    text = re.sub(r"  (Signals and fork: )", r"\n\1", text)
    parts, heading = {"Description": []}, "Description"
    for line in text.split("\n"):
        match = re.match(r"(Threads|Signals and fork): (.*)", line)
        if match:
            heading, line = match.group(1), match.group(2)[:1].upper() + match.group(2)[1:]
        elif not line.strip() and heading != "Description":
            heading = "Description"
        parts.setdefault(heading, []).append(line)
    return parts


def _functions(functions):
    """Each comment once, under the names of the functions that it is about."""
    lines, index = [], 0
    while index < len(functions):
        together = [functions[index]]
        while index + 1 < len(functions) and not functions[index + 1].comment:
            index += 1
            together.append(functions[index])
        index += 1
        names = [f"{scd.bold(item.name())}()" for item in together]
        lines += [", ".join(names)] + scd.blocks(comment_lines(together[0].comment), tabs=1) + [""]
    return lines


def _types(items):
    lines = []
    for item in items:
        if item.kind == "define":
            value, _, beside = item.code.partition("/*")
            said = comment_lines("/*" + beside) if beside else comment_lines(item.comment)
            lines += [scd.bold(" ".join(value.split()[1:]))] + scd.blocks(said, tabs=1) + [""]
            continue
        said = comment_lines(item.comment) if item.comment else []
        lines += [_head_of(item), *scd.blocks(said, tabs=1), "", *_fields(item)]
    return lines


def _head_of(item):
    if item.kind == "typedef":
        return scd.bold(item.code.strip())
    return scd.bold(f"{item.kind} {item.name()}".strip())


def _fields(item):
    """The fields of a struct with their comments; nested ones and enums are shown as they are."""
    if item.kind == "typedef" or "otherwise" in item.comment and "do not use" in item.comment:
        return []
    body = item.code[item.code.index("{") + 1 : item.code.rindex("}")]
    if "{" in body or item.kind == "enum":
        code = [scd.as_it_is(line, "\t") for line in item.code.strip().split("\n")]
        return ["\t```", *code, "\t```", ""]
    lines = []
    for field, comment in _FIELD.findall(body):
        said = [
            " ".join(" ".join(comment_lines(c)).split())
            for c in re.findall(r"/\*.*?\*/", comment, re.DOTALL)
        ]
        lines += ["\t" + scd.bold(" ".join(field.split()).rstrip(";"))]
        lines += [f"\t\t{scd.sentence(' '.join(said))}"] if said else []
        lines += [""]
    return lines
