# SPDX-License-Identifier: MIT
"""
live_kit.py - a process that shows itself, for the tests of top, map and core files.

    build(folder) -> the program of programs/shown.c;  Shown(program) -> started, ready, its page there;  end(): a line on its standard input

What is waited for is a condition, with PATIENCE_S for a machine that is busy or was stopped; nothing is expected "by now".

Not here: what is tested.
"""

import os
import pathlib
import select
import signal
import subprocess
import time

import toolkit

import live.page as live_page

SOURCE = pathlib.Path(__file__).parent / "programs" / "shown.c"
INCLUDE = toolkit.ROOT / "include"
NAME = f"shown-{os.getpid()}"  # nobody else's, should the tests run twice at once
PATIENCE_S = 60.0


def wait_until(what, patience_s=PATIENCE_S):
    """What `what` returns as soon as that is true; fails when it never is."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        found = what()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def compile_c(folder, source, name, libraries):
    """A C file made into a program, warnings refused."""
    words = ["cc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", str(source), "-o", str(folder / name)]
    subprocess.run([*words, *libraries], check=True)
    return folder / name


def build(folder, libraries=toolkit.BUILD):
    """programs/shown.c with the libquire.so of a folder."""
    return compile_c(folder, SOURCE, NAME, [f"-L{libraries}", "-lquire", "-lpthread", f"-Wl,-rpath,{libraries}"])


def build_static(folder, source=SOURCE, name="shown-static"):
    """A program with libquire.a."""
    return compile_c(folder, source, name, [str(toolkit.BUILD / "libquire.a"), "-lpthread"])


def page_of(pid):
    """The newest page of a process that runs, or None."""
    pages = [live_page.read(f"{folder}/{pid}.json") for folder in live_page.folders()]
    return min((p for p in pages if p and live_page.is_alive(p)), key=lambda p: p.age_s, default=None)


def children_of(pid):
    """Numbers of the processes that a process has started and that are not yet reaped."""
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_stopped(pid):
    """Whether every thread stands still: a stop reaches one after the other."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


class Shown:
    """A process; `page`: one that shows itself, and is ready when it has done so."""

    def __init__(self, command, conf="top:20ms", page=True, **options):
        environment = {**os.environ, **options.pop("environment", {}), "QUIRE_CONF": conf}
        if conf is None:
            del environment["QUIRE_CONF"]
        self.process = subprocess.Popen(
            list(map(str, command)), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.pid = self.process.pid
        self.said = []
        self.shows = page
        self.ready_s = 0.0
        if page:
            wait_until(lambda: page_of(self.pid) or self.process.poll() is not None)

    def ready(self):
        """Waits until the program has said what it has to, and has written a page since."""
        for line in self.process.stdout:
            if line == "ready\n":
                self.ready_s = time.monotonic()
                if self.shows:
                    wait_until(self.page)
                return self
            self.said.append(line.split())
        raise AssertionError("it ended before it was ready")

    def page(self):
        """Its page; None until one has been written since it was ready: an older one may be of before its objects were made."""
        page = page_of(self.pid)
        return page if page and page.written_s > self.ready_s else None

    def tell(self, line):
        """A line on its standard input."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def complaint(self):
        """What it has written to its standard error (a pipe) as soon as that is a line; more may follow."""
        fd, said = self.process.stderr.fileno(), b""
        while not said.endswith(b"\n"):
            assert select.select([fd], [], [], PATIENCE_S)[0], said
            more = os.read(fd, 65536)
            assert more, said
            said += more
        return said.decode()

    def end(self):
        """Lets it end; its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.close()
        status = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return status

    def kill(self, number=signal.SIGKILL):
        """A signal, and its status."""
        self.process.send_signal(number)
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
