# SPDX-License-Identifier: MIT
"""test_malloc_document - doc/malloc.md has every key of QUIRE_CONF with its default and its help, and each of the heap's refusals."""

import re


def text_of(root, name):
    return (root / name).read_text(encoding="utf-8")


def test_the_manual_has_every_key_as_the_library_explains_it(root):
    body = re.search(r"#define KEYS\(X\)(.*?)\n\n", text_of(root, "src/preload/conf.c"), re.DOTALL).group(1)
    keys = re.findall(r'X\("(\w+)", \w+, \w+, "([^"]*)", "([^"]*)", "([^"]*)"\)', body)
    assert len(keys) == body.count("X(")
    manual = text_of(root, "doc/malloc.md").replace("\\|", "/")
    rows = re.findall(r"^\| `(\w+)` \| `([^|]*)` \| ([^|]*) \| ([^|]*) \|$", manual, re.MULTILINE)
    assert rows == [(key, look.replace("|", "/"), start, words) for key, look, start, words in keys]


def test_the_manual_has_every_refusal_of_the_heap(root):
    known = re.findall(r'#define HEAP_(E\d) "E\d', text_of(root, "src/heap/heap_internal.h"))
    assert re.findall(r"^\| (E\d) \|", text_of(root, "doc/malloc.md"), re.MULTILINE) == known


def test_the_keys_of_the_examples_exist(root):
    manual = text_of(root, "doc/malloc.md")
    keys = set(re.findall(r"^\| `(\w+)` \|", manual, re.MULTILINE))
    used = {pair.split(":")[0] for conf in re.findall(r'QUIRE_CONF="([^"]+)" LD', manual) for pair in conf.split(",")}
    assert used and used <= keys
