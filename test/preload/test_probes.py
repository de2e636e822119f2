# SPDX-License-Identifier: MIT
"""USDT probes: each is a note and a nop, in both libraries; a debugger that stops there sees the arguments that doc/observing.md promises."""

import re
import shutil
import struct
import subprocess

import pytest
from preload_kit import BUILD, LIBRARY, PYTHON, ROOT, environment

NOPS = {"X86-64": b"\x90", "AArch64": b"\x1f\x20\x03\xd5"}
SAMPLES = {"sample_alloc", "sample_free"}


def output(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def notes(library):
    """[(name, where in memory, arguments)]"""
    text = output("readelf", "-nW", library)
    found = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: 0x([0-9a-f]+), Base: \S+ Semaphore: 0x([0-9a-f]+)\s+Arguments: (.*)", text)
    assert all(provider == "quire" and int(semaphore, 16) == 0 for provider, _, _, semaphore, _ in found)
    return [(name, int(place, 16), arguments.split(" 8@")) for _, name, place, _, arguments in found]


def promised():
    """{probe: number of arguments} of the document."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", (ROOT / "doc" / "observing.md").read_text(), re.M)
    three = {name for name, _, arguments in rows if arguments.count(";") == 2 or name in ("sample_free", "refused")}
    return {name: 3 if name in three else 2 for name, _, _ in rows}


def code_at(library, place):
    data = library.read_bytes()
    (at,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, _, offset, address, _, bytes_in_file = struct.unpack_from("<IIQQQQ", data, at + i * size)
        if kind == 1 and address <= place < address + bytes_in_file:
            return data[offset + place - address :]
    raise AssertionError(f"{place:x} is not loaded")


@pytest.mark.parametrize("name", ["libquire-malloc.so", "libquire.so"])
def test_each_probe_is_a_note_and_a_nop(name):
    library = (LIBRARY.parent if name == LIBRARY.name else BUILD) / name
    machine = re.search(r"Machine:.*?(X86-64|AArch64)", output("readelf", "-h", library))[1]
    found, wanted = notes(library), promised()
    assert {probe for probe, _, _ in found} == set(wanted) - (SAMPLES if name == "libquire.so" else set())
    for probe, place, arguments in found:
        assert len(arguments) == wanted[probe], (probe, arguments)
        assert code_at(library, place).startswith(NOPS[machine]), probe


STOPS = 20  # one after the other: gdb 13 crashes, or goes on for ever, when a breakpoint's own commands end the program


@pytest.mark.by_turns
@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")
@pytest.mark.parametrize(
    ("probe", "conf", "program", "seen"),
    [
        ("sample_alloc", "prof:64K,prof_exit:0", ["perl", "-e", "my @x = map { 'x' x 100 } 1 .. 20000"], lambda a: 0 < a[1] <= 1 << 22 and a[2] % (64 << 10) == 0),
        ("sample_free", "prof:64K,prof_exit:0", ["perl", "-e", "for my $i (1 .. 5000) { my $x = [(\"at $i\") x 100] }"], lambda a: a[1] > 0 and a[2] % (64 << 10) == 0),
        ("pages_take", "decay:1s", ["perl", "-e", "my @x = map { 'x' x 100 } 1 .. 20000"], lambda a: a[0] % 4096 == 0 and a[1] % 4096 == 0 and a[1] > 0),
        ("pages_give", "decay:1s", ["perl", "-e", "for (1 .. 20) { my $x = 'x' x 400000 }"], lambda a: a[0] % 4096 == 0 and a[1] % 4096 == 0 and a[1] > 0),
        ("limit_reached", "limit:8M", ["perl", "-e", "my $x = 'x' x 20_000_000"], lambda a: a[1] >= 20_000_000 and a[2] == 8 << 20),
        ("refused", "decay:1s", [PYTHON, "-c", "import ctypes; ctypes.CDLL(None).free(ctypes.c_void_p(4660))"], lambda a: a[0] > 0 and a[1] > 0 and a[2] == 4660),
    ],
)
def test_a_debugger_stops_at_a_probe_and_sees_its_arguments(tmp_path, probe, conf, program, seen):
    script = tmp_path / "gdb"
    script.write_text(
        f"set confirm off\nset breakpoint pending on\nset exec-wrapper env LD_PRELOAD={LIBRARY} QUIRE_CONF={conf}\n"
        f"break -probe-stap quire:{probe}\nrun\n"
        + STOPS * 'printf "at %lu %lu %lu\\n", $_probe_arg0, $_probe_arg1, $_probe_argc > 2 ? $_probe_arg2 : 0\ncontinue\n'
    )
    env = {key: value for key, value in environment().items() if key != "LD_PRELOAD"}
    done = subprocess.run(["gdb", "-nx", "-batch", "-x", script, "--args", *program], capture_output=True, text=True, timeout=40, check=False, env=env)
    hits = [[int(n) for n in line.split()[1:]] for line in done.stdout.splitlines() if line.startswith("at ")]
    assert hits, done.stdout + done.stderr
    assert all(seen(hit) for hit in hits), hits
