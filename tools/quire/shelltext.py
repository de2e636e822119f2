# SPDX-License-Identifier: MIT
"""
shelltext.py - the commands of a shell's text, in order, and which of them may be left out when it runs.

    if [ -x b ]; then exec b "$@"; else exec c; fi      [ -x b ]          exec b "$@" (maybe)          exec c (maybe)
    case "$1" in -v) exec a;; *) exec b "$@";; esac                       exec a (maybe)               exec b "$@" (maybe)
    x | y; (exec z); w &                                x (aside)         y (aside)   exec z (aside)   w (aside)

Who reads it knows with that what the shell's process may become, and whether its text may come to an end before (`stays`).
Not here: what words are worth (shellwords.py), what is executed (follow.py).
"""

import re

OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()\n]")
REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(?:&>>|&>|<<<|<<-|<<|<>|<&|>&|>>|>\||<(?!\()|>(?!\())")
PLAIN = re.compile(r"[^\s\"'`\\$;&|<>()]+")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=(.*)", re.DOTALL)
ENDS_ARM = (";;", ";&", ";;&")
SETS_UP = ("cd", "umask", "ulimit", "set", "export", ":", "true", "unset", "trap")  # who goes on behind && only after these has no other way
CLOSING = ("fi", "done", "esac", "then", "else", "elif", "do", "}")
DEPTH_MAX, TEXT_MAX = 60, 256 << 10


class Unreadable(Exception):
    """Text that is no shell's, or beyond what is understood here."""


class Command:
    """Words as they are written; `maybe`: it can be left out; `aside`: another process executes it; in a function or not."""

    def __init__(self, words, at, maybe, inner):
        self.words, self.at, self.maybe, self.inner, self.aside = words, at, maybe, inner, False

    @property
    def bare(self):
        """Its words behind assignments, `command` and `builtin`."""
        at = 0
        while at < len(self.words) and (ASSIGNMENT.fullmatch(self.words[at]) or unquoted(self.words[at]) in ("command", "builtin")):
            at += 1
        return self.words[at:]

    @property
    def assigned(self):
        """Names of the variables that are set for it, or by it."""
        return [match.group(1) for word in self.words if (match := ASSIGNMENT.fullmatch(word))]

    @property
    def name(self):
        """Of what it executes, without quotes."""
        return unquoted(self.bare[0]) if self.bare else ""


def unquoted(word):
    """A word without its quotes."""
    return re.sub(r"[\"'\\]", "", word)


def _closed(text, at, closing):
    """The place behind what closes something that was opened before `at`."""
    while at < len(text):
        if text.startswith(closing, at):
            return at + len(closing)
        at = _piece(text, at) if text[at] in "\"'`\\$(" else at + 1
    raise Unreadable


def _piece(text, at):
    """The place behind one quoted or nested part, or one character."""
    if text[at] == "\\":
        return at + 2
    if text[at] == "'":
        return text.index("'", at + 1) + 1
    if text[at] == '"':
        return _closed_double(text, at + 1)
    if text[at] == "`":
        return re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL).match(text, at + 1).end()
    if text.startswith(("$(", "${"), at):
        return _closed(text, at + 2, ")" if text[at + 1] == "(" else "}")
    return _closed(text, at + 1, ")") if text[at] == "(" else at + 1


def _closed_double(text, at):
    """The place behind a string in double quotes."""
    while text[at] != '"':
        at = _piece(text, at) if text[at] in "\\`$" else at + 1
    return at + 1


def _word(text, at):
    """The place behind a word."""
    while at < len(text):
        if plain := PLAIN.match(text, at):
            at = plain.end()
        elif text[at] == "(" and text[at - 1] == "=" or text.startswith(("<(", ">("), at):
            at = _closed(text, text.index("(", at) + 1, ")")
        elif text[at] in "\"'`\\$":
            at = _piece(text, at)
        else:
            break
    return at


def _behind_documents(text, at, wanted):
    """The place behind the here-documents that begin there."""
    for delimiter in wanted:
        end = re.compile(rf"^\t*{re.escape(unquoted(delimiter))}$", re.MULTILINE).search(text, at)
        at = end.end() + 1 if end else len(text)
    return at


def tokens(text):
    """[(word or operator, whether it is an operator, its place)]; redirections and comments are left out."""
    found, at, documents, last = [], 0, [], text.rfind("))")
    while at < len(text):
        if text[at] in " \t\r" or text.startswith("\\\n", at):
            at += 1 + (text[at] == "\\")
        elif text[at] == "#":
            at = line_end if (line_end := text.find("\n", at)) >= 0 else len(text)
        elif redirect := REDIRECT.match(text, at):
            begin = re.compile(r"[ \t]*").match(text, redirect.end()).end()
            at = _word(text, begin)
            documents += [text[begin:at]] * redirect.group().endswith(("<<", "<<-"))
        elif text.startswith("((", at) and at < last:
            found.append(("((", False, at))
            at = text.index("))", at) + 2
        elif operator := OPERATOR.match(text, at):
            found.append((operator.group(), True, at))
            at = operator.end()
            if operator.group() == "\n":
                at, documents = _behind_documents(text, at, documents), []
        else:
            end = max(_word(text, at), at + 1)
            found.append((text[at:end], False, at))
            at = end
    return found


class Reader:
    """Of one text: its commands, and whether it may come to its end as the shell that began it."""

    def __init__(self, text):
        self.tokens, self.next = tokens(text), 0
        self.found, self.functions, self.depth = [], {}, 0
        self.inner = self.returns = self.leaves = False
        falls = self.block((), False)
        if self.next < len(self.tokens):
            raise Unreadable
        self.stays = falls or self.leaves

    # tokens

    def _is(self, *texts):
        return self.next < len(self.tokens) and self.tokens[self.next][0] in texts

    def _is_operator(self):
        return self.next >= len(self.tokens) or self.tokens[self.next][1]

    def _take(self, *texts):
        if not texts or self._is(*texts):
            self.next += 1
            if self.next <= len(self.tokens):
                return self.tokens[self.next - 1][0]
        raise Unreadable

    def _skip(self, *texts):
        while self._is(*texts):
            self.next += 1

    # lists; each says whether its end can be reached

    def block(self, ends, maybe):
        """Commands up to a word of `ends`."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Unreadable
        falls, kept = True, None
        self._skip("\n", ";")
        while self.next < len(self.tokens) and not self._is(*ends):
            before = self.next
            falls &= self._alternatives(maybe)
            kept = len(self.found) if not falls and kept is None else kept
            self._skip("\n", ";", "&")
            if self.next == before:
                raise Unreadable
        del self.found[len(self.found) if kept is None else kept :]  # what comes behind an exec never runs
        self.depth -= 1
        return falls

    def _alternatives(self, maybe):
        """Pipelines that are joined by && and ||."""
        start, falls, may = len(self.found), True, maybe
        while True:
            begin = len(self.found)
            passes = self._pipeline(may)
            falls &= passes or may != maybe
            if not self._is("&&", "||"):
                break
            joined = self._take()
            self._skip("\n")
            may |= joined == "||" or not all(c.name in SETS_UP for c in self.found[begin:])
        if self._is("&"):
            return self._aside(start)
        return falls

    def _pipeline(self, maybe):
        start = len(self.found)
        self._skip("!", "time")
        falls = self._command(maybe)
        if not self._is("|", "|&"):
            return falls
        while self._is("|", "|&"):
            self._take()
            self._skip("\n")
            self._command(maybe)
        return self._aside(start)

    def _aside(self, start):
        for command in self.found[start:]:
            command.aside = True
        return True

    def _command(self, maybe):
        start, first = len(self.found), self.tokens[self.next][0] if self.next < len(self.tokens) else ""
        compound = {"if": self._if, "case": self._case, "while": self._loop, "until": self._loop, "for": self._for, "select": self._for}.get(first)
        if compound:
            self._take()
            return compound(maybe)
        if first == "{":
            self._take()
            falls = self.block(("}",), maybe)
            self._take("}")
            return falls
        if first == "(":
            self._take()
            self.block((")",), maybe)
            self._take(")")
            return self._aside(start)
        if first == "function":
            self._take()
            return self._function(self._take())
        return self._simple(maybe)

    # single ones

    def _simple(self, maybe):
        if self._is_operator() or self._is(*CLOSING):
            raise Unreadable
        at, words = self.tokens[self.next][2], [self._take()]
        if words[0] == "[[":
            while not self._is("]]"):
                self._take()
        if self._is("(") and len(words) == 1 and not ASSIGNMENT.fullmatch(words[0]):
            return self._function(words[0])
        while not self._is_operator():
            words.append(self._take())
        command = Command(words, at, maybe, self.inner)
        self.found.append(command)
        return self._passes(command)

    def _passes(self, command):
        """Whether anything comes behind a command in the same process."""
        if command.name == "exec":
            return len(command.bare) == 1
        if command.name == "exit":
            self.leaves |= command.bare[1:2] in ([], ["0"], ["$?"], ['"$?"'])  # with another number it has failed
            return False
        if command.name == "return":
            self.returns = True
        return command.name not in ("return", "break", "continue") and self.functions.get(command.name, True)

    def _function(self, name):
        if self._is("("):
            self._take()
            self._take(")")
        self._skip("\n")
        before, self.inner, self.returns = (self.inner, self.returns), True, False
        falls = self._command(True)
        self.functions[name] = falls or self.returns
        self.inner, self.returns = before
        return True

    def _if(self, maybe):
        passes = self.block(("then",), maybe)
        self._take("then")
        falls = self.block(("elif", "else", "fi"), True)
        while self._is("elif"):
            self._take()
            self.block(("then",), True)
            self._take("then")
            falls |= self.block(("elif", "else", "fi"), True)
        is_whole = self._is("else")
        if is_whole:
            self._take()
            falls |= self.block(("fi",), True)
        self._take("fi")
        return passes and (falls or not is_whole)

    def _case(self, maybe):
        self._take()
        self._skip("\n")
        self._take("in")
        falls = is_whole = False
        self._skip("\n")
        while not self._is("esac"):
            self._skip("(")
            patterns = []
            while not self._is(")"):
                patterns.append(self._take())
            self._take(")")
            is_whole |= "*" in patterns
            falls |= self.block(("esac", *ENDS_ARM), True)
            falls |= self._is(";&", ";;&")
            self._skip("\n", *ENDS_ARM)
        self._take("esac")
        return falls or not is_whole

    def _loop(self, maybe):
        passes = self.block(("do",), maybe)
        self._body()
        return passes

    def _for(self, maybe):
        at = self.tokens[self.next - 1][2]
        self.found.append(Command(["for", self._take()], at, maybe, self.inner))
        while not self._is("do", "{"):
            self._take()
        self._body()
        return True

    def _body(self):
        end = "}" if self._is("{") else "done"
        self._take("do", "{")
        self.block((end,), True)
        self._take(end)


def read(text):
    """A Reader that has read the text, or None; one that is so long is a configure's, of which nobody waits for the answer."""
    try:
        return Reader(text) if len(text) <= TEXT_MAX else None
    except (Unreadable, ValueError, IndexError, AttributeError, RecursionError):
        return None
