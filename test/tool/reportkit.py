# SPDX-License-Identifier: MIT
"""
reportkit.py - what the tests of reports share: one recorded program whose names are full of markup, its page, its try.

    a C++ program: boxes that die together, a growing buffer, blocks that are never freed; a template's name has < and >
    its arguments: an element, an escape sequence                       recorded and reported on once for all tests

Not here: tests.
"""

import atexit
import functools
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from toolkit import native, quire

BOXES, ROUNDS, LEAKS = 400, 12, 10
LEAK_BYTES = 1000
HOSTILE = ["<script>alert(1)</script>", "\033[31mred", "</script><img src=x onerror=alert(2)>", "\u202eabc"]

SOURCE = """
#include <cstdlib>
#include <cstring>
template <class T> struct box { box *next; char text[40]; };
template <class T> __attribute__((noinline)) box<T> *make_box(box<T> *next) {
    auto *made = static_cast<box<T> *>(malloc(sizeof(box<T>)));
    made->next = next;
    return made;
}
__attribute__((noinline)) void grow() {
    char *text = static_cast<char *>(malloc(16));
    for (size_t size = 32; size <= 65536; size *= 2) { text = static_cast<char *>(realloc(text, size)); text[size - 1] = 1; }
    free(text);
}
__attribute__((noinline)) void leak() { *static_cast<volatile char *>(malloc(%d)) = 1; }
int main() {
    for (int i = 0; i < %d; i++) { leak(); }
    for (int round = 0; round < %d; round++) {
        box<int> *all = nullptr;
        for (int i = 0; i < %d; i++) { all = make_box<int>(all); }
        while (all) { box<int> *next = all->next; free(all); all = next; }
        grow();
    }
    return 0;
}
"""


@functools.cache
def folder():
    """A place for all of it, gone when the tests end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="quire-report-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def program():
    """The program; its name has markup in it, too."""
    source = folder() / "boxes.cc"
    source.write_text(SOURCE % (LEAK_BYTES, LEAKS, ROUNDS, BOXES))
    path = folder() / "box<b>es"
    subprocess.run(["g++", "-O1", "-g", "-fno-builtin", str(source), "-o", str(path)], check=True)
    return path


@functools.cache
def trace():
    """Its trace."""
    path = folder() / "boxes.qtr"
    done = quire(folder(), "record", "-o", path, "--", program(), *HOSTILE)
    assert done.returncode == 0, done.stderr
    return path


@functools.cache
def profile():
    """(quire.sites/1, quire.profile/1) of the trace."""
    sites, out = folder() / "sites.json", folder() / "profile.json"
    done = native("quire-analyse", trace(), "--sites", sites, "--profile", out)
    assert done.returncode == 0, done.stderr
    return json.loads(sites.read_text()), json.loads(out.read_text())


@functools.cache
def trace_page():
    """The page of the trace, with replays."""
    path = folder() / "boxes.html"
    done = quire(folder(), "report", trace(), "-o", path, "--rounds", 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"report: {path}\n"
    return path


@functools.cache
def tried():
    """(the finished `try --json`, its document), its trace and page in a folder of their own."""
    place = folder() / "tried"
    place.mkdir()
    done = quire(place, "try", "--json", "--rounds", 2, "--", program(), *HOSTILE)
    assert done.returncode == 0, done.stderr
    (place / "try.json").write_text(done.stdout)
    return done, json.loads(done.stdout)


def raw(page):
    """The document that a page carries."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="raw">(.*?)</script>', text, re.S)
    return json.loads(found.group(1))
