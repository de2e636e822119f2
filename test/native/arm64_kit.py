# SPDX-License-Identifier: MIT
"""arm64_kit.py - one build of the library for the other processor by Debian's cross compiler, which the tests of a run share: warnings are errors.

Not here: tests; the one in one file (arm64_test.py).
"""
import atexit
import functools
import pathlib
import shutil
import subprocess
import tempfile

from record_kit import ROOT

PARTS = ["-DQUIRE_BUILD_TESTS=OFF", "-DQUIRE_BUILD_TOOLS=OFF", "-DQUIRE_BUILD_BENCH=OFF", "-DQUIRE_WERROR=ON", "-DQUIRE_TOGETHER=ON"]
FLAGS = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O1", "-DQUIRE_DEBUG=-g1"]  # -O2 takes half as long again to compile


@functools.cache
def built():
    """The folder of the build, with libquire-malloc.so in it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-arm64-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _must("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "--toolchain", ROOT / "cmake" / "aarch64.cmake", *PARTS, *FLAGS)
    _must("ninja", "-C", folder, "quire_malloc")
    return folder


def objects(*layers):
    """The library's objects: those of some folders of src, or all."""
    place = built() / "src" / "CMakeFiles" / "quire_objects.dir"
    return [path for path in sorted(place.rglob("*.o")) if not layers or path.parent.name in layers or path.name.removesuffix("_c.c.o").removeprefix("unity_") in layers]


def _must(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
