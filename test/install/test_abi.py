# SPDX-License-Identifier: MIT
"""test_abi - a program and a library of different versions: it works, or the loader refuses it.  And no change of the ABI goes unseen.

    program of 0.1      library of 0.2                     refused
    program of 0.2      library of 0.1                     refused
    program of 0.2      a later library, longer structs    works: what it does not know is 0
    a later program     library of 0.2                     works; an option that is set and not known: E2BIG
    a later program     library of 0.2, a function less    refused
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from test_builds import LIBRARY_ALONE, LONG, cmake, copy
from test_install import STRICT, libdir, pkg_config, run

NO_ABIDIFF = "needs abigail-tools"

# The options as 0.1 had them: a name where 0.2 has a length.
OF_0_1 = {
    "heap.h": "struct quire_heap_opts { const char *name; void *source; unsigned long limit_bytes; unsigned flags; };"
    "void *quire_heap_create(const struct quire_heap_opts *);",
    "lib.c": '#include "heap.h"\nvoid *quire_heap_create(const struct quire_heap_opts *o) { return (void *)o; }',
    "lib.map": "QUIRE_0 { global: quire_*; local: *; };",
    "main.c": '#include "heap.h"\n'
    'int main(void) { struct quire_heap_opts o = {.name = "old"}; return quire_heap_create(&o) == 0; }',
}

# A program that sets and reads all it knows; LATER is what its header has more.
PROGRAM = """
#include <errno.h>
#include <quire/heap.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    struct { struct quire_heap_stats stats; size_t behind; } s = {{.struct_bytes = sizeof s.stats}, 12345};
    struct quire_heap_opts opts = {.struct_bytes = sizeof opts, .name = "any", .flags = QUIRE_HEAP_SECURE};
    (void)argc, (void)argv;
#if LATER
    opts.later = argc > 1 && strcmp(argv[1], "set") == 0;
    s.stats.later = 777;
#endif
    struct quire_heap *heap = quire_heap_create(&opts);
    if (!heap)
        return printf("%s\\n", errno == E2BIG ? "E2BIG" : "another errno") < 0;
    void *p = quire_heap_alloc(heap, 100);
    quire_heap_stats(heap, &s.stats);
    printf("valid %zu of %zu, blocks %zu, secure %d, behind %zu", s.stats.struct_bytes, sizeof s.stats, s.stats.live_blocks,
           quire_heap_usable_bytes(p) == 100, s.behind);
#if LATER
    printf(", later %zu", s.stats.later);
