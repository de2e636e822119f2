# SPDX-License-Identifier: MIT
"""The library seen from outside: the system refuses, Valgrind and AddressSanitizer watch, the kernel's limits are passed."""
import shutil

import pytest
from outside_kit import build, check_refusals, run  # noqa: F401 (build is a fixture)


@pytest.mark.parametrize("source", ["default", "anon"])
def test_memory_is_sound_when_nothing_fails(build, source):
    assert run(build("arena_churn"), source).stdout == "sound\n"


@pytest.mark.by_turns
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("call", ["mmap", "munmap", "mprotect", "madvise"])
def test_every_refusal_of_the_kernel_ends_in_enomem_and_nothing_is_lost(build, tmp_path, call):
    check_refusals(build("arena_churn"), call, tmp_path / "strace.log", [*range(1, 20, 3), 30, 60, 100])


@pytest.mark.by_turns
@pytest.mark.parametrize("source", ["default", "anon"])
def test_past_the_kernels_limit_of_mappings_nothing_is_fatal_and_memory_comes_back(build, source):
    done = run(build("vma_limit"), source)
    assert done.returncode == 0, done.stderr
    resident_bytes = int(done.stdout.split()[2])
    assert resident_bytes < 20 << 20, done.stdout


@pytest.mark.by_turns
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_valgrind_sees_a_block_used_after_reset_and_nothing_wrong_otherwise(build):
    program = build("arena_churn")
    assert run("valgrind", "-q", "--error-exitcode=9", program, "default").returncode == 0
    seen = run("valgrind", "-q", "--error-exitcode=9", program, "default", "--touch-after-reset")
    assert seen.returncode == 9
    assert "Invalid write of size 1" in seen.stderr


def test_a_program_built_with_asan_sees_a_block_used_after_reset_in_the_library_as_installed(build):
    program = build("arena_churn", "-fsanitize=address")
    assert run(program, "default").stdout == "sound\n"
    seen = run(program, "default", "--touch-after-reset")
    assert seen.returncode != 0
    assert "use-after-poison" in seen.stderr


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_programs_under_sanitizers_see_no_race_and_no_leak_in_the_library_as_installed(build, sanitizer):
    done = run(build("arena_threads", f"-fsanitize={sanitizer}"))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "WARNING" not in done.stderr and "ERROR" not in done.stderr


@pytest.mark.by_turns
def test_a_program_without_madvise_gives_memory_back_all_the_same(build):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    done = run("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=madvise", "-e", "inject=madvise:error=EPERM", build("vma_limit"), "default", "20000")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[2]) < 20 << 20, done.stdout


def test_a_program_with_much_thread_local_storage_gets_its_memory_back_without_calling_again(build):
    done = run(build("large_tls"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2048, done.stdout
