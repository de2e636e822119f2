# SPDX-License-Identifier: MIT
"""test_abi_document - every struct that grows begins with its length, its fields have the names that doc/design.md explains, and doc/abi.md
knows every public struct."""

import re

import pytest

GROWS = re.compile(r"^struct (quire_\w+_(?:opts|stats|verbs)) {\n(.*?)\n};", re.DOTALL | re.MULTILINE)
STRUCT = re.compile(r"^struct (quire_\w+) {$", re.MULTILINE)
FIELD = re.compile(r"(?:\(\*(\w+)\)\([^;]*|[\w\s*]+?\b(\w+(?:, \w+)*));")


def headers(root):
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((root / "include/quire").glob("*.h"))}


def fields(body):
    code = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return [name for verb, names in FIELD.findall(code) for name in (verb or names).split(", ")]


def growing(root):
    return {name: fields(body) for text in headers(root).values() for name, body in GROWS.findall(text)}


def section(root, document, heading):
    text = (root / "doc" / document).read_text(encoding="utf-8")
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE).group(1)


def test_every_struct_of_options_verbs_and_statistics_begins_with_its_length(root):
    structs = growing(root)
    assert len(structs) == 12
    assert {name: names[0] for name, names in structs.items()} == dict.fromkeys(structs, "struct_bytes")


def test_every_field_has_a_name_that_the_design_explains(root):
    known = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| ([^|]*) \|", section(root, "design.md", "Names in the headers"), re.MULTILINE)))
    used = {name for names in growing(root).values() for name in names}
    assert used - set(known) == set()
    assert {name for name in known if not name.startswith("_")} - used == set(), "explained, and in no header"


@pytest.mark.parametrize("kind", ["grow", "fixed"])
def test_the_abis_table_has_every_public_struct(root, kind):
    told = set(re.findall(r"`struct (quire_\w+)`", section(root, "abi.md", "Structs that grow" if kind == "grow" else "Structs that do not")))
    there = {name for text in headers(root).values() for name in STRUCT.findall(text)}
    grow = set(growing(root))
    assert told == (grow if kind == "grow" else there - grow)
