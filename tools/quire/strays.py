# SPDX-License-Identifier: MIT
"""
strays.py - processes that lose their parent while a program runs whose output nobody sees: a daemon, what a shell or a load leaves running.

    its parent ends --the kernel gives it to us (prctl)--> there() names it --end of the block--> asked to end, killed, its end taken

Ours until then are told apart by the children that we had before the block; the program itself, and the load, are to be gone at its end.
Not here: ending what leads a group of its own (stops.py).
"""

import contextlib
import os
import signal
import time

import stops
from lazily import ctypes

PR_SET_CHILD_SUBREAPER = 36
ENDED = "ZX"
BEHIND_S = 0.5  # for who ends just behind the program


def _children():
    """{process: (its name, its state)} of ours."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}  # as nearly always: at once
    found, ours = {}, os.getpid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
            state, parent = rest.split()[:2]
            if int(parent) == ours:
                found[int(pid)] = (head.partition("(")[2], state)
    return found


class Strays:
    """Those of the block, which end with it; some milliseconds each time that it is asked."""

    def __enter__(self):
        self.before = set(_children())
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return self

    def __exit__(self, *_):
        try:
            with stops.held():
                self._end()
        finally:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def there(self):
        """{process: its name} of those that run; the program, too, while it does."""
        return {pid: name for pid, (name, state) in _children().items() if pid not in self.before and state not in ENDED}

    def staying(self):
        """The same, of those that do not end just behind the program."""
        until_s = time.monotonic() + BEHIND_S
        while (left := self.there()) and time.monotonic() < until_s:
            time.sleep(stops.POLL_S)
        return left

    def _end(self):
        """Asked first, killed after GRACE_S; their own children become ours when they end."""
        kill_s = time.monotonic() + stops.GRACE_S
        asked = set()
        while (left := self.there()) and time.monotonic() < kill_s + stops.DEATH_S:
            is_late = time.monotonic() > kill_s
            for pid in left if is_late else left.keys() - asked:
                with contextlib.suppress(OSError):  # another user's
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
            asked |= left.keys()
            time.sleep(stops.POLL_S)
        for pid in _children().keys() - self.before - left.keys():
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
