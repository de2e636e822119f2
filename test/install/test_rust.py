# SPDX-License-Identifier: MIT
"""test_rust - bindings/rust: its tests pass with the library built from the checkout, from a published crate's own copy, and as it is installed.

Cargo fetches what the crates need and compiles the library, so all but one of these need QUIRE_TEST_LONG=1, and a cargo that ./quire does not install.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from test_install import HERE, libdir, run

ROOT = HERE.parent.parent
CRATES = ROOT / "bindings/rust"
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
long = pytest.mark.skipif(not LONG or not shutil.which("cargo"), reason="QUIRE_TEST_LONG=1 and cargo: it fetches crates and compiles the library")


@pytest.fixture(scope="module")
def cargo(tmp_path_factory):
    """Runs cargo, with one folder for what it makes."""
    target = tmp_path_factory.mktemp("target")

    def call(*words, folder=CRATES, **environment):
        return run("cargo", *words, cwd=folder, env={**os.environ, "CARGO_TARGET_DIR": str(target), **environment})

    return call


def passed(said):
    """How many tests passed; a document's too."""
    return sum(int(n) for n in re.findall(r"test result: ok. (\d+) passed", said))


def test_the_crates_have_the_librarys_version():
    library = re.search(r"VERSION ([\d.]+) DESCRIPTION", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert f'\nversion = "{library}"\n' in (CRATES / "Cargo.toml").read_text()
    assert f'path = "../quire-sys", version = "{library}"' in (CRATES / "quire/Cargo.toml").read_text()


def oldest_rust():
    return re.search(r'^rust-version = "(.*)"$', (CRATES / "Cargo.toml").read_text(), re.MULTILINE)[1]


def test_each_crate_and_the_document_name_the_oldest_rust():
    assert all("\nrust-version.workspace = true\n" in path.read_text() for path in CRATES.glob("*/Cargo.toml"))
    assert f"Rust {oldest_rust()} or later" in (ROOT / "doc/rust.md").read_text(encoding="utf-8")


@long
@pytest.mark.skipif(not shutil.which("rustup"), reason="rustup has Rust of other versions")
def test_the_oldest_rust_serves(cargo, tmp_path):
    """Without the lock, whose form it does not know."""
    found = [name for name in run("rustup", "toolchain", "list").split() if name.startswith(oldest_rust())]
    if not found:
        pytest.skip(f"rustup toolchain install {oldest_rust()}")
    for part in ("bindings", "scripts", "src", "include"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
    for name in ("CMakeLists.txt", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    assert passed(cargo(f"+{found[0]}", "test", "--tests", folder=tmp_path / "bindings/rust")) >= 25


@long
def test_everything_passes_with_the_library_built_from_the_checkout(cargo):
    said = cargo("test", "--locked")
    refused = len(re.findall(r"compile fail \.\.\. ok", said))
    assert passed(said) >= 45 and refused >= 10, said


@long
def test_the_installed_library_serves_by_pkg_config(cargo, prefix):
    where = {"PKG_CONFIG_PATH": str(next(prefix.rglob("quire.pc")).parent), "LD_LIBRARY_PATH": str(libdir(prefix))}
    said = cargo("test", "--locked", "--tests", "-F", "quire-sys/pkg-config", "-F", "quire/pkg-config", **where)
    assert passed(said) >= 25, said


@long
def test_a_published_crate_has_all_it_needs(cargo, tmp_path):
    """Without the checkout around it, and without python3."""
    for name in ("quire-sys", "quire"):
        shutil.copytree(CRATES / name, tmp_path / name)
    run(sys.executable, ROOT / "scripts/amalgamate.py", tmp_path / "quire-sys/vendor")
    text = (CRATES / "Cargo.toml").read_text()
    (tmp_path / "Cargo.toml").write_text(re.sub(r'(?m)^members = .*$', 'members = ["quire-sys", "quire"]', text))
    listed = cargo("package", "--list", "--allow-dirty", "-p", "quire-sys", folder=tmp_path).split()
    assert {"build.rs", "src/lib.rs", "vendor/quire.c", "vendor/quire.h"} <= set(listed)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cargo", "rustc", "rustdoc", "cc", "gcc", "ar", "ld", "as"):
        (tools / name).symlink_to(shutil.which(name))
    assert passed(cargo("test", "-p", "quire-sys", folder=tmp_path, PATH=str(tools))) == 3


@long
def test_clippy_has_nothing_to_say(cargo):
    if subprocess.run(["cargo", "clippy", "--version"], capture_output=True).returncode:
        pytest.skip("this cargo has no clippy")
    cargo("clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings")


@long
def test_the_documents_are_whole(cargo):
    cargo("doc", "--locked", "--no-deps", RUSTDOCFLAGS="-D warnings")


@long
def test_miri_finds_nothing(cargo):
    """Lifetimes and pointers of the safe crate, over a stand-in for the library."""
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        pytest.skip("no nightly with Miri")
    assert passed(cargo("+nightly", "miri", "test", "-p", "quire", "--tests", MIRIFLAGS="-Zmiri-strict-provenance")) >= 14


@long
def test_the_bench_prints_its_tables(cargo):
    said = cargo("run", "--locked", "--release", "-p", "quire-bench", "--", "1")
    assert len(re.findall(r"^\| quire \|", said, re.MULTILINE)) == 5
