# SPDX-License-Identifier: MIT
"""test_amalgamation - quire.c and quire.h, as scripts/amalgamate.py writes them, serve a program that has nothing else of Quire's.

Every part left out, both compilers, their optimisation: QUIRE_TEST_LONG=1.
"""

import json
import os
import re
import shutil
import sys

import pytest
from test_install import HERE, run

ROOT = HERE.parent.parent
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
PARTS = ["ARENA", "SLAB", "HEAP", "PERCPU", "COUNTERS", "STATS"]
SHOWN = {"SLAB": "slabs", "HEAP": "heaps", "PERCPU": "percpu"}  # in the statistics; arenas are listed only where somebody asks for that
NO_WARNING = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wundef", "-Werror"]
PROGRAM = HERE / "amalgamation.c"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("amalgamation")
    run(sys.executable, ROOT / "scripts/amalgamate.py", folder)
    assert sorted(p.name for p in folder.iterdir()) == ["quire.c", "quire.h"]
    return folder


@pytest.fixture(scope="module")
def library(folder):
    """quire.c, compiled once, without optimisation: that is quick."""
    run("gcc", "-O0", "-fPIC", *NO_WARNING, "-pthread", "-c", folder / "quire.c", "-o", folder / "quire.o")
    return folder / "quire.o"


def words(without=None):
    """What the compiler is told when a part is left out."""
    gone = {without} | ({"COUNTERS"} if without == "PERCPU" else set())
    return [f"-DUSES_{part}={int(part not in gone)}" for part in PARTS] + ([f"-DQUIRE_NO_{without}"] if without else [])


def shown(program):
    """The statistics that the program printed, which are its proof that the last part worked too."""
    return json.loads(run(program))


