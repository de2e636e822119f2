# SPDX-License-Identifier: MIT
"""
stops.py - how a command is stopped: Ctrl-C, SIGTERM, SIGHUP; and programs that must not outlive it.

    signal -> Stopped, raised wherever we are -> programs ended, temporary folders gone -> exit 128+n
              (the first one; further ones are ignored while we tidy up, which takes at most GRACE_S a program)

    hidden programs   lead a session of their own: no terminal to wait for, and one kill reaches all their processes
    visible programs  share our terminal: Ctrl-C reaches them anyway, other signals are passed on

Not here: starting programs (launch.py), what is said at the end (cli.py).
"""

import contextlib
import os
import signal
import threading
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
GRACE_S = 2.0
POLL_S = 0.02


class Stopped(KeyboardInterrupt):
    """Somebody wants us to end; `number` is the signal."""

    def __init__(self, number=signal.SIGINT):
        super().__init__()
        self.number = number


# Signals that came while held() was on; None: it is not, and they raise at once.
_held = None


def _raise(number, _frame):
    for other in SIGNALS:
        if signal.getsignal(other) is _raise:
            signal.signal(other, signal.SIG_IGN)
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
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Relay:
    """Passes signals on to a visible program, from before it is started; Ctrl-C at a terminal reaches it without us."""

    def __init__(self):
        self.process = None
        self.early = []
        self.before = {}

    def __enter__(self):
        for number in (signal.SIGINT, *FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _take(self, number, _frame):
        if self.process is None:
            self.early.append(number)
        elif number != signal.SIGINT:
            self._pass_on(number)

    def _pass_on(self, number):
        """Not Popen.send_signal(): that would reap a program that has just ended, and its usage with it."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process.pid, number)

    def adopt(self, process):
        """From now on this program gets them, and what came too early."""
        self.process = process
        for number in self.early:
            self._pass_on(number)


def _signal_group(process, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _group_lives(process):
    """Whether any process of the group is there that could still do something."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_group(process, number=signal.SIGTERM):
    """Ends a hidden program and all that it started: asked first, killed after GRACE_S."""
    _signal_group(process, number)
    until_s = time.monotonic() + GRACE_S
    while _group_lives(process) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()
