# SPDX-License-Identifier: MIT
"""say - how the front door speaks and runs commands: one line a step on stderr, silence for what
takes no time.

    quire: building release ... 12.3 s
    quire: installing cmake gcc ... failed

A step's line appears once it has taken QUIET_S; what is quicker than that is not worth a line.  On
a terminal it moves until the step has ended (progress.py).  What runs in a thread of its own, while
others speak, has a whole line at its end instead.  The command's own output goes to a log under
build/log and is shown when the step fails.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time

from frontdoor import progress

QUIET_S = 0.4
MOVES_S = 0.2
TAIL_LINES = 25


class Stopped(Exception):
    """The front door cannot go on: what failed, why, and what mends it; status is the exit
    status."""

    def __init__(self, message, status=3):
        super().__init__(message)
        self.status = status


def hold_standard_streams():
    """Streams that our caller closed become /dev/null, so that no file of ours takes their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)


def put(text):
    """Text on stderr; what it cannot take is lost, and changes no exit status."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), text.encode("utf-8", "replace"))


def line(text):
    put(f"quire: {text}\n")


def run(command, title, log):
    """Runs a command as a step with its output in the file `log`; returns its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        output = open(log, "ab")
    except OSError as problem:
        raise Stopped(
            f"cannot write {log}: {problem.strerror}; use a checkout that you may write to"
        ) from None
    with output:
        output.write(f"$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        line = progress.Line(title, log) if progress.is_live() and not _is_beside() else None
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            status = _wait(process, title, line)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return status


def _wait(process, title, line):
    """Until it has ended; `line` moves meanwhile, if there is one."""
    started = time.monotonic()
    try:
        return process.wait(timeout=QUIET_S)
    except subprocess.TimeoutExpired:
        pass
    head = f"quire: {title} ..."
    if line:
        status = _moving(process, line)
    elif _is_beside():
        status = process.wait()
    else:
        put(head)
        status, head = process.wait(), ""
    end = f"{time.monotonic() - started:.1f} s" if status == 0 else "failed"
    put(f"{head} {end}\n")
    return status


def _is_beside():
    return threading.current_thread() is not threading.main_thread()


def _moving(process, line):
    try:
        while True:
            put(f"\r\033[K{line.text()}")
            try:
                return process.wait(timeout=MOVES_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        put("\r\033[K")


def tail(log):
    """The last lines of a log, indented: why a step failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join("    " + text for text in lines[-TAIL_LINES:])


def fresh_log(root, name):
    """The path of a step's log, emptied; what stood beside it of an earlier run is gone, too."""
    log = root / "build" / "log" / f"{name}.txt"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        for path in (log, log.with_suffix(".failed")):
            path.unlink(missing_ok=True)
    except OSError as problem:
        raise Stopped(
            f"cannot write {log}: {problem.strerror}; use a checkout that you may write to"
        ) from None
    return log
