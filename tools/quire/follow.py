# SPDX-License-Identifier: MIT
"""
follow.py - which program a command line ends up as, without running it: what is executed in place of what.

    chromium  -> script of /bin/sh      its last `exec $LIBDIR/$APPNAME "$@"`     -> /usr/lib/chromium/chromium
    python3   -> shim of pyenv          `pyenv which python3`                     -> /.../versions/3.11.7/bin/python3
    rustc     -> rustup, by its name    `rustup which rustc`                      -> /.../toolchains/.../bin/rustc
    env A=1 nice -n 5 jq .              commands that execute their arguments     -> /usr/bin/jq
    timeout 5 jq .                      those that start them, where it is asked  -> /usr/bin/jq
    sh ./script, sh -c 'exec jq .'      what the script, or the text, executes    -> /usr/bin/jq

The process is the same all the way, so what matters for a preload is the last one.  A script's variables are followed where they are
constants or parts of $0.  A text may lead to several ends: each is told (`others`).  Where it does not say what runs, or takes the preload
away before, the chain ends at its shell, and `sure` is False.
Not here: what a shell's text means (shelltext.py, shellwords.py), options of wrappers (wrappers.py); whether a program can be served (target.py, serving.py).
"""

import os
import re
import shlex
import shutil
import subprocess
from collections import namedtuple

import shelltext
import wrappers
from shelltext import unquoted
from shellwords import ARGUMENTS, UNKNOWN, Variables, value_of, words_of

STEPS_MAX = 9
ENDS_MAX = 16
SCRIPT_BYTES_MAX = 1 << 20
ASK_S = 10
SHELLS = ("sh", "bash", "dash", "ksh", "zsh", "ash")
SHELL_VALUED = ("--rcfile", "--init-file")
BUILT_IN = ("echo", "printf", "test", "[", "true", "false", "pwd", "kill", "exit", ":")  # of shells, though there are programs of such names
REDIRECTS = re.compile(r"[<>&|]*[<>][<>&|]*")
SHIM = re.compile(r'^\s*exec\s+"?([^\s"]+/(?:(?:py|rb|nod|j|pl|php|go)env|asdf))"?\s+exec\s', re.MULTILINE)
EXECS = re.compile(r"\bexec\b")
EVALUATED = re.compile(r"\bexec\s+[^\s\d<>]|LD_PRELOAD")
# What executes another program in the place of an interpreter, in each one's language; comments are left out.
LANGUAGES = {
    "python": r"\bexec[lv]p?e?\b", "pypy": r"\bexec[lv]p?e?\b", "perl": r"(?<![$@%>\w-])exec\b(?!\s*=>)", "ruby": r"(?<![\w.])exec\b|\b(?:Process|Kernel)\.exec\b",
    "php": r"\bpcntl_exec\b", "lua": r"\bexecp?\b", "tclsh": r"\bexecl\b", "expect": r"\boverlay\b", "node": r"\bexecve\b", "guile": r"\bexeclp?e?\b",
    **dict.fromkeys(("csh", "tcsh", "fish", "mksh", "lksh", "ksh93", "yash", "posh", "rbash", "rc"), r"\bexec\b"),
}  # fmt: skip
LANGUAGE_COMMENT = re.compile(r"^[ \t]*#[^\n]*|^=\w+.*?(?:^=cut\b|\Z)", re.MULTILINE | re.DOTALL)

# `path`: the file that is executed; `by`: what leads there, in words.
Step = namedtuple("Step", "path by")
# `others`: Chains that it may be as well, which end at another file.
Chain = namedtuple("Chain", "steps sure others", defaults=((),))
# What a process may become: the words of a command, [] where it stays what it is; what leads there.
Way = namedtuple("Way", "words by sure", defaults=("", True))
STAYS, UNSURE = Way(()), Way((), "", False)
# Of a script: the program that it names, None when it names none; whether that is started without LD_PRELOAD.
FirstLine = namedtuple("FirstLine", "interpreter loses_preload")


