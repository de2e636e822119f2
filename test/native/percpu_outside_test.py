# SPDX-License-Identifier: MIT
"""The per-CPU allocator seen from outside: the system refuses, restartable sequences are taken away, Valgrind, AddressSanitizer and
ThreadSanitizer watch."""
import os
import shutil
import subprocess

import pytest
from outside_kit import build, check_refusals, run  # noqa: F401 (build is a fixture)

SOURCES = ["default", "anon", "malloc"]
needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


def valgrind(*command):
    return run("valgrind", "-q", "--fair-sched=yes", "--error-exitcode=9", *command)


def sound(done):
    return (done.returncode, done.stdout) == (0, "sound\n")


@pytest.mark.parametrize("source", SOURCES)
def test_memory_is_sound_when_nothing_fails(build, source):
    done = run(build("percpu_churn"), source)
    assert sound(done), done.stderr


@pytest.mark.by_turns
@needs_strace
@pytest.mark.parametrize("call", ["mmap", "munmap", "mprotect", "madvise"])
def test_every_refusal_of_the_kernel_ends_in_enomem_and_nothing_is_lost(build, tmp_path, call):
    check_refusals(build("percpu_churn"), call, tmp_path / "strace.log", [*range(1, 20, 3), 30, 60])


@needs_strace
@pytest.mark.parametrize("call", ["membarrier", "rseq"])
def test_a_kernel_without_membarrier_or_rseq_changes_nothing(build, call):
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:error=ENOSYS"]
    for source in SOURCES:
        done = run("strace", "-f", "-qq", "-o", "/dev/null", *inject, build("percpu_churn"), source)
        assert sound(done), done.stderr


@pytest.mark.parametrize("source", SOURCES)
def test_a_libc_that_was_told_not_to_register_changes_nothing(build, source):
    surroundings = {**os.environ, "GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
    done = subprocess.run([str(build("percpu_churn")), source], env=surroundings, capture_output=True, text=True, timeout=300, check=False)
    assert sound(done), done.stderr


@pytest.mark.parametrize("source", SOURCES)
def test_callers_compiled_without_the_inlined_sequence_get_the_same(build, source):
    done = run(build("percpu_churn", "-DQUIRE_PERCPU_INLINE=0"), source)
    assert sound(done), done.stderr


def test_a_process_that_is_bound_to_one_cpu_gets_the_same(build):
    done = run("taskset", "-c", str(min(os.sched_getaffinity(0))), build("percpu_churn"), "default")
    assert sound(done), done.stderr


@needs_strace
@pytest.mark.parametrize("source", SOURCES)
def test_allocating_without_waiting_makes_no_system_call(build, tmp_path, source):
    log = tmp_path / "strace.log"
    done = run("strace", "-f", "-o", log, build("percpu_churn"), source, "--nowait")
    assert done.returncode == 0 and int(done.stdout) >= 1000, done.stderr
    lines = log.read_text().splitlines()
    thread = next(line.split()[0] for line in lines if "nowait begins" in line)  # other threads' calls are their own
    own = [line for line in lines if line.split()[0] == thread]
    begins = next(i for i, line in enumerate(own) if "nowait begins" in line)
    ends = next(i for i, line in enumerate(own) if "nowait ends" in line)
    between = [line for line in own[begins + 1 : ends] if "resumed>" not in line]  # the end of what began before
    assert between == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_double_free_stops_the_program_with_one_line(build, source):
    done = run(build("percpu_churn"), source, "--free-twice")
    assert done.returncode != 0
    assert done.stderr.startswith('quire: percpu "churn": E1 free of an object that is free already: address 0x')
    assert done.stderr.count("\n") == 1


def test_a_free_into_another_pool_stops_the_program_with_one_line(build):
    done = run(build("percpu_churn"), "default", "--free-other")
    assert done.returncode != 0
    assert done.stderr.startswith("quire: percpu: E4 an object of another pool: address 0x"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.by_turns
@needs_valgrind
@pytest.mark.parametrize("source", ["default", "malloc"])
def test_valgrind_sees_nothing_wrong_where_nothing_is(build, source):
    done = valgrind(build("percpu_churn"), source)
    assert sound(done), done.stderr


@pytest.mark.by_turns
@needs_valgrind
@pytest.mark.parametrize("misuse", ["--touch-after-free", "--touch-behind"])
def test_valgrind_sees_writes_to_freed_objects_and_behind_live_ones(build, misuse):
    seen = valgrind(build("percpu_churn"), "default", misuse)
    assert seen.returncode == 9, seen.stderr
    assert "Invalid write of size 1" in seen.stderr


@pytest.mark.parametrize("source", SOURCES)
def test_a_program_built_with_asan_runs_with_the_library_as_installed(build, source):
    done = run(build("percpu_churn", "-fsanitize=address"), source)
    assert sound(done), done.stderr


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("misuse", ["--touch-after-free", "--touch-behind"])
def test_asan_sees_writes_to_freed_objects_and_behind_live_ones_in_the_library_as_installed(build, source, misuse):
    seen = run(build("percpu_churn", "-fsanitize=address"), source, misuse)
    assert seen.returncode != 0
    assert "use-after-poison" in seen.stderr, seen.stderr


def test_tsan_sees_no_race_in_the_library_as_installed(build):
    done = run(build("percpu_churn", "-fsanitize=thread"), "default")
    assert sound(done), done.stderr
    assert "WARNING" not in done.stderr, done.stderr
