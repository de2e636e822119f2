# SPDX-License-Identifier: MIT
"""
cxxnames.py - C++ names as people write them, for tables and stacks.

    void std::vector<Big<long>, std::allocator<Big<long> > >::_M_realloc_insert<Big<long> >(iterator, Big<long>&&) const
        tidy    void std::vector<Big<long>>::_M_realloc_insert<Big<long>>(iterator, Big<long>&&) const
        brief   std::vector<Big<long>>::_M_realloc_insert<Big<long>>

Names of other languages have no argument list and come back as they are.
Not here: demangling (the analyser); `--json` and the exports, which keep the whole names.
"""

import functools
import re

ARGUMENTS_LONGEST = 16  # template arguments longer than this read <…> in a brief name

STRING = re.compile(r"basic_string(_view)?<char, std::char_traits<char>(?:, std::allocator<char>)? ?>")
DEFAULT = re.compile(r", std::(?:allocator|less|equal_to|hash|char_traits|default_delete)<")
# Parts in which brackets are no brackets, with the space that keeps template arguments off an operator.
WHOLE = re.compile(
    r"operator(?:\(\)|<=>|<<=?|>>=?|->\*?|<=?|>=?)(?: (?=<))?"
    r"|\(anonymous namespace\)|\{lambda\([^{}]*\)#\d+\}|<lambda\([^()]*\)>|decltype ?\(auto\)"
)
OPENING, CLOSING = "<([{", ">)]}"


@functools.lru_cache(maxsize=65536)
def tidy(text):
    """The text with std::string for what it is a name of, and without the template arguments nobody writes."""
    if "<" not in text:
        return text
    text = text.replace("std::__cxx11::", "std::")
    text = STRING.sub(lambda match: "string" + (match.group(1) or ""), text)
    found = DEFAULT.search(text)
    while found:
        begin, end = found.start(), _closing(text, found.end())
        is_default = _encloses(text, begin) != "(" and text[end:].lstrip(" ")[:1] in ("", ",", ">")
        text = text[:begin] + text[end:].lstrip(" ") if is_default else text
        found = DEFAULT.search(text, begin if is_default else found.end())
    while "> >" in text:
        text = text.replace("> >", ">>")
    return text


def _closing(text, start):
    """Where the template arguments that began before `start` are over."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "<") - (text[at] == ">")
        if depth == 0:
            return at + 1
    return len(text)


def _encloses(text, at):
    """The bracket in which this place is; empty outside of all."""
    depth = 0
    for char in reversed(text[:at]):
        depth += (char in CLOSING) - (char in OPENING)
        if depth < 0:
            return char
    return ""


@functools.lru_cache(maxsize=65536)
def brief(name):
    """A function's name without its result, its arguments and long template arguments; others as they are."""
    if "\x01" in name:  # our own mark below
        return name
    kept = []

    def hold(match):
        kept.append(match.group())
        return f"\x01{len(kept) - 1}\x02"

    told = _outline(WHOLE.sub(hold, tidy(name)))
    if told is None:
        return name
    return re.sub("\x01(\\d+)\x02", lambda match: kept[int(match.group(1))], told)


def _outline(text):
    """The name without what stands in brackets; None when it has no argument list, or brackets that do not match."""
    depth, begin, out = 0, 0, []
    for at, char in enumerate(text):
        if char == "(" and depth == 0:
            name = "".join(out)
            return _last_word(name) if name else None
        if char in OPENING:
            begin = at if depth == 0 else begin
            depth += 1
        elif char in CLOSING:
            depth -= 1
            if depth < 0:
                return None
            if depth == 0:
                inner = text[begin + 1 : at]
                out.append(text[begin : at + 1] if len(inner) <= ARGUMENTS_LONGEST else "<…>")
        elif depth == 0:
            out.append(char)
    return None


def _last_word(name):
    """Without the result type in front; `operator new` and conversions keep their words."""
    start = re.search(r"(?:^|[\s:])operator ", name)
    end = start.start() + 1 if start else len(name)
    depth = 0
    for at in range(end - 1, -1, -1):
        depth += (name[at] in CLOSING) - (name[at] in OPENING)
        if name[at] == " " and depth == 0:
            return name[at + 1 :]
    return name
