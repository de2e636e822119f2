# SPDX-License-Identifier: MIT
"""record_kit.py - what the recorder's tests share: build a small program, trace it, analyse the trace.

Binaries come from QUIRE_BUILD_DIR (default: build/release of this checkout).  QUIRE_TEST_CROSS=aarch64-linux-gnu: programs are compiled for that machine
and run by qemu-user, under the recorder that QUIRE_TEST_RECORDER names.
"""
import json
import os
import pathlib
import resource
import struct
import subprocess
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD_DIR", ROOT / "build" / "release"))
RECORDER = pathlib.Path(os.environ.get("QUIRE_TEST_RECORDER", BUILD / "tools" / "libquire-record.so"))
ANALYSER = BUILD / "tools" / "quire-analyse"
MEMORY_LIMIT_BYTES = 2 << 30
HANGS_S = 300  # whoever takes longer hangs: nothing here takes a tenth of it on a quiet machine


@dataclass(frozen=True)
class Machine:
    """Where programs run: here ("", the compiler's own), or under qemu-user ("aarch64-linux-gnu", that of a cross compiler)."""

    prefix: str
    recorder: pathlib.Path

    def compiler(self, language="c"):
        here, there = ("c++", "g++") if language == "c++" else ("cc", "gcc")
        return f"{self.prefix}-{there}" if self.prefix else here

    def emulator(self, preload=""):
        """What comes before a program's path. The emulator is this machine's program: it must not get the other's libraries."""
        if not self.prefix:
            return []
        emulator = [f"qemu-{self.prefix.partition('-')[0]}", "-L", f"/usr/{self.prefix}"]
        return [*emulator, "-E", f"LD_PRELOAD={preload}"] if preload else emulator

    def started(self, command, environment):
        """(command, environment) that run it under the recorder, unless the environment preloads something else."""
        preload = environment.pop("LD_PRELOAD", "") if self.prefix else ""
        return [*self.emulator(preload), *map(str, command)], environment


HERE = Machine(os.environ.get("QUIRE_TEST_CROSS", ""), RECORDER)


def build(folder, source, name="program", flags=(), language="c", machine=HERE):
    """Compile one source text; the path of the program."""
    path = folder / f"{name}.{'cc' if language == 'c++' else 'c'}"
    path.write_text(source)
    subprocess.run([machine.compiler(language), "-O1", "-g", "-fno-builtin", "-pthread", str(path), "-o", str(folder / name), *flags, "-ldl"],
                   check=True)
    return folder / name


def record(folder, command, trace=None, environment=None, machine=HERE, **options):
    """Run `command` under the recorder; (finished process, path of the trace)."""
    trace = trace or folder / "trace.qtr"
    env = {**os.environ, "LD_PRELOAD": str(machine.recorder), "QUIRE_RECORD": str(trace), **(environment or {})}
    command, env = machine.started(command, env)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS_S,
                          cwd=options.pop("cwd", folder), **options)
    return done, trace


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


def analyse_raw(trace, *options):
    return subprocess.run([str(ANALYSER), str(trace), *map(str, options)], capture_output=True, text=True, timeout=HANGS_S,
                          errors="replace", preexec_fn=limit_memory)


def analyse(trace, *options):
    """The JSON of a readable trace."""
    done = analyse_raw(trace, "--sites", "-", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def site(report, function):
    """The one site of a function."""
    found = [entry for entry in report["sites"] if entry["function"] == function]
    assert len(found) == 1, [entry["function"] for entry in report["sites"]]
    return found[0]


def program_ops(path):
    """A replay program as (header, threads, ops by thread); the header has the runs."""
    data = path.read_bytes()
    magic, version, threads, ops, slots, sites, flags, peak, runs = struct.unpack_from("<8sIIQQIIQQ", data)
    assert magic == b"QRP1\0\0\0\0" and version == 1
    header = {"threads": threads, "ops": ops, "slots": slots, "sites": sites, "flags": flags, "peak_live_bytes": peak}
    directory = [struct.unpack_from("<QQII", data, 72 + 24 * i) for i in range(threads)]
    base = 72 + 24 * threads
    assert len(data) == base + 16 * ops + 8 * runs
    header["runs"] = [struct.unpack_from("<II", data, base + 16 * ops + 8 * k) for k in range(runs)]
    streams = [[struct.unpack_from("<BBHIII", data, base + 16 * k) for k in range(first, first + count)]
               for first, count, _, _ in directory]
    return header, directory, streams
