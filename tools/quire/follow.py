# SPDX-License-Identifier: MIT
"""
follow.py - which program a command line ends up as, without running it: what is executed in place of what.

    chromium  -> script of /bin/sh      its last `exec $LIBDIR/$APPNAME "$@"`     -> /usr/lib/chromium/chromium
    python3   -> shim of pyenv          `pyenv which python3`                     -> /.../versions/3.11.7/bin/python3
    rustc     -> rustup, by its name    `rustup which rustc`                      -> /.../toolchains/.../bin/rustc
    env A=1 nice -n 5 jq .              commands that execute their arguments     -> /usr/bin/jq
    sh ./script, sh -c 'exec jq .'      what the script, or the text, executes    -> /usr/bin/jq

The process is the same all the way, so what matters for a preload is the last one.  A script's variables are followed where they are
constants or parts of $0; where they are not, the chain ends at its shell, and `sure` is False.
Not here: whether that program can be served (target.py, serving.py); processes that are started beside it.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections import namedtuple

DEPTH_MAX = 8
SCRIPT_BYTES_MAX = 1 << 20
ASK_S = 10
LOSES_PRELOAD = re.compile(r"-|-[0v]*i[0iv]*|--ignore-environment|(-u|--unset=)?LD_PRELOAD(=.*)?", re.DOTALL)  # of env: words that take a preload away, or put another there
SHELLS = ("sh", "bash", "dash", "ksh", "zsh", "ash")
SHELL_VALUED = ("--rcfile", "--init-file")
BUILT_IN = ("echo", "printf", "test", "[", "true", "false", "pwd", "kill", "exit", ":")  # of shells, though there are programs of such names
REDIRECTS = re.compile(r"[<>&|]*[<>][<>&|]*")
# Commands that execute their arguments: options with a value of their own, and how many words come before the command.
WRAPPERS = {
    "env": ("u", 0), "nice": ("n", 0), "nohup": ("", 0), "setsid": ("", 0), "stdbuf": ("ioe", 0), "ionice": ("cnp", 0),
    "taskset": ("", 1), "chrt": ("TPD", 1), "setarch": ("", 1), "linux64": ("", 0), "prlimit": ("", 0), "unshare": ("RwSG", 0),
    "ld.so": ("", 0), "ld-linux-x86-64.so.2": ("", 0), "ld-linux-aarch64.so.1": ("", 0),
}  # fmt: skip
SHIM = re.compile(r'^\s*exec\s+"?([^\s"]+/(?:(?:py|rb|nod|j|pl|php|go)env|asdf))"?\s+exec\s', re.MULTILINE)
WORD = r"(?:\"(?:\$\([^)\n]*\)|[^\"\n])*\"|'[^'\n]*'|\$\([^)\n]*\)|`[^`\n]*`|[^\s\"'`;&|<>()])+"
ASSIGNED = re.compile(rf"^[ \t]*(?:export\s+|readonly\s+|local\s+)?(\w+)=({WORD})", re.MULTILINE)
COMMAND = r"(?:^[ \t]*|[;{(]\s*|&&\s*|\|\|\s*|\b(?:then|else|do)\s+)"
EXECUTED = re.compile(rf"{COMMAND}exec\s+(?:-a\s+\S+\s+|-[cl]+\s+)*({WORD})(?=\s|;|$)", re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)
CLOSING = re.compile(r"\b(?:fi|done|esac)\b|;;|[\s})]")
ARGUMENTS = re.compile(r"\$[@*1]|\$\{[@*1]")
REFERENCE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
PLACE_OF_0 = re.compile(r"\$\((?:dirname|readlink -f|realpath|basename) +(?:-- +)?\$0\)|`dirname \$0`|\$\{0%/\*\}|\$\{0##\*/\}")

# `path`: the file that is executed; `by`: what leads there, in words.
Step = namedtuple("Step", "path by")
Chain = namedtuple("Chain", "steps sure")
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
    split = re.match(r"(-S|-[iv0]*S|--split-string[= ])", rest)
    try:
        words = shlex.split(rest[split.end() :]) if split else [rest] * bool(rest)
    except ValueError:
        words = []
    words = ["-i"] * bool(split and "i" in split.group(1)[:3]) + words
    command = _argument(words, *WRAPPERS["env"])
    return FirstLine(command[0] if command else None, _loses_preload(words, command))


def follow(argv):
    """The Chain of a command line whose program is there; its last step is the process to judge."""
    words, steps = list(argv), [Step(shutil.which(argv[0]) or argv[0], "")]
    for _ in range(DEPTH_MAX):
        path = steps[-1].path
        words, by, sure = _next(path, words)
        if not words:
            return Chain(steps, sure)
        found = shutil.which(words[0])
        if not found:
            return Chain(steps, False)
        steps.append(Step(found, by))
    return Chain(steps, False)


def _next(path, words):
    """(the command that is executed instead, what leads there, whether all was understood); [] at the end."""
    interpreter, loses_preload = first_line(path)
    if interpreter is None:
        return _behind_binary(path, words)
    if loses_preload:
        return [], "", False
    if os.path.basename(interpreter) not in SHELLS:
        return [interpreter, path, *words[1:]], "the interpreter of a script", True
    return _behind_script(path, words)


def _behind_script(path, words):
    text = _text(path)
    shim = SHIM.search(text)
    if shim:
        name = os.path.basename(path)
        real = _asked([shim.group(1), "which", name], name)
        return ([real, *words[1:]] if real else []), f"a shim of {os.path.basename(shim.group(1))}", bool(real)
    return _executed(text, path, words, "executed by a script")


def _executed(text, path, words, by):
    """What a shell's text executes in place of the shell, as _next() has it; path: its $0."""
    executed = [_expanded(word, path, text[: at]) for word, at in _execs(text)]
    for command in reversed(executed):
        if command and os.path.basename(command) not in WRAPPERS and shutil.which(command):
            return [command, *words[1:]], by, True
    return [], "", not executed


