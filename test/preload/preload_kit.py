# SPDX-License-Identifier: MIT
"""What the tests of libquire-malloc.so share: building a small program, running anything under the library, what the heap's own words look like."""

import os
import re
import resource
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "release"
LIBRARY = Path(os.environ.get("QUIRE_MALLOC", BUILD / "libquire-malloc.so"))
PYTHON = "/usr/bin/python3"  # not a shell script that looks for one
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # some programs here stop themselves
assert LIBRARY.exists(), f"{LIBRARY} is not built, and the loader would pass over it in silence; run ./quire test preload"
PROGRAMS = ROOT / "test" / "preload" / "programs"
WARNINGS = ["-Wall", "-Wextra", "-Wno-deprecated-declarations", "-Wno-use-after-free", "-Wno-unused-parameter"]
# The compiler must not know what malloc is: it would leave calls out.
FLAGS = ["-O1", "-g", "-fno-builtin", "-D_GNU_SOURCE", *WARNINGS, "-I", str(ROOT / "include")]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")

    def compile_one(name, *flags):
        path = folder / (name.replace(".", "-") + "".join(flags).replace("/", ""))
        if not path.exists():
            compiler = ["g++", "-std=c++17", "-fsized-deallocation"] if name.endswith(".cc") else ["gcc", "-std=gnu11"]
            subprocess.run([*compiler, *FLAGS, *flags, str(PROGRAMS / name), "-o", str(path), "-lpthread", "-ldl"], check=True)
        return path

    return compile_one


def environment(conf=None, **more):
    kept = {key: value for key, value in os.environ.items() if key not in ("QUIRE_CONF", "LD_PRELOAD", "MALLOC_CONF")}
    return {**kept, "LD_PRELOAD": str(LIBRARY), **({"QUIRE_CONF": conf} if conf is not None else {}), **more}


def run(*command, conf=None, timeout=300, env=None, **options):
    """The command under the library."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, check=False, env={**environment(conf), **(env or {})}, **options)


def assert_sound(done):
    assert (done.returncode, done.stdout, complaints(done.stderr)) == (0, "sound\n", []), done.stdout + done.stderr


def complaints(stderr):
    """Lines of the heap's own about errors."""
    return [line for line in stderr.splitlines() if re.match(r"quire: (heap|malloc|source|QUIRE_CONF)\b.*: ", line) and "live blocks" not in line and "explained" not in line]
