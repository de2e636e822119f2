# SPDX-License-Identifier: MIT
"""
test_own - programs with an allocator inside: a verdict, with the others in its place; those of which it cannot be taken out; Go.

The recorder's side is test/native/own_test.py.  Real ones, in Rust and C++, dynamic and static: QUIRE_TEST_LONG=1.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

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

RUST = """
#[global_allocator]
static GLOBAL: ALLOCATOR = ALLOCATOR;
fn main() {
    let mut map = std::collections::HashMap::new();
    for i in 0..40000 {
        let words: Vec<String> = (0..16).map(|k| format!("word {} of {}", k, i)).collect();
        map.insert(words[3].clone(), vec![0u8; 64 + i % 512]);
    }
    println!("{}", map.len());
}
"""

CXX = r"""
#include <cstdio>
#include <string>
#include <unordered_map>
#include <vector>
#ifdef MIMALLOC
#include <mimalloc-new-delete.h>
#endif
int main() {
    long sum = 0;
    std::unordered_map<std::string, std::vector<int>> map;
    for (int i = 0; i < 300000; i++) {
        map["a key that is long enough " + std::to_string(i % 5000)].push_back(i);
        char *p = new char[100 + i % 200];
        p[0] = (char)i; sum += p[0];
        delete[] p;
    }
    printf("%ld %zu\n", sum, map.size());
}
"""


def tried(folder, program, *more):
    """`try --json` of a program: its document."""
    done = quire(folder, "try", "--no-report", "--json", *more, "--", program)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_a_program_with_an_allocator_inside_is_run_with_each_other_in_its_place(tmp_path):
    program = build(tmp_path, INSIDE.replace("LIMIT", "0"))
    document = tried(tmp_path, program, "--rounds", 1, "--time-limit", 0.5)
    rows = {row["name"]: row for row in document["allocators"] if row["measured"] and "error" not in row}
    assert {"today", "libc", "drop-in"} <= set(rows) and document["program"]["today_allocator"] == "mimalloc"
    served = (tmp_path / "served").read_text().split()
    # alone, recorded, its own row; libc's first try, and a run of every other row
    assert served.count("inside") == 3 and served.count("outside") == len(rows), served
    assert document["trace"]["allocations"] >= 5000


def test_a_rows_environment_puts_the_swap_before_the_malloc_that_it_swaps_to():
    assert own.dress("/x/libother.so")({"LD_PRELOAD": "/y/mine.so"})["LD_PRELOAD"].split(":")[1:] == ["/x/libother.so", "/y/mine.so"]
    assert own.dress()({})["QUIRE_SWAP"] == own.ITSELF


def test_what_cannot_be_put_in_place_ends_the_run_instead_of_being_measured_as_something_else(tmp_path):
    program = build(tmp_path, "int main(void) { return 0; }")
    swap = toolkit.BUILD / "tools" / own.SWAP
    done = subprocess.run([program], env={"LD_PRELOAD": str(swap), "QUIRE_SWAP": "inside"}, capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "no allocator was found inside" in done.stderr
    done = subprocess.run([program], env={"LD_PRELOAD": str(swap), "QUIRE_SWAP": "/no/lib.so"}, capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "not preloaded" in done.stderr


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


@LONG
@pytest.mark.parametrize("crate, name, shown", [("tikv-jemallocator", "tikv_jemallocator::Jemalloc", "jemalloc"), ("mimalloc", "mimalloc::MiMalloc", "mimalloc")])
def test_a_rust_program_has_a_verdict_on_the_allocator_that_it_is_linked_with(tmp_path, crate, name, shown):
    if not shutil.which("cargo"):
        pytest.skip("no cargo")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text(RUST.replace("ALLOCATOR", name))
    (tmp_path / "Cargo.toml").write_text(f'[package]\nname = "p"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{crate} = "*"\n')
    subprocess.run(["cargo", "build", "-q", "--release"], cwd=tmp_path, check=True)
    verdict(tmp_path, tmp_path / "target" / "release" / "p", shown)


@LONG
@pytest.mark.parametrize("flags, shown", [
    (["-DMIMALLOC", "-lmimalloc"], "mimalloc"),
    (["-l:libjemalloc_pic.a", "-lm", "-ldl", "-pthread"], "jemalloc"),
    (["-Wl,--no-as-needed", "-ljemalloc"], "libjemalloc.so.2"),
])  # fmt: skip
def test_a_cxx_program_has_a_verdict_on_the_allocator_that_it_is_linked_with(tmp_path, flags, shown):
    if not Path("/usr/include/mimalloc.h").exists() or not Path("/usr/include/jemalloc").exists():
        pytest.skip("no libmimalloc-dev and libjemalloc-dev")
    (tmp_path / "p.cc").write_text(CXX)
    subprocess.run(["c++", "-O2", "p.cc", "-o", "p", *flags], cwd=tmp_path, check=True)
    verdict(tmp_path, tmp_path / "p", shown)


def verdict(folder, program, shown):
    """A verdict that stands on runs, of all rows that there are."""
    document = tried(folder, program, "--rounds", 6)
    assert document["program"]["today_allocator"] == shown and document["measured"] and document["rounds"] == 6
    assert document["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE")
    assert not [row for row in document["allocators"] if "error" in row], document["allocators"]
    assert document["trace"]["allocations"] > 100000
