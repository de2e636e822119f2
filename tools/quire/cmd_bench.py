# SPDX-License-Identifier: MIT
"""
cmd_bench.py - the headline tables of the systems Quire replaces, beside this machine's figures.

    the arena's table     (bench_arena.py)   ┐
    the slab's tables     (bench_slab.py)    ├ each in interleaved rounds of processes (bench_run.py)
    the per-CPU tables    (bench_percpu.py)  ┘
        -> medians and intervals, ratios within a round -> text, --json, --save, --baseline

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
            B2  a ratio is taken between processes of one round, never between medians.
Not here: the workloads (bench/*.c), statistics of intervals (bench_figures.py).
"""

import json
import os
import time

import bench_arena
import bench_percpu
import bench_percpu_text
import bench_run
import bench_slab
import bench_slab_text
import cmd_env
import peers
from errors import EXIT_CONDITION_FALSE, EXIT_OK, UsageError

HELP = "published figures of the systems Quire replaces, beside this machine's"
SCHEMA = "quire.bench/1"
TABLES = ["seeds"]
QUICK_S, FULL_S = 60, 420
ARENA_PART, SLAB_PART, PERCPU_PART = 0.25, 0.4, 0.35  # of the time


def add_arguments(parser):
    parser.add_argument(
        "table",
        nargs="?",
        default="seeds",
        metavar="TABLE",
        help="seeds (default): the headline tables of arena, slab and per-CPU",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="about a minute (default)")
    length.add_argument("--full", action="store_true", help="about 7 minutes, narrower intervals")
    parser.add_argument("--json", action="store_true", help="JSON instead of the tables")
    parser.add_argument(
        "--save", metavar="FILE", help="also write the JSON to FILE, for a later --baseline"
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="compare with a saved run; exit 1 when one of ours has become slower",
    )
    parser.add_argument("-f", "--force", action="store_true", help="let --save overwrite")


def run(args):
    if args.table not in TABLES:
        raise UsageError(
            f"quire bench: there is no table `{args.table}`",
            why=f"there are: {', '.join(TABLES)}",
            fix="quire bench --help",
        )
    if args.save and os.path.exists(args.save) and not args.force:
        raise UsageError(
            f"{args.save} exists",
            why="nothing is overwritten unasked",
            fix=f"quire bench --save {args.save} -f",
        )
    baseline = load_baseline(args.baseline) if args.baseline else None
    result = measure(budget_s=FULL_S if args.full else QUICK_S, full=args.full)
    if args.save:
        with open(args.save, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    slower = regressions(result, baseline) if baseline else []
    if args.json:
        print(json.dumps({**result, "regressions": slower} if baseline else result, indent=1))
    else:
        print(text(result))
        if baseline:
            print(comparison_text(result, baseline, slower))
    return EXIT_CONDITION_FALSE if slower else EXIT_OK


def load_baseline(path):
    """A run that --save wrote."""
    try:
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"cannot read the baseline {path}", why=str(problem), fix=f"quire bench --save {path}"
        ) from None
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
        raise UsageError(
            f"{path} is no saved benchmark",
            why=f"its schema is not {SCHEMA}",
            fix=f"quire bench --save {path} -f",
        )
    return saved


def measure(budget_s, full):
    """All tables; the result is what --json prints.  The arena's stand at its top level."""
    for driver in ("query", "slab", "percpu"):
        bench_run.find_driver(driver)  # before a minute is spent
    cast = bench_run.Cast(peers.installed())
    load_before, began = os.getloadavg()[0], time.monotonic()
    arena = bench_arena.measure(cast, budget_s * ARENA_PART)
    slab = bench_slab.measure(cast, budget_s * SLAB_PART, full)
    percpu = bench_percpu.measure(cast, budget_s * PERCPU_PART, full)
    return {
        "schema": SCHEMA,
        "table": "seeds",
        "published": bench_arena.PUBLISHED,
        "machine": machine(load_before),
        "rounds": arena["rounds"],
        "seconds": round(time.monotonic() - began, 1),
        "refused": cast.refused,
        "rows": arena["rows"],
        "array_allocator": slab,
        "percpu": percpu,
    }


def machine(load_before):
    """What a figure depends on, for the reader of the table and of a saved run."""
    facts = {key: value for key, _, value in cmd_env.facts()}
    wanted = (
        "system",
        "kernel",
        "libc",
        "cpu_model",
        "cpus_usable",
        "os_page_bytes",
        "thp_enabled",
    )
    return {**{key: facts[key] for key in wanted}, "load_average_before": round(load_before, 2)}


def text(result):
    """Everything, for people."""
    m = result["machine"]
    lines = [
        f"{m['cpu_model']}, {m['cpus_usable']} CPUs, {m['kernel']}, {m['libc']}, load"
        f" {m['load_average_before']} before; {result['seconds']:.0f} s"
    ] + [f"left out: {name}: {why}" for name, why in result["refused"].items()]
    parts = [
        bench_arena.text(result),
        bench_slab_text.text(result["array_allocator"]),
        bench_percpu_text.text(result["percpu"]),
    ]
    return "\n\n".join(["\n".join(lines), *parts])


def regressions(result, baseline):
    """[sentence]: what lies wholly on the worse side of the baseline's intervals."""
    return [
        sentence
        for part in (bench_arena, bench_slab, bench_percpu)
        for sentence in part.regressions(result, baseline)
    ]


def comparison_text(result, baseline, slower):
    """The lines below the tables when there is a baseline."""
    where = baseline["machine"]
    lines = [
        f"baseline: {where['cpu_model']}, {where['cpus_usable']} CPUs, {baseline['rounds']} rounds"
    ]
    if where["cpu_model"] != result["machine"]["cpu_model"]:
        lines.append("          another machine: only the ratios compare")
    for part, name in (("array_allocator", "slab"), ("percpu", "per-CPU allocator")):
        if part not in baseline:
            lines.append(f"          it is from before there was a {name}: that is not compared")
    return "\n".join(
        lines + ([f"SLOWER    {line}" for line in slower] or ["no slower than the baseline"])
    )
