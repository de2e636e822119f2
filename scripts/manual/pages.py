#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""pages - makes the manual: each doc/man/NAME.N.scd with its directives carried out, then by scdoc.

    doc/man/*.scd --(directives)--> scdoc's text --(scdoc)--> OUT/manN/NAME.N
    each function of a header page --> OUT/man3/FUNCTION.3, one line that leads to the page

A directive is a line of its own:

    @options NAME@         the options of `quire NAME`             (command.py)
    @commands@             all commands, a line each               (command.py)
    @header quire/x.h@     NAME to SIGNALS AND FORK of a header    (header.py)
    @keys@                 the keys of QUIRE_CONF                  (src/preload/conf.c)
    @invariants FILE@      the numbered invariants of a file's opening

and @VERSION@ anywhere is the version.  What stands in the source stands nowhere else, so that no
page can be out of date.

    pages.py OUT [--scdoc PROGRAM]      scdoc's warnings are errors; exit 1
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from manual import command, header, scd  # noqa: E402 - after the path

SOURCES = ROOT / "doc" / "man"


def keys():
    """[(key, what its value looks like, default, help)] of QUIRE_CONF."""
    text = (ROOT / "src" / "preload" / "conf.c").read_text(encoding="utf-8")
    body = re.search(r"#define KEYS\(X\)(.*?)\n\n", text, re.DOTALL).group(1)
    return re.findall(r'X\("(\w+)", \w+, \w+, "([^"]*)", "([^"]*)", "([^"]*)"\)', body)


def keys_lines():
    lines = []
    for key, look, start, words in keys():
        head = f"{scd.bold(key)}:{scd.escape(look)}"
        said = f"{words[:1].upper()}{words[1:]}. Default: {start}."
        lines += [head, "\t" + scd.sentence(said), ""]
    return lines


def invariants_lines(path):
    """"P1  text" of the comment that opens a source file, as a list."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.findall(r"^ \*   ([A-Z]\d)  (.*(?:\n \*       \S.*)*)", text, re.MULTILINE)
    said = [(number, " ".join(re.sub(r"\n \*", " ", words).split())) for number, words in found]
    return [f"- {scd.bold(number)}: {scd.sentence(words)}" for number, words in said]


def version():
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"project\(quire VERSION ([\d.]+)", text).group(1)


def expand(text):
    """The text of a page with its directives carried out."""
    lines = []
    for line in text.replace("@VERSION@", version()).split("\n"):
        match = re.fullmatch(r"@(\w+)(?: ([\w./-]+))?@", line)
        if not match:
            lines.append(line)
        elif match.group(1) == "options":
            lines += command.options(match.group(2))
        elif match.group(1) == "commands":
            lines += command.overview()
        elif match.group(1) == "keys":
            lines += keys_lines()
        elif match.group(1) == "invariants":
            lines += invariants_lines(match.group(2))
        elif match.group(1) == "header":
            lines += header.page(match.group(2), header_text(match.group(2)))
        else:
            raise ValueError(f"there is no directive {line}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def header_text(name):
    return (ROOT / "include" / name).read_text(encoding="utf-8")


def functions_of(text):
    """The functions that a page's header declares; none for pages of other sections."""
    match = re.search(r"^@header (\S+)@$", text, re.MULTILINE)
    if not match:
        return []
    items = header.items_of(header_text(match.group(1)))[1]
    return [item.name() for item in items if item.kind == "function"]


def make(out, scdoc):
    """Writes every page; returns what scdoc complained about."""
    complaints = []
    for source in sorted(SOURCES.glob("*.scd")):
        text = source.read_text(encoding="utf-8")
        done = subprocess.run([scdoc], input=expand(text).encode(), capture_output=True)
        if done.returncode != 0 or done.stderr:
            complaints.append(f"{source.name}: {done.stderr.decode().strip()}")
            continue
        name, section = source.name[:-4].rsplit(".", 1)
        folder = out / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.{section}").write_bytes(done.stdout)
        for function in functions_of(text):
            (folder / f"{function}.{section}").write_text(f".so man{section}/{name}.{section}\n")
    return complaints


def main():
    parser = argparse.ArgumentParser(description="makes the manual pages")
    parser.add_argument("out", type=Path, help="where they go: OUT/man1, OUT/man3, OUT/man7")
    parser.add_argument("--scdoc", default="scdoc", help="the program (default: scdoc)")
    options = parser.parse_args()
    complaints = make(options.out, options.scdoc)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
