# SPDX-License-Identifier: MIT
"""
test_linked - real programs that are linked with an allocator, in Rust and C++, dynamic and static: a verdict each.

    cargo: the allocator's C and its crate, once --link--> dynamic
                                                 --link--> static

The C of jemalloc takes two minutes of CPU time to compile, on a machine at load 40 half an hour: nothing is compiled twice. A
verdict takes less than a fortieth of the time after which a run counts as one that hangs.
Those whose allocators are made up here: test_own.py, test_static.py.
"""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from toolkit import HANGS_S, quire

pytestmark = [
    pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1 runs it"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="entries are patched on x86-64 alone"),
]

BUSY = 40  # times as long as on a quiet machine
ALLOCATIONS_MIN = 100_000
PLACE = "x86_64-unknown-linux-gnu"  # named, so that what a static link is told is not for the programs that build
CRATES = {"jemalloc": ("tikv-jemallocator", "tikv_jemallocator::Jemalloc"), "mimalloc": ("mimalloc", "mimalloc::MiMalloc")}

RUST = """
#[global_allocator]
static GLOBAL: ALLOCATOR = ALLOCATOR;
fn main() {
    let mut map = std::collections::HashMap::new();
    for i in 0..8000 {
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
    for (int i = 0; i < 60000; i++) {
        map["a key that is long enough " + std::to_string(i % 1000)].push_back(i);
        char *p = new char[100 + i % 200];
        p[0] = (char)i; sum += p[0];
        delete[] p;
    }
    printf("%ld %zu\n", sum, map.size());
}
"""


@pytest.fixture(scope="module", name="crate")
def crate_fixture(tmp_path_factory):
    """A function: {"dynamic": program, "static": program, "library": the allocator's} of one on a crate's allocator."""
    made = {}

    def crate(name):
        if name not in made:
            made[name] = build_crate(tmp_path_factory.mktemp(name), *CRATES[name])
        return made[name]

    return crate


def build_crate(folder, crate, path):
    """Compiles once, links twice."""
    if not shutil.which("cargo"):
        pytest.skip("no cargo")
    (folder / "src").mkdir()
    (folder / "src" / "main.rs").write_text(RUST.replace("ALLOCATOR", path))
    (folder / "Cargo.toml").write_text(f'[package]\nname = "p"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{crate} = "*"\n')
    if subprocess.run(["cargo", "fetch", "-q"], cwd=folder, check=False).returncode != 0:
        pytest.skip("cargo cannot fetch the crate")
    made, linked = {}, folder / "target" / PLACE / "release"
    for kind, flags in (("dynamic", []), ("static", ["-C", "target-feature=+crt-static"])):
        subprocess.run(["cargo", "rustc", "-q", "--offline", "--release", "--target", PLACE, "--", *flags], cwd=folder, check=True)
        made[kind] = shutil.copy(linked / "p", folder / kind)
    made["library"] = [*linked.glob("build/*/out/libmimalloc.a"), *linked.glob("build/*/out/lib/libjemalloc_pic.a")][0]
    return made


def tried(folder, program, shown, *more):
    """`try --json`: the document of a program on that allocator. What it takes of the CPU is bounded."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = quire(folder, "try", "--no-report", "--json", *more, "--", program)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr + done.stdout
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < HANGS_S / BUSY
    document = json.loads(done.stdout)
    assert document["program"]["today_allocator"] == shown and document["trace"]["allocations"] > ALLOCATIONS_MIN
    assert document["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE")
    return document


def check_runs(folder, program, shown):
    """A verdict that stands on runs, of all rows that there are."""
    document = tried(folder, program, shown, "--rounds", 6)
    assert document["measured"] and document["rounds"] == 6 and not document["program"]["today_static"]
    assert not [row for row in document["allocators"] if "error" in row], document["allocators"]


def check_replays(folder, program, shown):
    """A verdict that stands on replays, against that of the allocator inside."""
    document = tried(folder, program, shown, "--rounds", 1, "--time-limit", 1)
    assert document["program"]["today_static"] and "not compared" not in document["verdict"]["reason"]
    row = next(row for row in document["allocators"] if row["name"] == shown)
    assert row["saving_percent"]["value"] == 0  # it is what the others are compared with


@pytest.mark.parametrize("name", CRATES)
def test_a_rust_program_has_a_verdict_on_the_allocator_that_it_is_linked_with(tmp_path, crate, name):
    check_runs(tmp_path, crate(name)["dynamic"], name)


@pytest.mark.parametrize("name", CRATES)
def test_a_static_rust_program_has_a_verdict_on_the_allocator_inside(tmp_path, crate, name):
    check_replays(tmp_path, crate(name)["static"], name)


@pytest.mark.parametrize("flags, shown", [
    (["-DMIMALLOC", "-lmimalloc"], "mimalloc"),
    (["-l:libjemalloc_pic.a", "-lm", "-ldl", "-pthread"], "jemalloc"),
    (["-Wl,--no-as-needed", "-ljemalloc"], "libjemalloc.so.2"),
])  # fmt: skip
def test_a_cxx_program_has_a_verdict_on_the_allocator_that_it_is_linked_with(tmp_path, flags, shown):
    check_runs(tmp_path, compiled(tmp_path, flags), shown)


def test_a_static_cxx_program_has_a_verdict_on_jemalloc(tmp_path):
    check_replays(tmp_path, compiled(tmp_path, ["-static", "-ljemalloc", "-lpthread"]), "jemalloc")


def test_a_static_cxx_program_has_a_verdict_on_mimalloc(tmp_path, crate):
    library = crate("mimalloc")["library"]  # Debian has no static one
    check_replays(tmp_path, compiled(tmp_path, ["-static", "-DMIMALLOC", library, "-lpthread"]), "mimalloc")


def compiled(folder, flags):
    """The C++ program, with an allocator."""
    if not Path("/usr/include/mimalloc.h").exists() or not Path("/usr/include/jemalloc").exists():
        pytest.skip("no libmimalloc-dev and libjemalloc-dev")
    (folder / "p.cc").write_text(CXX)
    subprocess.run(["c++", "-O2", "p.cc", "-o", "p", *flags], cwd=folder, check=True)
    return folder / "p"
