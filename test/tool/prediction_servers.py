#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
prediction_servers.py - is it true under load? What `try --load` prints of a server beside what plain runs with each malloc preloaded say.

    python3 test/tool/prediction_servers.py -o servers.json                the servers of serverkit.py that are installed, but for the sealed ones
    python3 test/tool/prediction_servers.py --sealed -o sealed.json        those: once, when all work on `try` is done
    python3 test/tool/prediction_servers.py --until 90 -o servers.json      then more rounds of those where two such measurements agree too seldom
    python3 test/tool/prediction_servers.py --document servers.json        the Markdown again, nothing is run

First `quire try --json --no-report --load LOAD`, then rounds of the server on libc's malloc and on each preload that was measured, in an order drawn anew for each, each under
the same load: CPU time a request of all its processes, as at one pace of the CPU, and latencies, by the instruments of `try` (load.py, loadwords.py, pace.py), not by its statistics.
In each round libc's malloc runs twice: the rows are held against the mean of both, and what the one saves of the other is nothing but noise, which
says how far anything real is known.
FILE is written after each server: what stands in it is not run again.
--until PERCENT adds rounds, never a `try`: until two measurements of nothing agree within the points of a hit in so many of 100 cases, or there are MOST rounds.
When to stop is so decided by libc's malloc against itself alone, not by what the rows say.
Not a test: it takes half an hour and a quiet machine.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from statistics import median

import prediction_tables as tables
import serverkit
from prediction import all_rounds, asked_of, at_one_pace, load as machine_load
from prediction_programs import settings
from toolkit import quire

import bindings  # of the tool, whose folder toolkit puts on the path
import load
import loadwords
import pace

ROUNDS, AMOUNT, MOST = 11, 1, 200
AGAIN = tables.AGAIN
DRAWS = 2000
READY_S = 30
SHARES = list(loadwords.SHARES)


def plain_run(server, preload, asked):
    """CPU seconds a request, how slow the CPUs were, and latencies in ms, of one start of the server under its load."""
    env = {**settings(server.command), **({"LD_PRELOAD": preload} if preload else {})}
    process = subprocess.Popen(server.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, start_new_session=True)
    try:
        wait_for(server.ready)
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o1777)  # the load may become another user
            before_s, paces = load.cpu_s(process.pid), asked.look()
            done = subprocess.run(server.load, shell=True, check=True, capture_output=True, text=True, env={**os.environ, loadwords.LATENCIES: folder})
            slow, used_s = asked.since(paces), load.cpu_s(process.pid) - before_s
            samples = loadwords.samples(folder)
        return used_s / loadwords.requests(done.stdout, samples), slow, loadwords.latencies(done.stdout, samples)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def wait_for(ready):
    """Until the words that `try` gets hold."""
    how, what = ready
    ask = what if how == "--ready-cmd" else f"exec 3<>/dev/tcp/127.0.0.1/{what}"
    until_s = time.monotonic() + READY_S
    while subprocess.run(["bash", "-c", ask], capture_output=True, check=False).returncode:
        if time.monotonic() > until_s:
            sys.exit(f"not ready: {what}")
        time.sleep(0.05)


def in_rounds(server, preloads, rounds):
    """What each round says of each malloc: {"times": {name: CPU seconds a request at one pace}, "clock_times": as the clock said, "latencies": {name: [{"p50": ms, ...}]}}."""
    runs = {name: lambda asked, preload=preload: plain_run(server, preload, asked) for name, preload in preloads.items()}
    found = all_rounds(runs, rounds, pace.Pace(1.0, False))
    return {**at_one_pace(found), "latencies": {name: [ms for _, _, ms in of] for name, of in found.items()}}


def measured(name, args):
    """One server, tried and run."""
    with serverkit.open_folder() as folder:
        server = serverkit.prepared(name, folder, serverkit.free_port(), args.amount)
        words = ["try", "--json", "--no-report", "-o", folder / "t.qtr", *server.ready, "--load", server.load, "--", *server.command]
        began_s = time.monotonic()
        done = quire(folder, *words)
        document, took_s = json.loads(done.stdout), time.monotonic() - began_s
        found = {"name": name, "took_s": took_s, **asked_of(document)}
        found["under_load"] = {row["name"]: row.get("under_load") for row in document["allocators"]}
        linked = document["program"]["today_allocator"]  # as Debian's redis-server with jemalloc: then libc's malloc is a preload, too, as for `try`
        found["libc"] = bindings.libc_path() if linked and linked.startswith("lib") else None
        return {**found, **in_rounds(server, preloads_of(found), args.rounds)}


def preloads_of(found):
    """{name: LD_PRELOAD or None} of what is run of a server that was tried."""
    libc = found["libc"]
    rows = {row["name"]: ":".join(filter(None, [row["library"], libc])) for row in found["rows"] if row["library"]}
    return {"libc": libc, AGAIN: libc, **rows}


