# SPDX-License-Identifier: MIT
"""The lines of doc/observing.md, run as they stand there, with this build's library, on a program that allocates.  Each is skipped where its tool is missing."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from preload_kit import LIBRARY, ROOT, environment

LINES = [line for piece in re.findall(r"```sh\n(.*?)```", (ROOT / "doc/observing.md").read_text(), re.S) for line in piece.splitlines()]
BUSY = "alarm 300; while (1) { my @x = map { 'x' x 100 } 1 .. 20000; my @y = map { 'y' x 400_000 } 1 .. 3; select undef, undef, undef, 0.02 }"
LARGE = 'my $n = 20_000_000; my $x = "x" x $n'
WAIT_S, ATTACHES_S = 30, 2


def needs(*commands):
    """Skips where one of them is missing."""
    return pytest.mark.skipif(not all(shutil.which(command) for command in commands), reason=f"needs {', '.join(commands)}")


def line_with(words, pid=None, program=None):
    """The one line of the page that has these words, for this library, process and program."""
    (line,) = (line for line in LINES if words in line)
    line = line.replace("/usr/lib/libquire-malloc.so", str(LIBRARY.resolve())).partition("    #")[0]
    return line.replace("4711", str(pid)).replace("yourprogram", program or "")


def shell(line, folder, **more):
    return subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ, **more})


@pytest.fixture
def process():
    """One that allocates under the library, with a profile, for as long as the test takes."""
    with subprocess.Popen(["perl", "-e", BUSY], env=environment("prof:64K,prof_exit:0")) as running:
        time.sleep(0.3)
        yield running
        running.kill()


@pytest.fixture
def program(tmp_path):
    """A program of few calls: where what it prints is looked at."""
    path = tmp_path / "makes"
    path.with_suffix(".c").write_text(
        "#include <stdlib.h>\n#include <string.h>\n"
        "__attribute__((noinline)) void *make_node(size_t n) { char *p = malloc(n); memset(p, 1, n); return p; }\n"
        "int main(void) { for (int i = 0; i < 200000; i++) free(make_node(16 + i % 500)); return 0; }\n"
    )
    subprocess.run(["gcc", "-O1", "-g", "-fno-builtin", path.with_suffix(".c"), "-o", path], check=True)
    return path


def traced(line, meanwhile):
    """What bpftrace prints until it is interrupted, of which it prints most then; skips where the kernel does not let it."""
    with subprocess.Popen(["sh", "-c", f"exec {line}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        time.sleep(ATTACHES_S)
        meanwhile()
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=WAIT_S)[0]
    if "Attaching" not in said:
        pytest.skip(f"bpftrace may not: {said[-200:]}")
    return said


@needs("bpftrace")
def test_bpftrace_lists_the_probes(tmp_path):
    said = shell(line_with("bpftrace -l"), tmp_path).stdout
    assert {line.rpartition(":")[2] for line in said.split()} == {"sample_alloc", "sample_free", "limit_reached", "pages_take", "pages_give", "refused"}


@needs("bpftrace")
def test_bpftrace_shows_the_stacks_of_samples_by_their_bytes(process):
    said = traced(line_with("sum(arg2)", pid=process.pid), lambda: time.sleep(1))
    assert re.search(r"@\[[^\]]+\]: \d{5,}", said), said


@needs("bpftrace")
def test_bpftrace_says_who_meets_a_limit():
    def meet():
        subprocess.run(["perl", "-e", LARGE], env=environment("limit:8M"), capture_output=True)

    said = traced(line_with("bpftrace -e"), meet)
    assert re.search(r"^perl: 2\d{7} wanted, limit 8388608$", said, re.M), said


@pytest.mark.by_turns
@needs("perf")
def test_perf_stops_at_a_probe_and_says_its_arguments(tmp_path, process):
    home = {"HOME": str(tmp_path)}
    try:
        if shell(line_with("perf buildid-cache"), tmp_path, **home).returncode != 0:
            pytest.skip("the kernel does not let perf set probes")
        line = line_with("perf record -e sdt_quire", pid=process.pid)
        for seconds in (3, 30):  # on a busy machine perf may need so long to begin
            said = shell(f"timeout -s INT {seconds} {line}; perf script -i perf.data", tmp_path, **home)
            if found := re.search(r"sdt_quire:pages_take: .*arg1=\d+ arg2=\d+", said.stdout):
                break
        assert found, said.stderr
    finally:
        shell("perf probe -q -d sdt_quire:pages_take", tmp_path, **home)


@needs("perf")
def test_perf_says_how_much_of_the_time_is_the_allocators(tmp_path, program):
    if shell(line_with("perf record -e cpu-clock", program=str(program)), tmp_path).returncode != 0:
        pytest.skip("the kernel does not let perf count")
    said = shell(line_with("perf report"), tmp_path).stdout
    assert re.search(r"\d+\.\d+%\s+libquire-malloc\.so", said), said


@needs("heaptrack_print")
def test_heaptrack_shows_who_allocates_what_the_library_serves(tmp_path, program):
    folder = tmp_path / "run"
    folder.mkdir()
    done = shell(line_with("libheaptrack_preload.so", program=str(program)), folder)
    (file,) = folder.glob("heaptrack.*")
    assert done.returncode == 0, done.stderr
    assert shell(line_with("heaptrack_interpret", pid=file.suffix[1:]), folder).returncode == 0
    said = shell(line_with("heaptrack_print"), folder).stdout
    assert re.search(r"200000 calls to allocation functions[^\n]*\n(?:make_node|[^\n]*\n\s*at [^\n]*makes\.c)", said), said[:2000]


@needs("gdb")
def test_gdb_stops_where_a_limit_is_met(tmp_path):
    line = line_with("gdb -ex", program="").replace("libquire-malloc.so QUIRE_CONF=limit:64M", f"{LIBRARY.resolve()} QUIRE_CONF=limit:8M")
    said = shell(line.replace("gdb ", "gdb -nx -batch -iex 'set debuginfod enabled off' ", 1).rstrip() + f" perl -e '{LARGE}'", tmp_path).stdout
    assert "Breakpoint 1" in said and "limit" in said, said
