# SPDX-License-Identifier: MIT
"""test_corners - what a program may do that few do: operators of its own, a vfork in a fork's child, shrinking without memory, statistics amid it all."""

import os
import re
import signal
import subprocess

import pytest
from preload_kit import LIBRARY, environment, run

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"


@pytest.mark.parametrize("conf", ["", "secure:1", "guard:1/2", "prof:1K,prof_exit:0", "check:10", "passthrough:1"])
def test_operators_of_the_programs_own_have_the_other_forms_too(build, conf):
    done = run(build("replaced.cc"), conf=conf)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


@pytest.mark.by_turns
def test_statistics_are_asked_for_while_threads_give_chunks_back(build, tmp_path):
    program, plan = build("asked.c"), tmp_path / "plan"
    notes = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True).stdout
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", program], capture_output=True, text=True, check=True).stdout
    back = re.search(r"<make>:.*?malloc@plt>\n\s*([0-9a-f]+):", code, re.S)[1]
    lines = [f"module 0 {re.search(r'Build ID: ([0-9a-f]+)', notes)[1]} {program}", "memory 0", f"frame 0 module 0 offset {back}",
             "pool 1 arena peak 100000", "site 1 pool 1 allocs 1 bytes 1", "path 0"]
    plan.write_text("\n".join(["quire-steer 1", *lines, f"end {len(lines)}", ""]))
    for _ in range(4 if LONG else 1):  # two of three ended by SIGSEGV when it was wrong
        done = run(program, "1500", conf=f"plan:{plan}")
        assert (done.returncode, done.stdout) == (0, "sound\n")


@pytest.mark.parametrize("conf", ["stats:exit,stats_format:json", "stats:exit,stats_format:prom"])
def test_lines_that_nobody_reads_end_no_program(conf):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(["perl", "-e", "exit 3"], env=environment(conf), stderr=writer, preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
    os.close(writer)
    assert done.returncode == 3


def test_malloc_stats_says_how_long_the_program_has_run(tmp_path):
    done = run("/usr/bin/python3", "-S", "-c", "import ctypes; ctypes.CDLL(None).malloc_stats()", conf="")
    number, unit = re.search(r"\]: ([\d.]+) (ms|s), CPU", done.stderr).groups()
    assert float(number) * (1 if unit == "ms" else 1000) < 60000, done.stderr


def test_a_large_environment_hides_no_setting(build):
    first = build("first.c", "-shared", "-fPIC", "-Wl,-z,initfirst")
    many = {f"A{i}": "x" * 100000 for i in range(8)}
    done = subprocess.run(["/bin/true"], env={**many, "LD_PRELOAD": f"{LIBRARY} {first}", "QUIRE_CONF": "limt:1"}, capture_output=True, text=True, check=False)
    assert done.stderr.startswith('quire: QUIRE_CONF: there is no key "limt"'), done.stderr


@pytest.mark.parametrize("at", [0, 60, 100, 149])
def test_the_largest_leak_is_the_first_however_many_sizes_there_are(build, at):
    said = run(build("many_sizes.c"), at, conf="leaks:1").stderr
    assert re.search(r"live at the end: 170 blocks.*\n.*  20 of up to 10\.0 MiB", said), said


def test_who_limits_himself_after_a_vfork_leaves_the_memory_of_a_forks_child_alone(build):
    found = re.findall(r": (\d+) MiB before the vfork, (\d+) after", run(build("vforks.c"), conf="").stdout)
    assert len(found) == 2 and all(before == after for before, after in found), found


@pytest.mark.parametrize("conf", ["limit:8M", "limit:8M,secure:1", "limit:8M,prof:1K,prof_exit:0", "limit:8M,guard:1/5"])
def test_what_gets_smaller_does_so_without_memory(build, conf):
    assert run(build("shrinks.c"), conf=conf).stdout == "sound\n"