def names_in(value):
    """A document with every value but names replaced by what it is."""
    if isinstance(value, dict):
        return {key: names_in(inner) for key, inner in value.items()}
    return [names_in(inner) for inner in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.by_turns
def test_a_c_and_a_cpp_program_have_all_that_the_library_has(folder, library, tmp_path):
    run("gcc", *NO_WARNING, *words(), "-I", folder, PROGRAM, library, "-pthread", "-o", tmp_path / "c")
    run("g++", *NO_WARNING, *words(), "-I", folder, "-x", "c++", PROGRAM, "-x", "none", library, "-pthread", "-o", tmp_path / "cpp")
    headers = sorted(p.name for p in (ROOT / "include/quire").glob("*.h"))
    (tmp_path / "quire.h").write_text("".join(f"#include <quire/{name}>\n" for name in headers))
    built = [ROOT / "build/release/libquire.a", "-pthread"]
    run("gcc", *words(), "-I", tmp_path, "-I", ROOT / "include", PROGRAM, *built, "-o", tmp_path / "library")
    of_c, of_cpp, of_library = (names_in(shown(tmp_path / name)) for name in ("c", "cpp", "library"))
    assert of_c == of_cpp == of_library


def test_what_quire_c_defines_is_the_headers_names_and_its_own_which_are_hidden(library):
    rows = [line.split() for line in run("readelf", "-sW", library).splitlines()]
    defined = [row for row in rows if len(row) == 8 and row[4] in ("GLOBAL", "WEAK") and row[6] != "UND" and "." not in row[7]]
    exported = {row[7] for row in defined if row[5] == "DEFAULT"}
    assert {row[7] for row in defined if not row[7].startswith("quire_")} == set()
    assert {row[7] for row in defined if row[5] == "HIDDEN" and not row[7].startswith("quire_inner_")} == set()
    lines = run("nm", "-D", "--defined-only", ROOT / "build/release/libquire.so").splitlines()
    public = {re.sub("@.*", "", line.split()[-1]) for line in lines if line.split()[1] != "A"}
    assert exported == {name for name in public if name.startswith("quire_")}


PLUGIN = """
#include "quire.h"
void work(void) { struct quire_heap *heap = quire_heap_create(NULL); quire_heap_free(heap, quire_heap_alloc(heap, 8 << 20)); quire_heap_destroy(heap); }
"""
HOST = """
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int threads(void)
{
    int count = -2;
    for (DIR *all = opendir("/proc/self/task"); readdir(all);)
        count++;
    return count;
}
int main(int count, char **words)
{
    void *plugin = dlopen(words[count - 1], RTLD_NOW);
    ((void (*)(void))dlsym(plugin, "work"))();
    printf("%d threads, ", threads());
    dlclose(plugin);
    usleep(1500000);
    puts("alive");
}
"""


def test_a_plugin_that_has_it_inside_may_be_closed(folder, library, tmp_path):
    """Its thread sleeps in the plugin's code, whether it was linked with -z nodelete or not."""
    (tmp_path / "plugin.c").write_text(PLUGIN)
    (tmp_path / "host.c").write_text(HOST)
    run("gcc", "-shared", "-fPIC", "-I", folder, tmp_path / "plugin.c", library, "-pthread", "-o", tmp_path / "plugin.so")
    run("gcc", tmp_path / "host.c", "-ldl", "-o", tmp_path / "host")
    assert "NODELETE" not in run("readelf", "-dW", tmp_path / "plugin.so")
    assert run(tmp_path / "host", tmp_path / "plugin.so") == "2 threads, alive\n"


def test_two_runs_of_the_script_write_the_same_and_nothing_of_this_machine(folder, tmp_path):
    run(sys.executable, ROOT / "scripts/amalgamate.py", tmp_path / "again")
    for name in ("quire.c", "quire.h"):
        text = (folder / name).read_text()
        assert text == (tmp_path / "again" / name).read_text()
        assert "MIT License" in text and str(ROOT) not in text and '#include "' not in text.replace('#include "quire.h"', "")


@pytest.mark.parametrize("without", PARTS if LONG else [])
@pytest.mark.parametrize("compiler", [c for c in ("gcc", "clang") if shutil.which(c)])
def test_each_part_can_be_left_out(folder, tmp_path, compiler, without):
    strict = [*NO_WARNING, "-pthread", *words(without)]
    run(compiler, "-O2", *strict, "-I", folder, folder / "quire.c", PROGRAM, "-o", tmp_path / "program")
    if without == "STATS":
        assert run(tmp_path / "program") == ""
    else:
        kinds = set(shown(tmp_path / "program")) & set(SHOWN.values())
        assert kinds == {kind for part, kind in SHOWN.items() if part != without}
    names = set(re.findall(r"\b[tT] (quire_\w+)", run("nm", tmp_path / "program")))
    prefix = {"COUNTERS": ("quire_counter", "quire_histogram"), "STATS": ("quire_stats",)}.get(without, f"quire_{without.lower()}_")
    assert names and {name for name in names if name.startswith(prefix)} == set()


WAYS = ["-O2", "-O3 -march=native", "-O2 -std=c11", "-O2 -flto", "-O1 -g -fsanitize=address,undefined", "-O1 -g -fsanitize=thread"]


@pytest.mark.parametrize("flags", WAYS if LONG else [])
@pytest.mark.parametrize("compiler", [c for c in ("gcc", "clang") if shutil.which(c)])
def test_it_is_compiled_by_one_line(folder, tmp_path, compiler, flags):
    if compiler == "clang" and ("-flto" in flags or "-fsanitize" in flags):
        pytest.skip("clang's linker and run-time libraries are packages of their own")
    # With -flto gcc sees the allocator's inside, and takes a block's slot to be as small as what its alloc_size says.
    strict = NO_WARNING[: 3 if "-flto" in flags else 4]
    run(compiler, *flags.split(), "-pthread", *strict, *words(), "-I", folder, folder / "quire.c", PROGRAM, "-o", tmp_path / "program")
    assert shown(tmp_path / "program")["schema"] == "quire.stats/1"


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: another whole build")
def test_a_shared_library_that_has_it_inside_may_hide_it_whole(folder, tmp_path):
    (tmp_path / "plugin.c").write_text(
        '#include "quire.h"\nint plugin(void);\n__attribute__((visibility("default"))) int plugin(void)\n'
        "{ return quire_arena_alloc(quire_arena_create(0), 9) == 0; }\n"
    )
    plugin = tmp_path / "plugin.so"
    hide = ['-DQUIRE_API=__attribute__((visibility("hidden")))', "-shared", "-fPIC", "-Wl,-z,nodelete"]
    run("gcc", "-O2", "-pthread", *NO_WARNING, *hide, "-I", folder, tmp_path / "plugin.c", folder / "quire.c", "-o", plugin)
    assert run("nm", "-D", "--defined-only", "-j", plugin).split() == ["plugin"]
    load = f"import ctypes; raise SystemExit(ctypes.CDLL('{plugin}').plugin())"
    run(sys.executable, "-c", load)
