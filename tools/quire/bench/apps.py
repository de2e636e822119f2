# SPDX-License-Identifier: MIT
"""
apps.py - `quire bench apps`: real programs under each malloc, their CPU time and peak memory.

    round: lines x [libc, mimalloc, ..., libquire-malloc]: bench/timed --preload LIB -- PROGRAM
           redis-server the same way, asked by redis-benchmark under libc

Invariants: B1  before the first round the loader is asked whose malloc each program gets with each library; who does not serve it is left out of that line.
Not here: what the programs are given (bench/apps_inputs.py), ratios (bench/mallocs.py), asking the loader (bindings.py).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import namedtuple

import bench.apps_inputs as bench_apps_inputs
import bench.mallocs as bench_mallocs
import bench.run as bench_run
import bindings
import elf
import ui
from bench.limit import OutOfTime
from bench.mallocs import OURS
from bench.run import LIBC
from errors import EnvironmentLacks, QuireError

# `package`: what apt-get installs it with; `environment`: on top of ours.
App = namedtuple("App", "program package arguments environment", defaults=({},))

APPS = {
    "python objects": App("python3", "python3", ["objects.py"]),
    "python json": App("python3", "python3", ["json.in.py", "in.json"]),
    "python malloc": App("python3", "python3", ["json.in.py", "in.json"], {"PYTHONMALLOC": "malloc"}),
    "sqlite3": App("sqlite3", "sqlite3", [":memory:", ".read rows.sql"]),
    "redis": App("redis-server", "redis-server redis-tools", []),
    "jq": App("jq", "jq", ["-f", "groups.jq", "in.json"]),
    "gcc": App("gcc", "gcc", ["-O2", "-c", "in.c", "-o", "in.o"]),
    "g++": App("g++", "g++", ["-O1", "-std=c++17", "-c", "in.cc", "-o", "in.oo"]),
    "git gc": App("git", "git", ["-C", "fresh", "-c", "pack.threads=2", "gc", "-q"]),
    "lua": App("lua5.4", "lua5.4", ["trees.lua"]),
    "perl": App("perl", "perl", ["words.pl"]),
    "ruby": App("ruby", "ruby", ["trees.rb"]),
}  # fmt: skip
REDIS_ASKS = ["-c", "20", "-P", "8", "-r", "50000", "-d", "120", "-q"]
REDIS_ASKS += ["-t", "set,get,lpush,lrange_100,hset,sadd,incr"]
REDIS_PATIENCE_S, REDIS_ASKED_S = 10, 60
BARS = {"rss": 1.05}


def measure(cast, budget_s, full, only=None):
    """What --json has of this table."""
    timed = bench_run.find_driver("timed")
    present, missing = sort_out(only)
    if not present:
        raise EnvironmentLacks(
            "none of the programs is here", fix=f"apt-get install -y {' '.join(missing)}"
        )
    if missing:
        ui.note(f"left out; to have them: apt-get install -y {' '.join(missing)}")
    libc = bindings.libc_path()
    with tempfile.TemporaryDirectory(prefix="quire-apps-") as folder:
        bench_apps_inputs.write(folder, quick=not full)
        if "git gc" in present:
            bench_apps_inputs.repository(folder, quick=not full, check=cast.limit.check)
        served = {n: [w for w in cast.names() if serves(cast, n, w, libc)] for n in present}
        cast.limit.plan(budget_s)
        samples = bench_run.rounds_or_part(
            lambda: one_round(cast, timed, folder, turned(served)), budget_s, "programs", cast.limit
        )
    names = cast.names()
    left_out = [n for n, mine in served.items() if not all((n, name) in samples[0] for name in mine)]
    table = bench_mallocs.rows(samples, [n for n in present if n not in left_out], names)
    return {
        "rounds": len(samples),
        "whole": only is None and not left_out,
        "rows": table,
        "means": bench_mallocs.means(table, present),
        "missing_packages": missing,
        "not_measured": left_out,
        "not_serving": {
            n: [w for w in names if w not in served[n]]
            for n in present
            if len(served[n]) < len(names)
        },
    }


def lines():
    """Names of all lines."""
    return list(APPS)


def turned(served):
    """The same, each line beginning with another allocator than last time: who comes first meets a cold file cache."""
    for names in served.values():
        names.append(names.pop(0))
    return served


def sort_out(only):
    """Lines that can run here, and the packages of those that cannot."""
    chosen = {n: a for n, a in APPS.items() if not only or n in only}
    present = [n for n, a in chosen.items() if all(map(shutil.which, programs(a)))]
    lacking = [a.package for n, a in chosen.items() if n not in present]
    return present, list(dict.fromkeys(" ".join(lacking).split()))


def programs(app):
    """The programs a line needs."""
    return (
        [app.program, "redis-benchmark", "redis-cli"]
        if app.program == "redis-server"
        else [app.program]
    )


def binary(name):
    """The first file of that name on PATH that is no script: of a version manager's shim, the shells that it starts would be measured."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = [path for folder in folders if (path := shutil.which(name, path=folder))]
    return next((path for path in found if elf.read(path)), found[0] if found else name)


def library_of(cast, name, libc):
    """What is preloaded.  libc too: Debian's redis-server is linked with jemalloc, and who is loaded first serves it."""
    return libc if name == LIBC else cast.path_of[name]


