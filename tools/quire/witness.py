# SPDX-License-Identifier: MIT
"""
witness.py - who a signal was meant for: all of our process group (Ctrl-C, `kill -INT -GROUP`), or us alone (`kill -INT PID`).

    group:  us, the program, the witness     the program has it
    alone:  us                               the program has not: we pass it on

A signal's sender would not tell: a shell, timeout(1) and supervisors send to groups as they send to one process.
The witness is a native helper in our group; without an answer (it was killed) every signal counts as meant for us alone.
Not here: taking signals, passing them on (stops.py, launch.py).
"""

import contextlib
import os
import select
import signal
import subprocess

import native

PATIENCE_S = 30


class Witness:
    """The helper, while a program runs in our process group."""

    def __init__(self):
        self.asks = self.hears = self.process = None

    def __enter__(self):
        its_in, self.asks = os.pipe()
        self.hears, its_out = os.pipe()
        argv = [native.helper("quire-witness"), str(its_in), str(its_out)]
        null = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        # Blocked from its first moment on: one that came before it blocked them itself would end it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.process = subprocess.Popen(argv, pass_fds=(its_in, its_out), **null)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(its_in)
            os.close(its_out)
        return self

    def __exit__(self, *_):
        self._dismiss()
        self.process.wait()

    def _dismiss(self):
        """It ends when nobody can ask any more."""
        if self.asks is not None:
            os.close(self.asks)
            os.close(self.hears)
        self.asks = None

    def saw(self, number):
        """Whether the signal that we have just got went to our whole group."""
        if self.asks is None:
            return False
        with contextlib.suppress(BrokenPipeError):
            os.write(self.asks, bytes([number]))
            if select.select([self.hears], [], [], PATIENCE_S)[0]:
                answer = os.read(self.hears, 1)
                if answer:
                    return answer == b"\1"
        self._dismiss()  # an answer that comes late would be taken for the next one
        return False
