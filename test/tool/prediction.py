#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
prediction.py - is it true? What `try` prints beside what plain runs of the same program say.

    python3 test/tool/prediction.py --programs -o open.json              the open programs of prediction_programs.py
    python3 test/tool/prediction.py --programs --sealed -o sealed.json   the others: once, at the very end
    python3 test/tool/prediction.py --programs --third -o third.json     the third of each section: once
    python3 test/tool/prediction.py --programs --fourth -o fourth.json   the fourth: once
    python3 test/tool/prediction.py --pairs FOLDER -o pairs.json         programs changed as advised (prediction_pairs.py)
    python3 test/tool/prediction.py --mallocs --rounds 7                 the programs on each malloc, without `try`: CPU time over libc's
    python3 test/tool/prediction.py --document open.json sealed.json     the Markdown again, nothing is run

First `quire try --json --no-report`, then rounds of the program on libc's malloc and on each preload, in an order drawn anew for each (a run
is faster or slower by what ran before it); CPU time of the program and its children, as at one pace of the CPU (pace.py: by the instrument of `try`, not by its statistics).
FILE is written after each program: what stands in it is not run again.
Not a test: it takes minutes and a quiet machine.  Not here: judging and tables (prediction_tables.py).
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
from statistics import median

import prediction_programs as programs
import prediction_tables as tables
from prediction_pairs import made
from toolkit import BUILD, TOOL

import pace  # of the tool, whose folder toolkit puts on the path
import peers

ROUNDS = 21
MODELLED_ROW, CARRIED_OUT_ROW, FREES_LEFT_OUT_ROW = "mix", "steered", "steered, frees left out"


def cpu_s(command, source=None, prepare=None, preload=None, stdout=None, cpus=None):
    """CPU seconds of one run and its children; the program must succeed. cpus: where it may run."""
    if prepare:
        subprocess.run(["/bin/sh", "-c", prepare], check=True)
    env = {**programs.settings(command), **({"LD_PRELOAD": preload} if preload else {})}
    ours = os.sched_getaffinity(0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(source or os.devnull, "rb") as stdin:
        os.sched_setaffinity(0, cpus or ours)  # no function between fork and exec: the child of Python's fork would be charged with it
        try:
            process = subprocess.Popen(command, stdin=stdin, stdout=stdout or subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        finally:
            os.sched_setaffinity(0, ours)
        process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def all_rounds(runs, rounds, asked):
    """{name: what each round's run said} of the runs {name: function of the Pace}: (seconds, how slow the CPUs were, what else it tells ...)."""
    names, found, chance = list(runs), {name: [] for name in runs}, random.Random(2)
    with asked:
        for _ in range(rounds):
            chance.shuffle(names)
            for name in names:
                found[name].append(runs[name](asked))
    return found


def at_one_pace(found):
    """name -> CPU seconds of each round at one pace, of what all_rounds() found; the same with what the host stole left in; and as the clock said."""
    evened = pace.Evened([[run[:2] for run in of] for of in found.values()])
    unaware = {name: [(run[0], run[1] and run[1]._replace(stretch=None)) for run in of] for name, of in found.items()}
    paced = pace.Evened(list(unaware.values()))
    return {
        "paced_times": {name: [paced.time(*run) for run in of] for name, of in unaware.items()},
        "times": {name: [evened.time(*run[:2]) for run in of] for name, of in found.items()},
        "clock_times": {name: [run[0] for run in of] for name, of in found.items()},
        "sensitivity": evened.sensitivity,
    }


def in_rounds(runs, rounds, is_serial):
    """The same of the runs {name: function of the CPUs that gives CPU seconds}."""

    def timed(run):
        def of(asked):
            before = asked.look()
            return run(asked.cpus), asked.since(before)

        return of

    return at_one_pace(all_rounds({name: timed(run) for name, run in runs.items()}, rounds, pace.Pace(0.1, is_serial)))


def tried(command, source=None, prepare=None, time_limit_s=None):
    """What `try` prints as JSON; None and its last words where it refuses."""
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD)}
    with tempfile.TemporaryDirectory() as traces, open(source or os.devnull, "rb") as stdin:
        words = [sys.executable, str(TOOL), "try", "--json", "--no-report", "-o", f"{traces}/t.qtr"]
        words += ["--time-limit", str(time_limit_s)] if time_limit_s else []
        words += ["--prepare", prepare] if prepare else []
        done = subprocess.run([*words, "--", *command], stdin=stdin, capture_output=True, text=True, env=env, check=False)
    if not done.stdout:
        return None, " ".join(done.stderr.strip().splitlines()[-2:])
    return json.loads(done.stdout), ""


