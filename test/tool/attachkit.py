# SPDX-License-Identifier: MIT
"""
attachkit.py - what the tests of `quire record --pid` share: a busy server with its clients, the command, and whether a process is as it was.

    with Server(programs) as server:           programs: a folder with `attached` (programs/attached.c)
        with server.load() as load:            clients that ask on and on
            record(folder, server.pid, ...)    a finished `quire record --pid`
        load.failed == 0
        patched(server.pid) == 0               slots that lead to the recorder

Not here: the tests.
"""

import contextlib
import functools
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

from toolkit import BUILD, TOOL, quire

import attaching

PATIENCE_S = 20
LIBRARY = BUILD / "tools" / "libquire-attach.so"
SOURCE = pathlib.Path(__file__).parent / "programs" / "attached.c"
FAMILY = "malloc calloc realloc reallocarray free aligned_alloc posix_memalign memalign valloc pvalloc dlclose pthread_setname_np _exit _Exit".split()


def programs(folder):
    """Builds the server; the folder."""
    subprocess.run(["cc", "-O1", "-g", "-w", "-fno-builtin", "-pthread", SOURCE, "-o", folder / "attached"], check=True)
    return folder


class Process:
    """A program that runs until the end of the block."""

    def __init__(self, *argv, **options):
        self.popen = subprocess.Popen([str(word) for word in argv], **{"stdin": subprocess.DEVNULL, **options})
        self.pid = self.popen.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        self.popen.wait()
        if self.popen.stdout:
            self.popen.stdout.close()

    @property
    def lives(self):
        """Whether it still runs."""
        return self.popen.poll() is None

    def cpu_s(self):
        """CPU seconds so far."""
        return time.clock_gettime((~self.pid << 3) | 2)


class Server(Process):
    """The busy one."""

    def __init__(self, folder):
        super().__init__(folder / "attached", "serve", stdout=subprocess.PIPE, text=True)
        self.program = folder / "attached"
        self.port = self.popen.stdout.readline().strip()

    def load(self, pause_us=0):
        """Clients, until the end of the block."""
        return Load(self, pause_us)

    def cpu_of(self, requests):
        """CPU seconds that so many requests take."""
        before_s = self.cpu_s()
        subprocess.run([self.program, "ask", self.port, str(requests)], check=True, stdout=subprocess.DEVNULL)
        return self.cpu_s() - before_s


class Load:
    """Clients that ask until the end of the block; then `answered` and `failed`."""

    def __init__(self, server, pause_us):
        argv = [server.program, "ask", server.port, "0", str(pause_us)]
        self.popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        said, _ = self.popen.communicate(timeout=PATIENCE_S)
        self.answered, self.failed = (int(n) for n in re.findall(r"\d+", said))


def record(folder, pid, *words, **options):
    """`quire record --pid PID WORDS`, finished."""
    return quire(folder, "record", "--pid", pid, *words, **options)


class Recording:
    """A `quire record --pid` that runs, in a session of its own, and what it says."""

    def __init__(self, folder, pid, *words, halt=None):
        env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD), "NO_COLOR": "1", **({"QUIRE_ATTACH_HALT": halt} if halt else {})}
        argv = [sys.executable, TOOL, "record", "--pid", pid, *words]
        self.popen = subprocess.Popen([str(word) for word in argv], cwd=folder, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        self.said = ""

    def until(self, text):
        """Reads what it says until this has come."""
        until_s = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert select.select([self.popen.stderr], [], [], max(0, until_s - time.monotonic()))[0], self.said
            piece = os.read(self.popen.stderr.fileno(), 1 << 16).decode()
            assert piece, self.said
            self.said += piece
        return self

    def kill(self):
        """The command and its helper, both at once, by SIGKILL."""
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.popen.stderr.close()

    def end(self):
        """Its exit status, once it has ended."""
        self.said += self.popen.stderr.read().decode()
        self.popen.stderr.close()
        return self.popen.wait()


def mappings(pid):
    """[(start, end, rights, path)] of a process."""
    found = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        words = line.split(maxsplit=5)
        start, end = (int(n, 16) for n in words[0].split("-"))
        found.append((start, end, words[1], words[5] if len(words) > 5 else ""))
    return found


@functools.lru_cache
def offsets():
    """Where they are in the library."""
    listed = subprocess.run(["nm", LIBRARY], check=True, capture_output=True, text=True).stdout
    return {int(address, 16) for address, name in re.findall(r"^([0-9a-f]+) t (\w+)$", listed, re.MULTILINE) if name in FAMILY}


def hooks(pid):
    """Where the recorder's functions of malloc's family are in a process; empty: it is not loaded."""
    base = [start for start, _, _, path in mappings(pid) if path == str(LIBRARY)]
    if not base:
        return set()
    return {base[0] + offset for offset in offsets()}


def patched(pid):
    """How many words of its objects, our own library apart, are addresses of the recorder's functions."""
    targets, found = hooks(pid), 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end, rights, path in mappings(pid):
            if targets and path.startswith("/") and path != str(LIBRARY) and rights[:3] in ("rw-", "r--"):
                with contextlib.suppress(OSError):  # unloaded just now
                    words = memoryview(os.pread(memory.fileno(), end - start, start)).cast("Q")
                    found += sum(word in targets for word in words)
    return found


def wait_until(condition):
    """Until it holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def killed_at(server, folder, step):
    """Everything of ours is killed at that step; then another recording works, and leaves nothing."""
    recording = Recording(folder, server.pid, "--duration", "300ms", "-o", "t.qtr", "-f", halt=step).until(f"at {step}")
    recording.kill()
    wait_until(lambda: not attaching.Process(server.pid).number("TracerPid"))  # the kernel has let it go
    done = record(folder, server.pid, "--duration", "100ms", "-o", "after.qtr", "-f")
    assert server.lives and done.returncode == 0, f"{step}: {done.stderr}"
    assert patched(server.pid) == 0, step
