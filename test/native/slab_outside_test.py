# SPDX-License-Identifier: MIT
"""The slab seen from outside: the system refuses, Valgrind, AddressSanitizer and LeakSanitizer watch."""
import shutil

import pytest
from outside_kit import build, check_refusals, run  # noqa: F401 (build is a fixture)

needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


def valgrind(*command):
    return run("valgrind", "-q", "--fair-sched=yes", "--error-exitcode=9", *command)


@pytest.mark.parametrize("source", ["default", "anon", "malloc"])
def test_memory_is_sound_when_nothing_fails(build, source):
    done = run(build("slab_churn"), source)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


@pytest.mark.by_turns
@needs_strace
@pytest.mark.parametrize("call", ["mmap", "munmap", "mprotect", "madvise"])
def test_every_refusal_of_the_kernel_ends_in_enomem_and_nothing_is_lost(build, tmp_path, call):
    check_refusals(build("slab_churn"), call, tmp_path / "strace.log", [*range(1, 20, 3), 30, 60])


@needs_strace
def test_a_kernel_without_membarrier_changes_nothing(build):
    done = run("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=membarrier", "-e", "inject=membarrier:error=ENOSYS", build("slab_churn"), "default")
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


@pytest.mark.parametrize("source", ["default", "anon", "malloc"])
def test_a_double_free_stops_the_program_with_one_line(build, source):
    done = run(build("slab_churn"), source, "--free-twice")
    assert done.returncode != 0
    assert done.stderr.startswith('quire: slab "churn": E1 the element is free already: address 0x')
    assert done.stderr.count("\n") == 1


@pytest.mark.by_turns
@needs_valgrind
def test_valgrind_sees_nothing_wrong_where_nothing_is(build):
    done = valgrind(build("slab_churn"), "default")
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


@pytest.mark.by_turns
@needs_valgrind
@pytest.mark.parametrize("misuse", ["--touch-after-free", "--touch-behind"])
def test_valgrind_sees_writes_to_freed_elements_and_behind_live_ones(build, misuse):
    seen = valgrind(build("slab_churn"), "default", misuse)
    assert seen.returncode == 9, seen.stderr
    assert "Invalid write of size 1" in seen.stderr


@pytest.mark.parametrize("source", ["default", "anon", "malloc"])
def test_a_program_built_with_asan_runs_with_the_library_as_installed(build, source):
    done = run(build("slab_churn", "-fsanitize=address"), source)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


@pytest.mark.parametrize("source", ["default", "anon"])
@pytest.mark.parametrize("misuse", ["--touch-after-free", "--touch-behind"])
def test_asan_sees_writes_to_freed_elements_and_behind_live_ones_in_the_library_as_installed(build, source, misuse):
    seen = run(build("slab_churn", "-fsanitize=address"), source, misuse)
    assert seen.returncode != 0
    assert "use-after-poison" in seen.stderr, seen.stderr


def test_tsan_sees_no_race_in_the_library_as_installed(build):
    done = run(build("slab_churn", "-fsanitize=thread"), "default")
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr
    assert "WARNING" not in done.stderr, done.stderr


def test_blocks_that_only_live_elements_point_to_are_no_leaks(build):
    done = run(build("slab_pointers", "-fsanitize=address"))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_blocks_that_only_freed_elements_point_to_are_leaks(build):
    done = run(build("slab_pointers", "-fsanitize=address"), "--lose")
    assert "LeakSanitizer" in done.stderr, done.stderr
    assert "byte(s) leaked in 4000 allocation(s)" in done.stderr, done.stderr


@pytest.mark.by_turns
@needs_valgrind
def test_valgrind_finds_the_pointers_in_live_elements(build):
    done = valgrind("--leak-check=full", "--errors-for-leak-kinds=definite", build("slab_pointers"))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
