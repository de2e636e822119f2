# SPDX-License-Identifier: MIT
"""The per-CPU allocator on the other processor: the library is compiled for it, its sequences are looked at, and what goes without them is run.

The sequences of this machine's own processor are looked at in the same way; they are run by every other test.
"""
import platform
import shutil
import subprocess

import arm64_kit
import pytest
from outside_kit import PROGRAMS, build  # noqa: F401 (build is a fixture)
from percpu_kit import AARCH64, RESULTS, X86_64, check_sequences
from record_kit import ROOT

CC, OBJDUMP, QEMU = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump", "qemu-aarch64"
SEQUENCES_LEAST = 5  # add in the program, and the library's own four


def needs(*commands):
    missing = [command for command in commands if not shutil.which(command)]
    hint = "apt-get install g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed; as root: {hint}")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """percpu_modes for aarch64, static, with as much of the library as it needs."""
    modes = tmp_path_factory.mktemp("aarch64") / "modes"
    parts = arm64_kit.objects("os", "base", "pages", "owner", "percpu")
    subprocess.run([CC, "-O1", "-static", "-I", ROOT / "include", PROGRAMS / "percpu_modes.c", *parts, "-lpthread", "-o", modes], check=True)
    return modes


@pytest.mark.by_turns
@needs(CC, OBJDUMP)
def test_for_aarch64_each_sequence_is_as_the_kernel_wants_it(program):
    assert check_sequences(OBJDUMP, program, AARCH64) >= SEQUENCES_LEAST


@pytest.mark.by_turns
@needs(CC, QEMU)
def test_on_aarch64_without_sequences_the_results_are_the_same(program):
    done = subprocess.run([QEMU, program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, RESULTS), done.stderr
    assert "sequences: never\n" in done.stderr


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64") or not shutil.which("objdump"), reason="no sequences for this processor, or no objdump")
def test_for_this_machine_each_sequence_is_as_the_kernel_wants_it(build):
    own = X86_64 if platform.machine() == "x86_64" else AARCH64
    assert check_sequences("objdump", build("percpu_modes", "-no-pie"), own) >= SEQUENCES_LEAST