def rows_of(document):
    """Rows of a `try` with a saving: as they are stored; and sentences about those without one."""
    rows, left_out = [], []
    for row in document.get("allocators", []):
        if row["name"] in ("libc", "today"):
            continue
        if "saving_percent" not in row:
            left_out.append(f"{row['name']} left out: {row['error']}")
            continue
        modelled = row.get("modelled_saving_percent")
        library = row.get("library") if row["measured"] and row["name"] != CARRIED_OUT_ROW else None
        stored = {"name": row["name"], "library": library, "measured": row["measured"], "printed": row["saving_percent"]}
        by_runs = row.get("saving_by_runs_percent") or row["saving_percent"]
        rows.append({**stored, "rounds": row.get("rounds", 0), "modelled": modelled and modelled["value"], "by_runs": by_runs["value"]})
    without = (document.get("steered") or {}).get("saving_without_frees_percent")
    if without:
        rows.append({"name": FREES_LEFT_OUT_ROW, "library": None, "measured": True, "printed": without, "rounds": 0, "modelled": None})
    return rows, left_out


def asked(command, source, prepare, args):
    """The stored beginning of a program: what `try` says."""
    document, refused = tried(command, source, prepare, args.time_limit)
    if not document:
        return {"rows": [], "left_out": [f"`try` refuses: {refused}"], "verdict": None, "shares": {}, "serial": False}
    is_serial = document["trace"]["threads"] == 1 and document["program"]["cpu_s"] <= pace.AT_ONCE * document["program"]["wall_s"]
    return {**asked_of(document), "serial": is_serial}


def asked_of(document):
    """The same of what it says as JSON."""
    rows, left_out = rows_of(document)
    if not rows and not left_out:
        left_out = [f"no rows: {document['verdict']['reason']}"]
    shares = {how: (document.get(f"allocation_share_{how}_percent") or {}).get("value") for how in ("sampled", "modelled")}
    return {"rows": rows, "left_out": left_out, "verdict": document["verdict"]["word"], "shares": shares}


def program_measured(program, args):
    """One program, tried and run."""
    command, source, prepare = programs.ready(program, programs.FOLDER)
    found = {"name": programs.name_of(program), "command": command, **asked(command, source, prepare, args)}
    stdout = {"pipe": subprocess.PIPE, "null": subprocess.DEVNULL}[args.stdout]
    preloads = {"libc": None, **{r["name"]: r["library"] for r in found["rows"] if r["library"]}}
    runs = {name: lambda cpus, library=library: cpu_s(command, source, prepare, library, stdout, cpus) for name, library in preloads.items()}
    try:
        return {**found, **in_rounds(runs, args.rounds, found.get("serial", False))}
    except subprocess.CalledProcessError as error:
        return {**found, "times": {}, "left_out": found["left_out"] + [f"a plain run failed: {error}"]}


def pair_measured(pair, args):
    """One program, tried; and run beside the one that was changed."""
    before, after = pair.before + pair.arguments, pair.after + pair.arguments
    found = {"name": pair.name, **asked(before, pair.source, None, args)}
    found["rows"] = [r for r in found["rows"] if r["name"] in (MODELLED_ROW, CARRIED_OUT_ROW, FREES_LEFT_OUT_ROW)]
    runs = {n: lambda cpus, command=command: cpu_s(command, pair.source, cpus=cpus) for n, command in (("libc", before), ("changed", after))}
    return {**found, **in_rounds(runs, args.rounds, found.get("serial", False))}


