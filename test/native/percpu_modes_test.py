# SPDX-License-Identifier: MIT
"""Per-CPU objects give the same results in every mode: with the kernel's restartable sequences, without them for each reason there is, and on one CPU."""
import os
import shutil
import subprocess

import pytest
from outside_kit import build, run  # noqa: F401 (build is a fixture)

WITHOUT_RSEQ = ["env", "GLIBC_TUNABLES=glibc.pthread.rseq=0"]
SKIPPED = 77
THREADS, COUNTERS, STEPS, NODES, BUCKETS = 4, 64, 20000, 300, 8


def results():
    """What the mixture comes to, by plain arithmetic."""
    sums = [0] * COUNTERS
    for thread in range(THREADS):
        for step in range(STEPS):
            sums[(step * 7 + thread) % COUNTERS] += step - 3 * thread
    least, most = min(sums), max(sums)
    mixed = 0
    for value in sums:
        mixed = (mixed * 31 + value) % 2**64
    buckets = [(value - least) * BUCKETS // (most - least + 1) for value in sums]
    return (
        f"sums {least} to {most}, hash {mixed:016x}\n"
        f"histogram {' '.join(str(buckets.count(k)) for k in range(BUCKETS))}\n"
        f"exchanged {THREADS * STEPS // 4 * 5}\n"
        f"nodes {NODES} of {NODES}, values {sum(range(NODES))}\n"
        f"live {COUNTERS + 4}, check sound\n"
        "live 4 after the frees\n"
    )


RESULTS = results()


def expect_results(sequences, *command):
    done = run(*command)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout) == (0, RESULTS), done.stderr
    if sequences:
        assert f"sequences: {sequences}\n" in done.stderr


def libc_registers():
    """True when this libc registers an area for its threads here: glibc 2.35 or later, and a kernel that takes it."""
    if not shutil.which("getconf"):
        return False
    version = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, text=True, check=False).stdout.split()
    return len(version) == 2 and tuple(map(int, version[1].split(".")[:2])) >= (2, 35) and "rseq=0" not in os.environ.get("GLIBC_TUNABLES", "")


@pytest.mark.parametrize("flag", ["-DQUIRE_PERCPU_INLINE=1", "-DQUIRE_PERCPU_INLINE=0"])
def test_with_sequences_where_libc_has_registered_an_area(build, flag):
    expect_results("used" if libc_registers() else None, build("percpu_modes", flag))


@pytest.mark.parametrize("flag", ["-DQUIRE_PERCPU_INLINE=1", "-DQUIRE_PERCPU_INLINE=0"])
def test_where_the_tunable_keeps_libc_from_registering(build, flag):
    expect_results("never", *WITHOUT_RSEQ, build("percpu_modes", flag))


def test_where_the_kernel_says_that_it_has_no_such_call(build):
    program = build("percpu_modes")
    expect_results("never", program, "--refused", program)


def test_an_area_that_the_program_has_registered_itself_is_left_alone(build):
    expect_results("never", *WITHOUT_RSEQ, build("percpu_modes"), "--own-area")


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
