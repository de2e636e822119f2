# SPDX-License-Identifier: MIT
"""test_stats_document - doc/stats.md lists what is written: every field of src/look/look_fields.h, in its order, with its
role, its column and its words, and nothing else."""

import re

import pytest

KINDS = {"SOURCE": "sources", "ARENA": "arenas", "SLAB": "slabs", "PERCPU": "percpu", "HEAP": "heaps", "HEAP_CLASS": "heap_classes"}
STRUCTS = {
    "SOURCE": ("source", "quire_source_stats"),
    "SLAB": ("slab", "quire_slab_stats"),
    "PERCPU": ("percpu", "quire_percpu_stats"),
    "HEAP": ("heap", "quire_heap_stats"),
    "HEAP_CLASS": ("heap", "quire_heap_class_stats"),
}


def fields_of(root, kind):
    text = (root / "src/look/look_fields.h").read_text(encoding="utf-8")
    body = re.search(rf"#define LOOK_{kind}_FIELDS\(X\)(.*?)\n\n", text, re.DOTALL).group(1)
    return re.findall(r'X\((\w+), LOOK_(\w+), ([01]), "([^"]*)"\)', body)


@pytest.mark.parametrize("kind", KINDS)
def test_the_manual_has_the_fields_that_are_written(root, kind):
    text = (root / "doc/stats.md").read_text(encoding="utf-8")
    section = re.search(rf"^### {KINDS[kind]}: .*?(?=^### |\Z)", text, re.DOTALL | re.MULTILINE).group()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (yes|) *\| (.*) \|$", section, re.MULTILINE)
    expected = [(name, role.lower(), "yes" if column == "1" else "", what) for name, role, column, what in fields_of(root, kind)]
    assert rows == expected


@pytest.mark.parametrize("kind", STRUCTS)
def test_the_list_has_the_structs_fields_in_their_order(root, kind):
    header, struct = STRUCTS[kind]
    text = (root / f"include/quire/{header}.h").read_text(encoding="utf-8")
    body = re.search(rf"struct {struct} {{(.*?)\n}};", text, re.DOTALL).group(1)
    code = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    names = [name.strip() for names in re.findall(r"(?:size_t|uint64_t|unsigned) ([^;]+);", code) for name in names.split(",")]
    assert ["struct_bytes"] + [name for name, *_ in fields_of(root, kind)] == names
