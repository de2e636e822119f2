# SPDX-License-Identifier: MIT
"""checklib - what every house-rule check shares: which files there are, and C without its comments.

    files(root) --> path --> code_of(text)         comments and literals blanked, line numbers kept
                         --> comments_of(text)     (line, text) of each comment
                         --> functions_of(text)    C functions by name and line range
                         --> declarations_of(text) public declarations with the comment above them

A check is a function of the root that returns findings ("path:line: what is wrong and what to do");
run_check() turns it into a program that prints one line a finding and exits 1 if there is any.

Not here: the rules themselves (check_*.py), the order in which they run (check.py).
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

SKIPPED_DIRECTORIES = {".git", ".venv", "build", "__pycache__", ".pytest_cache", "third_party"}
C_SUFFIXES = {".c", ".h", ".cc", ".cpp", ".hpp"}

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')""",
    re.DOTALL,
)


def files(root, suffixes=None):
    """Every file of the tree that git would keep, as paths relative to root; no git: all but build
    output."""
    root = Path(root)
    found = _files_of_git(root)
    if found is None:
        found = _files_by_walking(root)
    return sorted(p for p in found if suffixes is None or p.suffix in suffixes)


def _files_of_git(root):
    if not (root / ".git").exists():
        return None
    command = [
        "git",
        "-C",
        str(root),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    if done.returncode != 0:
        return None
    paths = [Path(name) for name in done.stdout.split("\0") if name]
    return [p for p in paths if (root / p).is_file() and not SKIPPED_DIRECTORIES & set(p.parts)]


def _files_by_walking(root):
    found = []
    for directory, names, leaves in os.walk(root):
        names[:] = [n for n in names if n not in SKIPPED_DIRECTORIES]
        found += [Path(directory, leaf).relative_to(root) for leaf in leaves]
    return found


def read(root, path):
    """The text of a file; None when it is not text."""
    try:
        return (Path(root) / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def line_at(text, offset):
    return text.count("\n", 0, offset) + 1


def _blank(piece):
    return re.sub(r"[^\n]", " ", piece)


def code_of(text, keep_literals=False):
    """C text with comments (and string contents) turned to spaces: every offset and line stays
    where it was."""

    def replace(match):
        if match.group("comment"):
            return _blank(match.group())
        if keep_literals:
            return match.group()
        quote = match.group()[0]
        return quote + _blank(match.group()[1:-1]) + quote

    return _TOKEN.sub(replace, text)


def comments_of(text):
    return [
        (line_at(text, m.start()), m.group()) for m in _TOKEN.finditer(text) if m.group("comment")
    ]


def without_preprocessor(code):
    """Blanks #-lines with their continuation lines, so that braces in macros do not confuse the
    scan."""
    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: _blank(m.group()), code)


_OPENS_SCOPE = re.compile(
    r'^\s*(?:extern\s*"[^"]*"|(?:inline\s+)?namespace\b|(?:class|struct|union)\b)'
)


def functions_of(text):
    """[(name, first line, last line)] of the functions defined in C or C++ text in clang-format
    style."""
    code = without_preprocessor(code_of(text))
    found, begin, position = [], 0, 0
    while position < len(code):
        letter = code[position]
        if letter == "{":
            head = code[begin:position]
            name = _function_name(head)
            if name is None and _OPENS_SCOPE.match(head) and "=" not in head:
                begin = position + 1  # namespaces, extern "C", classes: look inside
            else:
                end = _matching_brace(code, position)
                if name is not None:
                    first = begin + len(head) - len(head.lstrip())
                    found.append((name, line_at(code, first), line_at(code, end)))
                    begin = end + 1
                position = end
        elif letter in ";}":
            begin = position + 1
        position += 1
    return found


def _function_name(head):
    """The name of the function whose body follows `head`, or None when it is no function."""
    head = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", " ", head).rstrip()
    head = re.sub(r"(?:\)\s*(?:const|noexcept|override|final|->\s*[\w:<>*& ]+))+$", ")", head)
    named = re.search(r"([A-Za-z_~][\w:~]*)\s*\(", head)
    if (
        not named
        or "=" in head[: named.start()]
        or not re.search(r"\)(?:\s*:.*)?$", head, re.DOTALL)
    ):
        return None
    if named.group(1) in ("TEST", "TEST_F", "TEST_P", "TYPED_TEST"):
        return " ".join(head[named.start() :].split())
    return named.group(1)


def _matching_brace(code, position):
    depth = 0
    for i in range(position, len(code)):
        if code[i] == "{":
            depth += 1
        elif code[i] == "}":
            depth -= 1
            if depth == 0:
                return i
    return len(code) - 1


def public_headers(root):
    """The installed headers that C programs include, as paths relative to root."""
    return [p for p in files(root, {".h"}) if p.parts[:2] == ("include", "quire")]


class Declaration:
    """One exported function of a public header: its name, what stands before the name, where, and
    its comment."""

    def __init__(self, name, result, line, comment):
        self.name, self.result, self.line, self.comment = name, result, line, comment


def declarations_of(text):
    """The exported function declarations of a header, each with the comment directly above or
    beside it.

    A comment holds for all declarations below it up to the next empty line.  A second name for the
    same symbol (`__asm__("name")`) is no declaration of its own.
    """
    code = without_preprocessor(code_of(text, keep_literals=True))
    code = re.sub(r'extern\s*"[^"]*"\s*\{', lambda m: _blank(m.group()), code)
    comments = _comment_by_last_line(text)
    found, begin, depth, above = [], 0, 0, {}
    for position, letter in enumerate(code):
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth = max(depth - 1, 0)
            begin = position + 1 if depth == 0 and _is_body(code[begin:position]) else begin
        elif letter == ";" and depth == 0:
            statement = code[begin:position]
            first = line_at(code, begin + len(statement) - len(statement.lstrip()))
            declared = _declared_function(statement)
            if declared:
                last = line_at(code, position)
                above[last] = comments.get(first - 1) or above.get(first - 1, "")
                beside = "".join(comments.get(n, "") for n in range(first, last + 1))
                found.append(Declaration(declared[0], declared[1], first, above[last] + beside))
            begin = position + 1
    return found


def _is_body(statement):
    """True when the brace just closed ended a function (a static inline), not a struct or an
    enum."""
    head = statement.split("{", 1)[0]
    return not re.match(r"\s*(?:typedef\s+)?(?:struct|union|enum)\b[^()]*$", head)


def _declared_function(statement):
    if re.match(r"\s*(?:typedef|static|inline)\b", statement) or "__asm__" in statement:
        return None
    plain = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", " ", statement)
    plain = re.sub(r"\{.*\}", " ", plain, flags=re.DOTALL)
    for match in re.finditer(r"\b([A-Za-z_]\w*)\s*\(", plain):
        if match.group(1).isupper() or match.group(1) in ("_Static_assert", "static_assert"):
            continue
        return match.group(1), " ".join(plain[: match.start()].split())
    return None


def _comment_by_last_line(text):
    """Comment text by the line it ends on; line comments that touch are one comment."""
    by_line = {}
    for line, comment in comments_of(text):
        last = line + comment.count("\n")
        joined = by_line.get(line - 1, "") if comment.startswith("//") else ""
        by_line[last] = by_line.get(last, "") + joined + comment
    return by_line


def run_check(check):
    """Makes a program of a check: --root DIR, one line a finding on stdout, exit 1 when there is
    any."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.split("\n")[0])
    parser.add_argument(
        "--root", default=str(Path(__file__).resolve().parent.parent), help="the tree to look at"
    )
    findings = check(Path(parser.parse_args().root).resolve())
    for finding in findings:
        print(finding)
    return 1 if findings else 0