def first_line(path):
    """
    A script's FirstLine, as the kernel reads it: a name, from the working directory on where there is no / in it, and all the rest is one argument; env
    takes that for the name of a program, and splits it after -S.
    """
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except PermissionError:
        return FirstLine(None, False)
    name, _, rest = re.sub(r"[ \t]+", " ", line[2:].rstrip(b"\n").decode("utf-8", "replace")).strip(" ").partition(" ") if line.startswith(b"#!") else ("", "", "")
    if os.path.basename(name) != "env":
        return FirstLine((name if "/" in name else f"./{name}") if name else None, False)
    inner = wrappers.inner("env", [rest] * bool(rest))
    return FirstLine(inner.words[0], inner.loses) if inner and inner.words else FirstLine(None, False)


def follow(argv, started=False):
    """The Chain of a command line whose program is there; its last step is the process to judge. started: also what wrappers start beside themselves."""
    first = [Step(shutil.which(argv[0]) or argv[0], "")]
    ends = _ends(Way(list(argv)), first, True, started)
    if not ends or len(ends) > ENDS_MAX:
        return Chain(ends[0].steps if ends else first, False)
    main, others = ends[0], {}
    for end in ends[1:]:
        if os.path.realpath(end.steps[-1].path) != os.path.realpath(main.steps[-1].path):
            others.setdefault(end.steps[-1].path, end)
    return Chain(main.steps, all(end.sure for end in ends), tuple(others.values()))


def _ends(way, steps, is_only, started):
    """Chains of all that a command may become, the likeliest first; where it is one of several, what is not there is left out."""
    if len(steps) > STEPS_MAX:
        return [Chain(steps, False)]
    ends, ways = [], _ways(steps[-1].path, way.words, started)
    is_only &= len(ways) == 1
    for more in ways:
        is_sure = way.sure and more.sure and more.words[:1] != (UNKNOWN,)
        found = shutil.which(more.words[0]) if more.words and is_sure else None
        if not more.words or not is_sure or not found and is_only:
            ends.append(Chain(steps, is_sure and not more.words))
        elif found and len(ends) <= ENDS_MAX:
            by = f"{steps[-1].by}, {more.by}" if steps[-1].by.startswith("started by") else more.by
            ends += _ends(more, [*steps, Step(found, by)], is_only, started)
    return ends


def _ways(path, words, started):
    """The Ways from a command, the likeliest first."""
    return [way._replace(words=tuple(way.words)) for way in _found(path, list(words), started)]


def _found(path, words, started):
    interpreter, loses_preload = first_line(path)
    if interpreter is None:
        return _behind_binary(path, words, started)
    if loses_preload:
        return [UNSURE]
    if os.path.basename(interpreter) not in SHELLS:
        return [Way([interpreter, path, *words[1:]], "the interpreter of a script")]
    return _behind_script(path, words)


def _behind_script(path, words):
    text = _text(path)
    shim = SHIM.search(text)
    if shim:
        name = os.path.basename(path)
        real = _asked([shim.group(1), "which", name], name)
        return [Way([real, *words[1:]], f"a shim of {os.path.basename(shim.group(1))}")] if real else [UNSURE]
    return _executed(text, path, words, "executed by a script")


def _executed(text, path, words, by):
    """The Ways of a shell's text; path: its $0."""
    read = shelltext.read(text)
    if not read:
        return [UNSURE if EXECS.search(text) else STAYS]
    surroundings, ways, likely = _Surroundings(path, words[1:]), [], None
    for command in read.found:
        if command.aside:
            continue
        if command.name == "exec" and len(command.bare) > 1:
            more = surroundings.executed(command, by)
            is_likely = not command.maybe or ARGUMENTS.search(" ".join(command.bare))
            likely = more if is_likely and any(way.words and shutil.which(way.words[0]) for way in more) else likely
            ways += more
        else:
            surroundings.note(command)
    if not ways:
        return [UNSURE if surroundings.is_doubtful else STAYS]
    ways += [STAYS] * read.stays + [UNSURE] * surroundings.is_doubtful
    first = likely or ([STAYS] if read.stays else ways[-1:])
    return list(dict.fromkeys([*first, *ways]))


