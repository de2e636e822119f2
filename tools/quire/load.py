# SPDX-License-Identifier: MIT
"""
load.py - a program that does not end by itself: it is started, put under load, and ended; what it used meanwhile is one run.

    start --ready? (port, line, command)--> load command --its end, or --duration--> SIGTERM --> the figures
                                            |<---- CPU time, wall time, requests, latency ---->|

The CPU time of a run is that of the program and its children during the load (all of it where a program ends before its --duration), for as many requests as the first run had: a load that lasts
ten seconds asks a faster server more.  How many requests there were, and how long they took, says the load (loadwords.py).
Not here: starting and ending programs (launch.py, stops.py), rounds (rounds.py).
"""

import math
import os
import signal
import subprocess
import time
from collections import namedtuple

import launch
import loadwords
import options
import stops
from errors import EnvironmentLacks, UsageError
from lazily import socket, tempfile

READY_S = 30
ENDS_S = 10  # a load has so long when the program is gone
GIVEN_UP = None
POLL_S = 0.02
SETTLE_S = 0.3  # of a program whose readiness nobody can see
TRIES = 5  # to find the same processes twice
TICKS = os.sysconf("SC_CLK_TCK")

# cpu_s: of the program during the load, for `requests` of the first run; latency_ms: {"p50": 1.2, ...}; slow: how slow the CPUs were meanwhile (pace.Slow);
# span_ns: when that was, by CLOCK_MONOTONIC; None: all of the run
Served = namedtuple("Served", "cpu_s wall_s requests latency_ms slow span_ns", defaults=(None, None))


def add_options(parser, duration=True):
    """Options of commands that can run a server. duration: `--duration` is none of the command's own."""
    parser.add_argument("--load", metavar="CMD", help="a shell command that puts the program under load; when it ends, the program is ended")
    if duration:
        parser.add_argument("--duration", type=options.seconds, metavar="TIME", help="without --load: end the program after it, as 30s or 2m")
    parser.add_argument("--ready-port", type=options.at_least(1), metavar="N", help="the load begins when port N of 127.0.0.1 takes connections")
    parser.add_argument("--ready-line", metavar="TEXT", help="the same when the program has written a line with TEXT in it")
    parser.add_argument("--ready-cmd", metavar="CMD", help="the same when this shell command succeeds")


def of(args):
    """The Load of a command's options, or None."""
    ready = [args.ready_port, args.ready_line, args.ready_cmd]
    if not args.load and args.duration is None:
        if any(r is not None for r in ready):
            raise UsageError("--ready-port, --ready-line and --ready-cmd say when a load begins", fix="add --load CMD, or --duration TIME")
        return None
    if args.load and args.duration is not None:
        raise UsageError("--load ends the program when the load ends, --duration after a time", fix="leave out one of the two")
    if sum(r is not None for r in ready) > 1:
        raise UsageError("one of --ready-port, --ready-line and --ready-cmd is enough")
    if args.ready_port is not None and not 0 < args.ready_port < 65536:
        raise UsageError("--ready-port takes a number from 1 to 65535", fix="--ready-port 8080")
    return Load(args)


def family(leader):
    """{process: seconds of its children that are gone} of a leader, of all that are of its session, or descend from it: PostgreSQL's have sessions of their own."""
    seen = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        seen[int(pid)] = (int(words[1]), int(words[3]), (int(words[13]) + int(words[14])) / TICKS)
    ours = {pid for pid, (_, session, _) in seen.items() if leader in (pid, session)}
    while more := {pid for pid, (parent, _, _) in seen.items() if parent in ours and pid not in ours}:
        ours |= more
    return {pid: seen[pid][2] for pid in ours}


def cpu_s(leader):
    """CPU seconds of a process that leads a session, and of all that came of it; of the children of any that is there also those that are gone."""
    now = family(leader)
    for _ in range(TRIES):  # who ends meanwhile would be counted twice, or not at all
        total = sum(gone_s + clock_s(pid) for pid, gone_s in now.items())
        before, now = now, family(leader)
        if now == before:
            break
    return total


