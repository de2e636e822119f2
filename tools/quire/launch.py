# SPDX-License-Identifier: MIT
"""
launch.py - runs the user's program: alone, or under the tracer; each time with the same input.

    stdin     a file: each run reads it from the same place;  a pipe: kept in a temporary file;  a device: that;  a terminal: /dev/null
    stdout    of measured runs: /dev/zero, which takes and forgets as /dev/null does (that one some programs notice, and do less); under a load a pipe
    stderr    of measured runs: kept, shown when the program fails
    session   of measured runs: their own, without a terminal; they end when we are stopped (stops.py)
    memory    the program's own: a native helper that is gone when it runs starts it, for what we hold would count as its peak

Not here: whether the program can be traced (target.py), what the trace says (tracefile.py).
"""

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import namedtuple

import native
import oomkill
import statics
import stops
import strays
from errors import EXIT_SIGNAL_BASE, QuireError
from lazily import tempfile
from ui import note
from witness import Witness

# What a load is put on: the Program, its name, a function that tells the last of what it wrote, the Watch of its run, and strays.Strays
Started = namedtuple("Started", "program name said watch left")

# served: what a load told (load.Served), where there was one; slow: how slow the CPU was meanwhile (pace.Slow), where it was asked;
# left: {process: its name} of what went on when a hidden program had ended, and was ended then;
# passed: who did much more than the one process of which a stretch was recorded (kin.Passed)
Ran = namedtuple("Ran", "status wall_s cpu_s peak_rss_bytes stderr pid served slow left passed", defaults=(None, None, {}, None))

STDERR_KEPT_BYTES = 4096
STDOUT_KEPT_BYTES = 1 << 20  # for who waits for a line of it, behind which more may come at once
SINK = "/dev/zero"
STDIN_PATIENCE_S = 2


class Input:
    """The program's standard input, the same for every run."""

    def __init__(self):
        self.file = None
        self.offset = 0
        self.path = os.devnull
        self.origin = "empty"

    def capture(self):
        """Looks at our own standard input and keeps it if it can be read only once."""
        try:
            mode = os.fstat(0).st_mode
        except OSError:
            return self
        if stat.S_ISREG(mode) and not os.access("/proc/self/fd/0", os.R_OK):
            self._keep()  # opened by somebody who may, as by a shell of root's
        elif stat.S_ISREG(mode):
            self.path = "/proc/self/fd/0"
            self.offset = os.lseek(0, 0, os.SEEK_CUR)
            self.origin = "file"
        elif stat.S_ISCHR(mode) and not os.isatty(0):
            self.path, self.origin = "/proc/self/fd/0", "device"  # /dev/zero and its like give each run as much
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            self._keep()
        return self

    def _keep(self):
        if not select.select([0], [], [], STDIN_PATIENCE_S)[0]:
            note(
                "reading standard input to its end, so that every run gets the same (none wanted? add </dev/null)"
            )
        self.file = tempfile.TemporaryFile()
        with os.fdopen(os.dup(0), "rb") as source:
            shutil.copyfileobj(source, self.file)
        self.file.flush()
        self.path = f"/proc/self/fd/{self.file.fileno()}"
        self.origin = "pipe"

    def open(self):
        """A fresh descriptor, at the place where the program would have begun to read."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if self.offset:
            os.lseek(fd, self.offset, os.SEEK_SET)
        return fd


def exit_code(status):
    """A program's end as a shell says it: 0..255, 128+n for signal n."""
    return EXIT_SIGNAL_BASE - status if status < 0 else status


def describe(status):
    """A program's end in words."""
    if status < 0:
        try:
            return f"ended by {signal.Signals(-status).name}" + (oomkill.words() if -status == signal.SIGKILL else "")
        except ValueError:
            return f"ended by signal {-status}"
    return f"exit status {status}"


def ends(status):
    """The same as what a program does."""
    return f"{'is ' if status < 0 else 'ends with '}{describe(status)}"


