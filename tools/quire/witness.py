# SPDX-License-Identifier: MIT
"""
witness.py - who a signal was meant for: all of our process group (Ctrl-C, `kill -INT -GROUP`), or us alone (`kill -INT PID`).

    group:  us, the program, the witness     the program has it
    alone:  us                               the program has not: we pass it on

A signal's sender would not tell: a shell, timeout(1) and supervisors send to groups as they send to one process.
The witness is a native helper in our group; without an answer (it was killed) every signal counts as meant for us alone.
Not here: taking signals, passing them on (stops.py, launch.py).
"""

import signal
import socket
import subprocess

import native

PATIENCE_S = 30


class Witness:
    """The helper, while a program runs in our process group."""

    def __init__(self):
        self.channel = None
        self.process = None

    def __enter__(self):
        self.channel, its_end = socket.socketpair()
        self.channel.settimeout(PATIENCE_S)
        argv = [native.helper("quire-witness"), str(its_end.fileno())]
        null = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        # Blocked from its first moment on: one that came before it blocked them itself would end it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with its_end:
                self.process = subprocess.Popen(argv, pass_fds=(its_end.fileno(),), **null)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.process.wait()

    def saw(self, number):
        """Whether the signal that we have just got went to our whole group."""
        try:
            self.channel.sendall(bytes([number]))
            return self.channel.recv(1) == b"\1"
        except OSError:
            self.channel.close()  # an answer that comes late would be taken for the next one
            return False