def _may_exec(text):
    """Whether a text that a script reads executes something in the shell's place, or takes the preload away."""
    read = shelltext.read(text)
    return "LD_PRELOAD" in text or (any(c.name == "exec" and len(c.bare) > 1 for c in read.found) if read else bool(EXECS.search(text)))


class _Surroundings:
    """What a shell's commands have changed for the next ones."""

    def __init__(self, path, given):
        self.path, self.given, self.variables = path, given, Variables(path)
        self.loses = self.moved = self.is_doubtful = False

    def note(self, command):
        """A command that executes nothing in the shell's place."""
        self.variables.note(command)
        name, bare = command.name, command.bare
        names_it = any("LD_PRELOAD" in word for word in bare)
        self.loses |= "LD_PRELOAD" in command.assigned and (not bare or name in ("export", "declare", "typeset", "readonly"))
        self.loses |= names_it and name in ("unset", "export", "declare", "typeset", "read")
        self.moved |= name in ("cd", "pushd", "popd")
        if name == "shift" or name == "set" and re.search(r"(?<!o) [^-+\s]| --? ", " ".join([*bare, ""])):
            self.given = None
        if name in (".", "source"):
            files = self.variables.values(bare[1]) if len(bare) > 1 else [UNKNOWN]
            self.is_doubtful |= any(file == UNKNOWN or _may_exec(_text(file if "/" in file else shutil.which(file) or "")) for file in files)
        if bare and "$" in bare[0]:
            self.is_doubtful |= any(value.split()[:1] == ["exec"] for value in self.variables.values(bare[0]))
        if name == "eval":
            self.is_doubtful |= bool(EVALUATED.search(" ".join(bare)))

    def executed(self, command, by):
        """The Ways of an `exec`."""
        words, loses = command.bare[1:], self.loses or "LD_PRELOAD" in command.assigned
        while words and words[0].startswith("-") and words[0] != "--":
            option = words.pop(0)
            loses |= "c" in option
            del words[: option.endswith("a")]
        del words[: words[:1] == ["--"]]
        ways = []
        for found in words_of(words, self.variables, None if command.inner else self.given):
            if not found:
                continue
            if found[0] == UNKNOWN or loses and shutil.which(found[0]):
                ways.append(UNSURE)
            elif "/" in found[0] and not os.path.isabs(found[0]) and self.moved or "PATH" in self.variables.raw and "/" not in found[0]:
                ways += self._elsewhere(found, by)
            else:
                ways.append(Way(tuple(found), by))
        return ways

    def _elsewhere(self, words, by):
        """The Ways of a command that is looked for in the text's own PATH, or from another folder on."""
        if "/" in words[0]:
            return [UNSURE]
        paths = self.variables.values("$PATH")
        found = [shutil.which(words[0], path=path) for path in paths if path != UNKNOWN]
        return [Way((file, *words[1:]), by) if file else UNSURE for file in found] + [UNSURE] * (UNKNOWN in paths)


def _behind_shell(words):
    """The same of a shell's own command line: a script, or a text after -c, whose only command is executed in its place."""
    is_text, given = _given(words[1:])
    if not given or UNKNOWN in given[:1]:
        return [STAYS if not is_text and not given else UNSURE]
    if not is_text:
        file = given[0] if os.path.exists(given[0]) else shutil.which(given[0])
        return _behind_script(file, given) if file else [UNSURE]
    text, called, by = given[0], given[1:] or words[:1], f"executed by {os.path.basename(words[0])}"
    command = _only_command(text)
    if command and command[0] in BUILT_IN:
        return [STAYS]
    if command and (name := value_of(command[0], {}, called[0])):
        return [Way([name, *command[1:]], by)]
    return [UNSURE if way == STAYS else way for way in _executed(text, called[0], called, by)]