def ended(status):
    """The same of what it did."""
    return f"{'was' if status < 0 else 'ended with'} {describe(status)}"


def crashed(status):
    """Ended by a signal that means a fault or a kill, not a request to stop."""
    return status < 0 and -status not in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGPIPE,
        *stops.OWN,
    )


def _drain(fd, kept):
    """Reads what a program writes, and keeps the last of it."""
    while piece := os.read(fd, 1 << 16):
        kept += piece
        if len(kept) > 2 * STDOUT_KEPT_BYTES:
            del kept[:-STDOUT_KEPT_BYTES]
    os.close(fd)


class Program:
    """A program that runs, a child of ours; as subprocess.Popen, but it also tells what was used."""

    def __init__(self, launcher, pid, began_ns):
        self.launcher = launcher
        self.pid = pid
        self.began_ns = began_ns
        self.returncode = None
        if pid != launcher.pid:
            launcher.wait()

    def poll(self):
        """How it ended; None while it runs."""
        if self.returncode is None and self._look(os.WNOHANG):
            self.wait()
        return self.returncode

    def wait(self):
        """How it ended, once it has."""
        if self.returncode is None:
            self._look(0)
            self.wall_s = (time.monotonic_ns() - self.began_ns) / 1e9
            _, status, self.usage = os.wait4(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
            if self.pid == self.launcher.pid:
                self.launcher.returncode = self.returncode
        return self.returncode

    def _look(self, options):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options)

    def attend(self, watch, is_for_us):
        """Until it has ended; signals that are `is_for_us` alone go on to it meanwhile."""
        while self.poll() is None:
            for number in watch.take():
                if is_for_us(number):
                    os.kill(self.pid, number)  # it is there: only poll() takes its end
            watch.sleep()

    def used_s(self):
        """CPU seconds of one that has ended, and of the children that it waited for."""
        return self.usage.ru_utime + self.usage.ru_stime

    def ran(self, said=""):
        """The figures of one that has ended."""
        peak_bytes = self.usage.ru_maxrss * 1024
        return Ran(self.returncode, self.wall_s, self.used_s(), peak_bytes, said, self.pid)


def _popen_launcher(command, env, streams):
    """The launcher, and what the program's process told of itself: "PID NS", an errno after it when exec failed."""
    reader, writer = os.pipe()
    # Here: also the descriptors that our caller gave us for it, as a shell's <(...); ours are closed by exec.
    kept = {"close_fds": False} if command[0] == "here" else {"pass_fds": (writer,)}
    os.set_inheritable(writer, True)
    with open(reader, "rb") as told:
        try:
            argv = [native.helper("quire-launch"), str(writer), *command]
            launcher = subprocess.Popen(argv, env=env, **kept, **streams)
        finally:
            os.close(writer)
        return launcher, [int(word) for word in told.read().split()]


def _spawn(target, env, where="here", **streams):
    """
    The program as a Program. Not Popen: its peak memory would begin with ours. `where`: in our session and process group
    ("here"), or in a "session" of its own. A launcher that a signal ended first stands for the program.
    """
    oomkill.begin()
    began_ns = time.monotonic_ns()
    loader = [f"{name}={value}" for name, value in env.items() if name.startswith("LD_")]
    rest = {name: value for name, value in env.items() if not name.startswith("LD_")}
    try:
        command = [where, *statics.launcher(target, env), *loader, "--", target.path, *target.argv]
        launcher, told = _popen_launcher(command, rest, streams)
        program = Program(launcher, *(told[:2] or (launcher.pid, began_ns)))
        if len(told) > 2:
            program.wait()
            if told[-1] < 0:
                raise statics.not_entered(target, told[-1])
            raise OSError(told[2], os.strerror(told[2]))
    except OSError as error:
        raise QuireError(f"cannot execute {target.path}", error.strerror, exit_code=126) from error
    return program


