# SPDX-License-Identifier: MIT
"""test_together - test files that are compiled as one stay apart, and each is in it."""

import subprocess

import pytest
from minihouse import REAL_ROOT

HEADER = "#pragma once\nstruct Shared { int n; };\n"
FILE = """#include <vector>
#include "shared.h"

namespace {
class Heap { int page = %d; };
const int page = %d;
}
int %s(Shared s) { return s.n + page + int(std::vector<Heap>(1).size()); }
"""


def write(folder, into, *names):
    told = [f"-DINTO={into}", f"-DFOLDER={folder}", f"-DNAMES={','.join(names)}"]
    subprocess.run(["cmake", *told, "-P", REAL_ROOT / "test" / "together.cmake"], check=True)
    return into.read_text()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shared.h").write_text(HEADER)
    for number, name in enumerate(("first", "second", "third")):
        (tmp_path / f"{name}.cc").write_text(FILE % (number, number, name))
    return tmp_path


def test_files_that_call_things_alike_are_compiled_as_one_and_all_are_in_it(folder):
    write(folder, folder / "all.cpp", "first.cc", "second.cc", "third.cc")
    subprocess.run(["c++", "-Wall", "-Werror", "-I", folder, "-c", folder / "all.cpp", "-o", folder / "all.o"], check=True)
    names = subprocess.run(["nm", "-C", folder / "all.o"], capture_output=True, text=True, check=True).stdout
    assert [names.count(f"{name}(Shared)") for name in ("first", "second", "third")] == [1, 1, 1]


def test_it_is_written_anew_only_when_what_the_files_include_changed(folder):
    text = write(folder, folder / "all.cpp", "first.cc", "second.cc")
    before = (folder / "all.cpp").stat().st_mtime_ns
    (folder / "first.cc").write_text((folder / "first.cc").read_text() + "int more;\n")
    assert write(folder, folder / "all.cpp", "first.cc", "second.cc") == text
    assert (folder / "all.cpp").stat().st_mtime_ns == before
    (folder / "first.cc").write_text("#include <set>\n" + (folder / "first.cc").read_text())
    assert "#include <set>\n" in write(folder, folder / "all.cpp", "first.cc", "second.cc")
