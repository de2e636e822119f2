# SPDX-License-Identifier: MIT
"""test_vcpkg - the port of packaging/vcpkg is installed, and programs find what it installed, by CMake in both kinds of build and by pkg-config.

By vcpkg itself where it is installed (VCPKG_ROOT); else its functions are stood in for by vcpkg.cmake.  Two builds each: QUIRE_TEST_LONG=1.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_builds import PROJECT, cmake, works
from test_install import HERE, libraries_of, run

ROOT = HERE.parent.parent
TRIPLETS = {"static": "x64-linux", "dynamic": "x64-linux-dynamic"}
pytestmark = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1: two builds of the library")


def installed(folder, linkage):
    """What the port, filled in, has installed."""
    recipes, package = folder / "recipes", folder / "installed"
    run(sys.executable, ROOT / "scripts/packages.py", "recipes", recipes)
    port = recipes / "vcpkg"
    tool = shutil.which("vcpkg", path=os.environ.get("VCPKG_ROOT", "/nonexistent"))
    if tool:
        ports = folder / "ports"
        shutil.copytree(port, ports / "quire")
        environment = {**os.environ, "QUIRE_SOURCE": str(ROOT), "VCPKG_KEEP_ENV_VARS": "QUIRE_SOURCE"}
        words = ["--overlay-ports", ports, "--triplet", TRIPLETS[linkage], "--x-install-root", package]
        run(tool, "install", "quire", *words, env=environment)
        return package / TRIPLETS[linkage]
    command = ["cmake", "-D", "PORT=quire", "-D", f"PORTFILE={port}/portfile.cmake", "-D", f"TREES={folder}/trees"]
    command += ["-D", f"CURRENT_PACKAGES_DIR={package}", "-D", f"LINKAGE={linkage}", "-P", HERE / "vcpkg.cmake"]
    run(*command, env={**os.environ, "QUIRE_SOURCE": str(ROOT)})
    moved = folder / "moved"
    package.rename(moved)
    return moved


@pytest.mark.parametrize("linkage", TRIPLETS)
def test_programs_find_the_installed_port_by_cmake_and_by_pkg_config(tmp_path, linkage):
    prefix = installed(tmp_path, linkage)
    text = PROJECT.replace("@TAKE@", "find_package(quire REQUIRED)").replace("@HERE@", str(HERE))
    (tmp_path / "CMakeLists.txt").write_text(text)
    for kind, place in (("Release", "lib"), ("Debug", "debug/lib")):
        build = tmp_path / kind
        cmake(tmp_path, build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_BUILD_TYPE={kind}")
        works(build / "outside")
        assert f"{prefix}/{place}/" in (build / "build.ninja").read_text()
        assert ("libquire.so" in str(libraries_of(build / "outside"))) == (linkage == "dynamic")
        path = {**os.environ, "PKG_CONFIG_PATH": str(prefix / place / "pkgconfig")}
        words = run("pkg-config", "--cflags", "--libs", *(["--static"] if linkage == "static" else []), "quire", env=path).split()
        run("gcc", HERE / "outside.c", "-o", tmp_path / "outside", *words)
        found = {**os.environ, "LD_LIBRARY_PATH": str(prefix / place)}
        assert run(tmp_path / "outside", env=found) == "arena works\n"


def test_a_port_without_a_source_says_what_is_missing(tmp_path):
    port = ROOT / "packaging/vcpkg/portfile.cmake"
    without = {key: value for key, value in os.environ.items() if key != "QUIRE_SOURCE"}
    command = ["cmake", "-D", "PORT=quire", "-D", f"PORTFILE={port}", "-P", HERE / "vcpkg.cmake"]
    done = subprocess.run(command, capture_output=True, text=True, env=without, check=False)
    assert done.returncode != 0 and "QUIRE_SOURCE" in done.stderr and list(Path(tmp_path).iterdir()) == []
