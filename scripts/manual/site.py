# SPDX-License-Identifier: MIT
"""site - the manual pages as pages of the site: mkdocs calls on_files() (`hooks` in mkdocs.yml).

    doc/man/NAME.N.scd --(pages.expand)--> scdoc's text --(markdown_of)--> manual/NAME.N.md, in memory

    # HEAD            ## HEAD                     *bold* _under_    <b> <i>
    term              term                        quire-top(1)      a link
    <tab>text         :   text                    <tab>*command*    a block of code

Not here: what stands in the pages.
"""

import html
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from manual import pages  # noqa: E402 - after the path

FENCE = "```"
_SPECIAL = set("*_`[]#~|")
_SECTIONS = {"1": "Commands", "3": "Library", "7": "Overviews"}


def inline(text):
    """scdoc's marks as HTML; all else as it is."""
    out, is_open, index = [], {"*": False, "_": False}, 0
    while index < len(text):
        letter = text[index]
        inside_word = text[index - 1 : index].isalnum() and text[index + 1 : index + 2].isalnum()
        if letter == "\\":
            index += 1
            letter = text[index]
        elif letter == "*" or (letter == "_" and not inside_word):
            tag = "b" if letter == "*" else "i"
            out.append(f"</{tag}>" if is_open[letter] else f"<{tag}>")
            is_open[letter] = not is_open[letter]
            index += 1
            continue
        out.append(f"&#{ord(letter)};" if letter in _SPECIAL else html.escape(letter, quote=False))
        index += 1
    return "".join(out)


def linked(text, known):
    """The names of pages that exist as links to them."""

    def link(match):
        name = f"{match.group(1)}.{match.group(2)}"
        return f"[{match.group()}]({name}.md)" if name in known else match.group()

    return re.sub(r"<b>([\w-]+)</b>\((\d)\)", link, text)


def plain(text):
    """Without marks, for a block of code."""
    return re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)[*_]", "", text))


class Converter:
    """One page, line by line."""

    def __init__(self, known):
        self.known, self.out, self.depth, self.indent_before = known, [], 0, None

    def literal(self, lines, index):
        """A fenced block as far as its end; returns the index behind it."""
        tabs = lines[index].count("\t")
        margin = "    " * min(tabs, self.depth)
        self.out += ["", margin + FENCE + "text"]
        index += 1
        while lines[index].strip() != FENCE:
            self.out.append(margin + lines[index].removeprefix("\t" * tabs).replace("\\\\", "\\"))
            index += 1
        self.out += [margin + FENCE, ""]
        self.indent_before = None
        return index + 1

    def commands(self, lines, index):
        """An indented paragraph that explains nothing above it: commands to type."""
        self.out += ["", FENCE + "sh"]
        while index < len(lines) and lines[index].strip():
            self.out.append(plain(lines[index].strip().removesuffix("++")))
            index += 1
        self.out += [FENCE, ""]
        return index

    def line(self, text, follows):
        """One line of text; `follows`: a deeper line comes right after it, so it is a term."""
        indent = len(text) - len(text.lstrip("\t"))
        words = text.strip()
        self.depth = min(self.depth, indent)
        if self.indent_before is not None and indent > self.indent_before:
            self.depth = indent
            lead = "    " * (indent - 1) + ":   "
        else:
            lead = "    " * self.depth
        breaks = words.endswith("++")
        item = re.match(r"([-.]) (.*)", words)
        if item:
            lead += "- " if item.group(1) == "-" else "1. "
            words = item.group(2)
            if not self.out or not re.match(r" *(?:- |1\. )", self.out[-1]):
                self.out.append("")
        said = linked(inline(words.removesuffix("++")), self.known)
        self.out.append(lead + said + ("  " if breaks and not follows else ""))
        self.indent_before = indent

    def page(self, lines):
        index = 0
        while index < len(lines):
            text = lines[index]
            below = lines[index + 1] if index + 1 < len(lines) else ""
            if text.strip() == FENCE:
                index = self.literal(lines, index)
                continue
            if not text.strip():
                self.out.append("")
                self.indent_before = None
            elif text.startswith("#"):
                self.depth, self.indent_before = 0, None
                self.out += ["", "#" + inline(text).replace("&#35;", "#"), ""]
            elif text.startswith("\t") and self.depth == 0 and self.indent_before is None:
                index = self.commands(lines, index)
                continue
            else:
                self.line(text, below.startswith("\t"))
            index += 1
        return "\n".join(self.out)


def markdown_of(name, text, known):
    """A page of the manual as Markdown."""
    body = [line for line in pages.expand(text).split("\n")[1:] if not line.startswith("; ")]
    title, section = name.rsplit(".", 1)
    return f"# {title}({section})\n\n{Converter(known).page(body)}\n"


def sources():
    """{"quire-top.1": its text}."""
    return {path.name[:-4]: path.read_text(encoding="utf-8") for path in sorted(pages.SOURCES.glob("*.scd"))}


def contents(known):
    """The list of all pages, by section, each with its purpose."""
    lines = ["# Manual", "", "The pages that `man` shows where Quire is installed.", ""]
    for section, title in sorted(_SECTIONS.items(), key=lambda one: "713".index(one[0])):
        lines += [f"## {title}", ""]
        for name, text in known.items():
            if name.endswith(section):
                purpose = re.search(r"^# NAME\n+[^\n]*? - ([^\n]*)", pages.expand(text), re.MULTILINE).group(1)
                lines.append(f"- [{name[:-2]}({section})]({name}.md): {inline(purpose)}")
        lines.append("")
    return "\n".join(lines)


def on_files(files, config):
    """Adds the manual to the site's files."""
    from mkdocs.structure.files import File

    known = sources()
    made = {name: markdown_of(name, text, known) for name, text in known.items()}
    for name, text in {"index": contents(known), **made}.items():
        files.append(File.generated(config, f"manual/{name}.md", content=text))
    return files
