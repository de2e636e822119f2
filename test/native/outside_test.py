# SPDX-License-Identifier: MIT
"""The library seen from outside: the system refuses, Valgrind and AddressSanitizer watch, the kernel's limits are passed."""
import itertools
import shutil
import subprocess

import pytest
from record_kit import BUILD, ROOT

PROGRAMS = ROOT / "test" / "native" / "programs"
LIBRARY = BUILD / "libquire.a"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")

    def compile_one(name, *flags):
        path = folder / (name + "".join(flags).replace("/", "").replace("=", ""))
        if not path.exists():
            subprocess.run(["cc", "-O1", "-g", *flags, "-I", str(ROOT / "include"), str(PROGRAMS / f"{name}.c"), str(LIBRARY),
                            "-lpthread", "-o", str(path)], check=True)
        return path

    return compile_one


def run(*command, timeout=60):
    # Sanitizers want the addresses where they expect them, whatever the kernel's randomisation.
    words = ["setarch", "-R", *command] if shutil.which("setarch") else command
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize("source", ["default", "anon"])
def test_memory_is_sound_when_nothing_fails(build, source):
    assert run(build("arena_churn"), source).stdout == "sound\n"


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("call", ["mmap", "munmap", "mprotect", "madvise"])
def test_every_refusal_of_the_kernel_ends_in_enomem_and_nothing_is_lost(build, tmp_path, call):
    program = build("arena_churn")
    refused = 0
    for source, nth, onwards in itertools.product(["default", "anon"], [*range(1, 20, 3), 30, 60, 100], ["", "+"]):
        log = tmp_path / "strace.log"
        inject = f"inject={call}:error=ENOMEM:when={nth}{onwards}"
        done = run("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", inject, program, source)
        if not done.stdout and ("shared" in done.stderr or (call == "mmap" and nth == 1)):
            continue  # the loader was refused, before the program began
        assert (done.returncode, done.stdout) == (0, "sound\n"), f"{source} {call} {nth}{onwards}: {done.stderr}"
        refused += "(INJECTED)" in log.read_text()
    assert refused > 0, f"{call} was never refused"


@pytest.mark.parametrize("source", ["default", "anon"])
def test_past_the_kernels_limit_of_mappings_nothing_is_fatal_and_memory_comes_back(build, source):
    done = run(build("vma_limit"), source)
    assert done.returncode == 0, done.stderr
    resident_bytes = int(done.stdout.split()[2])
    assert resident_bytes < 20 << 20, done.stdout


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
