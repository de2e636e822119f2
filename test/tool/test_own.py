# SPDX-License-Identifier: MIT
"""
test_own - programs with an allocator inside: a verdict, with the others in its place; those of which it cannot be taken out; Go.

The recorder's side is test/native/own_test.py.  Real ones, in Rust and C++, dynamic and static: test_linked.py.
"""

import json
import os
import subprocess

import pytest
import toolkit
from toolkit import build, quire

import own

LONG = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1 runs it")
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="entries are patched on x86-64 alone")

# Blocks of 64 bytes of a pool, under mimalloc's names; `served` says where main's lie.
INSIDE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char pool[1 << 16]; static void *free_list; static size_t used;
__attribute__((noinline)) void *mi_malloc(size_t n) {
    void *p = free_list;
    if (p) { free_list = *(void **)p; return p; }
    p = pool + used; used += 64; return n <= 64 ? p : 0;
}
__attribute__((noinline)) void mi_free(void *p) { if (p) { *(void **)p = free_list; free_list = p; } }
int main(void) {
    char *p = 0;
    for (int i = 0; i < 5000; i++) { p = mi_malloc(40); memset(p, i, 40); mi_free(p); }
    FILE *f = fopen("served", "a");
    int inside = p >= pool && p < pool + sizeof pool;
    fprintf(f, "%s\n", inside ? "inside" : "outside");
    fclose(f);
    return LIMIT;
}
"""

def tried(folder, program, *more):
    """`try --json` of a program: its document."""
    done = quire(folder, "try", "--no-report", "--json", *more, "--", program)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.by_turns
def test_a_program_with_an_allocator_inside_is_run_with_each_other_in_its_place(tmp_path):
    program = build(tmp_path, INSIDE.replace("LIMIT", "0"))
    document = tried(tmp_path, program, "--rounds", 1, "--time-limit", 0.5)
    rows = {row["name"]: row for row in document["allocators"] if row["measured"] and "error" not in row}
    assert {"today", "libc", "drop-in"} <= set(rows) and document["program"]["today_allocator"] == "mimalloc"
    served = (tmp_path / "served").read_text().split()
    # alone, recorded, its own row; libc's first try, and a run of every other row
    assert served.count("inside") == 3 and served.count("outside") == len(rows), served
    assert document["trace"]["allocations"] >= 5000


def test_a_rows_environment_puts_the_swap_behind_the_malloc_that_it_swaps_to_where_its_constructor_comes_first():
    swap = str(toolkit.BUILD / "tools" / own.SWAP)
    assert own.dress("/x/app", "/x/libother.so")({"LD_PRELOAD": "/y/mine.so"})["LD_PRELOAD"].split(":") == ["/x/libother.so", swap, "/y/mine.so"]
    assert own.dress("/x/app")({})["QUIRE_SWAP"] == own.ITSELF


def test_what_cannot_be_put_in_place_ends_the_run_instead_of_being_measured_as_something_else(tmp_path):
    program = build(tmp_path, "int main(void) { return 0; }")
    swap = toolkit.BUILD / "tools" / own.SWAP
    done = subprocess.run([program], env=own.dress(str(program))({}), capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "no allocator was found inside" in done.stderr
    done = subprocess.run([program], env={"LD_PRELOAD": str(swap), "QUIRE_SWAP": "/no/lib.so"}, capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "not preloaded" in done.stderr


def test_a_child_or_a_parent_of_the_swapped_program_that_has_no_allocator_inside_simply_runs(tmp_path):
    program = build(tmp_path, INSIDE.replace("LIMIT", 'system("exec /bin/true") != 0'))
    for library in (None, own.libc()):
        for words in ([program], ["/bin/sh", "-c", f"'{program}' && true"]):
            done = subprocess.run(words, env=own.dress(str(program), library)({}), cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "served").read_text().split() == ["inside"] * 2 + ["outside"] * 2


def test_check_tells_of_an_allocator_that_is_called_by_names_of_its_own(tmp_path):
    done = quire(tmp_path, "check", "--", build(tmp_path, INSIDE.replace("LIMIT", "0")))
    assert done.returncode == 0 and "mimalloc by names of its own" in done.stdout and "quire try" in done.stdout


def test_an_allocator_inside_without_names_is_refused_with_what_would_help(tmp_path):
    source = INSIDE.replace("LIMIT", "0").replace("static size_t used;", 'static size_t used; const char *volatile said = "mimalloc: error: no";')
    program = build(tmp_path, source, flags=["-s"])
    for command in ("try", "record"):
        done = quire(tmp_path, command, "--", program)
        assert done.returncode == 3 and "mimalloc is inside" in done.stderr and "stripped" in done.stderr


@LONG
def test_an_allocator_that_cannot_be_taken_out_gives_no_verdict_but_the_replays(tmp_path):
    program = build(tmp_path, INSIDE.replace("return LIMIT", "if (!inside) abort(); return 0"))
    document = tried(tmp_path, program, "--time-limit", 2)
    assert document["verdict"]["word"] == "INCONCLUSIVE" and "SIGABRT" in document["verdict"]["reason"]
    assert {row["name"] for row in document["allocators"]} >= {"libc", "jemalloc"} and not document["measured"]