def mallocs(args):
    """A line for each program, open and sealed: CPU time over libc's on each malloc; and the geometric means."""
    libraries = {"libc": None, **{peer.name: peer.path for peer in peers.with_drop_in()}}
    logs = {name: [] for name in libraries}
    for program in programs.PROGRAMS:
        if args.only and programs.name_of(program) not in args.only:
            continue
        command, source, prepare = programs.ready(program, programs.FOLDER)
        runs = {name: lambda cpus, library=library: cpu_s(command, source, prepare, library, None, cpus) for name, library in libraries.items()}
        times = in_rounds(runs, args.rounds, True)["times"]
        over = {name: median(b / a for a, b in zip(times["libc"], times[name])) for name in libraries}
        print(f"{programs.name_of(program):16}", *(f"{name} {ratio:.3f}" for name, ratio in over.items() if name != "libc"), flush=True)
        for name, ratio in over.items():
            logs[name].append(math.log(ratio))
    print(f"{'geometric mean':16}", *(f"{name} {math.exp(sum(found) / len(found)):.3f}" for name, found in logs.items() if name != "libc"))


def load():
    """The machine's load of the last minute."""
    return round(os.getloadavg()[0], 2)


def begun(args):
    """The stored run: as it stands in FILE, or a new one."""
    if args.output.exists():
        return json.loads(args.output.read_text(encoding="utf-8"))
    new = {"schema": "quire.prediction/1", "date": str(datetime.date.today()), "rounds": args.rounds, "stdout": args.stdout}
    return {**new, "time_limit_s": args.time_limit, "processors": len(os.sched_getaffinity(0)), "load": [load(), load()]}


def carry_out(key, subjects, measured, args):
    """Each that does not stand in FILE yet, one by one."""
    run = begun(args)
    there = run.setdefault(key, [])
    for name, subject in subjects:
        if any(p["name"] == name for p in there):
            continue
        print(f"prediction: {name}", file=sys.stderr, flush=True)
        there.append(measured(subject, args))
        run["load"][1] = load()
        args.output.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    print(tables.text([run]))


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description="what try prints, beside what the program does")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--programs", action="store_true", help="the open programs chosen by rule")
    what.add_argument("--pairs", metavar="FOLDER", help="where changed programs are, or will be built")
    what.add_argument("--mallocs", action="store_true", help="open and sealed programs on each malloc, without try")
    what.add_argument("--document", nargs="+", type=pathlib.Path, metavar="FILE", help="print stored results")
    parser.add_argument("--sealed", dest="set", action="store_const", const="sealed", default="open", help="with --programs: the sealed ones instead")
    for name in ("third", "fourth"):
        parser.add_argument(f"--{name}", dest="set", action="store_const", const=name, help=f"with --programs: the {name} of each section")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="plain rounds (21)")
    parser.add_argument("--time-limit", type=float, metavar="S", help="of each try (its own choice)")
    parser.add_argument("--stdout", choices=("null", "pipe"), default="null", help="where plain runs of --programs write (null)")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="FILE", help="results as JSON")
    args = parser.parse_args()
    if not args.document and not args.mallocs and not args.output:
        parser.error("give -o FILE")
    return args


def main():
    """See the top."""
    args = arguments()
    if args.document:
        print(tables.text([json.loads(path.read_text(encoding="utf-8")) for path in args.document]))
    elif args.mallocs:
        mallocs(args)
    elif args.pairs:
        pairs = [(pair.name, pair) for pair in made(args.pairs, args.only or ())]
        carry_out("pairs", pairs, pair_measured, args)
    else:
        named = [(programs.name_of(p), p) for p in programs.SETS[args.set]]
        carry_out("programs", [(n, p) for n, p in named if not args.only or n in args.only], program_measured, args)


if __name__ == "__main__":
    main()
