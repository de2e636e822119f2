# SPDX-License-Identifier: MIT
"""
cmd_bench.py - the headline tables of the systems Quire replaces, beside this machine's figures.

    round 1: [libc, mimalloc, ..., arena] x [1 caller, 8 callers]    one process each, checked
    round 2: ...                                                     interleaved: drift hits all
        -> medians and intervals, ratios within a round -> table, --json, --save, --baseline

Invariants: B1  a figure under a peer's name was measured in a process whose malloc is that peer's.
            B2  a ratio is taken between processes of one round, never between medians.
Not here: the workload (bench/query.c), statistics of intervals (bench_figures.py).
"""

import json
import os
import subprocess
import sys
import time

import bench_figures
import cmd_env
import native
import peers
from errors import EXIT_CONDITION_FALSE, EXIT_OK, EnvironmentLacks, QuireError, UsageError

HELP = "published figures of the systems Quire replaces, beside this machine's"
SCHEMA = "quire.bench/1"
TABLES = ["seeds"]
CALLERS = [1, 8]
ARENA, LIBC = "quire-arena", "libc"
QUERIES_BY_CALLERS = {
    1: 16,
    8: 5,
}  # for each caller: long enough to time, short enough for many rounds
ROUNDS_MIN = 3
PROCESS_LIMIT_S = 60

# One Way Allocator: 256 queries over 1000 charts of 100 dimensions on 24 cores, as published.
PUBLISHED = {
    "source": "published with the One Way Allocator: 256 queries, 24 cores",
    "sequential": {"malloc_s": 322.35, "one_way_s": 310.19},
    "parallel": {
        "malloc_s": 84.72, "malloc_queries_per_s": 3.02,
        "malloc_response_s": {"min": 50.20, "avg": 68.43, "max": 84.71},
        "one_way_s": 39.35, "one_way_queries_per_s": 6.51,
        "one_way_response_s": {"min": 20.55, "avg": 34.48, "max": 39.34},
    },
}  # fmt: skip


def add_arguments(parser):
    parser.add_argument(
        "table",
        nargs="?",
        default="seeds",
        metavar="TABLE",
        help="seeds (default): the arena's headline table",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="about 40 s (default)")
    length.add_argument("--full", action="store_true", help="about 4 minutes, narrower intervals")
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    parser.add_argument(
        "--save", metavar="FILE", help="also write the JSON to FILE, for a later --baseline"
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="compare with a saved run; exit 1 when the arena has become slower",
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
    result = measure(budget_s=240 if args.full else 40)
    if args.save:
        with open(args.save, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    slower = bench_figures.regressions(result, baseline) if baseline else []
    if args.json:
        print(json.dumps({**result, "regressions": slower} if baseline else result, indent=1))
    else:
        print(bench_figures.text(result, PUBLISHED))
        if baseline:
            print(bench_figures.comparison_text(result, baseline, slower))
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


def measure(budget_s):
    """Rounds until the time is used up; the result is what --json prints."""
    driver = find_driver()
    names = [LIBC, *(peer.name for peer in peers.installed()), ARENA]
    path_of = {peer.name: peer.path for peer in peers.installed()}
    refused, samples = {}, []
    load_before, began = os.getloadavg()[0], time.monotonic()
    round_s = 0.0
    while len(samples) < ROUNDS_MIN or time.monotonic() - began + round_s < budget_s:
        round_began = time.monotonic()
        samples.append(one_round(driver, [n for n in names if n not in refused], path_of, refused))
        round_s = time.monotonic() - round_began
        progress(len(samples), time.monotonic() - began, budget_s)
    progress(None, 0, 0)
    measured = [name for name in names if name not in refused]
    return {
        "schema": SCHEMA,
        "table": "seeds",
        "published": PUBLISHED,
        "machine": machine(load_before),
        "rounds": len(samples),
        "seconds": round(time.monotonic() - began, 1),
        "refused": refused,
        "rows": [
            bench_figures.row(samples, name, callers, measured)
            for callers in CALLERS
            for name in measured
        ],
    }


def one_round(driver, names, path_of, refused):
    """{(name, callers): what the driver printed}, each in a process of its own."""
    figures = {}
    for callers in CALLERS:
        for name in names:
            if name in refused:
                continue
            figure = run_driver(driver, name, path_of.get(name), callers)
            if figure["allocator"] != name:
                refused[name] = f"preloaded, but malloc was {figure['allocator']}'s"
                print(f"quire: {name} is left out: {refused[name]}", file=sys.stderr)
            figures[name, callers] = figure
    return figures


def run_driver(driver, name, library, callers):
    """What one process measured.  Nothing else may be preloaded there."""
    argv = [
        driver,
        "--json",
        "--callers",
        str(callers),
        "--rounds",
        str(QUERIES_BY_CALLERS[callers]),
    ]
    argv += ["--allocator", "arena" if name == ARENA else "malloc"]
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES")
    }
    if library:
        environment["LD_PRELOAD"] = library
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environment, timeout=PROCESS_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise QuireError(
            f"the benchmark under {name} did not end in {PROCESS_LIMIT_S} s",
            why="it should take one or two",
            fix=" ".join(argv),
        ) from None
    if done.returncode != 0:
        raise QuireError(
            f"the benchmark failed under {name} (status {done.returncode})",
            why=done.stderr.strip() or "it said nothing",
            fix=" ".join(argv),
        )
    return json.loads(done.stdout)


def find_driver():
    """bench/query of the checkout's build, or of the installation."""
    for place in native.directories():
        for candidate in (
            os.path.join(place, "..", "bench", "query"),
            os.path.join(place, "bench", "query"),
        ):
            if os.access(os.path.normpath(candidate), os.X_OK):
                return os.path.normpath(candidate)
    raise EnvironmentLacks(
        "the benchmark driver `query` is not built",
        why="looked beside the tool's helpers",
        fix="cmake --preset release && cmake --build --preset release",
    )


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


def progress(rounds, seconds, budget_s):
    """A line that rewrites itself on a terminal; nothing elsewhere but one line at the start."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        line = f"quire: {rounds} rounds, {seconds:.0f} of about {budget_s:.0f} s" if rounds else ""
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif rounds == 1:
        print(f"quire: measuring, about {budget_s:.0f} s", file=sys.stderr, flush=True)