def environment(malloc_python=False, trace=None, limit_bytes=None):
    """The program's environment: ours, CPython's own allocator switched off and the tracer when asked for."""
    env = dict(os.environ)
    if malloc_python:
        env.setdefault("PYTHONMALLOC", "malloc")
    if trace:
        preload = native.helper("libquire-record.so")
        env["LD_PRELOAD"] = ":".join(
            [preload] + ([env["LD_PRELOAD"]] if env.get("LD_PRELOAD") else [])
        )
        env["QUIRE_RECORD"] = trace
        if limit_bytes:
            env["QUIRE_RECORD_LIMIT"] = str(limit_bytes)
    return env


def _last_words(errors, most=STDERR_KEPT_BYTES):
    """The end of what a program wrote to its standard error, whose place in the file is ours: it is left alone."""
    size = os.fstat(errors.fileno()).st_size
    return os.pread(errors.fileno(), most, max(0, size - most)).decode("utf-8", "replace")


@contextlib.contextmanager
def _on(cpus):
    """What is started meanwhile runs on these CPUs alone; None, or where that is forbidden: where we do."""
    ours = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a sandbox; a CPU that was taken away meanwhile
        os.sched_setaffinity(0, cpus or ours)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, ours)


def _spawn_hidden(target, source, env, errors, cpus, is_read):
    """A program in a session of its own; and what it writes to, where that is read: the end of a pipe."""
    reader, writer = os.pipe() if is_read else (None, os.open(SINK, os.O_WRONLY))
    stdin = source.open()
    streams = {"stdin": stdin, "stdout": writer, "stderr": errors}
    try:
        with _on(cpus):
            return _spawn(target, env, "session", **streams), reader
    finally:
        os.close(writer)
        os.close(stdin)


def hidden(target, source, env, load=None, cpus=None):
    """
    One run whose output nobody sees; how it ended and what it cost. load: what is done while it runs (load.py), then it is ended. cpus: where it
    may run, None for anywhere. Nothing that went to the background stays when it is over.
    """
    with tempfile.TemporaryFile() as errors, stops.Watch(stops.OWN) as watch, strays.Strays() as left:
        program = None
        try:
            with stops.held():
                program, reader = _spawn_hidden(target, source, env, errors, cpus, load is not None)
            if load:
                served = load(Started(program, target.name, _words(program, reader, errors), watch, left))
                return _ended(program, served, errors)
            program.attend(watch, lambda number: True)
        except BaseException as error:
            if program:
                stops.end_group(program, getattr(error, "number", signal.SIGTERM))
            raise
        return program.ran(_last_words(errors))._replace(left=left.staying())


def _words(program, reader, errors):
    """A function: the last of what a program wrote so far, to either stream; all of it once it has ended."""
    kept = bytearray()
    drain = threading.Thread(target=_drain, args=(reader, kept), daemon=True)
    drain.start()

    def said():
        if program.poll() is not None:
            drain.join(timeout=5)
        return kept.decode("utf-8", "replace") + _last_words(errors, STDOUT_KEPT_BYTES)

    return said


def _ended(program, served, errors):
    """A program whose load is over: it is told to end; how it does so, by our signal or with what it says of that, is no fault of its own."""
    asked = program.poll() is None
    stops.end_group(program)
    ran = program.ran(_last_words(errors))
    status = ran.status if not asked or (crashed(ran.status) and -ran.status != signal.SIGKILL) else 0
    return ran._replace(status=status, cpu_s=served.cpu_s, wall_s=served.wall_s, served=served)


def started(target, env, source=None):
    """A program in a session of its own, who may go on when we end: with our own streams; or with this input, and nobody sees its output."""
    sys.stdout.flush()
    if source:
        return _spawn_hidden(target, source, env, subprocess.DEVNULL, None, False)[0]
    return _spawn(target, env, "session")


def visible(target, env):
    """One run with our own streams, untouched; a signal that reaches us alone goes on to it."""
    sys.stdout.flush()
    with stops.Watch(stops.SIGNALS) as watch, Witness() as witness:
        program = _spawn(target, env)
        program.attend(watch, lambda number: not witness.saw(number))
    return program.ran()
