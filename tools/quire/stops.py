# SPDX-License-Identifier: MIT
"""
stops.py - how a command is stopped: Ctrl-C, kill, a terminal that closes; and programs that must not outlive it.

    signal -> Stopped, raised wherever we are -> programs ended, temporary folders gone -> exit 128+n
              (the first one; further ones are ignored while we tidy up, which takes at most GRACE_S a program)

    hidden programs   lead a session of their own: no terminal to wait for, and one kill reaches all their processes;
                      SIGUSR1 and SIGUSR2 are theirs, any other ends us and them
    visible programs  share our terminal and process group: what reaches us alone (witness.py) is passed on

Not here: starting programs (launch.py), what is said at the end (cli.py).
"""

import contextlib
import os
import select
import signal
import threading
import time

OWN = (signal.SIGUSR1, signal.SIGUSR2)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, *OWN)
GRACE_S = 2.0
DEATH_S = 2.0  # what was killed needs a CPU to go, and may write until then; zombies that a container leaves do not go
POLL_S = 0.02


class Stopped(KeyboardInterrupt):
    """Somebody wants us to end; `number` is the signal."""

    def __init__(self, number=signal.SIGINT):
        super().__init__()
        self.number = number


# Signals that came while held() was on; None: it is not, and they raise at once.
_held = None

# One came: the next ones change nothing.
_stopping = False


def _raise(number, _frame):
    global _stopping
    if _stopping:
        return
    _stopping = True
    if _held is None:
        raise Stopped(number)
    _held.append(number)


@contextlib.contextmanager
def held():
    """A stop waits until the end of this: for steps that must not be left half done, as starting a program."""
    global _held
    _held = []
    try:
        yield
    finally:
        came, _held = _held, None
        if came:
            raise Stopped(came[0])


@contextlib.contextmanager
def raised():
    """Signals become Stopped in here; those that our caller had ignored (nohup) stay so."""
    global _stopping
    before, _stopping = {}, False
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """
    Signals for a program that runs, from before it is started until it has ended; sleep() until one comes, or a child ends.
    A handler only notes them: one that came between a look and the sleep still ends the sleep.
    """

    def __init__(self, numbers):
        self.numbers = numbers
        self.came = []
        self.before = {}

    def __enter__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        self.wakeup = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        # SIGCHLD also where our caller ignores it: there would be nothing to wait for.
        for number in (signal.SIGCHLD, *self.numbers):
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self.wakeup)
        os.close(self.reader)
        os.close(self.writer)

    def _note(self, number, _frame):
        if number != signal.SIGCHLD:
            self.came.append(number)

    def sleep(self, patience_s=None):
        """Until a signal comes that was not looked at, or a child ends; or so long."""
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # our caller may have it blocked, and the program is to find it so
        try:
            select.select([self.reader], [], [], patience_s)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 1 << 16)

    def take(self):
        """
        What came since the last look, each signal once, by number, as the kernel hands out what is pending together. Not as noted: Python may run
        the second signal's handler in the middle of the first one's, before that has noted anything.
        """
        came, self.came = self.came, []
        return sorted(set(came))


def _signal_group(process, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _acts(pid, group):
    """Whether this process is of the group and could still do something: no zombie, which PID 1 of many a container never reaps."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in (b"Z", b"X")


def _group_lives(process):
    """Whether any process of the group is there that could still do something."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return any(_acts(pid, process.pid) for pid in filter(str.isdigit, os.listdir("/proc")))


def _is_gone(process, patience_s):
    """Whether its group is gone, now or within that time."""
    until_s = time.monotonic() + patience_s
    while lives := _group_lives(process):
        if time.monotonic() >= until_s:
            break
        time.sleep(POLL_S)
    return not lives


def end_group(process, number=signal.SIGTERM):
    """Ends a hidden program and all that it started: asked first, killed after GRACE_S."""
    _signal_group(process, number)
    if not _is_gone(process, GRACE_S):
        _signal_group(process, signal.SIGKILL)
        _is_gone(process, DEATH_S)
    process.wait()
