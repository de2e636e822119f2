# SPDX-License-Identifier: MIT
"""test_documents_manual - the manual pages: all are there, scdoc and man take them without a word,
and what they say is what the tool, the headers and the library say."""

import re
import subprocess

import pytest

from manual import command, header, pages

COMMANDS = command.names()
INNER_HEADERS = {"quire/export.h", "quire/percpu_inline.h", "quire/slab_inline.h"}  # others include them; nobody else does


@pytest.fixture(scope="session")
def manual(tmp_path_factory):
    """The directory of the finished pages."""
    out = tmp_path_factory.mktemp("manual")
    assert pages.make(out, "scdoc") == []
    return out


def source_of(name):
    return (pages.SOURCES / f"{name}.scd").read_text(encoding="utf-8")


def plain(text):
    """What a reader sees of scdoc's text: without marks and backslashes."""
    return re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)[*_]", "", text))


def shown(manual, page):
    """A page as man shows it, on lines that are never broken."""
    name, section = page.rsplit(".", 1)
    done = subprocess.run(
        ["man", "--warnings=w", "-E", "UTF-8", "-l", manual / f"man{section}" / page],
        capture_output=True,
        text=True,
        env={"MANWIDTH": "1000", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_with_its_options_and_no_others(manual, name):
    text = shown(manual, f"quire-{name}.1")
    section = re.search(r"^OPTIONS$(.*?)^\S", text, re.DOTALL | re.MULTILINE).group(1)
    heads = re.findall(r"^ {7}(-\S.*)$", section, re.MULTILINE)
    told = {word for head in heads for word in re.findall(r"(?<!\S)--?[\w-]+", head)}
    _, actions = command.actions(name)
    assert told == {option for action in actions for option in action.option_strings}
    for action in actions:
        if not action.option_strings:
            assert re.search(rf"^ {{7}}{action.metavar or action.dest.upper()}$", section, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_speaks_of_no_option_that_its_command_does_not_have(name):
    _, actions = command.actions(name)
    known = {option for action in actions for option in action.option_strings} | {"--"}
    lines = [line for line in source_of(f"quire-{name}.1").splitlines() if f"quire {name}" in line]
    used = {word for line in lines for word in re.findall(r"(?<![\w-])--?[a-z][\w-]*", re.split(" -- | [|] ", plain(line))[0])}
    assert used <= known


def test_every_condition_of_run_is_explained(manual):
    from conditions import KEYS  # the tool's modules are found once command has looked for them

    section = re.search(r"^CONDITIONS$(.*?)^\S", shown(manual, "quire-run.1"), re.DOTALL | re.MULTILINE).group(1)
    heads = re.findall(r"^ {7}([a-z, ]+)$", section, re.MULTILINE)
    assert {word for head in heads for word in head.split(", ")} == set(KEYS)


def test_the_first_page_lists_every_command(manual):
    listed = re.findall(r"^ {7}quire-(\w+)\(1\)$", shown(manual, "quire.1"), re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_every_public_header_has_a_page_with_each_of_its_functions(root, manual):
    include = root / "include"
    headers = {str(path.relative_to(include)) for path in include.rglob("*.h")} - INNER_HEADERS
    paged = set(re.findall(r"^@header (\S+)@$", "".join(p.read_text() for p in pages.SOURCES.glob("*.3.scd")), re.MULTILINE))
    assert paged == headers
    for name in sorted(headers):
        text = (include / name).read_text(encoding="utf-8")
        public = set(re.findall(r"^QUIRE_API [^;]*?(\w+)\(", text, re.MULTILINE))
        page = shown(manual, f"{header.page_of(name)}.3")
        assert public <= set(re.findall(r"\b(\w+)\(\)", page)), name
        contracts = re.sub(r"\s*\n \*\s*", " ", text)
        assert set(re.findall(r"\bE[A-Z]{4,}\b", contracts)) <= set(re.findall(r"\bE[A-Z]{4,}\b", page)), name
        for function in public:
            assert (manual / "man3" / f"{function}.3").exists()


def test_a_function_is_found_by_its_name(manual):
    done = subprocess.run(
        ["man", "-M", manual, "quire_arena_rewind"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert "quire-arena - allocate one way" in done.stdout


def test_the_header_pages_keep_code_as_it_is(manual):
    assert r'printf("%ld hits\n", (long)quire_counter_sum(&hits));' in shown(manual, "quire-counter.3")


def test_every_key_of_quire_conf_is_explained_with_its_default(manual):
    text = shown(manual, "quire-conf.7")
    assert len(pages.keys()) >= 10
    for key, look, start, _ in pages.keys():
        row = re.search(rf"^ {{7}}{key}:{re.escape(look)}\n +(.*)$", text, re.MULTILINE)
        assert row and row.group(1).endswith(f"Default: {start}."), key


def panic_words(root):
    """Every "XN words" that the library stops a program with."""
    words = set()
    for path in (root / "src").rglob("*.[ch]"):
        words |= set(re.findall(r'"([A-Z]\d (?!and)[^"%\\]+)"', path.read_text(encoding="utf-8")))
    return words


def test_every_line_that_stops_a_program_is_explained(root, manual):
    explained = set(re.findall(r"^ {7}([A-Z]\d .*)$", shown(manual, "quire-errors.7"), re.MULTILINE))
    assert panic_words(root) == explained


def test_every_invariant_that_a_check_names_is_explained(root, manual):
    text = shown(manual, "quire-errors.7")
    found = set()
    for path in (root / "src").rglob("*_look.c"):
        found |= set(re.findall(r'"(arena|slab|percpu|heap) ([A-Z]\d)', path.read_text(encoding="utf-8")))
    assert len(found) > 15
    for kind, number in found:
        section = re.search(rf"^   {kind}$(.*?)^   (?=\w)", text, re.DOTALL | re.MULTILINE).group(1)
        assert re.search(rf"^ +• +{number}:", section, re.MULTILINE), (kind, number)


def test_every_exit_status_of_the_tool_is_explained(root, manual):
    text = (root / "tools" / "quire" / "errors.py").read_text(encoding="utf-8")
    known = set(re.findall(r"^EXIT_\w+ = (\d+)$", text, re.MULTILINE))
    section = re.search(r"^EXIT STATUS$(.*?)^\S", shown(manual, "quire-errors.7"), re.DOTALL | re.MULTILINE).group(1)
    heads = ",".join(re.findall(r"^ {7}(\d[\d, +n]*)$", section, re.MULTILINE))
    assert set(re.findall(r"\d+", heads)) == known


def test_every_page_that_a_page_points_at_exists_or_is_the_systems(manual):
    ours = {path.name for path in manual.glob("man*/*")}
    for path in sorted(pages.SOURCES.glob("*.scd")):
        for name, section in re.findall(r"(quire(?:-\w+)?)\((\d)\)", plain(pages.expand(path.read_text()))):
            assert f"{name}.{section}" in ours, f"{path.name}: {name}({section})"


# What the headers' examples take for granted.
GIVEN = """
struct point { int x, y; };
struct node { struct node *next; };
"""


def test_the_example_of_every_header_compiles(root, tmp_path):
    functions, includes = [], []
    for path in sorted((root / "include").rglob("*.h")):
        name = str(path.relative_to(root / "include"))
        opening = header.items_of(path.read_text(encoding="utf-8"))[0]
        lines = [line[4:] for line in opening if re.match(r" {4}\S.*;|^ {4}(if|    )", line)]
        if name in INNER_HEADERS:
            continue
        assert lines, f"{name} has no example"
        includes.append(f"#include <{name}>")
        code = "\n".join(line for line in lines if line.strip() != "...").replace("!= 0) ...", "!= 0) return;")
        free = {"histogram": "struct quire_percpu *pool, uint64_t begin_ns, uint64_t end_ns"}.get(path.stem, "void")
        if code.startswith("static void note"):
            code, *rest = code.split("\n", 1)
            functions.append(code)
            code = rest[0]
        functions.append(f"void example_{path.stem}({free})\n{{\n{code}\n}}")
    system = ["stdio.h", "stdint.h", "syslog.h", "fcntl.h", "unistd.h"]
    source = tmp_path / "examples.c"
    source.write_text("\n".join([f"#include <{name}>" for name in system] + includes + [GIVEN, *functions]))
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-fsyntax-only"]
    done = subprocess.run([*command, f"-I{root / 'include'}", source], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_stands_beside_a_constant_is_whole_on_its_page(manual):
    slab = shown(manual, "quire-slab.3")
    text = (pages.ROOT / "include" / "quire" / "slab.h").read_text(encoding="utf-8")
    beside = re.findall(r"^#define QUIRE_SLAB_\w+ \w+ +/\*(.*?)\*/", text, re.DOTALL | re.MULTILINE)
    assert len(beside) >= 5
    for said in beside:
        assert " ".join(said.split()) in " ".join(slab.split())


def test_every_errno_that_a_header_promises_is_explained():
    promised = {word for path in sorted((pages.ROOT / "include" / "quire").glob("*.h")) for word in re.findall(r"\bE[A-Z]{4,}\b", path.read_text(encoding="utf-8"))}
    assert {"ENOMEM", "EINVAL", "EOVERFLOW", "EILSEQ"} <= promised
    assert promised - set(re.findall(r"\bE[A-Z]{4,}\b", plain(source_of("quire-errors.7")))) == set()
