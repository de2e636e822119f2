# SPDX-License-Identifier: MIT
"""Per-CPU objects give the same results in every mode: with the kernel's restartable sequences, without them for each reason there is, and on one CPU."""
import os
import shutil
import sys
from pathlib import Path

import pytest
from outside_kit import build, run  # noqa: F401 (build is a fixture)
from percpu_kit import RESULTS, SKIPPED, WITHOUT_RSEQ, libc_registers

OLD_KERNEL = Path(__file__).resolve().parents[2] / "scripts" / "old_kernel.py"


def expect_results(sequences, *command):
    done = run(*command)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout) == (0, RESULTS), done.stderr
    if sequences:
        assert f"sequences: {sequences}\n" in done.stderr


@pytest.mark.parametrize("flag", ["-DQUIRE_PERCPU_INLINE=1", "-DQUIRE_PERCPU_INLINE=0"])
def test_with_sequences_where_libc_has_registered_an_area(build, flag):
    expect_results("used" if libc_registers() else None, build("percpu_modes", flag))


@pytest.mark.parametrize("flag", ["-DQUIRE_PERCPU_INLINE=1", "-DQUIRE_PERCPU_INLINE=0"])
def test_where_the_tunable_keeps_libc_from_registering(build, flag):
    expect_results("never", *WITHOUT_RSEQ, build("percpu_modes", flag))


def test_where_the_kernel_says_that_it_has_no_such_call(build):
    expect_results("never", sys.executable, OLD_KERNEL, build("percpu_modes"))


def test_an_area_that_the_program_has_registered_itself_is_left_alone(build):
    expect_results("never", *WITHOUT_RSEQ, build("percpu_modes"), "--own-area")


@pytest.mark.by_turns
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_under_valgrind(build):
    expect_results("never", "valgrind", "-q", "--fair-sched=yes", "--error-exitcode=9", build("percpu_modes"))


@pytest.mark.skipif(not shutil.which("taskset"), reason="taskset is not installed")
@pytest.mark.parametrize("which", [0, -1])
def test_on_one_cpu_the_first_or_the_last(build, which):
    cpu = sorted(os.sched_getaffinity(0))[which]
    expect_results(None, "taskset", "-c", cpu, build("percpu_modes"))


@pytest.mark.skipif(not shutil.which("taskset"), reason="taskset is not installed")
def test_on_one_cpu_without_sequences(build):
    expect_results("never", "taskset", "-c", max(os.sched_getaffinity(0)), *WITHOUT_RSEQ, build("percpu_modes"))


def test_a_program_built_with_tsan_or_asan_over_the_library_as_installed(build):
    for sanitizer in ("thread", "address"):
        expect_results(None, build("percpu_modes", f"-fsanitize={sanitizer}"))
