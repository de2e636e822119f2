# SPDX-License-Identifier: MIT
"""
test_static - static programs: refused where they cannot be recorded, each in one line with a fix; a verdict by replays where they can.

The recorder's side is test/native/static_test.py.  C++ and Rust with an allocator inside: QUIRE_TEST_LONG=1.
"""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import toolkit
from test_own import CXX, RUST
from toolkit import build, quire

import statics
import target as targets

LONG = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1 runs it")
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="static programs are entered on x86-64 alone")

PROGRAM = """
#include <stdlib.h>
int main(void) { for (int i = 0; i < 3000; i++) free(malloc(100 + i % 50)); return 0; }
"""


def test_a_static_program_that_something_else_starts_is_refused_with_its_name(tmp_path):
    program = build(tmp_path, PROGRAM, flags=["-static"])
    with pytest.raises(targets.Unfit) as refused:
        targets.resolve(["env", str(program)])
    assert "something else starts" in refused.value.reason and f"quire record -- {program}" in refused.value.fix


def test_where_tracing_is_forbidden_the_line_that_allows_it_is_said():
    target = targets.Target(["p"], "/p", "/p")
    error = statics.not_entered(target, -errno.EPERM)
    assert error.exit_code == 3 and "forbidden" in str(error) and "ptrace_scope=0" in error.fix and "SYS_PTRACE" in error.fix
    assert "laid out" in statics.not_entered(target, -errno.ENOTSUP).why


def test_a_static_programs_verdict_is_by_replays_against_the_malloc_that_it_has(tmp_path):
    document = tried(tmp_path, build(tmp_path, PROGRAM, flags=["-static"]), "--rounds", 1, "--time-limit", 1)
    assert document["program"]["today_allocator"] == "glibc's malloc" and document["program"]["today_static"] and not document["measured"]
    assert {"libc", "drop-in"} <= {row["name"] for row in document["allocators"]}
    assert "predicted, for no other malloc can run in a static program" in document["verdict"]["reason"]


def tried(folder, program, *more):
    """`try --json` of a program: its document, with a verdict."""
    done = quire(folder, "try", "--no-report", "--json", *more, "--", program)
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert document["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE") and "not compared" not in document["verdict"]["reason"]
    return document


def verdict(folder, program, shown):
    """A verdict that stands on replays, against that of the allocator inside."""
    document = tried(folder, program, "--time-limit", 30)
    assert document["program"]["today_allocator"] == shown and document["trace"]["allocations"] > 100000
    row = next(row for row in document["allocators"] if row["name"] == shown)
    assert row["saving_percent"]["value"] == 0  # it is what the others are compared with


def crate(folder, name, path):
    """A Rust program on an allocator, static; None: there is no cargo."""
    if not shutil.which("cargo"):
        pytest.skip("no cargo")
    (folder / "src").mkdir()
    (folder / "src" / "main.rs").write_text(RUST.replace("ALLOCATOR", path))
    (folder / "Cargo.toml").write_text(f'[package]\nname = "p"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{name} = "*"\n')
    env, where = {**os.environ, "RUSTFLAGS": "-C target-feature=+crt-static"}, "x86_64-unknown-linux-gnu"
    subprocess.run(["cargo", "build", "-q", "--release", "--target", where], cwd=folder, env=env, check=True)
    return folder / "target" / where / "release"


@LONG
@pytest.mark.parametrize("name, path, shown", [("tikv-jemallocator", "tikv_jemallocator::Jemalloc", "jemalloc"), ("mimalloc", "mimalloc::MiMalloc", "mimalloc")])
def test_a_static_rust_program_has_a_verdict_on_the_allocator_inside(tmp_path, name, path, shown):
    verdict(tmp_path, crate(tmp_path, name, path) / "p", shown)


@LONG
def test_a_static_cxx_program_has_a_verdict_on_jemalloc(tmp_path):
    if not Path("/usr/include/jemalloc").exists():
        pytest.skip("no libjemalloc-dev")
    (tmp_path / "p.cc").write_text(CXX)
    subprocess.run(["c++", "-O2", "-static", "p.cc", "-o", "p", "-ljemalloc", "-lpthread"], cwd=tmp_path, check=True)
    verdict(tmp_path, tmp_path / "p", "jemalloc")


@LONG
def test_a_static_cxx_program_has_a_verdict_on_mimalloc(tmp_path):
    if not Path("/usr/include/mimalloc.h").exists():
        pytest.skip("no libmimalloc-dev")
    (tmp_path / "rust").mkdir()  # Debian has no static library of it: the crate brings its source
    library = next(crate(tmp_path / "rust", "mimalloc", "mimalloc::MiMalloc").glob("build/*/out/libmimalloc.a"))
    (tmp_path / "p.cc").write_text(CXX)
    subprocess.run(["c++", "-O2", "-static", "-DMIMALLOC", "p.cc", "-o", "p", library, "-lpthread"], cwd=tmp_path, check=True)
    verdict(tmp_path, tmp_path / "p", "mimalloc")