def _given(words):
    """(whether -c is among a shell's options, the words behind them)."""
    words, is_text = list(words), False
    while words and words[0].startswith(("-", "+")):
        word = words.pop(0)
        if word in ("-", "--"):
            break
        is_short = not word.startswith("--")
        is_text |= is_short and word[0] == "-" and "c" in word
        if words and (word in SHELL_VALUED or is_short and word[-1] in "oO"):
            words.pop(0)
    return is_text, words


def _only_command(text):
    """The words of a text that is one command, without redirections and `exec`; [] where it is none, or is told another environment."""
    lexer = shlex.shlex(text.strip(), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        words = []
    while at := next((i for i, word in enumerate(words) if REDIRECTS.fullmatch(word)), 0):
        del words[at - words[at - 1].isdigit() : at + 2]
    while words and re.match(r"\w+=", words[0]) and not words[0].startswith("LD_PRELOAD="):
        words.pop(0)
    words = words[words[:1] == ["exec"] :]
    is_one = words and "\n" not in text.strip() and not any(map(re.compile(r"[;&|<>()]+").fullmatch, words))
    return words if is_one and not re.match(r"-|\w+=", words[0]) else []


def _behind_binary(path, words, started):
    name, real = os.path.basename(words[0]), os.path.basename(os.path.realpath(path))
    if name in SHELLS:
        return _behind_shell(words)
    if real == "rustup" and name not in ("rustup", "rustup-init"):
        tool = _asked([os.path.realpath(path), "which", name], name)
        return [Way([tool, *words[1:]], "a proxy of rustup")] if tool else [UNSURE]
    if wrappers.is_wrapper(name):
        return _behind_wrapper(name, words[1:], started)
    return [UNSURE if _may_execute(name, words[1:]) else STAYS]


def _behind_wrapper(name, words, started):
    inner = wrappers.inner(name, words)
    if inner is None:
        return [UNSURE]
    if not inner.words or inner.forks and not started:
        return [STAYS]
    if inner.loses and shutil.which(inner.words[0]):
        return [UNSURE]
    return [Way(inner.words, f"{'started' if inner.forks else 'executed'} by {name}")]


def _may_execute(name, words):
    """Whether an interpreter's text, a script's or an argument's, executes another program."""
    pattern = next((pattern for language, pattern in LANGUAGES.items() if re.fullmatch(rf"{language}(js)?[\d.]*(-[\w.-]+)?", name)), None)  # python3.11, nodejs, perl5.36-x86_64-linux-gnu; not rclone
    if not pattern:
        return False
    texts = [words[at + 1] for at, word in enumerate(words[:-1]) if re.fullmatch(r"-\w*[ceEr]", word)]
    texts += [word for word in words if re.match(r"-[ceEr].", word)]
    script = next((word for word in words if os.path.isfile(word)), None)
    texts += [_text(script)] if script else []
    return any(re.search(pattern, LANGUAGE_COMMENT.sub("", text)) for text in texts)


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(SCRIPT_BYTES_MAX)
    except OSError:
        return ""


def _asked(command, name):
    """The path that a version manager names; None when it names none, or the shim itself."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    path = done.stdout.strip()
    return path if done.returncode == 0 and os.path.isabs(path) and os.path.basename(path) == name and os.access(path, os.X_OK) else None


def called(place, program):
    """How a process's program was called (place: in /proc), where that is the same file: one that many names lead to (redis-server, busybox) does for each another thing."""
    try:
        with open(f"{place}/cmdline", encoding="utf-8", errors="surrogateescape") as file:
            first = file.read().split("\0")[0]
        name = first if os.path.exists(first) else first.split(" ")[0].rstrip(":")  # a title, as "redis-server *:6379"
        found = os.path.normpath(os.path.join(os.readlink(f"{place}/cwd"), name)) if "/" in name else shutil.which(name)
        return found if found and os.path.samefile(found, f"{place}/exe") else program
    except OSError:
        return program