def _behind_shell(words):
    """The same of a shell's own command line: a script, or a text after -c, whose only command is executed in its place."""
    is_text, given = _given(words[1:])
    if not given:
        return [], "", not is_text
    if not is_text:
        file = given[0] if os.path.exists(given[0]) else shutil.which(given[0])
        return _behind_script(file, given) if file else ([], "", False)
    text, called, by = given[0], given[1:] or words[:1], f"executed by {os.path.basename(words[0])}"
    command = _only_command(text)
    if command and command[0] in BUILT_IN:
        return [], "", True
    if command and (name := _value(command[0], {}, called[0], DEPTH_MAX)):
        return [name, *command[1:]], by, True
    command, by, _ = _executed(text, called[0], called, by)
    return command, by, False


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


def _behind_binary(path, words):
    name, real = os.path.basename(words[0]), os.path.basename(os.path.realpath(path))
    if name in SHELLS:
        return _behind_shell(words)
    if real == "rustup" and name not in ("rustup", "rustup-init"):
        tool = _asked([os.path.realpath(path), "which", name], name)
        return ([tool, *words[1:]] if tool else []), "a proxy of rustup", bool(tool)
    if name in WRAPPERS:
        command = _argument(words[1:], *WRAPPERS[name])
        return ([], "", False) if name == "env" and _loses_preload(words[1:], command) else (command, f"executed by {name}", True)
    return [], "", True


def _loses_preload(words, command):
    """Whether env, with these words before the command among them, takes LD_PRELOAD away."""
    return any(map(LOSES_PRELOAD.fullmatch, words[: len(words) - len(command)]))


def _argument(words, valued, before):
    """The command among a wrapper's words."""
    words = list(words)
    while words and (words[0].startswith("-") or re.match(r"\w+=", words[0])):
        word = words.pop(0)
        if word == "--":
            break
        if len(word) == 2 and word[1] in valued and words:
            words.pop(0)
    return words[before:]


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(SCRIPT_BYTES_MAX)
    except OSError:
        return ""


def _execs(text):
    """
    (word, where) of every `exec` that hands the script's arguments on, or is the last thing the script does; comments are left out, and so
    are redirections of the shell itself (exec 3>&1) and what is executed to end with a message.
    """
    found, code = [], COMMENT.sub(lambda m: " " * len(m.group()), text).replace("\\\n", "  ")
    for match in EXECUTED.finditer(code):
        line_end = (code.find("\n", match.end()) + 1 or len(code) + 1) - 1
        is_last = not CLOSING.sub("", code[line_end:])
        if not match.group(1).isdigit() and (is_last or ARGUMENTS.search(code, match.end(), line_end)):
            found.append((match.group(1), match.start()))
    return found


def _expanded(word, path, before):
    """The word as the shell would have it, from what was assigned before; None where that is not known."""
    values = {name: value for name, value in ASSIGNED.findall(before)}
    return _value(word, values, path, DEPTH_MAX)


def _value(word, values, path, depth):
    if word.startswith("'"):
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
        if name in values and depth:
            value = _value(values[name], {k: v for k, v in values.items() if k != name}, path, depth - 1)
        else:
            value = os.environ.get(name, default)
        unknown.extend([name] * (value is None))
        return value or ""

    word = REFERENCE.sub(put, word)
    return None if unknown or "$" in word or "`" in word else word


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