def clock_s(pid):
    """CPU seconds of one process; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # its CPU clock, by the kernel's numbering
    except OSError:
        return 0.0


def _gone(run, when, fix):
    """The error for a program that is there no more."""
    others = list(run.left.there().items()) if run.program.returncode == 0 else []
    if others:
        pid, name = others[-1]
        why = f"what was started has ended, and {name} ({pid}) went on without it: it was ended now"
        return EnvironmentLacks(f"{run.name} went to the background", why, "have it stay in the foreground: `daemonize no`, `daemon off;`, -F, or what it calls that")
    said = run.said().strip().splitlines()[-1:] or ["it said nothing"]
    return EnvironmentLacks(f"{run.name} ended {when}", said[0], fix)


def _shell(command, run, patience_s=math.inf, **more):
    """
    A shell command, in a session of its own, until it ends; GIVEN_UP when that takes longer, or longer than ENDS_S from the program's end on. Nothing
    of it is left: what it put into the background does not keep us, as it would by a pipe that it holds open, and is ended with it.
    """
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": errors}
        process = None
        try:
            with stops.held():
                process = subprocess.Popen(["/bin/sh", "-c", command], env={**os.environ, **more}, start_new_session=True, **streams)
            status = _attend(process, run, time.monotonic() + patience_s)
        finally:
            if process:
                stops.end_group(process)
        return subprocess.CompletedProcess(command, status, _text(said), _text(errors))


def _attend(process, run, until_s):
    """How a command ended; GIVEN_UP if it has not by then, or ENDS_S after the program."""
    while process.poll() is None:
        if run.program.poll() is not None:
            until_s = min(until_s, time.monotonic() + ENDS_S)
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return GIVEN_UP
        run.watch.sleep(min(left_s, READY_S))
    return process.returncode


def _text(file):
    """All that was written to it."""
    file.seek(0)
    return file.read().decode("utf-8", "replace")


class Load:
    """How to drive one run. `names`: what the options said."""

    def __init__(self, args):
        self.command, self.duration_s = args.load, args.duration
        self.port, self.line, self.ask = args.ready_port, args.ready_line, args.ready_cmd
        self.requests = None  # of the first run
        self.mark = None  # who else wants to know when the load begins and ends: called then
        self.may_be_cut = self.is_cut = False  # Ctrl-C ends the time, not us; it has done so
        self.pace = None  # pace.Pace, while somebody asks the CPUs: of the load alone, not of the start and the end
        if self.port is not None and self._listens():
            raise EnvironmentLacks(
                f"port {self.port} is taken already, so nobody can see when the program listens",
                "another process serves it",
                f"ss -ltnp 'sport = :{self.port}'   (who is it?)",
            )

    def options(self):
        """The options that say the same, as words of a command line."""
        said = [("--load", self.command), ("--duration", self.duration_s and f"{self.duration_s:g}s"), ("--ready-port", self.port), ("--ready-line", self.line), ("--ready-cmd", self.ask)]
        return [word for name, value in said if value is not None for word in (name, str(value))]

    # ready?

    def _listens(self):
        with socket.socket() as probe:
            probe.settimeout(1)
            place = ("127.0.0.1", self.port)
            return probe.connect_ex(place) == 0 and probe.getsockname() != place  # not itself, by a port that the system gave it

    def _is_ready(self, run):
        if self.port is not None:
            return self._listens()
        if self.line is not None:
            return self.line in run.said()
        if self.ask is not None:
            return _shell(self.ask, run, READY_S).returncode == 0
        if self.command is not None:
            time.sleep(SETTLE_S)
        return True

    def _wait(self, run):
        until_s = time.monotonic() + READY_S
        while not self._is_ready(run):
            if run.program.poll() is not None:
                raise _gone(run, "before it was ready", "run it alone and look")
            if time.monotonic() > until_s:
                raise EnvironmentLacks(f"{run.name} was not ready within {READY_S} s", self._waited_for(), "another --ready-port, --ready-line or --ready-cmd")
            time.sleep(POLL_S)

    def _waited_for(self):
        if self.port is not None:
            return f"nothing listens on port {self.port} of 127.0.0.1"
        return f"no line with `{self.line}` came" if self.line is not None else f"`{self.ask}` did not succeed"

    # load

    def _mark(self):
        if self.mark:
            self.mark()

    def _put(self, run, folder):
        """Until the load, or the time, is over; what the load printed. Into the folder it may write how long single requests took."""
        if self.command is None:
            with stops.Watch([signal.SIGINT] if self.may_be_cut else []) as watch:
                until_s = time.monotonic() + self.duration_s
                while time.monotonic() < until_s and run.program.poll() is None and not self.is_cut:
                    time.sleep(min(POLL_S, max(0.0, until_s - time.monotonic())))
                    self.is_cut = bool(watch.take())
            return ""
        done = _shell(self.command, run, **{loadwords.LATENCIES: folder})
        if done.returncode not in (0, GIVEN_UP):
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[:1]
            why = ": ".join([launch.describe(done.returncode), *said])
            raise EnvironmentLacks(f"the load failed: {self.command}", why, "run it by hand against the program")
        return done.stdout

    def __call__(self, run):
        """One run's load, while the program of a launch.Started is there; a Served."""
        self._wait(run)
        leader = run.program.pid
        with tempfile.TemporaryDirectory(prefix="quire-") as folder:
            os.chmod(folder, 0o1777)  # the load may become another user
            before_s, began_ns = cpu_s(leader), time.monotonic_ns()
            self._mark()
            paces = self.pace.look() if self.pace else None
            said = self._put(run, folder)
            self._mark()
            ended_ns = time.monotonic_ns()
            used_s, wall_s, span_ns = cpu_s(leader) - before_s, (ended_ns - began_ns) / 1e9, (began_ns, ended_ns)
            slow = self.pace.since(paces) if self.pace else None
            if run.program.poll() is not None:
                if self.command is not None:
                    raise _gone(run, "under the load", "run both by hand and look")
                used_s, wall_s, span_ns = run.program.used_s(), run.program.wall_s, None  # it had ended by itself before its time was up: nothing of it is in /proc any more
            samples = loadwords.samples(folder)
        requests = loadwords.requests(said, samples)
        if not requests and (requests == 0 or self.requests):
            raise EnvironmentLacks(f"the load failed: {self.command}", "no request was answered", "run it by hand against the program")
        self.requests = self.requests or requests
        if requests:
            used_s *= self.requests / requests
        return Served(max(used_s, 1e-6), wall_s, requests, loadwords.latencies(said, samples), slow, span_ns)
