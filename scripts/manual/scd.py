# SPDX-License-Identifier: MIT
"""scd - plain text as scdoc writes it.

    "See quire_arena_alloc(); `old` stays"  -->  "See *quire\\_arena\\_alloc*(); _old_ stays"

Not here: where the text comes from (header.py, command.py, pages.py).
"""

import re

_SPECIAL = re.compile(r"[\\*_]")
_INLINE = re.compile(r"`([^`\n]+)`|\b((?:quire|aral|onewayalloc)_\w+)(?=\()")
_DEFINITION = re.compile(r"^ {2,3}(\S+) {1,}(\S.*)$")


def escape(text):
    """The text, with none of its characters meaning anything to scdoc."""
    return _SPECIAL.sub(lambda m: "\\" + m.group(), text)


def bold(text):
    return f"*{escape(text)}*"


def as_it_is(line, tab=""):
    """A line of a literal block, in which only the backslash means something."""
    return tab + line.replace("\\", "\\\\")


def sentence(text):
    """Running text: function names bold, `parameters` underlined, other `words` bold."""
    out, at = [], 0
    for match in _INLINE.finditer(text):
        word = match.group(1) or match.group(2)
        is_parameter = match.group(1) and re.fullmatch(r"[a-z_]+", word)
        out += [escape(text[at : match.start()])]
        out += [f"_{escape(word)}_" if is_parameter else bold(word)]
        at = match.end()
    text = "".join(out + [escape(text[at:])])
    return "\\" + text if text[:1] in "#-.|[];&" else text


def blocks(lines, tabs=0):
    """Lines of a comment as scdoc: paragraphs; `  word  text` as a list; deeper indents as they
    are.  The result has no empty line at its end."""
    out, index, tab = [], 0, "\t" * tabs
    while index < len(lines):
        line = lines[index]
        if not line.strip():
            index += 1
            continue
        if _DEFINITION.match(line):
            index = _definitions(lines, index, out, tab)
        elif line.startswith("    "):
            index = _literal(lines, index, out, tab)
        else:
            words = []
            while index < len(lines) and lines[index].strip() and not lines[index].startswith("  "):
                words.append(lines[index].strip())
                index += 1
            out += [tab + sentence(" ".join(words)), ""]
    return out[:-1]


def _definitions(lines, index, out, tab):
    while index < len(lines) and (match := _DEFINITION.match(lines[index])):
        words = [match.group(2)]
        index += 1
        while index < len(lines) and re.match(r" {4,}\S", lines[index]):
            words.append(lines[index].strip())
            index += 1
        out += [f"{tab}- {bold(match.group(1))}: {sentence(' '.join(words))}"]
    out.append("")
    return index


def _literal(lines, index, out, tab):
    out.append(tab + "```")
    kept = []
    while index < len(lines) and (not lines[index].strip() or lines[index].startswith("    ")):
        kept.append(as_it_is(lines[index][4:], tab) if lines[index].strip() else "")
        index += 1
    while not kept[-1]:
        kept.pop()
    out += kept + [tab + "```", ""]
    return index
