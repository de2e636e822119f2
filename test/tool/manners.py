# SPDX-License-Identifier: MIT
"""
manners.py - what the tests of manners share: the tool on a terminal of any width, stopped in any phase, and what it left behind.

    Running(...)  quire in a session of its own on a pseudo terminal, or with pipes
      .until("recording it")     reads its standard error so far
      .stop(SIGINT)              as Ctrl-C does: to the foreground group;  SIGTERM: to the tool alone, as `kill` does
      .leftovers()               processes that still carry its mark

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
    """A suite that runs in the background has Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
            argv, cwd=folder, env=env, start_new_session=True, preexec_fn=listening, **streams
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

    def stop(self, number):
        """Ctrl-C reaches all of the foreground; any other signal the tool alone."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.end()

    def end(self):
        """Its exit status, after all output."""
        while self.read(PATIENCE_S):
            pass
        os.close(self.controller)
        return self.process.wait(timeout=PATIENCE_S)

    def leftovers(self):
        """Processes that carry our mark in their environment, zombies aside."""
        mark, found = self.mark.encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(pid)
            except OSError:
                continue
        return found
