# SPDX-License-Identifier: MIT
"""malloc's family as POSIX, C11, C++17 and glibc's manual have it, by the short way, with checks round it, secured, and passed through."""

import re
import subprocess
from pathlib import Path

import pytest
from preload_kit import LIBRARY, PYTHON, assert_sound, run

GROUPS = ["huge", "far", "aligned", "any_size_aligned", "bad_alignment", "zero", "overflow", "realloc", "zeroed", "look", "tune", "information"]
LIBC_DIFFERS = {"far", "look", "bad_alignment", "tune", "information"}  # of its own: no EINVAL from aligned_alloc before 2.38, other sums


@pytest.mark.parametrize("conf", ["", "check:1000", "secure:1", "secure:1,check:1000,leaks:0,decay:0"])
@pytest.mark.parametrize("group", GROUPS)
def test_every_edge_of_every_function_is_as_documented(build, group, conf):
    assert_sound(run(build("edges.c"), group, conf=conf))


@pytest.mark.parametrize("group", sorted(set(GROUPS) - LIBC_DIFFERS))
def test_passed_through_to_libc_the_same_holds(build, group):
    assert_sound(run(build("edges.c"), group, conf="passthrough:1"))


@pytest.mark.parametrize("conf", ["", "check:100", "secure:1", "passthrough:1"])
def test_new_and_delete_in_all_forms_do_what_cxx_says(build, conf):
    assert_sound(run(build("cxx.cc"), conf=conf))


def test_a_new_handler_that_frees_memory_lets_new_succeed(build):
    assert_sound(run(build("cxx.cc"), "limit", conf="limit:64M"))


def test_operator_new_finds_a_cxx_library_that_was_opened_late_and_locally(build):
    late = build("late.cc", "-shared", "-fPIC")
    done = run(PYTHON, "-c", f"import ctypes; print(ctypes.CDLL({str(late)!r}, mode=ctypes.RTLD_LOCAL).late_new())")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_program_linked_with_the_library_is_served_without_preloading(build):
    linked = build("edges.c", "-Wl,--no-as-needed", str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}")
    done = run(linked, "aligned", conf="stats:exit", env={"LD_PRELOAD": ""})
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr
    assert "quire: heap:" in done.stderr


FAMILY = {
    "malloc", "free", "calloc", "realloc", "reallocarray", "aligned_alloc", "posix_memalign", "memalign", "valloc", "pvalloc", "malloc_usable_size",
    "malloc_trim", "malloc_stats", "malloc_info", "mallopt", "mallinfo", "mallinfo2", "free_sized", "free_aligned_sized",
}  # fmt: skip
DOCUMENTS = Path(__file__).resolve().parents[2] / "doc"


def test_the_library_defines_the_allocator_s_names_and_its_own_and_no_others():
    listed = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    names = {line.split()[2].split("@")[0] for line in listed.splitlines() if line.split()[1] != "A"}
    others = {name for name in names if not name.startswith(("quire_", "aral_", "onewayalloc_", "_Zn", "_Zd"))}
    assert others == FAMILY | {"setrlimit", "setrlimit64", "prlimit", "prlimit64", "mlockall"}
    assert len([name for name in names if name.startswith("_Zn")]) == 8
    assert len([name for name in names if name.startswith("_Zd")]) == 12


@pytest.mark.parametrize("document", ["malloc.md", "man/quire-malloc.7.scd"])
def test_a_document_lists_these_names_and_no_others(document):
    text = (DOCUMENTS / document).read_text(encoding="utf-8").replace("\\", "")
    listed = re.search(r"malloc and its family \((.*?)\)", text, re.DOTALL)[1]
    assert set(re.findall(r"\w+", listed)) == FAMILY


def test_it_needs_no_library_but_libc():
    listed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert [line.split("[")[1].rstrip("]") for line in listed.splitlines() if "NEEDED" in line] == ["libc.so.6"]


def test_what_mallopt_cannot_do_is_said_once(build):
    done = run(build("edges.c"), "tune")
    assert done.stderr.count("quire: mallopt: M_") == 1, done.stderr


def test_marks_in_the_page_tables_that_the_system_only_says_it_makes_are_not_relied_on(build):
    """As qemu-user does; here a filter of system calls says so."""
    assert_sound(run(build("hollow_marks.c"), conf="secure:1"))