#endif
    printf("\\n");
    quire_heap_destroy(heap);
    return 0;
}
"""
NOW, GROWN = 104, 112  # bytes of struct quire_heap_stats


def refused(program, folder):
    done = subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True)
    assert done.returncode in (1, 127) and not done.stdout, done
    return done.stderr


def later(include):
    """The headers as a later version may have them: an option and a statistic more."""
    header = include / "quire/heap.h"
    text = header.read_text(encoding="utf-8")
    for last, field in (("uint64_t flags;", "size_t later;"), ("size_t caches;", "size_t later;")):
        text, count = re.subn(rf"(    {last}[^\n]*\n)(}};)", rf"\1    {field}\n\2", text)
        assert count == 1, last
    header.write_text(text, encoding="utf-8")
    return include


def build(folder, include, library, is_later):
    (folder / "main.c").write_text(PROGRAM)
    run("gcc", *STRICT, f"-DLATER={is_later}", "-I", include, folder / "main.c", "-o", folder / "main", "-L", library, "-lquire", f"-Wl,-rpath,{library}")
    return folder / "main"


@pytest.fixture
def of_0_1(tmp_path):
    """A program of 0.1, and the library that it was linked with."""
    for name, text in OF_0_1.items():
        (tmp_path / name).write_text(text)
    old = tmp_path / "old"
    old.mkdir()
    run("gcc", "-shared", "-fPIC", tmp_path / "lib.c", "-o", old / "libquire.so.0", "-Wl,-soname,libquire.so.0", f"-Wl,--version-script={tmp_path / 'lib.map'}")
    run("gcc", tmp_path / "main.c", "-o", tmp_path / "main", old / "libquire.so.0")
    run(tmp_path / "main", env={**os.environ, "LD_LIBRARY_PATH": str(old)})
    return tmp_path / "main", old


def test_a_program_of_0_1_is_refused_by_this_library_under_its_own_name_and_under_the_old_one(prefix, of_0_1, tmp_path):
    program, _ = of_0_1
    assert "libquire.so.0: cannot open shared object file" in refused(program, libdir(prefix))
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    (renamed / "libquire.so.0").symlink_to(libdir(prefix) / "libquire.so.0.2")
    assert "version `QUIRE_0' not found" in refused(program, renamed)


def test_a_program_of_this_version_is_refused_by_the_library_of_0_1(prefix, of_0_1, tmp_path):
    (tmp_path / "main.c").write_text(PROGRAM)
    program = tmp_path / "new"
    run("gcc", *STRICT, "-DLATER=0", tmp_path / "main.c", "-o", program, *pkg_config(prefix, "--cflags", "--libs"))
    old = of_0_1[1]
    assert "libquire.so.0.2: cannot open shared object file" in refused(program, old)
    (old / "libquire.so.0.2").symlink_to(old / "libquire.so.0")
    assert "version `QUIRE_0.2' not found" in refused(program, old)


def test_a_later_header_with_this_library_works_and_what_is_not_known_is_refused_when_it_is_set(prefix, tmp_path):
    include = later(shutil.copytree(prefix / "include", tmp_path / "include"))
    program = build(tmp_path, include, libdir(prefix), 1)
    assert run(program) == f"valid {NOW} of {GROWN}, blocks 1, secure 1, behind 12345, later 0\n"
    assert run(program, "set") == "E2BIG\n"


def test_a_program_that_calls_a_later_function_is_refused_by_this_library(prefix, tmp_path):
    (tmp_path / "later.c").write_text("void quire_old(void);\nvoid quire_old(void) {}\nvoid quire_new(void);\nvoid quire_new(void) {}\n")
    (tmp_path / "later.map").write_text("QUIRE_0.2 { global: quire_old; local: *; };\nQUIRE_0.3 { global: quire_new; } QUIRE_0.2;\n")
    (tmp_path / "main.c").write_text("void quire_new(void);\nint main(void) { quire_new(); return 0; }\n")
    later_library, program = tmp_path / "libquire.so.0.2", tmp_path / "main"
    run("gcc", "-shared", "-fPIC", tmp_path / "later.c", "-o", later_library, "-Wl,-soname,libquire.so.0.2", f"-Wl,--version-script={tmp_path / 'later.map'}")
    run("gcc", tmp_path / "main.c", "-o", program, later_library)
    run(program, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert "version `QUIRE_0.3' not found" in refused(program, libdir(prefix))


@pytest.mark.parametrize("kind", ["shared"] if LONG else [])
def test_this_header_with_a_later_library_works(prefix, root, tmp_path, kind):
    source = copy(root, tmp_path / "source")
    later(source / "include")
    fields = source / "src/look/look_fields.h"
    caches = 'X(caches, LOOK_COUNT, 0, "sets of pages: one for each thread that uses the heap or one that has ended")'
    text = fields.read_text(encoding="utf-8")
    assert caches in text
    fields.write_text(text.replace(caches, caches + ' X(later, LOOK_COUNT, 0, "")'), encoding="utf-8")
    cmake(source, tmp_path / "b", "-DCMAKE_BUILD_TYPE=Release", *LIBRARY_ALONE)
    program = build(tmp_path, prefix / "include", libdir(prefix), 0)
    says = f"valid {NOW} of {NOW}, blocks 1, secure 1, behind 12345\n"
    assert run(program) == says
    assert run(program, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "b")}) == says


# The same in small, with the helper that every such function calls: a library of two lengths, a program of two.
BORDER = """
#include <stddef.h>
struct opts { size_t struct_bytes; int first; int padding;
#if LATER
    size_t later;
#endif
};
"""
LIBRARY = """
#include "base/abi.h"
#include <stdlib.h>
void panic(const char *kind, const char *name, const char *what, const void *address) { (void)kind, (void)name, (void)what, (void)address; abort(); }
int set(const struct opts *opts);
void get(struct opts *opts);
static struct opts kept;
static const struct abi_layout layout = ABI_LAYOUT(opts, padding);
int set(const struct opts *opts) { return abi_read(&layout, &kept, opts); }
void get(struct opts *opts) { abi_write(&layout, &kept, opts); }
"""
USER = """
#include <stdio.h>
int set(const struct opts *opts);
void get(struct opts *opts);
int main(void)
{
    struct { struct opts opts; size_t behind; } s = {{.struct_bytes = BYTES, .first = 7}, 99};
    int error = set(&s.opts);
    s.opts.first = 0;
    get(&s.opts);
    printf("%d %d %zu %zu\\n", error, s.opts.first, s.opts.struct_bytes, s.behind);
    return 0;
}
"""


@pytest.mark.parametrize("told", ["sizeof(struct opts)", "0"])
def test_each_length_of_a_struct_meets_each(root, tmp_path, told):
    for n in (0, 1):
        (tmp_path / f"library{n}.c").write_text(BORDER + LIBRARY)
        (tmp_path / f"user{n}.c").write_text(BORDER + USER)
        folder = tmp_path / str(n)
        folder.mkdir()
        flags = [f"-DLATER={n}", f"-DBYTES={told}", "-I", root / "src"]
        run("gcc", "-shared", "-fPIC", *flags, tmp_path / f"library{n}.c", root / "src/base/abi.c", "-o", folder / "libborder.so")
        run("gcc", *flags, tmp_path / f"user{n}.c", "-o", folder / "user", "-L", folder, "-lborder")
    for program in (0, 1):
        for library in (0, 1):
            said = run(tmp_path / str(program) / "user", env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path / str(library))})
            valid = 24 if told != "0" and program and library else 16
            assert said == f"0 7 {valid} 99\n", (program, library)


# ---- the stored description ----


def abi(root, *words):
    done = subprocess.run([sys.executable, root / "scripts/abi.py", *map(str, words)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(NO_ABIDIFF)
    return done.returncode, done.stdout + done.stderr


def stored(root, tmp_path, *changes):
    """A folder with a description of its own, changed."""
    text = (root / "test/install/libquire.abi").read_text(encoding="utf-8")
    for pattern, by in changes:
        text, count = re.subn(pattern, by, text)
        assert count, pattern
    (tmp_path / "test/install").mkdir(parents=True)
    (tmp_path / "test/install/libquire.abi").write_text(text, encoding="utf-8")
    (tmp_path / "include").symlink_to(root / "include")
    (tmp_path / "CMakeLists.txt").write_text("project(quire VERSION 0.3.0)\n")
    return tmp_path


def test_the_abi_is_as_it_is_stored(root):
    status, report = abi(root)
    assert status == 0, f"{report}\nIf that is meant (doc/abi.md says what may change when): scripts/abi.py --write"


@pytest.mark.parametrize(
    "change, said",
    [
        ((r"<elf-symbol name='quire_heap_walk'.*\n", ""), "1 Added function"),
        ((r"(name='quire_heap_opts' size-in-bits=)'320'", r"\1'256'"), "type size changed from 256 to 320"),
        ((r"name='rounding_bytes'", "name='waste_bytes'"), "'quire_heap_stats::waste_bytes' changed to 'quire_heap_stats::rounding_bytes'"),
        ((r"soname='libquire.so.0.2'", "soname='libquire.so.0'"), "SONAME changed"),
        ((r"(name='quire_heap_walk' version='QUIRE_0).2'", r"\1.1'"), "[D] quire_heap_walk@@QUIRE_0.1"),
    ],
)
def test_a_change_is_reported(root, tmp_path, change, said):
    status, report = abi(root, "--root", stored(root, tmp_path, change))
    assert (status, said in report) == (1, True), report


def test_a_new_function_in_an_old_version_is_not_stored(root, tmp_path):
    folder = stored(root, tmp_path, (r"<elf-symbol name='quire_heap_walk'.*\n", ""))
    status, report = abi(root, "--root", folder, "--write")
    assert (status, report) == (1, "abi: new functions belong in QUIRE_0.3 (src/quire.map): quire_heap_walk\n")
    assert "name='quire_heap_walk' version" not in (folder / "test/install/libquire.abi").read_text(encoding="utf-8")