def more_rounds(found, args, keep):
    """Rounds are added to those of a server and kept, as many at a time as --rounds, each such group at a pace of its own."""
    while True:
        count, agreed = len(found["times"]["libc"]), agree_percent(found["times"])
        print(f"prediction: {found['name']}, {count} rounds agree in {agreed:.0f} %", file=sys.stderr, flush=True)
        if agreed >= args.until or count >= MOST:
            return
        with serverkit.open_folder() as folder:
            server = serverkit.prepared(found["name"], folder, serverkit.free_port(), args.amount)
            for key, of in in_rounds(server, preloads_of(found), args.rounds).items():
                for name in of if key != "sensitivity" else ():
                    found[key][name] += of[name]
        keep()


def latency_rows(server):
    """The table's rows: printed, and real in brackets."""
    for name, of in server["latencies"].items():
        if name == AGAIN:
            continue
        printed = (server["under_load"].get(name) or {}).get("latency_ms", {})
        cells = [f"{printed[s]:.3g} ({median(ms[s] for ms in of):.3g})" if s in printed else "" for s in SHARES]
        yield "| " + " | ".join([server["name"], name, *cells]) + " |"


def agree_percent(times):
    """How often two measurements like this one of the same thing would agree within the points of a hit: by rounds of libc's malloc against itself, drawn again and again."""
    pairs, chance = list(zip(times["libc"], times[AGAIN])), random.Random(3)

    def again():
        drawn = [chance.choice(pairs) for _ in pairs]
        return tables.saved(*zip(*drawn))

    return 100 * sum(abs(again() - again()) <= tables.POINTS for _ in range(DRAWS)) / DRAWS


def itself_row(server):
    """What libc's malloc saves of itself, how far apart the rounds lie, and what that leaves to be known."""
    times = server["times"]
    both = ", ".join(map(tables.number, tables.halves(times["libc"], times[AGAIN])))
    scatter = [tables.number(found) for found in tables.scatter([server], ("times", "paced_times", "clock_times"))]
    return f"| {server['name']} | {tables.number(tables.saved(times['libc'], times[AGAIN]))} ({both}) | {len(times['libc'])} | {' | '.join(scatter)} | {agree_percent(times):.0f} |"


def text(run):
    """All of it as Markdown."""
    lines = ["| server | row | `try` printed, % | real, % (odd rounds, even rounds) | within 2 points or a fifth | interval holds it | the model said, % |", "|---|---|---|---|---|---|---|"]
    found = [line for server in run["servers"] for line in tables.lines(server)]
    lines += list(tables.program_rows([line for line in found if line.real is not None])) + [""] + list(tables.counts(found)) + list(tables.by_runs_text(found)) + list(tables.known_text(found))
    lines += ["", "| server | libc's malloc saves of itself, % (odd rounds, even rounds) | rounds | a round's saving scatters by, points | with stolen time left in | by the clock | two such measurements agree within 2 points, % |", "|---|---|---|---|---|---|---|"]
    lines += [itself_row(server) for server in run["servers"]]
    lines += ["", "| server | row | p50, ms: printed (real) | p99 | p99.9 |", "|---|---|---|---|---|"]
    lines += [row for server in run["servers"] for row in latency_rows(server)] + ["", "| server | verdict | seconds |", "|---|---|---|"]
    lines += [f"| {server['name']} | {server['verdict']} | {server['took_s']:.0f} |" for server in run["servers"]]
    return "\n".join(lines + ["", f"{run['date']}: {run['processors']} processors, load {run['load'][0]} at the start and {run['load'][1]} at the end."])


def main():
    """See the top."""
    parser = argparse.ArgumentParser(description="what try --load prints, beside what the servers do")
    parser.add_argument("--document", type=pathlib.Path, metavar="FILE", help="print stored results")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one of them")
    parser.add_argument("--sealed", action="store_true", help="the sealed ones, not the others")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"plain rounds ({ROUNDS})")
    parser.add_argument("--until", type=float, metavar="PERCENT", help="more rounds of what stands in FILE")
    parser.add_argument("--amount", type=int, default=AMOUNT, help=f"of load, about a second each ({AMOUNT})")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="FILE", help="results as JSON")
    args = parser.parse_args()
    if args.document:
        print(text(json.loads(args.document.read_text(encoding="utf-8"))))
        return
    if not args.output:
        parser.error("give -o FILE")
    if args.until and not args.output.exists():
        parser.error(f"--until adds to what stands in {args.output}, which is not there")
    run = {"date": str(datetime.date.today()), "processors": len(os.sched_getaffinity(0)), "load": [machine_load()] * 2, "servers": []}
    run = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else run

    def keep():
        run["load"][1] = machine_load()
        args.output.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")

    for name, server in serverkit.SERVERS.items():
        here = next((found for found in run["servers"] if found["name"] == name), None)
        if not serverkit.there(server) or (name in serverkit.SEALED) != args.sealed or (args.only and name not in args.only) or bool(here) != bool(args.until):
            continue
        print(f"prediction: {name}", file=sys.stderr, flush=True)
        if here:
            more_rounds(here, args, keep)
        else:
            run["servers"].append(measured(name, args))
            keep()
    print(text(run))


if __name__ == "__main__":
    main()
