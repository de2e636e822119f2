# SPDX-License-Identifier: MIT
"""
shellwords.py - what words of a shell's text are worth before it runs.

    DIR=/opt; [ -z "$N" ] && N=a;  "$DIR/$N"   -> {"/opt/a", and with N from the environment}
    "$(dirname "$0")/b"                        -> {the script's folder/b}          $(cat f)   -> {UNKNOWN}

Not here: which commands there are (shelltext.py), what is executed (follow.py).
"""

import itertools
import os
import re

from shelltext import ASSIGNMENT, unquoted

UNKNOWN = "\0"  # stands for a word that only a run tells
DEPTH_MAX = 8
VALUES_MAX = 8
REFERENCE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
PLACE_OF_0 = re.compile(r"\$\((?:dirname|readlink -f|realpath|basename) +(?:-- +)?\$0\)|`dirname \$0`|\$\{0%/\*\}|\$\{0##\*/\}")
ALL_ARGUMENTS = re.compile(r'"\$(?:@|\{@\})"|\$(?:[@*]|\{[@*]\})|\$\{1:?\+"\$@"\}')
ARGUMENTS = re.compile(r"\$[@*1]|\$\{[@*1]")
SETTERS = ("export", "readonly", "local", "declare", "typeset")
READERS = ("read", "getopts", "mapfile", "readarray", "for", "select")


class Variables:
    """What a text's commands assign, one after the other. path: its $0."""

    def __init__(self, path):
        self.path, self.raw = path, {}

    def note(self, command):
        """A command that may assign; a value that may stay as it was is one more."""
        words = [w for w in command.words if ASSIGNMENT.fullmatch(w)]
        if command.bare and command.name not in SETTERS:
            words = []  # of that command alone
            if command.name in READERS:
                words = [f"{unquoted(name)}=$()" for name in command.bare[1:] if re.fullmatch(r"\w+", name)]
        for word in words:
            name, value = ASSIGNMENT.fullmatch(word).groups()
            value = "$()" if re.match(r"\w+(\[|\+=)", word) else value
            before = self.raw.get(name, [None]) if command.maybe or command.aside else []
            self.raw[name] = [*dict.fromkeys([*before, value])]

    def _names(self, word, seen=()):
        """Variables that a word's value depends on."""
        for match in REFERENCE.finditer(word):
            name = match.group(1) or match.group(3)
            if name in self.raw and name not in seen:
                yield name
                for value in filter(None, self.raw[name]):
                    yield from self._names(value, (*seen, name))

    def values(self, word):
        """All that a word may be; UNKNOWN for what is not known."""
        names = list(dict.fromkeys(self._names(word)))
        choices = list(itertools.islice(itertools.product(*(self.raw[n] for n in names)), VALUES_MAX + 1))
        if len(choices) > VALUES_MAX:
            return [UNKNOWN]
        found = [value_of(word, dict(zip(names, choice, strict=True)), self.path) for choice in choices]
        return list(dict.fromkeys(UNKNOWN if value is None else value for value in found))


def value_of(word, values, path, depth=DEPTH_MAX):
    """The word as the shell would have it with these values (None: the environment's, or nothing); None where that is not known."""
    if word.startswith("'") and word.endswith("'") and word.count("'") == 2:
        return word[1:-1]
    word = word.replace('\\"', "").replace('"', "")
    for text, value in (("dirname", os.path.dirname(path)), ("%/*", os.path.dirname(path)), ("basename", os.path.basename(path)),
                        ("##*/", os.path.basename(path)), ("readlink", os.path.realpath(path)), ("realpath", os.path.realpath(path))):  # fmt: skip
        word = PLACE_OF_0.sub(lambda m, t=text, v=value: v if t in m.group() else m.group(), word)
    unknown = []

    def put(match):
        name, default = match.group(1) or match.group(3), match.group(2)
        if name == "0":
            return path
        if values.get(name) is not None and depth:
            value = value_of(values[name], {k: v for k, v in values.items() if k != name}, path, depth - 1)
        else:
            value = os.environ.get(name, "" if name in values and default is None else default)
        unknown.extend([name] * (value is None))
        return value or ""

    word = REFERENCE.sub(put, word).replace("'", "")
    return None if unknown or re.search(r"[$`*?\\]", word) or word.startswith("~") else word


def words_of(raw, variables, given):
    """[words] for each that a command's raw words may be; given: what $@ is, None where it is not known."""
    ways = [[]]
    for word in raw:
        if ALL_ARGUMENTS.fullmatch(word):
            more = [list(given) if given is not None else [UNKNOWN]]
        else:
            is_quoted = word[:1] in "\"'"
            more = [[v] if is_quoted or v == UNKNOWN else v.split() for v in variables.values(word)]
        ways = [[*way, *end] for way in ways for end in more]
        if len(ways) > VALUES_MAX:
            return [[UNKNOWN]]
    return ways
