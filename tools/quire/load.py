# SPDX-License-Identifier: MIT
"""
load.py - a program that does not end by itself: it is started, put under load, and ended; what it used meanwhile is one run.

    start --ready? (port, line, command)--> load command --its end, or --duration--> SIGTERM --> the figures
                                            |<---- CPU time, wall time, requests, latency ---->|

The CPU time of a run is that of the program and its children during the load, for as many requests as the first run had: a load that lasts
ten seconds asks a faster server more.  How many requests there were, and how long they took, says the load's own output, where it is that of a
known tool.
Not here: starting and ending programs (launch.py, stops.py), rounds (rounds.py).
"""

import os
import re
import socket
import subprocess
import time
from collections import namedtuple

import options
from errors import EnvironmentLacks, UsageError

READY_S = 30
POLL_S = 0.02
SETTLE_S = 0.3  # of a program whose readiness nobody can see

# cpu_s: of the program during the load, for `requests` of the first run; latency_ms: {"p50": 1.2, ...}
Served = namedtuple("Served", "cpu_s wall_s requests latency_ms")

COUNTS = [
    r"(\d+) requests in ",  # wrk
    r"Complete requests:\s+(\d+)",  # ab
    r"transactions actually processed: (\d+)",  # pgbench
    r"requests: (\d+) total",  # h2load
    r"^\s*(\d+) requests completed in ",  # redis-benchmark, for each of its tests
    r"^requests: (\d+)$",  # a load of the user's own
]
SUMMARY = r"^\s+(avg\s+min\s+p50\s.*)$\n^\s+([\d. ]+)$"  # redis-benchmark: names, and milliseconds below them
MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0}
LATENCIES = [
    r"^\s+(50|99|99\.9)\d*%\s+([\d.]+)(us|ms|s)?\s*$",  # wrk --latency, ab
    r"^latency p(50|99|99\.9): ([\d.]+) ?(us|ms|s)$",  # a load of the user's own
]


def add_options(parser, duration=True):
    """Options of commands that can run a server. duration: `--duration` is none of the command's own."""
    parser.add_argument("--load", metavar="CMD", help="a shell command that puts the program under load; when it ends, the program is ended")
    if duration:
        parser.add_argument("--duration", type=options.seconds, metavar="TIME", help="without --load: end the program after it, as 30s or 2m")
    parser.add_argument("--ready-port", type=int, metavar="N", help="the load begins when port N of 127.0.0.1 takes connections")
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
        raise UsageError("--ready-port takes a number from 1 to 65535")
    return Load(args)


def cpu_s(session):
    """CPU seconds of all processes of a session that are there."""
    total = 0.0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(pid)) == session:
                total += time.clock_gettime((~int(pid) << 3) | 2)  # its CPU clock, by the kernel's numbering
        except OSError:
            continue
    return total


class Load:
    """How to drive one run. `names`: what the options said."""

    def __init__(self, args):
        self.command, self.duration_s = args.load, args.duration
        self.port, self.line, self.ask = args.ready_port, args.ready_line, args.ready_cmd
        self.requests = None  # of the first run
        if self.port is not None and self._listens():
            raise EnvironmentLacks(
                f"port {self.port} is taken already, so nobody can see when the program listens",
                "another process serves it",
                f"ss -ltnp 'sport = :{self.port}'   (who is it?)",
            )

    # ready?

    def _listens(self):
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _is_ready(self, output):
        if self.port is not None:
            return self._listens()
        if self.line is not None:
            return self.line in output()
        if self.ask is not None:
            return self._shell(self.ask, READY_S).returncode == 0
        time.sleep(SETTLE_S)
        return True

    def _wait(self, program, name, output):
        until_s = time.monotonic() + READY_S
        while not self._is_ready(output):
            if program.poll() is not None:
                said = output().strip().splitlines()[-1:] or ["it said nothing"]
                raise EnvironmentLacks(f"{name} ended before it was ready", said[0], "run it alone and look")
            if time.monotonic() > until_s:
                raise EnvironmentLacks(f"{name} was not ready within {READY_S} s", self._waited_for(), "another --ready-port, --ready-line or --ready-cmd")
            time.sleep(POLL_S)

    def _waited_for(self):
        if self.port is not None:
            return f"nothing listens on port {self.port} of 127.0.0.1"
        return f"no line with `{self.line}` came" if self.line is not None else f"`{self.ask}` did not succeed"

    # load

    @staticmethod
    def _shell(command, timeout_s=None):
        try:
            return subprocess.run(
                ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "")

    def _put(self, program):
        """Until the load, or the time, is over; what the load printed."""
        if self.command is None:
            until_s = time.monotonic() + self.duration_s
            while time.monotonic() < until_s and program.poll() is None:
                time.sleep(min(POLL_S, max(0.0, until_s - time.monotonic())))
            return ""
        done = self._shell(self.command)
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[:1] or [f"exit status {done.returncode}"]
            raise EnvironmentLacks(f"the load failed: {self.command}", said[0], "run it by hand against the program")
        return done.stdout

    def __call__(self, program, name, output):
        """One run's load, while the program is there; a Served."""
        self._wait(program, name, output)
        before_s, began_s = cpu_s(program.pid), time.monotonic()
        said = self._put(program)
        wall_s = time.monotonic() - began_s
        if program.poll() is not None and self.command is not None:
            raise EnvironmentLacks(f"{name} ended under the load", (output().strip().splitlines() or ["it said nothing"])[-1], "run both by hand and look")
        used_s = cpu_s(program.pid) - before_s
        requests = counted(said)
        self.requests = self.requests or requests
        if requests:
            used_s *= self.requests / requests
        return Served(max(used_s, 1e-6), wall_s, requests, latencies(said))


def counted(text):
    """How many requests a load says there were, all its tests together, or None."""
    found = [re.findall(pattern, text, re.MULTILINE) for pattern in COUNTS]
    return next((sum(map(int, numbers)) for numbers in found if numbers), None)


def latencies(text):
    """{"p50": milliseconds, ...} as far as a load says; of several tests the slowest."""
    found = [(f"p{share}", float(value) * MS[unit]) for p in LATENCIES for share, value, unit in re.findall(p, text, re.MULTILINE)]
    for names, values in re.findall(SUMMARY, text, re.MULTILINE):
        found += [(n, float(v)) for n, v in zip(names.split(), values.split()) if n in ("p50", "p99")]
    return {name: max(value for n, value in found if n == name) for name in dict.fromkeys(n for n, _ in found)}
