# SPDX-License-Identifier: MIT
"""Another libc, by zig's compiler (PyPI's ziglang, installed for this test): musl with the tests, and glibc as it was in 2.28."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_install import run

ROOT = Path(__file__).resolve().parents[2]
GTEST = Path("/usr/src/googletest")
OLD_GLIBC = (2, 28)
pytestmark = pytest.mark.skipif(not os.environ.get("QUIRE_TEST_LONG"), reason="ten minutes of building; QUIRE_TEST_LONG=1")


@pytest.fixture(scope="module")
def zig(tmp_path_factory):
    """A Python that has ziglang. QUIRE_TEST_ZIG: one that has it already."""
    if os.environ.get("QUIRE_TEST_ZIG"):
        return os.environ["QUIRE_TEST_ZIG"]
    folder = tmp_path_factory.mktemp("zig")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if subprocess.run([folder / "bin/python3", "-m", "pip", "install", "-q", "ziglang"], check=False).returncode != 0:
        pytest.skip("pip install ziglang failed")
    return folder / "bin/python3"


def configure(build, zig, target, *options):
    environment = {key: value for key, value in os.environ.items() if key != "QUIRE_TEST_LONG"}
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DQUIRE_BUILD_TOOLS=OFF", "-DQUIRE_BUILD_BENCH=OFF", f"-DQUIRE_ZIG={zig}", f"-DQUIRE_ZIG_TARGET={target}"]
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "--toolchain", ROOT / "cmake" / "zig.cmake", *flags, *options, env=environment)


@pytest.fixture(scope="module")
def musl(zig, tmp_path_factory):
    build = tmp_path_factory.mktemp("musl")
    configure(build, zig, "x86_64-linux-musl", "-DQUIRE_CHECK=1", "-DQUIRE_BUILD_TESTS=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O0", f"-DQUIRE_GTEST_SOURCE={GTEST}")
    return build


@pytest.mark.skipif(not GTEST.is_dir(), reason="no source of GoogleTest; apt-get install libgtest-dev")
@pytest.mark.parametrize("kind", ["death", "fault", "unit", "model"])
def test_with_musl_the_tests_of_a_kind_pass(musl, kind):
    """Each in a process of its own (apart.cc); whoever counts mappings, which this libc's malloc makes in a forked process too, in one that was not forked."""
    run("ninja", "-C", musl, f"test_{kind}")
    program = musl / "test" / f"test_{kind}"
    options = {"env": {key: value for key, value in os.environ.items() if key != "QUIRE_TEST_LONG"}, "capture_output": True, "text": True, "errors": "replace"}
    done = subprocess.run([program, "--apart=0/1", "--gtest_brief=1"], timeout=3600, check=False, **options)
    passed, failed = map(int, re.search(r"^apart: (\d+) passed, (\d+) failed", done.stdout, re.MULTILINE).groups())
    names = re.findall(r"^FAILED ([\w./]+): ", done.stdout, re.MULTILINE)
    assert passed > 10 and len(names) == failed, done.stdout[-2000:] + done.stderr[-2000:]
    wrong = []
    for name in names:
        alone = subprocess.run([program, f"--gtest_filter={name}"], timeout=600, check=False, **options)
        wrong += [alone.stdout[-1500:]] if alone.returncode else []
    assert not wrong, "\n".join(wrong)


def test_the_library_and_the_drop_in_need_no_newer_glibc_than_2_28(zig, tmp_path):
    configure(tmp_path, zig, f"x86_64-linux-gnu.{'.'.join(map(str, OLD_GLIBC))}")
    run("ninja", "-C", tmp_path)
    for name in ("libquire.so", "libquire-malloc.so"):
        wanted = re.findall(r"\(GLIBC_([\d.]+)\)", run("objdump", "-T", tmp_path / name))
        assert wanted and max(tuple(map(int, version.split("."))) for version in wanted) <= OLD_GLIBC, name
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "libquire-malloc.so"), "QUIRE_CONF": "stats:exit"}
    done = subprocess.run(["/usr/bin/perl", "-e", "$x{$_} = $_ for 1..10000"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "quire: heap: " in done.stderr
