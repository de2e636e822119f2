# SPDX-License-Identifier: MIT
"""A program written for netdata's allocators compiles against the header, without a warning, and runs with either library."""
import os
import subprocess

import pytest
from record_kit import BUILD, ROOT

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
PROGRAM = ROOT / "test" / "native" / "programs" / "netdata_arrays.c"
LINKED = {"shared": ["-L", str(BUILD), f"-Wl,-rpath,{BUILD}", "-lquire"], "static": [str(BUILD / "libquire.a")]}


@pytest.mark.parametrize("linked", LINKED)
@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]], ids=["plain", "asan"])
def test_a_program_written_for_the_original_compiles_and_every_call_does_what_it_relies_on(tmp_path, linked, flags):
    program = tmp_path / "netdata_arrays"
    subprocess.run(["cc", "-std=c11", *STRICT, *flags, "-I", str(ROOT / "include"), str(PROGRAM), *LINKED[linked], "-pthread", "-o", str(program)],
                   check=True)
    cache = tmp_path / "cache"
    cache.mkdir()
    done = subprocess.run([str(program), str(cache)], capture_output=True, text=True, timeout=300, check=False, env={**os.environ})
    assert (done.returncode, done.stdout, done.stderr) == (0, "sound\n", "")
    assert list((cache / "array_alloc.mmap").iterdir()) == []