def serves(cast, line, name, libc):
    """B1, by the loader's own account."""
    cast.limit.check()
    library = library_of(cast, name, libc)
    owner = bindings.malloc_owner(binary(APPS[line].program), library)
    return owner is not None and os.path.realpath(owner) == os.path.realpath(library)


def one_round(cast, timed, folder, served):
    """{(line, allocator): figure}."""
    return bench_run.collect(
        ((line, name), lambda: one_figure(cast, timed, folder, (line, name)))
        for line, names in served.items()
        for name in names
    )


def one_figure(cast, timed, folder, key):
    """One program under one allocator."""
    line, name = key
    cast.limit.check()
    if line == "git gc":
        bench_apps_inputs.fresh_repository(folder)
    preload = library_of(cast, name, bindings.libc_path())
    command = [timed, "--preload", preload, "--out", f"{folder}/figures"]
    process = start(command, APPS[line], folder, environment(cast, name, APPS[line]))
    try:
        if line == "redis":
            ask_redis(process, folder, cast.limit)
        waited(process, cast.limit, line)
    finally:
        end(process)
    return read(folder, line, name)


def read(folder, line, name):
    """What `timed` said of the program."""
    with open(f"{folder}/figures", encoding="ascii") as file:
        figure = json.load(file)
    if figure["status"] != 0:
        raise QuireError(
            f"{line} failed under {name} (status {figure['status']})",
            why="it runs under libc" if name != LIBC else "it fails under libc too",
            fix=(
                f"quire check -- {APPS[line].program}"
                if name == OURS
                else f"{APPS[line].program} --version"
            ),
        )
    return figure


def environment(cast, name, app):
    """The allocator's, without the library: that is for the program alone, not for `timed`."""
    env = {**cast.environment(name), **app.environment}
    env.pop("LD_PRELOAD", None)
    return env


def start(command, app, folder, env):
    """One run; its output goes nowhere. A session of its own: one kill reaches all its processes."""
    words = redis_words(folder) if app.program == "redis-server" else app.arguments
    return subprocess.Popen(
        [*command, "--", binary(app.program), *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def waited(process, limit, line):
    """Until it has ended by itself."""
    try:
        status = process.wait(None if limit.seconds is None else max(limit.left_s(), 0))
    except subprocess.TimeoutExpired:
        raise OutOfTime() from None
    if status != 0:
        raise QuireError(f"{line} could not be started", why=f"bench/timed ended with status {status}")


def end(process):
    """Nothing of it is left, whyever we go on."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def redis_words(folder):
    """A server that keeps nothing and listens on a socket of its own."""
    return ["--port", "0", "--unixsocket", f"{folder}/redis.socket", "--save", "", "--dir", folder]


def ask_redis(server, folder, limit):
    """A client under libc asks it, then tells it to end."""
    socket = f"{folder}/redis.socket"
    wait_for(socket, server)
    asked = ["-n", bench_apps_inputs.redis_requests(folder), *REDIS_ASKS]
    client(["redis-benchmark", "-s", socket, *asked], REDIS_ASKED_S, limit)
    client(["redis-cli", "-s", socket, "shutdown", "nosave"], REDIS_PATIENCE_S, limit)


def client(argv, patience_s, limit):
    """One run of a client."""
    left_s = limit.left_s()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
    try:
        subprocess.run(argv, timeout=max(min(patience_s, left_s), 0), **quiet)
    except subprocess.TimeoutExpired:
        if left_s < patience_s:
            raise OutOfTime() from None
        raise QuireError(f"{argv[0]} did not end in {patience_s} s", why="redis-server did not answer") from None


def wait_for(socket, server):
    """Until redis answers."""
    until = time.monotonic() + REDIS_PATIENCE_S
    while (
        not os.path.exists(socket)
        or subprocess.run(["redis-cli", "-s", socket, "ping"], capture_output=True).stdout.strip()
        != b"PONG"
    ):
        if time.monotonic() > until or server.poll() is not None:
            raise QuireError("redis-server did not answer", why="it ended, or took over 10 s")
        time.sleep(0.02)


def text(table, names):
    """The table for people."""
    parts = [
        bench_mallocs.text(
            table["rows"],
            names,
            "Programs: CPU time and peak memory, times libc's",
            table["rounds"],
        )
        + "\n"
        + bench_mallocs.means_text("geometric mean", table["means"], names)
    ]
    for line, others in table["not_serving"].items():
        parts.append(f"{line}: not served by {', '.join(others)}, so not measured there")
    if table["missing_packages"]:
        parts.append(f"left out: apt-get install -y {' '.join(table['missing_packages'])}")
    parts += verdict(table)
    return "\n\n".join(parts)


def verdict(table):
    """Whether the drop-in holds its bars, when all was measured."""
    mine, best = table["means"].get(OURS), bench_mallocs.best_peer(table["means"])
    if not mine or not table["whole"]:
        return []  # the bars are for all programs together
    said = f"The drop-in's peak memory is {mine['rss']:.2f} of libc's (bar: {BARS['rss']})"
    if best:
        said += f", its CPU time {mine['cpu']:.3f}; the best peer's, {best}'s, {table['means'][best]['cpu']:.3f}"
    return [said]


def regressions(result, baseline):
    """[sentence] of ours that became worse."""
    return bench_mallocs.regressions(result["apps"]["rows"], baseline["apps"]["rows"], "apps")
