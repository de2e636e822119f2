# SPDX-License-Identifier: MIT
"""
toolkit.py - what the tool's tests share: running it, building small programs, replaying small programs.

Binaries come from QUIRE_BUILD_DIR (default: build/release of this checkout).
Not here: test inputs of one file only.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import warm

NOBODY = 65534
ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "quire"
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD_DIR", ROOT / "build" / "release")).resolve()
HANGS_S = 300  # whoever takes longer hangs: nothing here takes a tenth of it on a quiet machine

sys.path.insert(0, str(TOOL))


def soon(words):
    """A `try` of so many rounds looks and replays for a second in all, not for nine, where a test says nothing else."""
    asks = words[:1] == ("try",) and "--rounds" in words and not {"--time-limit", "--load"} & set(words)
    return ("try", "--time-limit", 1, *words[1:]) if asks else words


def quire(folder, *words, environment=None, **options):
    """`quire WORDS` run in a folder; the finished process, its output as text."""
    env = {
        **os.environ,
        "QUIRE_BUILD_DIR": str(BUILD),
        "NO_COLOR": "1",
        "COLUMNS": "140",
        "TERM": "xterm",  # not what the caller's happens to be: it chooses signs
        **(environment or {}),
    }
    if warm.can(env, options):
        return warm.run([*map(str, soon(words))], folder, env, HANGS_S, **options)
    options.setdefault("stdin", subprocess.DEVNULL if "input" not in options else None)
    if "input" in options:
        options.pop("stdin")
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, soon(words))],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        **options,
    )


def try_json(folder, *command, rounds=3, status=0):
    """`quire try --json` on a command: its document, after the exit status was what it should be."""
    words = ["try", "--json", "--no-report", "--rounds", rounds, "--time-limit", 0.5]
    done = quire(folder, *words, "--", *command)
    assert done.returncode == status, done.stderr + done.stdout
    return json.loads(done.stdout)


def native(name, *words, environment=None, timeout=HANGS_S):
    """One helper run; the finished process."""
    return subprocess.run(
        [str(BUILD / "tools" / name), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
    )


def native_json(name, *words):
    """The JSON that a helper prints, after it ended well."""
    done = native(name, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def build(folder, source, name="program", flags=()):
    """Compiles one C text; the path of the program."""
    path = folder / f"{name}.c"
    path.write_text(source)
    subprocess.run(
        ["cc", "-O1", "-g", "-w", "-fno-builtin", str(path), "-o", str(folder / name), *flags],
        check=True,
    )
    return folder / name


def setuid_of_another(folder, source):
    """A program that runs with another user's rights; only root can make one."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a setuid program of somebody else")
    path = build(folder, source, "setuid")
    os.chown(path, NOBODY, -1)
    path.chmod(0o4755)
    return path
