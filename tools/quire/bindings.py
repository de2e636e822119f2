# SPDX-License-Identifier: MIT
"""
bindings.py - whose malloc a program gets, by the dynamic loader's own account, without running the program.

    LD_TRACE_LOADED_OBJECTS=1 LD_BIND_NOW=1 LD_WARN=1 LD_DEBUG=bindings LD_PRELOAD=LIB program
        binding file program [0] to /usr/lib/libX.so [0]: normal symbol `malloc' [GLIBC_2.2.5]

The loader maps and binds everything and then ends instead of starting the program (what `ldd -r` does).  glibc's loader only.
Not here: what a static or setuid program is (target.py), what to make of the answer (cmd_check.py).
"""

import os
import re
import subprocess

import elf

PATIENCE_S = 20
LINE = re.compile(
    r"binding file (?P<from>\S+) \[\d+\] to (?P<to>\S+) \[\d+\]: normal symbol `malloc'"
)


def of(path, preload=None, environment=None):
    """[(from, to)] of malloc's bindings, and what the loader complained about."""
    env = dict(os.environ if environment is None else environment)
    env.update(
        LD_TRACE_LOADED_OBJECTS="1", LD_BIND_NOW="1", LD_WARN="1", LD_DEBUG="bindings", LC_ALL="C"
    )
    env.pop("LD_DEBUG_OUTPUT", None)
    if preload:
        env["LD_PRELOAD"] = preload
    try:
        done = subprocess.run(
            [path],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return [], [str(problem)]
    found, complaints = [], []
    for line in done.stderr.splitlines():
        match = LINE.search(line)
        if match:
            found.append((match["from"], match["to"]))
        elif "ERROR: ld.so" in line:
            complaints.append(line.split("ERROR: ")[1])
    lent = {to for _, to in found if _lends(to)}
    return [(source, to) for source, to in found if to not in lent], complaints


def _lends(path):
    """Whether a binding to that file goes on to where the file's own call of malloc goes (elf.py)."""
    try:
        file = elf.read(path)
    except OSError:
        return False
    return bool(file) and file.lends_malloc and not file.defines_malloc


def malloc_owner(path, preload=None, environment=None):
    """The file whose malloc the program's calls reach; None when no call is bound (a static program)."""
    found, _ = of(path, preload, environment)
    owners = [to for _, to in found]
    return max(set(owners), key=owners.count) if owners else None


def libc_path():
    """The libc that this machine's programs are linked with."""
    owner = malloc_owner("/bin/sh", environment={"PATH": os.environ.get("PATH", "")})
    if not owner:
        from ctypes import util  # which takes long to load, and is next to never asked

        owner = util.find_library("c")
    return owner
