# SPDX-License-Identifier: MIT
"""
manners.py - what the tests of manners share: the tool on a terminal of any width, stopped in any phase, and what it left behind.

    Running(...)  quire in a session of its own on a pseudo terminal, or with pipes
      .until("recording it")     reads its standard error so far
      .send(SIGINT)              to the tool alone, as `kill` does;  .send_all(SIGINT): to its process group
      .stop(SIGINT)              as Ctrl-C does: to the foreground group;  SIGTERM: to the tool alone
      .leftovers()               processes that still carry its mark

A wait is for a condition, PATIENCE_S long at most; nothing is expected to have happened by now.
Not here: the tests.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid

from toolkit import BUILD, TOOL

PATIENCE_S = 60
LEAVING_S = 20
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def environment(**more):
    """As a user's, without what the tests' own caller may have set."""
    dropped = ("NO_COLOR", "COLUMNS", "TERM", "LINES")
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    return {**env, "QUIRE_BUILD_DIR": str(BUILD), "TERM": "xterm", **more}


def terminal(columns):
    """Both ends of a pseudo terminal of that width."""
    controller, terminal_end = pty.openpty()
    fcntl.ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return controller, terminal_end


def listening():
    """A suite that runs in the background has Ctrl-C and Ctrl-\\ ignored, and children inherit that."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def at_its_terminal():
    """Standard input becomes the terminal that Ctrl-C comes from; the caller leads a session already."""
    listening()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Running:
    """One `quire` that runs; its output is read as it comes."""

    def __init__(self, folder, *words, columns=None, env=None):
        self.mark = f"QUIRE_TEST_MARK={uuid.uuid4()}"
        name, value = self.mark.split("=")
        env = environment(TMPDIR=str(folder), **{name: value}, **(env or {}))
        self.controller, end = terminal(columns) if columns else os.pipe()
        argv = [sys.executable, str(TOOL), *map(str, words)]
        streams = {"stdin": end if columns else subprocess.DEVNULL, "stdout": end, "stderr": end}
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            start_new_session=True,
            preexec_fn=at_its_terminal if columns else listening,
            **streams,
        )
        os.close(end)
        self.said = ""

    def read(self, seconds):
        """What comes within so many seconds; False at its end."""
        if not select.select([self.controller], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.controller, 65536)
        except OSError:  # the other end of a terminal is closed
            data = b""
        self.said += data.decode("utf-8", "replace")
        return bool(data)

    def until(self, text):
        """Reads until it has said this."""
        until_s = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert self.read(1) or text in self.said, self.said
            assert time.monotonic() < until_s, self.said
        return self

    def wait_for(self, condition):
        """Reads on until this holds."""
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.read(0.02), self.said
            assert time.monotonic() < until_s, self.said

    def send(self, number):
        """To the tool alone, as `kill PID`, docker stop and many a CI do."""
        self.process.send_signal(number)
        return self

    def send_all(self, number):
        """To its process group, as timeout(1) and a shell's `kill %1` do."""
        os.killpg(self.process.pid, number)
        return self

    def press(self, key):
        """A key at its terminal."""
        os.write(self.controller, key)
        return self

    def stop(self, number):
        """Ctrl-C reaches all of the foreground; any other signal the tool alone."""
        (self.send_all if number == signal.SIGINT else self.send)(number)
        return self.end()

    def end(self):
        """Its exit status, after all output."""
        while self.read(PATIENCE_S):
            pass
        os.close(self.controller)
        return self.process.wait(timeout=PATIENCE_S)

    def leftovers(self):
        """Processes that carry our mark; what was killed may need a CPU before it is gone."""
        until_s = time.monotonic() + LEAVING_S
        while (found := self.marked()) and time.monotonic() < until_s:
            time.sleep(0.01)
        return found

    def marked(self):
        """Processes with our mark in their environment, zombies aside."""
        mark, found = self.mark.encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(pid)
            except OSError:
                continue
        return found
