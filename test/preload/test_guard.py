# SPDX-License-Identifier: MIT
"""QUIRE_CONF=guard: misuse of a guarded block is one line with its birth and death; all else runs as ever."""

import re
import signal
import subprocess

import pytest
from preload_kit import PYTHON, run

MISUSE = {
    "read-freed": ("G1 a freed block is read, byte 8 of 40", True),
    "write-freed": ("G1 a freed block is written to, byte 39 of 40", True),
    "read-past": ("G2 read past the end of the block, 0 bytes behind one of 48", False),
    "write-past": ("G2 written past the end of the block, 2 bytes behind one of 48", False),
    "read-before": ("G3 read before the block, 1 bytes before one of 48", False),
    "write-before": ("G3 written before the block, 4 bytes before one of 48", False),
    "write-slack": ("E7 written past the end of the block, 0 bytes behind one of 41", False),
    "write-in-front": ("G4 was written before the block, 1 bytes before one of 48", False),
    "free-twice": ("E1 the block is free already, byte 0 of 40", True),
    "free-inside": ("E3 inside a block, byte 16 of 40", False),
    "free-guard": ("E2 not an address of a heap", False),
    "use-old-after-realloc": ("G1 a freed block is read, byte 0 of 40", True),
    "calloc-past": ("G2 read past the end of the block, ", False),
}


def function_at(program, place):
    """The function of a return address as the line has it."""
    name, _, offset = place.partition("+")
    assert name == program.name, place
    said = subprocess.run(["addr2line", "-fe", program, hex(int(offset, 16) - 1)], capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[0]


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_one_line_that_tells_birth_and_death(build, what):
    program = build("guard.c")
    done = run(program, what, conf="guard:1/1")
    words, is_dead = MISUSE[what]
    assert done.returncode < 0 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("quire: heap: " + words), done.stderr
    if what == "free-guard":
        return
    made = re.search(r"allocated by (\S+) < (\S+) ", done.stderr)
    if what not in ("calloc-past",):
        assert function_at(program, made[1]) == "birth", done.stderr
    gone = re.search(r", freed by (\S+)", done.stderr)
    assert bool(gone) == is_dead
    if is_dead and "realloc" not in what:
        assert function_at(program, gone[1]) == "death", done.stderr


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", ["guard:1/1", "guard:1/7,prof:4K,prof_exit:0", "guard:1/3,secure:1", "guard:1/2,limit:1G", "guard"])
def test_a_sound_program_runs_as_ever_in_threads_and_children(build, conf):
    done = run(build("guard.c"), "sound", conf=conf)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sound\n", "")


@pytest.mark.parametrize(
    "command",
    [
        ["perl", "-e", "my %h; $h{$_} = 'x' x ($_ % 500) for 1 .. 60000; print scalar(keys %h), qq(\\n)"],
        [PYTHON, "-S", "-c", "print(len({str(i): [i] * (i % 50) for i in range(60000)}))"],
    ],
)
def test_real_programs_run(command):
    done = run(*command, conf="guard:1/20", env={"PYTHONMALLOC": "malloc"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "60000\n", "")


def test_threads_that_live_for_less_than_4_ms_have_their_share(build):
    plain, guarded = (int(run(build("guard.c"), "short", conf=conf).stdout) for conf in ("", "guard:1/1000"))
    assert guarded > plain + 10  # one in 4 ms of CPU time: some fifty


def test_a_fault_that_is_not_a_guarded_blocks_is_the_programs(build):
    assert run(build("guard.c"), "wild", conf="guard:1/1").returncode == -signal.SIGSEGV
    done = run(build("guard.c"), "own", conf="guard:1/1")
    assert (done.returncode, done.stdout) == (7, "own handler\n")


def test_a_signal_that_was_only_sent_ends_the_program_as_ever():
    done = run(PYTHON, "-S", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", conf="guard:1/1")
    assert done.returncode == -signal.SIGSEGV


def test_a_guarded_block_that_is_never_freed_is_a_leak_as_any_other(build):
    done = run(build("guard.c"), "leak", conf="guard:1/1,leaks:1")
    assert done.returncode == 0 and re.search(r"\b1345\b|1\.3 KiB", done.stderr), done.stderr


def test_a_sized_delete_of_a_guarded_block_is_exact(tmp_path):
    (tmp_path / "d.cc").write_text("#include <new>\nint main(int c, char **) { for (int i = 0; i < 9; i++) { void *p = operator new(40); ::operator delete(p, c > 1 ? 39ul : 40ul); } }\n")
    subprocess.run(["g++", "-O1", "-fsized-deallocation", "d.cc", "-o", "d"], cwd=tmp_path, check=True)
    assert run(tmp_path / "d", conf="guard:1/1").returncode == 0
    assert "M1 deleted with another size" in run(tmp_path / "d", "wrong", conf="guard:1/1").stderr


@pytest.mark.parametrize("value", ["2/5000", "1/0", "1/", "1/2000000000", "often", "0.5"])
def test_a_wrong_value_is_one_line(value):
    done = run("/bin/echo", "on", conf=f"guard:{value}")
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.startswith(f'quire: QUIRE_CONF: guard cannot be "{value}"; write guard:0|1|1/N') and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("conf", "said"), [("guard,passthrough", "guard does not go with passthrough; no block is guarded"), ("guard,prof,passthrough", "prof and guard do not go with passthrough; there is no profile")])
def test_what_it_does_not_go_with_is_said(conf, said):
    done = run("/bin/echo", "on", conf=conf)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", f"quire: QUIRE_CONF: {said}\n")


def test_places_that_nobody_has_used_take_no_memory(build):
    def written_kib(conf):
        return sum(map(int, re.findall(r"^Private_Dirty: +(\d+)", run(build("small.c"), conf=conf).stdout, re.MULTILINE)))

    assert written_kib("guard:1/5000") <= written_kib("") + 40
