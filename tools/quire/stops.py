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


def _raise(number, _frame):
    for other in SIGNALS:
        if signal.getsignal(other) is _raise:
            signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


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


@contextlib.contextmanager
def passed_on(process):
    """Signals go to a visible program in here; Ctrl-C at a terminal reaches it without us."""
    before = {n: signal.signal(n, lambda n, _: process.send_signal(n)) for n in FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
