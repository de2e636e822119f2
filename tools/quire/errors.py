# SPDX-License-Identifier: MIT
"""
errors.py - how a command ends when it cannot do its work.

    exit   0    1                2      3                 4                     125..127, 128+n
           ok   condition false  usage  the environment   inconclusive          see run/record/try
                                        lacks something   (only with --strict)

Every error says what failed, why, and the command that mends it.
Not here: the messages themselves; they stand where the failure is seen.
"""

from ui import printable

EXIT_OK = 0
EXIT_CONDITION_FALSE = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_INCONCLUSIVE = 4
EXIT_TOOL_FAILED = 125
EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNAL_BASE = 128


class QuireError(Exception):
    """An error for the user: `what` failed, `why`, and `fix`, a command or an action."""

    exit_code = EXIT_TOOL_FAILED

    def __init__(self, what, why="", fix="", exit_code=None):
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        if exit_code is not None:
            self.exit_code = exit_code

    def text(self):
        """The message as it is printed on stderr."""
        lines = [f"quire: {printable(self.what)}"]
        if self.why:
            lines.append(f"  why: {printable(self.why)}")
        if self.fix:
            lines.append(f"  fix: {printable(self.fix)}")
        return "\n".join(lines)


class UsageError(QuireError):
    """The command line makes no sense."""

    exit_code = EXIT_USAGE


class EnvironmentLacks(QuireError):
    """The machine or the program is not one this can work with."""

    exit_code = EXIT_ENVIRONMENT


def kernel_thread(pid):
    """The error for a process that is none of a program."""
    return EnvironmentLacks(f"process {pid} has no program: it is a thread of the kernel", "it has no memory of its own", "ps -ef   (names in brackets are the kernel's)")
